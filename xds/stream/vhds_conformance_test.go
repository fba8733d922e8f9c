package stream_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// hostsOverADS is the first minor release of Envoy that supports VHDS over ADS, and
// spoiltNever the first in which a rejected route configuration does not affect the next
// one.
const (
	hostsOverADS = 37
	spoiltNever  = 40
)

// How real Envoys handle VHDS, release by release. Each case failed with a server that was
// less careful.
func TestConformanceHosts(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		if envoytest.Minor(t, version) < hostsOverADS {
			t.Run(version+"/gets-inline", func(t *testing.T) {
				t.Parallel()
				vhdsUnsupported(t, version)
			})
			continue
		}
		for name, test := range map[string]func(*testing.T, string){
			"one-edit-one-host":            oneHost,
			"route-config-added-late":      lateRouteConfig,
			"route-config-removed-readded": readdedRouteConfig,
			"route-config-without-hosts":   emptyRouteConfig,
			"bad-host":                     badHost,
			"rejected-route-config":        rejectedRouteConfig,
			"domains-move":                 movedDomains,
			"reconnect":                    hostsReconnect,
			"edits-under-load":             hostsUnderLoad,
			"inline-and-back":              inlineAndBack,
			"bad-host-of-two":              badHostOfTwo,
			"back-before-drained":          backBeforeDrained,
			"cut-before-hosts":             cutBeforeHosts,
			"switched-by-restart":          switchedByRestart,
			"inline-rejected":              inlineRejected,
			"vhds-rejected":                vhdsRejected,
			"gap-from-inline":              gapFromInline,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, version)
			})
		}
	}
}

// host is a virtual host that answers with a text by itself.
func host(name, text string, domains ...string) *routev3.VirtualHost {
	return &routev3.VirtualHost{
		Name: name, Domains: domains,
		Routes: []*routev3.Route{{
			Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
				Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}},
			}},
		}},
	}
}

// vhdsRouteConfig adds a route configuration that uses VHDS, with some inline virtual
// hosts.
func (w *testMesh) vhdsRouteConfig(routeConfig string, inline ...*routev3.VirtualHost) {
	w.t.Helper()
	w.putResource(stream.RouteType, stream.Resource{Name: routeConfig, Hosts: true}, &routev3.RouteConfiguration{
		Name: routeConfig, VirtualHosts: inline, Vhds: &routev3.Vhds{ConfigSource: ads()},
	})
}

// inlineRouteConfig adds route configuration 80 with inline virtual hosts, and removes
// those of VHDS.
func (w *testMesh) inlineRouteConfig(hosts ...*routev3.VirtualHost) {
	w.t.Helper()
	const routeConfig = "80"
	w.put(stream.RouteType, routeConfig, &routev3.RouteConfiguration{Name: routeConfig, VirtualHosts: hosts})
	for name := range w.types[stream.VirtualHostType] {
		if strings.HasPrefix(name, routeConfig+"/") {
			delete(w.types[stream.VirtualHostType], name)
		}
	}
}

// host adds a virtual host of a route configuration; its domain is its name if none is
// given.
func (w *testMesh) host(routeConfig, name, text string, domains ...string) {
	w.t.Helper()
	if len(domains) == 0 {
		domains = []string{name}
	}
	w.put(stream.VirtualHostType, routeConfig+"/"+name, host(routeConfig+"/"+name, text, domains...))
}

func (w *testMesh) dropHost(routeConfig, name string) {
	delete(w.types[stream.VirtualHostType], routeConfig+"/"+name)
}

// push sends the mesh as it is now to the Envoy, waits for its answers, and returns how
// many resources were sent.
func (w *testMesh) push(p *controlPlane) (sent int, status []stream.TypeStatus) {
	w.t.Helper()
	before := p.sentSoFar()
	g := w.generation()
	p.set(g)
	status = p.waitConverged(w.t, g.Number)
	return p.sentSoFar() - before, status
}

