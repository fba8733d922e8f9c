package agents

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/registry/mesh"
)

// with gives a claim a proof, each by a source address of its host's own.
func with(c mesh.Claim, p mesh.Proof) mesh.Claim {
	c.Source = netip.AddrFrom4([4]byte{10, 9, 0, byte(len(c.Host))})
	switch p {
	case mesh.BySource:
		c.SourceProves = true
	case mesh.ByAnyNetwork, mesh.ByToken:
		c.Proof = p
	case mesh.ByAnnotation:
		c.Owner = c.Host
	case mesh.Unproven:
	}
	return c
}

// TestWhoHoldsAClaim holds every pair of proofs against the rule: the stronger proof
// has the workload; of equals who has it, while connected, and beyond that who came
// first for as long as the lease lasts.
func TestWhoHoldsAClaim(t *testing.T) {
	t.Parallel()
	for _, first := range mesh.Proofs() {
		for _, second := range mesh.Proofs() {
			for _, state := range []string{"connected", "silent", "over"} {
				if first == mesh.ByAnnotation || second == mesh.ByAnnotation {
					continue // the workload names one host: below
				}
				t.Run(fmt.Sprintf("%s_%s_then_%s", first, state, second), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						h := run(t, Config{ClaimLease: time.Minute})
						var lost string
						if err := h.StreamOpened(1, with(claimed("a", "10.0.0.001"), first), func(why string) { lost = why }); err != nil {
							t.Fatal(err)
						}
						h.say(1, mesh.Healthy)
						want := second > first
						switch state {
						case "silent":
							h.StreamClosed(1)
							want = want || second == first && second > mesh.Unproven
						case "over":
							h.StreamClosed(1)
							h.after(time.Minute)
							want = true
						}
						err := h.StreamOpened(2, with(claimed("bb", "10.0.0.001"), second), nil)
						h.say(2, mesh.Unhealthy)
						h.after(0)
						if got := err == nil; got != want {
							t.Fatalf("the second host is let in: %v (%v), want %v", got, err, want)
						}
						st := h.Status()
						if want {
							h.want("the second host counts", "1-")
							if (lost != "") != (state == "connected") {
								t.Errorf("the first host gets %q", lost)
							}
							return
						}
						if state == "connected" {
							h.want("the first host counts", "1+")
						}
						var r *RefusedError
						if !errors.As(err, &r) || r.Holder != "a" || !strings.Contains(err.Error(), `"a"`) || len(st.Conflicts) != 1 || st.Contested != 1 {
							t.Errorf("error %v, conflicts %+v", err, st.Conflicts)
						}
					})
				})
			}
		}
	}
}

// TestOnlyTheHolderReports: a workload that names its host is nobody else's, whatever another
// one proves, connected or not.
func TestOnlyTheHolderReports(t *testing.T) {
	t.Parallel()
	for _, p := range []mesh.Proof{mesh.Unproven, mesh.BySource, mesh.ByToken} {
		synctest.Test(t, func(t *testing.T) {
			h := run(t, Config{})
			b := with(claimed("bb", "10.0.0.001"), p)
			if err := h.StreamOpened(1, b, nil); err != nil {
				t.Fatal(err)
			}
			a := claimed("a", "10.0.0.001")
			a.Owner, b.Owner = "a", "a"
			if err := h.StreamOpened(2, b, nil); err == nil {
				t.Errorf("%s: the owner is away, and another host is let in", p)
			}
			if err := h.StreamOpened(3, a, nil); err != nil {
				t.Errorf("%s: the owner is refused: %v", p, err)
			}
			if err := h.StreamOpened(4, b, nil); err == nil {
				t.Errorf("%s: another host is let in beside the owner", p)
			}
		})
	}
}

// TestReportEndsWithItsStream: what a stream has said counts while it is open. What
// another stream of the host has said counts again; a workload without any is silent.
func TestReportEndsWithItsStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		h.say(1, mesh.Healthy)
		h.open(2, 1)
		h.say(2, mesh.Unhealthy)
		h.after(0)
		h.want("the newer stream counts", "1-")
		h.StreamClosed(2)
		h.after(0)
		h.want("and what it said ends with it", "1+")
		h.say(1, mesh.Unhealthy)
		h.StreamClosed(1)
		h.after(0)
		h.want("nobody speaks: the verdict stands", "1-left")
		h.open(3, 1)
		h.after(10 * time.Second)
		h.want("back, and it does not probe", "")
	})
}

// TestProvenHostReplacesOldReports: an unproven host that took a workload out
// leaves nothing when the one that proves to have it comes.
func TestProvenHostReplacesOldReports(t *testing.T) {
	t.Parallel()
	for _, still := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			h := run(t, Config{})
			if err := h.StreamOpened(1, claimed("bb", "10.0.0.001"), nil); err != nil {
				t.Fatal(err)
			}
			h.say(1, mesh.Unhealthy)
			if !still {
				h.StreamClosed(1)
				h.after(time.Hour)
			}
			h.after(0)
			if err := h.StreamOpened(2, with(claimed("a", "10.0.0.001"), mesh.BySource), nil); err != nil {
				t.Fatal(err)
			}
			h.say(1, mesh.Unhealthy) // it goes on, for as long as its stream is open
			h.after(0)
			h.want("nothing stays", "")
		})
	}
}

