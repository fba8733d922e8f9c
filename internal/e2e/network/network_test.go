package network

import (
	"fmt"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// lostWithin is how soon a host that says nothing any more gets no more requests: the pages say
// ten seconds. The rest is for a slow machine.
const lostWithin = 14 * time.Second

// returnWithin is how soon hosts are back after a server can be reached again: a look a second,
// four seconds over which hosts spread, and the handshakes.
const returnWithin = 12 * time.Second

// TestHostWithoutPower cuts a host off while the server lives, without and with data under way to
// it. Its peers avoid it within the time that the pages name, and use it when it is back.
func TestHostWithoutPower(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(map[bool]string{false: "quiet", true: "busy"}[busy], func(t *testing.T) {
			l := newLAN(t, 2)
			l.start()
			load := l.load(200)
			load.wait(t, 400)
			l.cut("orders-1")
			began := time.Now()
			done := make(chan struct{})
			if busy { // something is pushed to all, again and again
				go func() {
					defer close(done)
					for i := range 8 {
						l.Write("busy.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: busy, namespace: shop}
spec: {hosts: [busy.shop.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 9080, name: http, protocol: HTTP}], endpoints: [{address: 10.99.1.%d}]}
`, i+1))
						load.wait(t, 100)
					}
				}()
			} else {
				close(done)
			}
			l.awaitHealth("silent", "orders-1")
			known := time.Since(began)
			<-done
			load.wait(t, 400)
			sent, failed, last, first := load.end()
			t.Logf("%d of %d requests failed, the last began %s after the cut, which was known after %s: %v", failed, sent, last.Sub(began).Round(time.Millisecond), known.Round(time.Millisecond), first)
			if last.Sub(began) > lostWithin {
				t.Errorf("a request went to the host %s after it was cut off", last.Sub(began))
			}
			l.heal("orders-1")
			healed := time.Now()
			l.awaitHealth("healthy", "orders-1")
			t.Logf("back after %s", time.Since(healed).Round(time.Millisecond))
		})
	}
}

// TestServerCutOff cuts the server off from all hosts. All their workloads are silent, and when
// they come back, one after the other, no request fails.
func TestServerCutOff(t *testing.T) {
	l := newLAN(t, 4)
	l.start()
	load := l.load(200)
	load.wait(t, 200)
	l.cut("server")
	l.awaitHealth("silent", l.orders...)
	load.wait(t, 2000)
	l.heal("server")
	healed := time.Now()
	l.awaitHealth("healthy", l.orders...)
	took := time.Since(healed)
	load.wait(t, 400)
	sent, failed, _, first := load.end()
	t.Logf("all are back after %s; %d of %d requests failed: %v", took.Round(time.Millisecond), failed, sent, first)
	if failed > 0 {
		t.Errorf("%d of %d requests failed: %v", failed, sent, first)
	}
}

// TestNetworkReturns cuts the server off until all certificates have ended and agents try rarely.
// When it can be reached again, they renew and reconnect within seconds, and not all at once.
func TestNetworkReturns(t *testing.T) {
	l := newLAN(t, 3)
	l.start("--certificate-ttl", "20s")
	l.cut("server")
	load := l.load(20)
	load.wait(t, 75*20) // retries are up to half a minute apart then
	_, failed, _, _ := load.end()
	t.Logf("%d requests failed during the cut, most of them because certificates ended", failed)
	l.heal("server")
	healed := time.Now()
	l.Server.Eventually(envoytest.Patience, func() error { return ask(t.Context(), l.client(2*time.Second)) })
	answered := time.Since(healed)
	l.awaitHealth("healthy", l.orders...)
	took := time.Since(healed)
	t.Logf("a request is answered after %s, all are back after %s", answered.Round(time.Millisecond), took.Round(time.Millisecond))
	if took > returnWithin {
		t.Errorf("all are back %s after the network is", took)
	}
}

// TestMostHostsWithoutPower cuts three of four instances off. Nobody holds them in: the fourth gets
// all requests.
func TestMostHostsWithoutPower(t *testing.T) {
	l := newLAN(t, 4)
	l.start()
	load := l.load(200)
	load.wait(t, 200)
	l.cut(l.orders[1:]...)
	began := time.Now()
	l.awaitHealth("silent", l.orders[1:]...)
	load.wait(t, 600)
	sent, failed, last, first := load.end()
	t.Logf("%d of %d requests failed, the last began %s after the cut: %v", failed, sent, last.Sub(began).Round(time.Millisecond), first)
	if last.Sub(began) > lostWithin {
		t.Errorf("a request went to a host %s after it was cut off", last.Sub(began))
	}
}

// TestDiesWhileServerIsAway takes an instance off the network while the server is away. The next
// server lets the others come back, and then peers avoid it.
func TestDiesWhileServerIsAway(t *testing.T) {
	const absentAfter = 5 * time.Second
	l := newLAN(t, 2)
	l.start()
	load := l.load(200)
	load.wait(t, 200)
	l.Server.Kill()
	l.cut("orders-1")
	load.wait(t, 200)
	l.startServer("--absent-after", absentAfter.String())
	began := time.Now()
	l.awaitHealth("healthy", "orders-0")
	l.awaitSilent("orders-1")
	known := time.Since(began)
	load.wait(t, 600)
	sent, failed, last, first := load.end()
	t.Logf("%d of %d requests failed, the last began %s after the server was back, and it was known after %s: %v",
		failed, sent, last.Sub(began).Round(time.Millisecond), known.Round(time.Millisecond), first)
	if last.Sub(began) > absentAfter+lostWithin {
		t.Errorf("a request went to the dead host %s after the server was back", last.Sub(began))
	}
}
