package sites

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
	"github.com/fairlead/fairlead/internal/parallel"
)

func TestMain(m *testing.M) {
	parallel.WaitingForEnvoys()
	os.Exit(meshtest.Main(m))
}

// links tells the networks between the sites of one test process apart.
var links atomic.Int64

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

// site is a group of hosts on a switch, with a control plane of its own.
type site struct {
	*hosttest.LAN

	t    *testing.T
	name string // a or b
	// outer is the address of its gateway that the other site reaches.
	outer string
	hosts map[string]*hosttest.Host
	apps  map[string]*meshtest.Process
	ask   *meshtest.Client // web's, by the HTTP proxy of its Envoy
}

// sites are two sites whose gateways have a network in common.
type sites struct {
	t     *testing.T
	a, b  *site
	link  int  // the number of that network
	apart bool // no MeshNetworks
}

// newSites makes the hosts of two sites. Nothing runs on them yet.
func newSites(t *testing.T) *sites {
	t.Helper()
	t.Parallel()
	return link(t, newSite(t, "a", hosttest.New(t)), newSite(t, "b", hosttest.New(t)))
}

// newAlike makes the hosts of two sites that have the same addresses.
func newAlike(t *testing.T) *sites {
	t.Helper()
	t.Parallel()
	const net = 100
	return link(t, newSite(t, "a", hosttest.NewNumbered(t, net)), newSite(t, "b", hosttest.NewNumbered(t, net)))
}

// link has the gateways of two sites reach each other.
func link(t *testing.T, a, b *site) *sites {
	t.Helper()
	s := &sites{t: t, a: a, b: b, link: 200 + int(links.Add(1))}
	nethost.Link(s.a.hosts["edge-a"].Host, s.b.hosts["edge-b"].Host, s.link)
	s.a.outer, s.b.outer = fmt.Sprintf("10.%d.0.1", s.link), fmt.Sprintf("10.%d.0.2", s.link)
	s.a.router(fmt.Sprintf("v%da", s.link), s.a.outer)
	s.b.router(fmt.Sprintf("v%db", s.link), s.b.outer)
	return s
}

func newSite(t *testing.T, name string, lan *hosttest.LAN) *site {
	t.Helper()
	s := &site{t: t, LAN: lan, name: name, hosts: map[string]*hosttest.Host{}, apps: map[string]*meshtest.Process{}}
	for label, number := range map[string]int{"edge-": edgeNumber, "web-": webNumber} {
		s.hosts[label+name] = s.Host(label+name, number)
	}
	for i, number := range []int{ordersOne, ordersTwo} {
		label := fmt.Sprintf("orders-%s%d", name, i+1)
		s.hosts[label] = s.Host(label, number)
	}
	s.hosts["edge-"+name].Type = "router"
	return s
}

// router has the gateway's host be the way out of its site, as a router with NAT is: hosts of the site
// reach the network between the sites, and nothing there reaches them.
func (s *site) router(device, outer string) {
	s.t.Helper()
	edge := s.hosts["edge-"+s.name]
	edge.Exec("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	edge.Load(fmt.Sprintf(`table ip way {
chain out { type nat hook postrouting priority 100; oifname %[1]q masquerade; }
chain through { type filter hook forward priority 0; iifname %[1]q ct state established,related accept; iifname %[1]q drop; }
}`, device))
	between := outer[:strings.LastIndex(outer, ".")] + ".0/24"
	for _, h := range s.hosts {
		if h != edge {
			h.IP("route", "add", between, "via", edge.IP4())
		}
	}
}

// each calls do for both sites.
func (s *sites) each(do func(*site)) {
	do(s.a)
	do(s.b)
}

// addresses has the addresses of the example be those of this test.
func (s *sites) addresses() *strings.Replacer {
	net := func(l *site) string { return strings.TrimSuffix(l.IP4(0), "0") }
	return strings.NewReplacer("10.1.0.", net(s.a), "10.2.0.", net(s.b), "192.0.2.1,", s.a.outer+",", "192.0.2.2,", s.b.outer+",")
}

// example is a file of the example, with the addresses of this test.
func (s *sites) example(path string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(s.t), "examples", "two-sites", path))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.addresses().Replace(string(b))
}

// write puts a manifest into both sites.
func (s *sites) write(name, content string) {
	s.t.Helper()
	s.each(func(l *site) { l.Write(name, content) })
}

// networks puts MeshNetworks into both sites.
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
	s.startServer(s.a)
	s.copyAuthority()
	s.startServer(s.b)
	s.each((*site).startHosts)
	s.t.Cleanup(s.end)
	s.each(func(l *site) { l.AwaitLive("edge-"+l.name, "web-"+l.name, "orders-"+l.name+"1", "orders-"+l.name+"2") })
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
	l.StartServer(args...)
}

// copyAuthority copies the authority of site a, and nothing else of its server's state, to site b.
func (s *sites) copyAuthority() {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.a.StateDir("server"), "pki", "current.pem"))
	if err != nil {
		s.t.Fatal(err)
	}
	to := filepath.Join(s.b.StateDir("server"), "pki")
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
		switch {
		case strings.HasPrefix(label, "edge-"):
			s.startAgent(label, "istio-system/eastwest")
		case strings.HasPrefix(label, "web-"):
			s.startAgent(label, "shop/web", "--http-proxy-port", "15080")
		default:
			s.startApp(label)
			s.startOrders(label)
		}
	}
	proxy := &url.URL{Scheme: "http", Host: "127.0.0.1:15080"}
	s.ask = meshtest.NewClientOver(s.t, "", &http.Transport{
		MaxIdleConnsPerHost: 64, DialContext: s.hosts["web-"+s.name].Dial, Proxy: http.ProxyURL(proxy),
	})
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
	h.StartAgent(workload, h.IP4(), append([]string{"--network", "site-" + s.name}, args...)...)
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

// tally asks so many times, and counts who answers. Errors count below their text.
func (s *site) tally(address string, n int) map[string]int {
	s.t.Helper()
	out := map[string]int{}
	for range n {
		a, err := s.ask.Get(s.t.Context(), address)
		switch {
		case err != nil:
			out["error: "+err.Error()]++
		case a.Caller != client:
			out["called by "+a.Caller]++
		default:
			out[a.Name]++
		}
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

// Counts of Envoy about the connections to an endpoint.
const (
	openNow   = "cx_active"
	sinceEver = "cx_total"
)

// connections are those that the site's gateway has to a host of ledger, or has begun.
func (s *site) connections(label, count string) (n int, err error) {
	out, err := s.EnvoyAdmin("edge-"+s.name, "/clusters")
	if err != nil {
		return 0, err
	}
	of := "outbound_.9080_._.ledger.shop.internal::" + s.hosts[label].IP4() + ":9080::" + count + "::"
	if _, err := fmt.Sscanf(grep(out, of), of+"%d", &n); err != nil {
		return 0, fmt.Errorf("the gateway of site %s has no such cluster or endpoint: %w", s.name, err)
	}
	return n, nil
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
	s.apps[label].Kill()
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