// TestTwoAgentsOfOneMachine: two workloads of one account at one address, each with
// its own agent. Each host speaks for its own.
func TestTwoAgentsOfOneMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		both := []string{"w1", "w2"}
		for i, name := range both {
			c := claimed("host-"+name, "10.0.0.001")
			c.Workload, c.Present, c.Source, c.SourceProves = name, both, netip.MustParseAddr("10.0.0.1"), true
			if err := h.StreamOpened(uint64(i+1), c, nil); err != nil {
				t.Fatal(err)
			}
		}
		h.say(1, mesh.Healthy)
		h.say(2, mesh.Unhealthy)
		h.after(0)
		h.want("each for itself", "1+ 1-")
		if r := h.last.Health[1]; r.Workload != "w2" {
			t.Errorf("the second report is of %q", r.Workload)
		}
		for _, c := range h.Claims() {
			if c.Proof != "unproven" {
				t.Errorf("%s has a source address that two hosts have, and is proven by %s", c.Host, c.Proof)
			}
		}
		// The second workload is in the mesh under another name: its host follows, and
		// nobody else gets it by that.
		again := claimed("host-w2", "10.0.0.001")
		again.Workload, again.Present = "w3", []string{"w1", "w3"}
		thief := again
		thief.Host = "thief"
		if err := h.StreamOpened(3, thief, nil); err == nil {
			t.Error("another host takes it under its new name")
		}
		if err := h.StreamOpened(4, again, nil); err != nil {
			t.Error(err)
		}
		h.after(0)
		h.want("the first one alone has spoken", "1+")
	})
}

// TestSharedSourceProvesNothing: behind a balancer, or a NAT, all hosts have one
// address. It proves nothing for any of them, be it somebody's in the mesh.
func TestSharedSourceProvesNothing(t *testing.T) {
	t.Parallel()
	for _, require := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h := run(t, Config{RequireProof: require})
			balancer := netip.MustParseAddr("10.0.0.9")
			lost := ""
			b := claimed("bb", "10.0.0.009")
			b.Source, b.SourceProves = balancer, true
			if err := h.StreamOpened(1, b, func(why string) { lost = why }); err != nil {
				t.Fatal(err) // nobody else comes from there: it is that machine, for all that is known
			}
			a := with(claimed("a", "10.0.0.001"), mesh.ByToken)
			a.Source = balancer
			if err := h.StreamOpened(2, a, nil); err != nil {
				t.Fatal(err)
			}
			if got := h.Claims()[slices.IndexFunc(h.Claims(), func(c ClaimStatus) bool { return c.Host == "a" })]; got.Proof != "token" {
				t.Errorf("%+v", got)
			}
			if (lost != "") != require {
				t.Errorf("proof required: %v; the host without a proof gets %q", require, lost)
			}
			h.after(3 * time.Minute)
			h.StreamClosed(2)
			h.StreamClosed(1)
			err := h.StreamOpened(3, b, nil)
			if require && err == nil || !require && (err != nil || h.Claims()[slices.IndexFunc(h.Claims(), func(c ClaimStatus) bool { return c.Host == "bb" })].Proof != "unproven") {
				t.Errorf("later, alone: %v, %+v", err, h.Claims())
			}
		})
	}
}

// TestAddressMoves: an address goes from one host to the next, both connected for a
// while, as DHCP and a machine that was made anew have it.
func TestAddressMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		a, b := claimed("a", "10.0.0.001"), claimed("bb", "10.0.0.001")
		a.Source, a.SourceProves = netip.MustParseAddr("10.0.0.1"), true
		b.Source, b.SourceProves = a.Source, true
		if err := h.StreamOpened(1, a, nil); err != nil {
			t.Fatal(err)
		}
		h.say(1, mesh.Unhealthy)
		if err := h.StreamOpened(2, b, nil); err == nil {
			t.Error("both are connected from the address, and the second is let in")
		}
		h.StreamClosed(1) // its connection is found dead
		if err := h.StreamOpened(3, b, nil); err != nil {
			t.Errorf("the first is gone: %v", err)
		}
		h.say(3, mesh.Healthy)
		h.after(0)
		h.want("the second has it", "1+")
	})
}

// TestHostRemovedOrReplaced: what a host held is free when it is not on record any
// more, whatever it has proven.
func TestHostRemovedOrReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := false
		h := run(t, Config{Stands: func(string, string) bool { return !gone }})
		if err := h.StreamOpened(1, with(claimed("a", "10.0.0.001"), mesh.ByToken), nil); err != nil {
			t.Fatal(err)
		}
		h.StreamClosed(1)
		if err := h.StreamOpened(2, claimed("bb", "10.0.0.001"), nil); err == nil {
			t.Error("it is still the first host's")
		}
		gone = true
		if err := h.StreamOpened(3, claimed("bb", "10.0.0.001"), nil); err != nil {
			t.Errorf("the first host was removed: %v", err)
		}
	})
}

