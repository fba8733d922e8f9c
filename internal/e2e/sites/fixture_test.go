package sites

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/parallel"
)

func TestMain(m *testing.M) {
	parallel.WaitingForEnvoys()
	os.Exit(meshtest.Main(m))
}

// The hosts of a site by the last number of their addresses, as in examples/two-sites.
const (
	edgeNumber = 3
	webNumber  = 5
	ordersOne  = 11
	ordersTwo  = 12
)

// Services of the example, and where they are asked.
const (
	orders = "http://orders.shop.internal:9080/"
	ledger = "http://ledger.shop.internal:9080/"
)

// client is who calls in both sites.
const client = "spiffe://cluster.local/ns/shop/sa/web"

// write puts a manifest into all sites.
func (s *sites) write(name, content string) {
	s.t.Helper()
	s.each(func(l *site) { l.Write(name, content) })
}

// networks puts MeshNetworks into all sites.
func (s *sites) networks(content string) {
	s.t.Helper()
	s.each(func(l *site) {
		tmp := filepath.Join(l.Dir, "networks.new")
		if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Rename(tmp, l.networksFile()); err != nil {
			s.t.Fatal(err)
		}
	})
}

func (s *site) networksFile() string { return filepath.Join(s.Dir, "mesh-networks.yaml") }

// start starts everything as the example's README says, and waits until it is there.
func (s *sites) start() {
	s.t.Helper()
	files, err := os.ReadDir(filepath.Join(envoytest.ModuleRoot(s.t), "examples", "two-sites", "mesh"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		s.write(f.Name(), s.example(filepath.Join("mesh", f.Name())))
	}
	s.networks(s.example("mesh-networks.yaml"))
	s.more()
	if s.prepare != nil {
		s.prepare()
	}
	s.startServer(s.a)
	for _, l := range s.all[1:] {
		if !s.own {
			s.copyAuthority(l)
		}
		s.startServer(l)
	}
	s.each((*site).startHosts)
	s.t.Cleanup(s.end)
	s.each(func(l *site) { l.AwaitLive(l.labels()...) })
	s.each(func(l *site) { l.awaitHealth("healthy", "orders-"+l.name+"1", "orders-"+l.name+"2") })
}

// end kills all agents at once, so that nobody waits for their Envoys to drain one after the other.
// Their Envoys end after them.
func (s *sites) end() {
	var all sync.WaitGroup
	s.each(func(l *site) {
		for _, h := range l.hosts {
			all.Go(h.Agent.Kill)
		}
	})
	all.Wait()
}

func (s *sites) startServer(l *site) {
	s.t.Helper()
	var args []string
	if !s.apart {
		args = []string{"--mesh-networks", l.networksFile()}
	}
	l.StartServer(append(args, l.serverArgs...)...)
}

// labels are the names of its hosts.
func (s *site) labels() []string { return slices.Collect(maps.Keys(s.hosts)) }

// copyAuthority copies the authority of site a, and nothing else of its server's state, to another site.
func (s *sites) copyAuthority(l *site) {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.a.StateDir("server"), "pki", "current.pem"))
	if err != nil {
		s.t.Fatal(err)
	}
	to := filepath.Join(l.StateDir("server"), "pki")
	if err := os.MkdirAll(to, 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "current.pem"), b, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// startHosts starts what runs on the hosts of a site.
func (s *site) startHosts() {
	s.t.Helper()
	for label := range s.hosts {
		if strings.HasPrefix(label, "orders-") {
			s.startApp(label)
		}
		s.startHost(label)
	}
	proxy := &url.URL{Scheme: "http", Host: "127.0.0.1:15080"}
	s.ask = meshtest.NewClientOver(s.t, "", &http.Transport{
		MaxIdleConnsPerHost: 64, DialContext: s.hosts["web-"+s.name].Dial, Proxy: http.ProxyURL(proxy),
	})
}

// startHost starts what runs for the mesh on a host.
func (s *site) startHost(label string) {
	s.t.Helper()
	switch {
	case strings.HasPrefix(label, "edge-"):
		s.startAgent(label, "istio-system/eastwest")
	case strings.HasPrefix(label, "web-"):
		s.startAgent(label, "shop/web", "--http-proxy-port", "15080")
	case s.serve != nil:
		s.serve(label)
	default:
		s.startOrders(label)
	}
}

func (s *site) startApp(label string) {
	s.t.Helper()
	_, app := s.Binaries()
	s.apps[label] = s.hosts[label].Start(label+"-app", hosttest.AppUser, app, "--name", label, "--listen", "127.0.0.1:8080")
}

// probePeriod is how often agents ask their applications.
const probePeriod = "1s"

func (s *site) startOrders(label string) {
	s.t.Helper()
	s.startAgent(label, "shop/orders", "--probe-http", "127.0.0.1:8080/healthz", "--probe-period", probePeriod)
}

func (s *site) startAgent(label, workload string, args ...string) {
	s.t.Helper()
	h := s.hosts[label]
	h.StartAgent(workload, s.ip(h.Number), append([]string{"--network", "site-" + s.name}, args...)...)
}

