package agents

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestProvenAddressExcludesOthers: two workloads at one address, of one service
// account or of two, and two hosts that are entitled to both. For each pair of proofs:
// who proves nothing and does not connect from there is refused what is beside the
// proven claim of another host, whoever comes first.
func TestProvenAddressExcludesOthers(t *testing.T) {
	t.Parallel()
	const at = "10.0.0.1"
	accounts := map[string]mesh.ServiceAccount{
		"same": account(), "other account": {Namespace: "a", Name: "pay"}, "other namespace": {Namespace: "b", Name: "pay"},
	}
	for _, owner := range mesh.Proofs() {
		for _, second := range mesh.Proofs() {
			for _, from := range []string{"there", "elsewhere"} {
				if owner < min(second, mesh.BySource) {
					continue // the second one is the owner
				}
				if second == mesh.BySource || owner == mesh.BySource && from == "there" {
					continue // then both connect from there, which proves nothing for either
				}
				for name, acc := range accounts {
					for _, state := range []string{"owner first", "owner silent", "owner over", "owner last"} {
						t.Run(fmt.Sprintf("%s_%s_%s_%s_%s", owner, second, from, name, state), func(t *testing.T) {
							t.Parallel()
							synctest.Test(t, func(t *testing.T) {
								a, b := with(claimed("a", at), owner), with(claimed("bb", at), second)
								if owner == mesh.BySource {
									a.Source = netip.MustParseAddr(at)
								}
								b.ServiceAccount, b.Workload = acc, "w2"
								if acc == account() {
									b.Present = []string{"w2", a.Workload}
									a.Present = b.Present
								}
								if from == "there" {
									b.Source = netip.MustParseAddr(at)
								}
								proves := owner != mesh.Unproven && (owner != mesh.ByAnnotation || acc.Namespace == "a") && state != "owner over"
								want := !proves || from == "there" || second >= min(owner, mesh.ByToken)
								checkNeighbours(t, a, b, state, want)
							})
						})
					}
				}
			}
		}
	}
}

func checkNeighbours(t *testing.T, a, b mesh.Claim, state string, want bool) {
	t.Helper()
	h := run(t, Config{ClaimLease: time.Minute})
	lost := ""
	var err error
	if state == "owner last" {
		if err := h.StreamOpened(2, b, func(why string) { lost = why }); err != nil {
			t.Fatal(err)
		}
		h.say(2, mesh.Unhealthy)
	}
	if err := h.StreamOpened(1, a, nil); err != nil {
		t.Fatalf("the owner is refused: %v", err)
	}
	switch state {
	case "owner silent":
		h.StreamClosed(1)
	case "owner over":
		h.StreamClosed(1)
		h.after(time.Minute)
	case "owner last":
		if (lost == "") != want {
			t.Errorf("the second host keeps its claim: %v (%q), want %v", lost == "", lost, want)
		}
		h.StreamClosed(2)
	}
	err = h.StreamOpened(3, b, nil)
	if (err == nil) != want {
		t.Fatalf("the second host is let in: %v (%v), want %v", err == nil, err, want)
	}
	w := &mesh.Workload{
		Meta: mesh.Meta{Key: mesh.Key{Namespace: b.ServiceAccount.Namespace, Name: b.Workload}}, ServiceAccount: b.ServiceAccount.Name, Address: b.Address,
	}
	var r *RefusedError
	if !want && (!errors.As(err, &r) || r.Holder != "a" || len(h.Status().Conflicts) != 1 || !h.HeldByOther("bb", b.Source, w)) {
		t.Errorf("error %v, conflicts %+v", err, h.Status().Conflicts)
	}
	h.say(3, mesh.Unhealthy)
	h.after(0)
	for _, r := range h.last.Health {
		if !want && r.ServiceAccount == b.ServiceAccount && r.Health == mesh.Unhealthy && r.Workload == b.Workload {
			t.Errorf("a report of the host that was refused counts: %+v", r)
		}
	}
}

// TestRemovedNeighboursExcludeNobody: several hosts that are not on record any more
// had the address.
func TestRemovedNeighboursExcludeNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := false
		h := run(t, Config{Stands: func(string, string) bool { return !gone }})
		names := []string{"w1", "w2", "w3", "w4"}
		for i, name := range names[:3] {
			c := with(claimed("host-"+name, "10.0.0.1"), mesh.ByToken)
			c.Workload, c.Present = name, names
			if err := h.StreamOpened(uint64(i+1), c, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint64(3) {
			h.StreamClosed(i + 1)
		}
		c := claimed("bb", "10.0.0.1")
		c.Workload, c.Present = "w4", names
		if err := h.StreamOpened(4, c, nil); err == nil {
			t.Error("hosts on record have the address")
		}
		gone = true
		if err := h.StreamOpened(5, c, nil); err != nil {
			t.Errorf("all of them were removed: %v", err)
		}
		if n := len(h.there); n != 1 {
			t.Errorf("%d addresses", n)
		}
	})
}

// TestNeighboursInRandomHistories: hosts with fixed proofs come, go and lie in any
// order. At no time one is connected beside another that has proven the address, unless
// it has a proof of its own or connects from there.
func TestNeighboursInRandomHistories(t *testing.T) {
	t.Parallel()
	addresses := []string{"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"}
	type host struct {
		name   string
		source netip.Addr
		proofs map[string]mesh.Proof // by address
	}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 10))
		synctest.Test(t, func(t *testing.T) {
			h := run(t, Config{ClaimLease: time.Minute})
			var hosts []host
			for i := range 5 {
				one := host{fmt.Sprint("h", i), netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), map[string]mesh.Proof{}}
				for _, a := range addresses[:2] {
					one.proofs[a] = []mesh.Proof{mesh.Unproven, mesh.Unproven, mesh.ByAnyNetwork, mesh.ByToken}[rng.IntN(4)]
				}
				one.proofs["::ffff:10.0.0.2"] = one.proofs["10.0.0.2"]
				hosts = append(hosts, one)
			}
			open := map[uint64]mesh.Claim{}
			for stream := uint64(1); stream < 60; stream++ {
				switch rng.IntN(4) {
				case 0:
					for s := range open {
						h.StreamClosed(s)
						delete(open, s)
						break
					}
				case 1:
					h.after(time.Duration(rng.IntN(50)) * time.Second)
				default:
					who, at := hosts[rng.IntN(len(hosts))], addresses[rng.IntN(len(addresses))]
					c := claimed(who.name, at)
					c.Workload, c.Present = []string{"w1", "w2"}[rng.IntN(2)], []string{"w1", "w2"}
					c.ServiceAccount.Name = []string{"web", "pay"}[rng.IntN(2)]
					c.Source, c.Proof = who.source, who.proofs[at]
					c.SourceProves = netip.MustParseAddr(at).Unmap() == who.source
					if h.StreamOpened(stream, c, func(string) { delete(open, stream) }) == nil {
						open[stream] = c
					}
				}
				for _, a := range open {
					for _, b := range open {
						x, y := netip.MustParseAddr(a.Address).Unmap(), netip.MustParseAddr(b.Address).Unmap()
						rank := func(c mesh.Claim) mesh.Proof {
							if c.SourceProves {
								return max(c.Proof, mesh.BySource)
							}
							return c.Proof
						}
						if a.Host != b.Host && x == y && rank(a) > mesh.Unproven && rank(b) < min(rank(a), mesh.ByToken) && b.Source != y {
							t.Fatalf("history %d, after %d: %+v beside %+v", seed, stream, b, a)
						}
					}
				}
			}
		})
	}
}
