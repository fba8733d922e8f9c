package sites

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// links tells the networks between the sites of one test process apart.
var links atomic.Int64

// outside is the interface by which a gateway's host has the network between the sites.
const outside = "eth1"

// site is a group of hosts on a switch, with a control plane of its own.
type site struct {
	*hosttest.LAN

	t    *testing.T
	name string                  // a, b or c
	ip   func(number int) string // the address of a host in the mesh
	// edges are the hosts of its gateways. The first one is the way out of the site.
	edges []*hosttest.Host
	// outer are the addresses of its gateways that the other sites reach.
	outer []string
	hosts map[string]*hosttest.Host
	apps  map[string]*meshtest.Process
	ask   *meshtest.Client // web's, by the HTTP proxy of its Envoy

	// serverArgs are more arguments of its server, and serve starts what serves on a host if that is
	// not orders.
	serverArgs []string
	serve      func(label string)
}

// sites are some sites whose gateways have a network in common.
type sites struct {
	t    *testing.T
	a, b *site
	all  []*site
	shape

	between *nethost.Switch
	// prepare changes the files of the example before the servers start; or nil.
	prepare func()
}

// shape is what the sites of a test have other than those of the example.
type shape struct {
	apart bool // no MeshNetworks
	alike bool // the hosts of all sites have the same addresses
	third bool // there is a site c, with the services of site b
	two   bool // site b has two gateways
	ipv6  bool // the addresses of the mesh are IPv6
	own   bool // each server has an authority of its own
}

// newSites makes the hosts of two sites as in the example. Nothing runs on them yet.
func newSites(t *testing.T) *sites {
	t.Helper()
	return newShape(t, shape{})
}

// newAlike makes the hosts of two sites that have the same addresses.
func newAlike(t *testing.T) *sites {
	t.Helper()
	return newShape(t, shape{alike: true})
}

// newShape makes the hosts of sites.
func newShape(t *testing.T, of shape) *sites {
	t.Helper()
	t.Parallel()
	names := []string{"a", "b", "c"}
	if !of.third {
		names = names[:2]
	}
	net := 200 + int(links.Add(1))
	s := &sites{t: t, shape: of}
	for i, name := range names {
		l := newSite(t, name, of)
		s.all = append(s.all, l)
		if s.between == nil { // after the first host, which skips the test where it cannot run
			s.between = nethost.NewSwitch(t, net)
		}
		for j, edge := range l.edges {
			number := 10*(i+1) + j + 1
			s.between.PlugAs(edge.Host, outside)
			address := s.between.IP4(number)
			if of.ipv6 {
				address = s.between.IP6(number)
			}
			l.outer = append(l.outer, address)
			edge.IP("address", "add", address+prefixBits(address), "dev", outside, "nodad")
		}
		l.router()
	}
	s.a, s.b = s.all[0], s.all[1]
	return s
}

// prefixBits is how long the network's part of an address is, as ip has it.
func prefixBits(address string) string {
	if strings.Contains(address, ":") {
		return "/64"
	}
	return "/24"
}

func newSite(t *testing.T, name string, of shape) *site {
	t.Helper()
	const alike = 100
	lan := hosttest.New
	if of.alike {
		lan = func(tb testing.TB) *hosttest.LAN {
			tb.Helper()
			return hosttest.NewNumbered(tb, alike)
		}
	}
	s := &site{t: t, LAN: lan(t), name: name, hosts: map[string]*hosttest.Host{}, apps: map[string]*meshtest.Process{}}
	if s.ip = s.IP4; of.ipv6 {
		s.ip = s.IP6
	}
	s.hosts["web-"+name] = s.Host("web-"+name, webNumber)
	for i, number := range []int{ordersOne, ordersTwo} {
		label := fmt.Sprintf("orders-%s%d", name, i+1)
		s.hosts[label] = s.Host(label, number)
	}
	labels := []string{"edge-" + name}
	if of.two && name == "b" {
		labels = append(labels, "edge-b2")
	}
	for i, label := range labels {
		edge := s.Host(label, edgeNumber+i)
		edge.Type = "router"
		s.hosts[label], s.edges = edge, append(s.edges, edge)
	}
	return s
}

// router has the host of the first gateway be the way out of its site, as a router with NAT is: hosts of
// the site reach the network between the sites, and nothing there reaches them.
func (s *site) router() {
	s.t.Helper()
	edge, family, forward := s.edges[0], "ip", "ipv4/ip_forward"
	inner, network := edge.IP4(), s.outer[0][:strings.LastIndex(s.outer[0], ".")+1]+"0/24"
	if strings.Contains(s.outer[0], ":") {
		family, forward = "ip6", "ipv6/conf/all/forwarding"
		inner, network = edge.IP6(), s.outer[0][:strings.LastIndex(s.outer[0], ":")+1]+"/64"
	}
	edge.Exec("sh", "-c", "echo 1 > /proc/sys/net/"+forward)
	edge.Load(fmt.Sprintf(`table %[2]s way {
chain out { type nat hook postrouting priority 100; oifname %[1]q masquerade; }
chain through { type filter hook forward priority 0; iifname %[1]q ct state established,related accept; iifname %[1]q drop; }
}`, outside, family))
	for _, h := range s.hosts {
		if h.Type != "router" {
			h.IP("route", "add", network, "via", inner)
		}
	}
}

// each calls do for all sites.
func (s *sites) each(do func(*site)) {
	for _, l := range s.all {
		do(l)
	}
}

// addresses has the addresses of the example be those of this test.
func (s *sites) addresses() *strings.Replacer {
	net := func(l *site) string { return strings.TrimSuffix(l.ip(0), "0") }
	return strings.NewReplacer("10.1.0.", net(s.a), "10.2.0.", net(s.b), "192.0.2.1,", s.a.outer[0]+",", "192.0.2.2,", s.b.outer[0]+",")
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

// more are the manifests and the networks of what the example does not have.
func (s *sites) more() {
	s.t.Helper()
	if s.two {
		second := strings.NewReplacer("edge-b", "edge-b2", s.b.ip(edgeNumber), s.b.ip(edgeNumber+1))
		first, _, _ := strings.Cut(s.example("mesh/site-b.yaml"), "\n---")
		s.write("edge-b2.yaml", second.Replace(first))
	}
	if s.third {
		c := s.all[2]
		s.write("site-c.yaml", strings.NewReplacer("site-b", "site-c", "-b", "-c", strings.TrimSuffix(s.b.ip(0), "0"), strings.TrimSuffix(c.ip(0), "0")).Replace(s.example("mesh/site-b.yaml")))
	}
	if s.ipv6 { // a server without an address listens by IPv4
		const another = "  servers:\n  - {port: {number: 15443, name: tls-ipv6, protocol: TLS}, bind: \"::\", hosts: [\"*.internal\"], tls: {mode: AUTO_PASSTHROUGH}}\n"
		s.each(func(l *site) { l.Edit("gateway.yaml", "  servers:\n", another) })
	}
	if s.two || s.third || s.ipv6 {
		s.networks(s.meshNetworks())
	}
}

// meshNetworks are those of the sites, with all gateways.
func (s *sites) meshNetworks() string {
	var out strings.Builder
	out.WriteString("networks:\n")
	s.each(func(l *site) {
		fmt.Fprintf(&out, "  site-%s:\n    gateways:\n", l.name)
		for _, address := range l.outer {
			fmt.Fprintf(&out, "    - {address: %q, port: 15443}\n", address)
		}
	})
	return out.String()
}
