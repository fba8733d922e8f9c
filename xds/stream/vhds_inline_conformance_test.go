package stream_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// load sends requests to a host until stop is called, which returns how many there were
// and how many failed.
func load(t *testing.T, port int, name, prefix string) (stop func() (asked, failed int64)) {
	t.Helper()
	var failed, asked atomic.Int64
	end := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-end:
					return
				default:
				}
				asked.Add(1)
				got, err := ask(t, client, port, name)
				if (err != nil || !strings.HasPrefix(got, prefix)) && failed.Add(1) < 4 {
					t.Errorf("request: %q, %v", got, err)
				}
			}
		})
	}
	return func() (int64, int64) {
		close(end)
		wg.Wait()
		return asked.Load(), failed.Load()
	}
}

// A route configuration changes between VHDS and inline under load.
func inlineAndBack(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	stop := load(t, w.port, "a", "a")
	for i := range 5 {
		text := fmt.Sprintf("a-inline%d", i)
		w.inlineRouteConfig(host("a", text, "a"), host("x", "x", "x"))
		if n, _ := w.push(p); n != 1 {
			t.Errorf("%d resources sent to change to inline", n)
		}
		answers(t, w.port, "a="+text, "x=x", "b=404")
		// Back to VHDS, with b as it never was, and without c, which Envoy may remember.
		w.vhdsRouteConfig("80")
		w.host("80", "a", fmt.Sprintf("a%d", i))
		if i%2 == 0 {
			w.host("80", "b", fmt.Sprintf("b%d", i))
		} else {
			w.host("80", "c", fmt.Sprintf("c%d", i))
		}
		w.push(p)
		if i%2 == 0 {
			answers(t, w.port, fmt.Sprintf("a=a%d", i), fmt.Sprintf("b=b%d", i), "c=404", "x=404")
		} else {
			answers(t, w.port, fmt.Sprintf("a=a%d", i), fmt.Sprintf("c=c%d", i), "b=404", "x=404")
		}
	}
	if asked, failed := stop(); failed > 0 || asked < 100 {
		t.Errorf("%d of %d requests failed", failed, asked)
	}
	e.NoRejections(t)
}

// A listener is removed and added again before Envoy has unsubscribed from its route
// configuration: of its earlier virtual hosts only those that are sent again exist.
func backBeforeDrained(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	routeConfig := w.types[stream.RouteType]["80"]
	for i := range 3 {
		delete(w.types[stream.ListenerType], "l")
		delete(w.types[stream.RouteType], "80")
		w.dropHost("80", "a")
		w.dropHost("80", "c")
		w.push(p)
		w.port = envoytest.FreePorts(t, 1)[0]
		w.listenerOf("80", "l", w.port, "one")
		w.types[stream.RouteType]["80"] = routeConfig
		here, gone := "a", "c"
		if i%2 == 1 {
			here, gone = gone, here
		}
		w.host("80", here, fmt.Sprint("back", i))
		w.push(p)
		answers(t, w.port, here+fmt.Sprint("=back", i), "b=b1", gone+"=404")
	}
	e.NoRejections(t)
}

// A stream breaks after a route configuration and before its virtual hosts. Envoy still
// lists the virtual hosts that it had earlier.
func cutBeforeHosts(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	for i := range 3 {
		text := fmt.Sprintf("a-inline%d", i)
		w.inlineRouteConfig(host("a", text, "a"), host("x", "x", "x"))
		w.push(p)
		answers(t, w.port, "a="+text, "b=404")
		w.vhdsRouteConfig("80")
		w.host("80", "a", fmt.Sprint("again", i))
		w.host("80", "b", "b1") // as it was
		w.host("80", "d", fmt.Sprint("d", i))
		p.cut(stream.VirtualHostType)
		w.push(p)
		if n := p.cuts(); n != i+1 {
			t.Errorf("the stream was cut %d times", n)
		}
		answers(t, w.port, fmt.Sprint("a=again", i), "b=b1", "c=404", "x=404", fmt.Sprint("d=d", i))
	}
	e.NoRejections(t)
}