// claimMemory is a ClaimStore.
type claimMemory struct {
	saved SavedClaims
	saves int
}

func (m *claimMemory) LoadClaims() (SavedClaims, error) { return m.saved, nil }

func (m *claimMemory) SaveClaims(c SavedClaims) error {
	m.saved, m.saves = c, m.saves+1
	return nil
}

// TestClaimsSurviveARestart: who had a workload has it, nobody is out because the
// server started, and streams that come and go write nothing.
func TestClaimsSurviveARestart(t *testing.T) {
	t.Parallel()
	store := &claimMemory{}
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{Claims: store})
		for host := range 3 {
			h.open(uint64(host+1), host+1)
		}
		h.after(2 * time.Second)
		for range 10 {
			h.StreamClosed(1)
			h.open(1, 1)
			h.after(2 * time.Second)
		}
	})
	if len(store.saved.Claims) != 3 || store.saves > 2 {
		t.Fatalf("%d saves, the last of %+v", store.saves, store.saved)
	}
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{Claims: store})
		if err := h.StreamOpened(9, claimed("thief", "10.0.0.002"), nil); err == nil {
			t.Error("another host comes first after the restart")
		}
		h.after(4 * time.Minute)
		h.want("nobody is out", "")
		h.open(2, 2)
		h.say(2, mesh.Healthy)
		h.after(2 * time.Minute)
		h.want("back", "1~ 2+ 3~")
		if err := h.StreamOpened(10, claimed("other", "10.0.0.003"), nil); err != nil {
			t.Errorf("the lease is over: %v", err)
		}
		h.after(2 * time.Second)
	})
	if n := len(store.saved.Claims); n != 2 {
		t.Errorf("%d claims are kept: %+v", n, store.saved.Claims)
	}
}

// TestConflictsOfOneHostHideNoOthers: a host that claims everything pushes out what is
// told of itself, and not what is told of another.
func TestConflictsOfOneHostHideNoOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, Config{}).Source
		for i := range 3 * refusals.Max {
			if i == 10 {
				s.conflict(&RefusedError{Claim: mesh.Claim{Host: "quiet", Address: "10.0.0.1"}}, time.Now())
			}
			s.conflict(&RefusedError{Claim: mesh.Claim{Host: "loud", Address: fmt.Sprint("10.0.1.", i)}}, time.Now())
		}
		if all := s.conflicts.All(); len(all) != refusals.Max || !slices.ContainsFunc(all, func(c Conflict) bool { return c.Host == "quiet" }) {
			t.Errorf("of %d conflicts none is of the quiet host", len(all))
		}
	})
}

// TestConflictsAreBounded: a host that claims everything is named, and no more.
func TestConflictsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{})
		h.open(1, 1)
		for i := range uint64(2 * refusals.Max) {
			_ = h.StreamOpened(100+i, claimed(fmt.Sprint("thief-", i), "10.0.0.001"), nil)
		}
		if st := h.Status(); len(st.Conflicts) != refusals.Max || st.Contested != 2*refusals.Max || len(h.streams) != 1 || len(h.from) != 1 {
			t.Errorf("%d conflicts, %d contested, %d streams", len(st.Conflicts), st.Contested, len(h.streams))
		}
	})
}

// TestHeld: a host holds what it is connected for, or else what it was, until the lease ends.
func TestHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := run(t, Config{ClaimLease: time.Minute})
		first, second := claimed("a", "10.0.0.1"), claimed("a", "10.0.0.2")
		second.Workload = "second"
		held := func(host, binding string, account mesh.ServiceAccount, want ...string) {
			t.Helper()
			if got := h.Held(host, binding, account); !slices.Equal(got, want) {
				t.Errorf("%s holds %q, want %q", host, got, want)
			}
		}
		held("a", first.Binding, first.ServiceAccount)
		for i, c := range []mesh.Claim{first, claimed("b", "10.0.0.3")} {
			if err := h.StreamOpened(uint64(i+1), c, nil); err != nil {
				t.Fatal(err)
			}
		}
		held("a", first.Binding, first.ServiceAccount, first.Workload)
		held("a", "another machine", first.ServiceAccount)
		held("c", first.Binding, first.ServiceAccount)
		held("a", first.Binding, mesh.ServiceAccount{Namespace: first.ServiceAccount.Namespace, Name: "0"})
		held("a", first.Binding, mesh.ServiceAccount{Namespace: first.ServiceAccount.Namespace, Name: "zzz"})
		h.StreamClosed(1)
		held("a", first.Binding, first.ServiceAccount, first.Workload) // it may come back
		if err := h.StreamOpened(3, second, nil); err != nil {
			t.Fatal(err)
		}
		held("a", first.Binding, first.ServiceAccount, "second")
		h.StreamClosed(3)
		h.after(time.Minute)
		held("a", first.Binding, first.ServiceAccount)
	})
}