// awaitHealth waits until the site's server says so of hosts.
func (s *site) awaitHealth(health string, hosts ...string) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		by, err := s.Proxies()
		for _, h := range hosts {
			if err == nil && by[h]["health"] != health {
				err = fmt.Errorf("%s is %v, not %s", h, by[h]["health"], health)
			}
		}
		return err
	})
}

// tally asks for an address so many times, and counts who answers.
func (s *site) tally(address string, n int) map[string]int {
	s.t.Helper()
	return tallyOf(n, func() (string, error) {
		a, err := s.ask.Get(s.t.Context(), address)
		switch {
		case err != nil:
			return "", err
		case a.Caller != client:
			return "called by " + a.Caller, nil
		default:
			return a.Name, nil
		}
	})
}

// tallyOf asks so many times, and counts who answers. Errors count below their text.
func tallyOf(n int, ask func() (string, error)) map[string]int {
	out := map[string]int{}
	for range n {
		name, err := ask()
		if err != nil {
			name = "error: " + err.Error()
		}
		out[name]++
	}
	return out
}

// awaitOnly waits until 50 requests in a row are answered, each of the hosts has one and no other has.
func (s *site) awaitOnly(address string, hosts ...string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error { return only(s.tally(address, 50), hosts...) })
}

// awaitAny waits until 20 requests in a row are answered by these hosts and by no others.
func (s *site) awaitAny(address string, hosts ...string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		got := s.tally(address, 20)
		for name := range got {
			if !slices.Contains(hosts, name) {
				return fmt.Errorf("of 20 requests: %v", got)
			}
		}
		return nil
	})
}

// awaitEach waits until each of the hosts has answered, and as many requests in a row were answered by
// these hosts only. It is for services behind a gateway: 50 requests may go by one connection, to one host.
func (s *site) awaitEach(address string, hosts ...string) {
	s.t.Helper()
	seen := map[string]int{}
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		got := s.tally(address, 20)
		for name, n := range got {
			if !slices.Contains(hosts, name) {
				clear(seen)
				return fmt.Errorf("of 20 requests: %v", got)
			}
			seen[name] += n
		}
		if len(seen) < len(hosts) {
			return fmt.Errorf("only these have answered: %v", seen)
		}
		return nil
	})
}

// Counts of Envoy about the connections to an endpoint.
const (
	openNow   = "cx_active"
	sinceEver = "cx_total"
)

// connections are those that the site's first gateway has begun to a host of ledger.
func (s *site) connections(label string) (int, error) {
	return s.passes(s.edges[0], "9080", "ledger", label, sinceEver)
}

// passes are the connections that a gateway has to a host of a service, or has begun.
func (s *site) passes(edge *hosttest.Host, port, service, label, count string) (n int, err error) {
	out, err := s.EnvoyAdmin(edge.Label, "/clusters")
	if err != nil {
		return 0, err
	}
	of := fmt.Sprintf("outbound_.%[1]s_._.%[2]s.shop.internal::%[3]s:%[1]s::%[4]s::", port, service, s.hosts[label].IP4(), count)
	line := grep(out, of)
	if line == "" && grep(out, "_."+service+".shop.internal::added_via_api") != "" {
		return 0, nil // endpoints that are unhealthy or silent are left out
	}
	if _, err := fmt.Sscanf(line, of+"%d", &n); err != nil {
		return 0, fmt.Errorf("%s has no such cluster: %w", edge.Label, err)
	}
	return n, nil
}

// accepted are the connections that a host has open at the port of its services.
func (s *site) accepted(label string) (n int) {
	s.t.Helper()
	for line := range strings.Lines(s.hosts[label].Exec("ss", "-Htn", "state", "established")) {
		if f := strings.Fields(line); len(f) > 2 && strings.HasSuffix(f[2], ":9080") {
			n++
		}
	}
	return n
}

// grep are the lines of a text that have one of the words.
func grep(text string, words ...string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// only says what is wrong with a count of who answered, if not all of these hosts did and they alone.
func only(got map[string]int, hosts ...string) error {
	var errs []error
	for _, h := range hosts {
		if got[h] == 0 {
			errs = append(errs, fmt.Errorf("%s answers nothing", h))
		}
	}
	if len(got) != len(hosts) {
		errs = append(errs, errors.New("others answer"))
	}
	if len(errs) > 0 {
		errs = append(errs, fmt.Errorf("of 50 requests: %v", got))
	}
	return errors.Join(errs...)
}

// kill ends everything that runs for the mesh on a host, and its application, as kill -9 does.
func (s *site) kill(label string) {
	s.t.Helper()
	s.hosts[label].Agent.Kill() // first: it would start Envoy again
	if pid := s.EnvoyPID(label); pid != 0 {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
	}
	if app := s.apps[label]; app != nil {
		app.Kill()
	}
}

// unharmed ends a load of which no request may have failed.
func (s *sites) unharmed(l *meshtest.Load) {
	s.t.Helper()
	r := l.Stop()
	s.t.Logf("%d of %d requests failed", r.Failed, r.Good+r.Failed)
	if r.Failed > 0 {
		s.t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
	}
}

// since is a time for people.
func since(began time.Time) time.Duration { return time.Since(began).Round(time.Millisecond) }
