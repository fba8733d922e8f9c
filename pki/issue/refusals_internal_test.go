package issue

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestUnauthenticatedPeersPushOutNoHost(t *testing.T) {
	t.Parallel()
	r, now := &refusals{}, time.Now()
	r.add(Refusal{Time: now, Peer: "127.0.0.1:1", Host: "web-1", Reason: "join token has expired"})
	for i := range 2 * maxRefusals {
		r.add(Refusal{Time: now, Peer: fmt.Sprintf("127.0.0.2:%d", i), Reason: fmt.Sprintf("certificate request of %d bytes", i)})
	}
	if len(r.list) != maxRefusals || !slices.ContainsFunc(r.list, func(x Refusal) bool { return x.Host == "web-1" }) {
		t.Errorf("%d are kept, and the first is %+v: want %d with web-1 among them", len(r.list), r.list[0], maxRefusals)
	}
	for i := range 2 * maxRefusals {
		r.add(Refusal{Time: now, Host: fmt.Sprintf("host-%d", i), Reason: "join token has expired"})
	}
	if last := r.list[len(r.list)-1]; len(r.list) != maxRefusals || last.Host != fmt.Sprintf("host-%d", 2*maxRefusals-1) {
		t.Errorf("%d are kept, the last is %+v", len(r.list), last)
	}
}
