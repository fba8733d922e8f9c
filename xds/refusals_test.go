package xds

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/refusals"
)

// An unauthenticated peer is identified by its address: any port, and any address of an
// IPv6 /64.
func TestRefusalsOfUnauthenticatedPeers(t *testing.T) {
	t.Parallel()
	var l refusals.List[Refusal, *Refusal]
	add := func(peer string) bool {
		_, again := l.Add(Refusal{Peer: peer, Reason: "no certificate was offered"}, time.Now())
		return again
	}
	for i := range 3 {
		if again := add(fmt.Sprint("10.0.0.1:", 4000+i)); again != (i > 0) {
			t.Errorf("time %d: again %v", i, again)
		}
		if again := add(fmt.Sprintf("[2001:db8::%d]:4000", i)); again != (i > 0) {
			t.Errorf("time %d, IPv6: again %v", i, again)
		}
	}
	add("10.0.0.2:4000")
	if all := l.All(); len(all) != 3 || all[0].Count != 3 || all[1].Count != 3 {
		t.Errorf("listed %+v", all)
	}
}

// Peers with a certificate are identified by their host and node, whatever their address.
func TestRefusalsOfHosts(t *testing.T) {
	t.Parallel()
	first := Refusal{Host: "vm1", Node: "a", Peer: "10.0.0.1:4000"}
	for name, c := range map[string]struct {
		Refusal
		repeats bool
	}{
		"same":            {first, true},
		"another_port":    {Refusal{Host: "vm1", Node: "a", Peer: "10.0.0.1:4001"}, true},
		"another_address": {Refusal{Host: "vm1", Node: "a", Peer: "10.0.0.2:4000"}, true},
		"another_host":    {Refusal{Host: "vm2", Node: "a", Peer: "10.0.0.1:4000"}, false},
		"another_node":    {Refusal{Host: "vm1", Node: "b", Peer: "10.0.0.1:4000"}, false},
		"no_host":         {Refusal{Node: "a", Peer: "10.0.0.1:4000"}, false},
	} {
		if got := c.Repeats(first); got != c.repeats {
			t.Errorf("%s: repeats %v, want %v", name, got, c.repeats)
		}
	}
}
