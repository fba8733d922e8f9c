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
