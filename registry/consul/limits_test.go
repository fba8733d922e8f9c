package consul_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
)

// A server that takes few connections of a client is asked over those.
func TestConnectionLimitOfServerHolds(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Config = map[string]any{"limits": map[string]any{"http_max_conns_per_client": 12}}
			a := consultest.Start(t, o)
			fill(t, a.Client(), 30)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.Client.MaxConnections = 10
			r := start(t, cfg)
			r.await("everything", func(f *mesh.Fragment) bool { return len(f.Workloads) == 90 })
			r.awaitStatus("everything", live)
			if st := r.source.Status(); st.Throttled+st.Failed > 0 || st.Connections > 10 {
				t.Errorf("status is %+v", *st)
			}
		})
	}
}

// A client's certificate that is rotated counts, without a restart.
func TestCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{TLS: true, VerifyIncoming: true})
	fill(t, a.Client(), 2)
	dir := t.TempDir()
	put := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		replace(t, path, content)
		return path
	}
	good := [2]string{read(t, a.Cluster().CertFile), read(t, a.Cluster().KeyFile)}
	cfg := config(t, a.Cluster(), a.Address())
	cfg.Client.CertFile, cfg.Client.KeyFile = put("cert", good[0]), put("key", good[1])
	r := start(t, cfg)
	r.awaitFresh("at the start")
	before := r.source.Status().Renewed
	put("key", "half of a k") // a rotation that is not over changes nothing
	put("cert", good[0]+"\n")
	put("key", good[1]+"\n")
	if err := os.Chtimes(cfg.Client.KeyFile, time.Time{}, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	r.awaitStatus("asked anew", func(st *consul.Status) bool { return st.Renewed > before && live(st) })
	if !strings.Contains(r.log.String(), "another certificate") {
		t.Error("the log has no other certificate")
	}
	instance{node: "n1", nodeAddress: "10.0.0.2", id: "s1-1", service: "s1", port: 9999}.register(t, a.Client())
	r.await("followed", func(f *mesh.Fragment) bool { return workload(f, "/s1-1").Ports["tcp"] == 9999 })
}
