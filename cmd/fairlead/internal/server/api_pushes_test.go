package server

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// TestPushWork: what one change cost is told for that change.
func TestPushWork(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": plaintextMesh})
	cfg := config(t, dir)
	cfg.PlaintextAddress = "127.0.0.1:0"
	r := start(t, cfg)
	conn, err := grpc.NewClient(r.plaintext.listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := open(t, conn, "10.1.2.3", "cart").Recv(); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "b.yaml"), `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: paid, namespace: shop}
spec: {hosts: [paid.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, location: MESH_EXTERNAL, endpoints: [{address: 10.9.9.9}]}
`)
	r.eventually(func() error {
		var pushes []Push
		if err := r.client.Do(t.Context(), http.MethodGet, "/debug/pushes", nil, &pushes); err != nil {
			return err
		}
		if len(pushes) == 0 {
			return errors.New("no push is listed")
		}
		last := pushes[len(pushes)-1]
		if w := last.Work; last.Changes == 0 || w == nil || w.ViewsBuilt != 1 || w.Classes == 0 || w.Built["cluster"].Resources != 1 || w.Built["cluster"].Bytes == 0 {
			return fmt.Errorf("the last push %+v cost %+v", last, w)
		}
		return nil
	})
}
