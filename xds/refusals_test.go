package xds

import (
	"fmt"
	"testing"
	"time"
)

// However many nodes one host says that it is, and however many unauthenticated peers come,
// the host that a person looks for is still listed.
func TestRefusalsPushOutNobody(t *testing.T) {
	t.Parallel()
	r := newRefusals()
	at := time.Now()
	r.add(Refusal{Host: "wanted", Reason: "its host was removed or replaced", Last: at})
	for i := range 2 * maxRefusals {
		r.add(Refusal{Host: "liar", Node: fmt.Sprint("node", i), Last: at})
		r.add(Refusal{Peer: fmt.Sprintf("10.0.%d.%d:4711", i/256, i%256), Last: at})
	}
	count := map[string]int{}
	for _, x := range r.list {
		count[x.Host]++
	}
	if count["wanted"] != 1 || count["liar"] != maxRefusalsOfHost || len(r.list) != maxRefusals {
		t.Errorf("listed %v", count)
	}
}

// An unauthenticated peer is one, by whichever port it comes.
func TestRefusalsOfUnauthenticatedPeers(t *testing.T) {
	t.Parallel()
	r := newRefusals()
	at := time.Now()
	for i := range 3 {
		if news := r.add(Refusal{Peer: fmt.Sprint("10.0.0.1:", 4000+i), Reason: "no certificate was offered", Last: at}); news != (i == 0) {
			t.Errorf("time %d: news %v", i, news)
		}
	}
	r.add(Refusal{Peer: "10.0.0.2:4000", Reason: "no certificate was offered", Last: at})
	for i := range 3 { // which may be one machine
		if news := r.add(Refusal{Peer: fmt.Sprintf("[2001:db8::%x]:4000", i), Reason: "no certificate was offered", Last: at}); news != (i == 0) {
			t.Errorf("address %d: news %v", i, news)
		}
	}
	if len(r.list) != 3 || r.list[0].Count != 3 {
		t.Errorf("listed %+v", r.list)
	}
}
