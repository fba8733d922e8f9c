package server

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// A stream that fails authentication is listed once, as a stream.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": plaintextMesh})))
	conn, err := grpc.NewClient(r.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, // it is the server that is tested
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	r.eventually(func() error {
		s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			return fmt.Errorf("an unauthenticated peer gets %w", err)
		}
		return nil
	})
	var got Proxies
	if err := r.client.Do(t.Context(), http.MethodGet, "/v1/proxies", nil, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Refused) != 1 || got.Refused[0].What != "stream" || !strings.HasPrefix(got.Refused[0].Peer, "127.0.0.1:") || got.Refused[0].Reason == "" {
		t.Errorf("listed %+v", got.Refused)
	}
}