// ask returns what a host answers; "404" for one that does not exist.
func ask(t *testing.T, client *http.Client, port int, host string) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
	if err != nil {
		return "", err
	}
	req.Host = host
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return resp.Status[:3], err
	}
	return string(body), err
}

// answers waits until hosts answer as wanted, "NAME=TEXT"; for less than Envoy waits for
// virtual hosts that do not come.
func answers(t *testing.T, port int, want ...string) {
	t.Helper()
	for _, w := range want {
		name, text, _ := strings.Cut(w, "=")
		envoytest.Eventually(t, envoytest.Patience, func() error {
			got, err := ask(t, &http.Client{Timeout: envoytest.Attempt}, port, name)
			if err == nil && got != text {
				err = fmt.Errorf("%s answers %q, want %q", name, got, text)
			}
			return err
		})
	}
}

// hosts starts a control plane and an Envoy with one listener and three hosts.
func hosts(t *testing.T, version string) (*testMesh, *controlPlane, *envoytest.Envoy) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.listenerOf("80", "l", w.port, "one")
	w.vhdsRouteConfig("80")
	for _, name := range []string{"a", "b", "c"} {
		w.host("80", name, name+"1")
	}
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.waitConverged(t, g.Number)
	answers(t, w.port, "a=a1", "b=b1", "c=c1", "d=404")
	return w, p, e
}

func oneHost(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	w.host("80", "b", "b2")
	if n, _ := w.push(p); n != 1 {
		t.Errorf("an edit took %d resources", n)
	}
	answers(t, w.port, "a=a1", "b=b2")
	w.dropHost("80", "c")
	w.host("80", "all", "rest", "*")
	if n, _ := w.push(p); n != 1 {
		t.Errorf("one less and one more took %d resources", n)
	}
	answers(t, w.port, "a=a1", "c=rest")
	if n, _ := w.push(p); n != 0 {
		t.Errorf("%d resources sent although nothing had changed", n)
	}
	// An update of the route configuration keeps its hosts.
	w.vhdsRouteConfig("80", host("inline", "inline", "i"))
	if n, _ := w.push(p); n != 1 {
		t.Errorf("an update of the route configuration took %d resources", n)
	}
	answers(t, w.port, "a=a1", "b=b2", "c=rest", "i=inline")
	e.NoRejections(t)
}

// A route configuration that is added later does not subscribe to its hosts.
func lateRouteConfig(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	port := envoytest.FreePorts(t, 1)[0]
	w.listenerOf("90", "late", port, "two")
	w.vhdsRouteConfig("90")
	w.host("90", "a", "late")
	if n, _ := w.push(p); n != 3 {
		t.Errorf("took %d resources", n)
	}
	answers(t, port, "a=late")
	answers(t, w.port, "a=a1")
	// Two listeners with one route configuration.
	other := envoytest.FreePorts(t, 1)[0]
	w.listenerOf("90", "twin", other, "three")
	w.push(p)
	answers(t, other, "a=late")
	w.host("90", "a", "later")
	w.push(p)
	answers(t, other, "a=later")
	answers(t, port, "a=later")
	e.NoRejections(t)
}

// A route configuration that is unsubscribed and subscribed again has no hosts.
func readdedRouteConfig(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	routeConfig := w.types[stream.RouteType]["80"]
	for range 2 {
		delete(w.types[stream.ListenerType], "l")
		w.push(p)
		envoytest.Eventually(t, envoytest.Patience, func() error {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, st := range p.status {
				if st.Type == stream.RouteType && st.Names > 0 {
					return errors.New("still subscribed")
				}
			}
			return nil
		})
		w.port = envoytest.FreePorts(t, 1)[0]
		w.listenerOf("80", "l", w.port, "one")
		w.types[stream.RouteType]["80"] = routeConfig
		w.push(p)
		answers(t, w.port, "a=a1", "b=b1")
	}
	e.NoRejections(t)
}

