package sites

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// rate is how many requests a second a load has.
const rate = 100

// failoverWithin separates a failover that clients make themselves from one that waits for the control
// plane or for a person. It takes a second at most on a quiet machine.
const failoverWithin = 3 * time.Second

// TestSiteFailsOver kills everything that serves orders in site a. Its clients use site b within a second,
// by outlier detection and retries, and site a again when it is back.
func TestSiteFailsOver(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitOnly(orders, "orders-a1", "orders-a2")
	load := s.a.ask.StartLoad(t, orders, rate)
	load.Wait(t, 2*rate)
	killed := time.Now()
	for _, label := range []string{"orders-a1", "orders-a2"} {
		s.a.kill(label)
	}
	var first time.Duration
	envoytest.Eventually(t, envoytest.Patience, func() error {
		a, err := s.a.ask.Get(t.Context(), orders)
		if err != nil {
			return err
		}
		if first = time.Since(killed); a.Name != "orders-b1" && a.Name != "orders-b2" {
			return fmt.Errorf("%s answers", a.Name)
		}
		return nil
	})
	load.Wait(t, 3*rate)
	r := load.Now()
	last := max(0, r.LastFailure.Sub(killed))
	t.Logf("site b answers %s after the kill; %d of %d requests failed, the last after %s: %v", first, r.Failed, r.Failed+r.Good, last, r.Errors)
	if first > failoverWithin || last > failoverWithin {
		t.Errorf("site b answers %s after the kill, and the last request failed after %s", first, last)
	}
	s.a.awaitOnly(orders, "orders-b1", "orders-b2")
	for _, label := range []string{"orders-a1", "orders-a2"} {
		s.a.startApp(label)
		s.a.startOrders(label)
	}
	back := time.Now()
	s.a.awaitOnly(orders, "orders-a1", "orders-a2")
	t.Logf("site a alone answers again after %s", since(back))
	if again := load.Stop(); again.Failed > r.Failed {
		t.Errorf("%d requests failed as site a came back: %v", again.Failed-r.Failed, again.Errors)
	}
}

// TestUnhealthyBehindGateway has the application of one of site b's hosts fail. Site b's server knows it
// within the period of the probe, and its gateway sends new connections to the other host. Connections of
// site a that the gateway has passed to the failed host before end after as many requests as the
// DestinationRule says.
func TestUnhealthyBehindGateway(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	load := s.a.ask.StartLoad(t, ledger, rate)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if s.b.accepted("orders-b1") == 0 {
			return errors.New("site b's gateway has no connection to the host that is to fail")
		}
		return nil
	})
	killed := time.Now()
	s.b.apps["orders-b1"].Kill()
	s.b.awaitHealth("unhealthy", "orders-b1")
	known := since(killed)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := s.b.accepted("orders-b1"); n > 0 {
			return fmt.Errorf("site b's gateway has %d connections to the host that is unhealthy", n)
		}
		return nil
	})
	ended := since(killed)
	load.Wait(t, rate/10) // what was under way then
	before := load.Now()
	load.Wait(t, 3*rate)
	r := load.Stop()
	t.Logf("site b's server knows after %s, the last connection to the host ended after %s; %d of %d requests failed, the last after %s: %v",
		known, ended, r.Failed, r.Failed+r.Good, max(0, r.LastFailure.Sub(killed)), r.Errors)
	if r.Failed > before.Failed {
		t.Errorf("%d requests failed after the last connection had ended: %v", r.Failed-before.Failed, r.Errors)
	}
	s.a.awaitOnly(ledger, "orders-b2")
}

// lostWithin is how soon a host that says nothing any more gets no more requests: the pages say ten
// seconds. The rest is the timeout of requests in the example, and for a slow machine.
const lostWithin = 20 * time.Second

