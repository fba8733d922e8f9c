package server

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// open opens a stream as an agent does, with what it shows, on a connection of its
// own, and gives the code that the server ends it with.
func (r *running) open(host, workload *svid.Identity) codes.Code {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.listener.Addr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(svid.ClientTLS(func() *svid.Identity { return host }))))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(r.t.Context(), svid.HeldCertificate, string(workload.Leaf().Raw))
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return grpcstatus.Code(err)
	}
	node, err := (&bootstrap.Node{
		Type: bootstrap.TypeSidecar, Name: "one", Namespace: "shop", Domain: "cluster.local",
		Address: netip.MustParseAddr(victim), ServiceAccount: "cart",
	}).Proto()
	if err != nil {
		r.t.Fatal(err)
	}
	_ = s.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: string(stream.ClusterType)}) // Recv says why
	_, err = s.Recv()
	return grpcstatus.Code(err)
}

// hosts/ is lost, and the authority kept: an export brings all back, and without one
// each comes back by its certificates, through the limits of those that are not
// known; but not one that was removed.
func TestHostRecordsLost(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"mesh.yaml": entry("")}))
	r := start(t, cfg)
	ids, work := map[string]*svid.Identity{}, map[string]*svid.Identity{}
	names := []string{"gone", "listed", "web-1", "web-2"}
	for _, name := range names {
		c, id := r.join(name, "shop/cart")
		w, err := c.Workload(t.Context(), id, svid.Pair{Namespace: "shop", ServiceAccount: "cart"})
		if err != nil {
			t.Fatal(err)
		}
		ids[name], work[name] = id, w
	}
	if err := r.client.Do(t.Context(), http.MethodDelete, "/v1/hosts/gone", nil, nil); err != nil {
		t.Fatal(err)
	}
	var d attest.Document
	if err := r.client.Do(t.Context(), http.MethodGet, "/v1/hosts/export", nil, &d); err != nil || len(d.Hosts) != 3 || len(d.Removed) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	lose := func() {
		t.Helper()
		r.stop()
		if err := os.RemoveAll(filepath.Join(cfg.StateDir, "pki", "hosts")); err != nil {
			t.Fatal(err)
		}
		r = start(t, cfg)
		r.eventually(func() error { // it serves
			if r.open(ids["gone"], work["gone"]) == codes.Unavailable {
				return os.ErrDeadlineExceeded
			}
			return nil
		})
	}
	listed := func() (out []string) {
		t.Helper()
		var hosts []Host
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/hosts", nil, &hosts); err != nil {
			t.Fatal(err)
		}
		for _, h := range hosts {
			out = append(out, h.Name)
		}
		return out
	}
	const let, refused = codes.OK, codes.PermissionDenied
	if a, b := r.open(ids["web-1"], work["web-1"]), r.open(ids["gone"], work["gone"]); a != let || b != refused {
		t.Fatalf("%s and %s", a, b)
	}

	lose()
	if got := r.open(ids["web-1"], work["web-1"]); got != refused {
		t.Errorf("without its record: %s", got)
	}
	var in attest.Imported
	if err := r.client.Do(t.Context(), http.MethodPost, "/v1/hosts/import", ImportRequest{Document: d}, &in); err != nil || len(in.Added) != 3 {
		t.Fatalf("%+v, %v", in, err)
	}
	if got := r.open(ids["web-1"], work["web-1"]); got != let {
		t.Errorf("imported: %s, want %s", got, let)
	}

	cfg.ReadoptUntil, cfg.ReadoptRemoved = time.Now().Add(time.Hour).Format(time.RFC3339), filepath.Join(t.TempDir(), "removed")
	put(t, cfg.ReadoptRemoved, "listed\n")
	lose()
	for _, name := range []string{"web-1", "web-2"} {
		r.eventually(func() error {
			// The first connection was not authenticated. The second host is let in, and
			// then refused the workload, which is the first one's.
			if got := r.open(ids[name], work[name]); name == "web-1" && got != let {
				return grpcstatus.Error(got, name)
			}
			if !slices.Contains(listed(), name) {
				return fmt.Errorf("%s is not on record", name)
			}
			return nil
		})
		if r.host(name).Readopted.IsZero() {
			t.Errorf("%s: %+v", name, r.host(name))
		}
	}
	for _, name := range []string{"gone", "listed"} {
		if got := r.open(ids[name], work[name]); got != refused {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := listed(); !slices.Equal(got, []string{"web-1", "web-2"}) {
		t.Errorf("on record: %q", got)
	}
}