// A listener opens even if its route configuration has no hosts.
func emptyRouteConfig(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	port := envoytest.FreePorts(t, 1)[0]
	w.listenerOf("90", "empty", port, "two")
	w.vhdsRouteConfig("90")
	w.push(p)
	answers(t, port, "a=404")
	w.host("90", "a", "a1")
	w.push(p)
	answers(t, port, "a=a1")
	w.dropHost("90", "a")
	w.push(p)
	answers(t, port, "a=404")
	e.NoRejections(t)
}

// Of several hosts one is rejected: the others are in force, and it keeps its last
// version.
func badHost(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.host("80", "a", "a2")
	w.host("80", "b", "b2", "b", "b") // twice the same domain
	w.host("80", "d", "d2")
	w.put(stream.VirtualHostType, "80/new", host("80/new", "new")) // no domain at all
	w.dropHost("80", "c")
	_, status := w.push(p)
	st := status[len(status)-1]
	var names []string
	for _, r := range st.Rejected {
		names = append(names, r.Name)
	}
	if strings.Join(names, " ") != "80/b 80/new" || st.Unknown != 0 {
		t.Errorf("rejected %v, %d unknown: %s", names, st.Unknown, st.LastError)
	}
	answers(t, w.port, "a=a2", "b=b1", "c=404", "d=d2")
	// A good one is taken beside it, and in the end it too.
	w.host("80", "a", "a3")
	w.push(p)
	answers(t, w.port, "a=a3", "b=b1")
	w.host("80", "b", "b3")
	w.dropHost("80", "new")
	_, status = w.push(p)
	if st := status[len(status)-1]; len(st.Rejected) != 0 {
		t.Errorf("still rejected: %+v", st.Rejected)
	}
	answers(t, w.port, "a=a3", "b=b3", "d=d2")
}

// A rejected route configuration must not take effect with the next virtual host. Before
// 1.40 it does, or blocks it, even if the last good one is sent again at once: that one
// has not changed, so Envoy skips it. Only another good version helps; here it is the
// inline one.
func rejectedRouteConfig(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	w.vhdsRouteConfig("80", host("bad", "bad", "bad", "bad"), host("worse", "bad", "worse"))
	_, status := w.push(p)
	for _, st := range status {
		if st.Type == stream.RouteType && (len(st.Rejected) != 1 || st.Unknown != 0) {
			t.Errorf("rejected %+v", st)
		}
	}
	w.host("80", "a", "a2")
	if _, status = w.push(p); envoytest.Minor(t, version) >= spoiltNever {
		answers(t, w.port, "a=a2", "b=b1", "bad=404", "worse=404")
	} else if st := status[len(status)-1]; len(st.Rejected) != 1 {
		t.Errorf("no longer so: %+v", st)
	}
	hosts := []string{"a", "b", "c"}
	w.inlineRouteConfig(host("a", "a3", "a"), host("b", "b3", "b"))
	w.push(p)
	answers(t, w.port, "a=a3", "b=b3", "c=404", "bad=404", "worse=404")
	w.vhdsRouteConfig("80")
	for _, name := range hosts {
		w.host("80", name, name+"4")
	}
	_, status = w.push(p)
	if st := status[len(status)-1]; len(st.Rejected) != 0 {
		t.Errorf("still rejected %+v", st.Rejected)
	}
	answers(t, w.port, "a=a4", "b=b4", "c=c4", "bad=404", "worse=404")
}

// Of two route configurations one has a rejected host: the hosts of the other are in
// force.
func badHostOfTwo(t *testing.T, version string) {
	t.Helper()
	w, p, _ := hosts(t, version)
	port := envoytest.FreePorts(t, 1)[0]
	w.listenerOf("90", "late", port, "two")
	w.vhdsRouteConfig("90")
	w.host("90", "a", "x0")
	w.push(p)
	for i := range 10 {
		bad, good, goodPort := "80", "90", port
		if i%2 == 1 {
			bad, good, goodPort = good, bad, w.port
		}
		w.host(bad, "bad", "bad", "x", "x")
		text := fmt.Sprint("x", i+1)
		w.host(good, "a", text)
		_, status := w.push(p)
		if st := status[len(status)-1]; len(st.Rejected) != 1 || st.Rejected[0].Name != bad+"/bad" || st.Unknown != 0 {
			t.Errorf("rejected %+v", st)
		}
		answers(t, goodPort, "a="+text)
		w.dropHost(bad, "bad")
		w.push(p)
	}
}