// TestHostOfOtherSiteWithoutPower cuts a host of site b off. Its server finds it silent, and the gateway
// of site b uses the other host, until it is back.
func TestHostOfOtherSiteWithoutPower(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	load := s.a.ask.StartLoad(t, ledger, rate)
	load.Wait(t, rate)
	s.b.Unplug(s.b.hosts["orders-b1"].Host)
	cut := time.Now()
	s.b.awaitHealth("silent", "orders-b1")
	known := since(cut)
	// The load has new connections all the time: the gateway passes none of them to the host.
	quiet := func() (toDead, toOther int) {
		toDead, err1 := s.b.connections("orders-b1")
		toOther, err2 := s.b.connections("orders-b2")
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		return toDead, toOther
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		dead, other := quiet()
		load.Wait(t, 4*rate)
		if deadNow, otherNow := quiet(); deadNow > dead || otherNow == other {
			return fmt.Errorf("the gateway has begun %d connections to the host that is gone, and %d to the other one", deadNow-dead, otherNow-other)
		}
		return nil
	})
	s.a.awaitOnly(ledger, "orders-b2")
	s.b.Replug(s.b.hosts["orders-b1"].Host)
	s.b.awaitHealth("healthy", "orders-b1")
	r := load.Stop()
	last := max(0, r.LastFailure.Sub(cut))
	t.Logf("site b's server knows after %s; %d of %d requests failed, the last after %s: %v", known, r.Failed, r.Failed+r.Good, last, r.Errors)
	// A connection from before the cut may be used late. It ends with the first request, by perTryTimeout.
	if last > lostWithin {
		t.Errorf("requests failed %s after the cut: %v", last, r.Errors)
	}
}

// TestServersAway kills both servers, which is all that a cut between them can do: they do not talk to
// each other. Requests within a site and between sites go on.
func TestServersAway(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	within, between := s.a.ask.StartLoad(t, orders, rate), s.a.ask.StartLoad(t, ledger, rate)
	for _, l := range []*site{s.a, s.b} {
		l.Server.Kill()
		between.Wait(t, rate)
	}
	for _, l := range []*site{s.b, s.a} {
		s.startServer(l)
		l.AwaitLive(l.labels()...)
		between.Wait(t, rate)
	}
	s.unharmed(within)
	s.unharmed(between)
}

// TestLineBetweenSitesCut loses everything between the sites. Each goes on with what it has, and they
// meet again when the line is back.
func TestLineBetweenSitesCut(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	inA, inB := s.a.ask.StartLoad(t, orders, rate), s.b.ask.StartLoad(t, ledger, rate)
	edge := s.a.hosts["edge-a"]
	edge.Load("table ip cut { chain between { type filter hook postrouting priority 200; oifname " + outside + " drop; }\n}")
	cut := time.Now()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if a, err := s.a.ask.Get(t.Context(), ledger); err == nil {
			return fmt.Errorf("%s answers through a line that is cut", a.Name)
		}
		return nil
	})
	t.Logf("a request between the sites fails %s after the cut", since(cut))
	inA.Wait(t, 2*rate)
	inB.Wait(t, rate)
	edge.NFT("", "delete", "table", "ip", "cut")
	healed := time.Now()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	t.Logf("they answer again after %s", since(healed))
	s.unharmed(inA)
	s.unharmed(inB)
}

// TestGatewayMoves gives site b's gateway another address, and changes MeshNetworks in a running mesh.
func TestGatewayMoves(t *testing.T) {
	s := newSites(t)
	s.start()
	s.a.awaitAny(ledger, "orders-b1", "orders-b2")
	load := s.a.ask.StartLoad(t, ledger, rate)
	load.Wait(t, rate)
	edge := s.b.hosts["edge-b"]
	const another = 99
	moved, old := s.between.IP4(another), s.b.outer[0]
	edge.IP("address", "add", moved+"/24", "dev", outside)
	s.b.outer[0] = moved
	s.networks(s.example("mesh-networks.yaml"))
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := s.a.EnvoyAdmin("web-a", "/clusters")
		if err == nil && (grep(out, moved+":15443::cx_active") == "" || grep(out, old+":15443::cx_active") != "") {
			err = fmt.Errorf("web-a does not use %s alone: %s", moved, grep(out, "15443::cx_active"))
		}
		return err
	})
	load.Wait(t, rate)
	edge.Load("table ip old { chain in { type filter hook input priority 0; ip daddr " + old + " drop; }\n}")
	load.Wait(t, 2*rate)
	s.unharmed(load)
}
