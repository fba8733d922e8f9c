package sites

import (
	"testing"
)

// TestThreeSites has three sites, whose gateways meet by IPv6. Clients use their own site's hosts, then
// those of the site that the DestinationRule says, then the third one's.
func TestThreeSites(t *testing.T) {
	s := newShape(t, shape{third: true, ipv6: true})
	s.start()
	s.each(func(l *site) { l.awaitOnly(orders, "orders-"+l.name+"1", "orders-"+l.name+"2") })
	s.a.awaitEach(ledger, "orders-b1", "orders-b2", "orders-c1", "orders-c2")
	load := s.a.ask.StartLoad(t, orders, rate)
	c := s.all[2]
	for _, step := range []struct{ of, then *site }{{s.a, s.b}, {s.b, c}} {
		load.Wait(t, rate)
		for _, label := range []string{"orders-" + step.of.name + "1", "orders-" + step.of.name + "2"} {
			step.of.kill(label)
		}
		s.a.awaitEach(orders, "orders-"+step.then.name+"1", "orders-"+step.then.name+"2")
	}
	r := load.Stop()
	t.Logf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
}