// A domain moves from one virtual host to another, and between two of them.
func movedDomains(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	w.host("80", "a", "a2", "b")
	w.host("80", "b", "b2", "a")
	w.push(p)
	answers(t, w.port, "a=b2", "b=a2")
	// And from a removed virtual host to a new one.
	w.dropHost("80", "a")
	w.host("80", "0", "new", "b")
	w.host("80", "z", "last", "z")
	w.push(p)
	answers(t, w.port, "b=new", "a=b2", "z=last")
	e.NoRejections(t)
	// Beside a rejected one it may not be possible to tell which is at fault; once that is
	// removed they are retried.
	w.host("80", "0", "newer", "a")
	w.host("80", "b", "b3", "b")
	w.host("80", "bad", "bad", "x", "x")
	_, status := w.push(p)
	if st := status[len(status)-1]; len(st.Rejected) == 0 || st.Rejected[len(st.Rejected)-1].Name != "80/bad" {
		t.Errorf("rejected %+v", st.Rejected)
	}
	answers(t, w.port, "z=last", "x=404")
	w.dropHost("80", "bad")
	_, status = w.push(p)
	if st := status[len(status)-1]; len(st.Rejected) != 0 {
		t.Errorf("still rejected %+v", st.Rejected)
	}
	answers(t, w.port, "a=newer", "b=b3", "z=last")
}

// A server that is restarted sends what has changed, of all route configurations.
func hostsReconnect(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	port := envoytest.FreePorts(t, 1)[0]
	w.listenerOf("90", "late", port, "two")
	w.vhdsRouteConfig("90")
	w.host("90", "a", "late")
	w.push(p)
	answers(t, port, "a=late")
	p.stop()
	p.start(t)
	p.waitConverged(t, w.number)
	if n := p.sentSoFar(); n != 0 {
		t.Errorf("%d resources sent to an Envoy that has all of them", n)
	}
	p.stop()
	w.host("80", "b", "b2")
	w.dropHost("80", "c")
	w.host("90", "new", "new")
	g := w.generation()
	p.set(g)
	p.start(t)
	p.waitConverged(t, g.Number)
	if n := p.sentSoFar(); n != 2 {
		t.Errorf("%d resources sent", n)
	}
	answers(t, w.port, "a=a1", "b=b2", "c=404")
	answers(t, port, "a=late", "new=new")
	e.NoRejections(t)
}

// Fifty edits of one host beside two hundred, while hosts are added and removed.
func hostsUnderLoad(t *testing.T, version string) {
	t.Helper()
	w, p, e := hosts(t, version)
	for i := range 200 {
		w.host("80", fmt.Sprintf("h%d", i), "h")
	}
	w.push(p)
	stop := load(t, w.port, "a", "a")
	for i := range 50 {
		w.host("80", "a", fmt.Sprintf("a%d", i))
		want := 1
		if i%5 == 0 {
			w.host("80", fmt.Sprintf("n%d", i), "n")
			w.dropHost("80", fmt.Sprintf("h%d", i))
			want = 2
		}
		if n, _ := w.push(p); n != want {
			t.Errorf("edit %d took %d resources", i, n)
		}
	}
	if asked, failed := stop(); failed > 0 || asked < 100 {
		t.Errorf("%d of %d requests failed", failed, asked)
	}
	answers(t, w.port, "a=a49", "h0=404", "n45=n", "h199=h")
	e.NoRejections(t)
}
