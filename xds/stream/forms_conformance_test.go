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

// load asks a host until stop is called, which says how many requests there were
// and how many were not answered as they should be.
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

// A route configuration changes its form while requests are under way.
func wholeAndBack(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	stop := load(t, w.port, "a", "a")
	for i := range 5 {
		text := fmt.Sprintf("a-whole%d", i)
		w.whole(host("a", text, "a"), host("x", "x", "x"))
		if n, _ := w.push(p); n != 1 {
			t.Errorf("took %d resources to be whole", n)
		}
		answers(t, w.port, "a="+text, "x=x", "b=404")
		// Back, with b as it never was, and c, which Envoy may remember, gone.
		w.shell("80")
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

// A listener goes, and comes back before Envoy has given its table up: of the
// hosts that it had then none is left but those that are told anew.
func backBeforeDrained(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	table := w.types[stream.RouteType]["80"]
	for i := range 3 {
		delete(w.types[stream.ListenerType], "l")
		delete(w.types[stream.RouteType], "80")
		w.dropHost("80", "a")
		w.dropHost("80", "c")
		w.push(p)
		w.port = envoytest.FreePorts(t, 1)[0]
		w.listenerOf("80", "l", w.port, "one")
		w.types[stream.RouteType]["80"] = table
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

// A stream breaks when a table without its hosts has come, and its hosts have
// not. Envoy has those that it had long ago, and says so.
func cutBeforeHosts(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	for i := range 3 {
		text := fmt.Sprintf("a-whole%d", i)
		w.whole(host("a", text, "a"), host("x", "x", "x"))
		w.push(p)
		answers(t, w.port, "a="+text, "b=404")
		w.shell("80")
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

// A server comes back that sends tables in another form, as an operator's switch
// has it, with other hosts, while requests are under way.
func switchedByRestart(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	stop := load(t, w.port, "a", "a")
	again := func() {
		p.stop()
		g := w.generation()
		p.set(g)
		p.start(t)
		p.settled(t, g.Number)
	}
	for i := range 3 {
		text := fmt.Sprintf("a-whole%d", i)
		w.whole(host("a", text, "a"), host("x", "x", "x"))
		again()
		answers(t, w.port, "a="+text, "x=x", "b=404")
		w.shell("80")
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

// Envoys before 1.37 take no virtual hosts over ADS, and say so; then it is
// whole that they get a table.
func hostsRefused(t *testing.T, version string) {
	t.Helper()
	w, p := newWorld(t), newPlane(t)
	w.listenerOf("80", "l", w.port, "one")
	w.shell("80")
	w.host("80", "a", "a1")
	g := w.generation()
	p.set(g)
	p.envoy(t, version)
	status := p.settled(t, g.Number)
	st := status[len(status)-1]
	if st.Type != stream.RouteType || len(st.Rejected) != 1 || !strings.Contains(st.Rejected[0].Reason, "DELTA_GRPC") {
		t.Fatalf("status %+v", st)
	}
	w.whole(host("a", "a2", "a"))
	_, status = w.push(p)
	if st := status[len(status)-1]; st.Type != stream.RouteType || len(st.Rejected) != 0 {
		t.Errorf("status %+v", st)
	}
	answers(t, w.port, "a=a2")
}

// A table is refused whole: Envoy goes on with the hosts that it has, and those
// are kept up to date again when they are wanted.
func wholeRefused(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.whole(host("bad", "bad", "a", "a"))
	if _, status := w.push(p); !rejects(status) {
		t.Errorf("not rejected: %+v", status)
	}
	answers(t, w.port, "a=a1", "b=b1", "c=c1")
	w.shell("80")
	w.host("80", "a", "a2")
	w.host("80", "b", "b1")
	if _, status := w.push(p); rejects(status) {
		t.Errorf("still rejected: %+v", status)
	}
	answers(t, w.port, "a=a2", "b=b1", "c=404")
}

// A table is refused without its hosts, over one that has them: what was removed
// behind it is gone when Envoy takes one.
func shellRefused(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.whole(host("a", "a2", "a"))
	w.push(p)
	answers(t, w.port, "a=a2", "b=404")
	w.shell("80", host("bad", "bad", "x", "x"))
	w.host("80", "a", "a3")
	if _, status := w.push(p); !rejects(status) {
		t.Errorf("not rejected: %+v", status)
	}
	answers(t, w.port, "a=a2", "b=404")
	w.shell("80")
	if _, status := w.push(p); rejects(status) {
		t.Errorf("still rejected: %+v", status)
	}
	answers(t, w.port, "a=a3", "b=404", "c=404", "x=404")
}

func rejects(status []stream.TypeStatus) bool {
	return slices.ContainsFunc(status, func(st stream.TypeStatus) bool { return len(st.Rejected) > 0 })
}

// A table that Envoy has whole goes over to pieces: until its hosts come Envoy
// answers 404. This is why who decides on forms never has it do so; see
// [fold.Split]. An Envoy of which this is no longer true would be good news.
func gapFromWhole(t *testing.T, version string) {
	t.Helper()
	w, p := newWorld(t), newPlane(t)
	w.listenerOf("80", "l", w.port, "one")
	w.whole(host("a", "a1", "a"))
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.settled(t, g.Number)
	answers(t, w.port, "a=a1")
	p.cut(stream.VirtualHostType)
	p.keepCutting(true)
	w.shell("80")
	w.host("80", "a", "a2")
	g = w.generation()
	p.set(g)
	answers(t, w.port, "a=404")
	p.keepCutting(false)
	p.settled(t, g.Number)
	answers(t, w.port, "a=a2")
	e.NoRejections(t)
}
