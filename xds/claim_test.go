package xds

import (
	"crypto/sha256"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestClaimOfWorkload: what a peer has proven about the workload that its node names.
func TestClaimOfWorkload(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		claimed, source, token string
		elsewhere              string // the namespace that has the address in another network, too
		entitled               bool   // to that
		proves                 bool
		proof                  mesh.Proof
	}{
		"nothing":               {claimed: "10.0.0.5"},
		"source":                {claimed: "10.0.0.5", source: "10.0.0.5", proves: true},
		"another":               {claimed: "10.0.0.5", source: "10.0.0.6"},
		"mapped":                {claimed: "10.0.0.5", source: "::ffff:10.0.0.5", proves: true},
		"six":                   {claimed: "2001:db8::5", source: "2001:db8::5", proves: true},
		"link_local":            {claimed: "fe80::5", source: "fe80::5%eth0"},
		"networks":              {claimed: "10.0.0.5", source: "10.0.0.5", elsewhere: "shop"},
		"two_entitled":          {claimed: "10.0.0.5", source: "10.0.0.5", elsewhere: "bank", entitled: true},
		"tenant":                {claimed: "10.0.0.5", source: "10.0.0.5", elsewhere: "evil", proves: true},
		"token":                 {claimed: "10.0.0.5", token: "10.0.0.5", proof: mesh.ByToken},
		"token_mapped":          {claimed: "10.0.0.5", token: "::ffff:10.0.0.5", proof: mesh.ByToken},
		"token_another":         {claimed: "10.0.0.5", token: "10.0.0.6"},
		"token_network":         {claimed: "10.0.0.5", token: "/10.0.0.5", proof: mesh.ByToken},
		"token_wrong_network":   {claimed: "10.0.0.5", token: "net2/10.0.0.5"},
		"token_two_networks":    {claimed: "10.0.0.5", token: "10.0.0.5", elsewhere: "shop", proof: mesh.ByAnyNetwork},
		"token_entitled_to_two": {claimed: "10.0.0.5", token: "10.0.0.5", elsewhere: "bank", entitled: true, proof: mesh.ByAnyNetwork},
		"token_of_one_of_two":   {claimed: "10.0.0.5", token: "net2/10.0.0.5 /10.0.0.5", elsewhere: "shop", proof: mesh.ByToken},
		"token_of_the_other":    {claimed: "10.0.0.5", token: "net2/10.0.0.5", elsewhere: "shop"},
		"token_of_any_and_one":  {claimed: "10.0.0.5", token: "10.0.0.5 /10.0.0.5", elsewhere: "shop", proof: mesh.ByToken},
		"token_and_a_tenant":    {claimed: "10.0.0.5", token: "10.0.0.5", elsewhere: "evil", proof: mesh.ByToken},
		"both":                  {claimed: "10.0.0.5", token: "10.0.0.5", source: "10.0.0.5", proves: true, proof: mesh.ByToken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := new(smallmesh.Objects).Workload("web", c.claimed, nil)
			if c.elsewhere != "" {
				o.Workload("other", c.claimed, nil)
				o.Workloads[1].Network, o.Workloads[1].Namespace = "net2", c.elsewhere
				slices.SortFunc(o.Workloads, func(a, b *mesh.Workload) int { return a.Compare(b.Key) })
			}
			p := Peer{Host: "h", Pairs: []mesh.ServiceAccount{{Namespace: "shop", Name: "web"}}}
			if c.entitled {
				p.Pairs = append(p.Pairs, mesh.ServiceAccount{Namespace: c.elsewhere, Name: o.Workloads[0].ServiceAccount}) // sorted
			}
			if c.source != "" {
				p.Source = netip.MustParseAddr(c.source)
			}
			if c.token != "" {
				for text := range strings.SplitSeq(c.token, " ") {
					network, ip, qualified := strings.Cut(text, "/")
					if !qualified {
						network, ip = "", text
					}
					p.Addresses = append(p.Addresses, Address{netip.MustParseAddr(ip), qualified, network})
				}
			}
			claim, err := verifyNode(p, node("web", c.claimed))
			if err != nil {
				t.Fatal(err)
			}
			s := o.Snapshot(nil)
			w, err := claim.workload(s)
			if err != nil {
				t.Fatal(err)
			}
			got := claim.claimOf(p, s, w)
			if got.SourceProves != c.proves || got.Proof != c.proof || got.Workload != "web" || !slices.Equal(got.Present, []string{"web"}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestStreamNeedsWorkloadClaim: a host that may not have the workload is not served, and a
// stream ends when its workload becomes another host's. The reason is in the status.
func TestStreamNeedsWorkloadClaim(t *testing.T) {
	t.Parallel()
	named := func(o *smallmesh.Objects, name, host string) {
		i := slices.IndexFunc(o.Workloads, func(w *mesh.Workload) bool { return w.Name == name })
		w := *o.Workloads[i]
		w.Annotations = map[string]string{mesh.AnnotationHost: host}
		w.Hash = sha256.Sum256([]byte(host))
		o.Workloads[i] = &w
	}
	for name, c := range map[string]struct {
		before, after func(r *rig, o *smallmesh.Objects)
		want          string
	}{
		"refused": {before: func(r *rig, _ *smallmesh.Objects) { r.health.rejectClaims = errors.New("it is another's") }, want: "it is another's"},
		"displaced": {after: func(r *rig, _ *smallmesh.Objects) {
			r.health.mu.Lock()
			end := r.health.end
			r.health.mu.Unlock()
			end("another host has proven it")
		}, want: "another host has proven it"},
		"annotated": {after: func(r *rig, o *smallmesh.Objects) {
			named(o, "web", "vm2")
			r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
		}, want: `belongs to host "vm2"`},
		"renamed": {after: func(r *rig, o *smallmesh.Objects) {
			i := slices.IndexFunc(o.Workloads, func(w *mesh.Workload) bool { return w.Name == "web" })
			w := *o.Workloads[i]
			w.Meta = smallmesh.Meta(mesh.KindWorkloadEntry, "web-2")
			w.Labels = map[string]string{"app": "web"}
			o.Workloads[i] = &w
			r.health.mu.Lock()
			r.health.others = map[string]bool{"web-2": true}
			r.health.mu.Unlock()
			r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
		}, want: "web-2 at that address belongs to another host"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := smallmesh.Shop()
			r := newRig(t, o, nil)
			if c.before != nil {
				c.before(r, o)
			}
			a := r.connect(t, node("web", "127.0.0.11"), nil)
			if c.after != nil {
				r.synced(t, "web.shop")
				c.after(r, o)
			}
			if err := <-a.err; status.Code(err) != codes.PermissionDenied || strings.Contains(err.Error(), "host") {
				t.Errorf("the peer gets %v", err)
			}
			var reasons []string
			for _, x := range r.server.Refused() {
				reasons = append(reasons, x.Reason)
			}
			if len(reasons) != 1 || !strings.Contains(reasons[0], c.want) {
				t.Errorf("rejected: %q, want %q", reasons, c.want)
			}
		})
	}
}

// TestFurtherAddressesNeedClaim: a further address of a node counts only if the workload
// there does not belong to another host.
func TestFurtherAddressesNeedClaim(t *testing.T) {
	t.Parallel()
	for _, others := range []map[string]bool{nil, {"orders": true}} {
		o := smallmesh.Shop()
		r := newRig(t, o, nil)
		r.health.others = others
		n := node("web", "127.0.0.11")
		n.Addresses = []netip.Addr{n.Address, netip.MustParseAddr("127.0.0.12")}
		r.connect(t, n, nil)
		r.synced(t, "web.shop")
		want := []string{"127.0.0.11", "127.0.0.12"}
		if others != nil {
			want = want[:1]
		}
		for _, c := range r.server.connections() {
			c.mu.Lock()
			got := slices.Clone(c.proxy.Addresses)
			c.mu.Unlock()
			if !slices.Equal(got, want) {
				t.Errorf("others %v: addresses %q, want %q", slices.Sorted(maps.Keys(others)), got, want)
			}
		}
	}
}