// A restarted server delivers route configurations in another form, as the operator's
// setting says, with other hosts, under load.
func switchedByRestart(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	stop := load(t, w.port, "a", "a")
	again := func() {
		p.stop()
		g := w.generation()
		p.set(g)
		p.start(t)
		p.waitConverged(t, g.Number)
	}
	for i := range 3 {
		text := fmt.Sprintf("a-inline%d", i)
		w.inlineRouteConfig(host("a", text, "a"), host("x", "x", "x"))
		again()
		answers(t, w.port, "a="+text, "x=x", "b=404")
		w.vhdsRouteConfig("80")
		w.host("80", "a", fmt.Sprint("a", i))
		w.host("80", "b", "b1")
		again()
		answers(t, w.port, fmt.Sprint("a=a", i), "b=b1", "c=404", "x=404")
		again()
		if n := p.sentSoFar(); n != 0 {
			t.Errorf("%d resources sent to an Envoy that has all of them", n)
		}
	}
	if asked, failed := stop(); failed > 0 || asked < 100 {
		t.Errorf("%d of %d requests failed", failed, asked)
	}
	e.NoRejections(t)
}

// Envoys before 1.37 do not support VHDS over ADS and reject it; then they are sent inline
// route configurations.
func vhdsUnsupported(t *testing.T, version string) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.listenerOf("80", "l", w.port, "one")
	w.vhdsRouteConfig("80")
	w.host("80", "a", "a1")
	g := w.generation()
	p.set(g)
	p.envoy(t, version)
	status := p.waitConverged(t, g.Number)
	st := status[len(status)-1]
	if st.Type != stream.RouteType || len(st.Rejected) != 1 || !strings.Contains(st.Rejected[0].Reason, "DELTA_GRPC") {
		t.Fatalf("status %+v", st)
	}
	w.inlineRouteConfig(host("a", "a2", "a"))
	_, status = w.push(p)
	if st := status[len(status)-1]; st.Type != stream.RouteType || len(st.Rejected) != 0 {
		t.Errorf("status %+v", st)
	}
	answers(t, w.port, "a=a2")
}

// An inline route configuration is rejected: Envoy keeps the hosts that it has, and those
// are updated again when they are wanted.
func inlineRejected(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.inlineRouteConfig(host("bad", "bad", "a", "a"))
	if _, status := w.push(p); !rejects(status) {
		t.Errorf("not rejected: %+v", status)
	}
	answers(t, w.port, "a=a1", "b=b1", "c=c1")
	w.vhdsRouteConfig("80")
	w.host("80", "a", "a2")
	w.host("80", "b", "b1")
	if _, status := w.push(p); rejects(status) {
		t.Errorf("still rejected: %+v", status)
	}
	answers(t, w.port, "a=a2", "b=b1", "c=404")
}

// A VHDS route configuration is rejected over one that has hosts: those removed behind it
// are gone when Envoy accepts one.
func vhdsRejected(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.inlineRouteConfig(host("a", "a2", "a"))
	w.push(p)
	answers(t, w.port, "a=a2", "b=404")
	w.vhdsRouteConfig("80", host("bad", "bad", "x", "x"))
	w.host("80", "a", "a3")
	if _, status := w.push(p); !rejects(status) {
		t.Errorf("not rejected: %+v", status)
	}
	answers(t, w.port, "a=a2", "b=404")
	w.vhdsRouteConfig("80")
	if _, status := w.push(p); rejects(status) {
		t.Errorf("still rejected: %+v", status)
	}
	answers(t, w.port, "a=a3", "b=404", "c=404", "x=404")
}

func rejects(status []stream.TypeStatus) bool {
	return slices.ContainsFunc(status, func(st stream.TypeStatus) bool { return len(st.Rejected) > 0 })
}

// A route configuration changes from inline to VHDS: until its hosts arrive, Envoy answers
// 404. This is why a server never makes that change; see [vhds.Use]. If this test fails,
// the change has become possible.
func gapFromInline(t *testing.T, version string) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.listenerOf("80", "l", w.port, "one")
	w.inlineRouteConfig(host("a", "a1", "a"))
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.waitConverged(t, g.Number)
	answers(t, w.port, "a=a1")
	p.cut(stream.VirtualHostType)
	p.keepCutting(true)
	w.vhdsRouteConfig("80")
	w.host("80", "a", "a2")
	g = w.generation()
	p.set(g)
	answers(t, w.port, "a=404")
	p.keepCutting(false)
	p.waitConverged(t, g.Number)
	answers(t, w.port, "a=a2")
	e.NoRejections(t)
}
