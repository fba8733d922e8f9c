package view

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestLoopbackAddress: an address of the loopback interface for each virtual one, never the same for
// two of one range, and never one of those that belong to the host.
func TestLoopbackAddress(t *testing.T) {
	t.Parallel()
	wide := Settings{AddressRange: netip.MustParsePrefix("241.0.0.0/8")}
	for _, c := range []struct {
		s        Settings
		in, want string
	}{
		{in: "240.240.3.4", want: "127.240.3.4"},
		{in: "240.240.255.255", want: "127.240.255.255"},
		// Of another range: it would be the same as one of this.
		{in: "241.240.3.4"},
		{in: "240.241.3.4"},
		{in: "10.1.2.3"},
		{in: "2001:2::1"},
		{in: "240.240.0.0/16"},
		{in: "::ffff:240.240.3.4"},
		{in: "x"},
		{s: wide, in: "241.1.0.0", want: "127.1.0.0"},
		{s: wide, in: "241.0.0.1"},
		{s: wide, in: "240.240.3.4"},
	} {
		if got, ok := c.s.LoopbackAddress(c.in); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %t; want %q", c.in, got, ok, c.want)
		}
	}
	host, seen := netip.MustParsePrefix("127.0.0.0/16"), map[string]bool{}
	for a := netip.MustParseAddr("241.0.0.0"); a.Less(netip.MustParseAddr("241.3.0.0")); a = a.Next() {
		got, ok := wide.LoopbackAddress(a.String())
		if !ok {
			continue
		}
		if at := netip.MustParseAddr(got); seen[got] || !at.IsLoopback() || host.Contains(at) {
			t.Fatalf("%s: %s", a, got)
		}
		seen[got] = true
	}
	if len(seen) != 2<<16 {
		t.Errorf("%d addresses have one on the loopback interface", len(seen))
	}
}

// localMesh has services with and without virtual addresses, all of which have the same port.
func localMesh(tb testing.TB) *mesh.Snapshot {
	tb.Helper()
	w := newMeshFixture(tb)
	tcp := func(host string, virtual ...string) *mesh.Service {
		svc := w.service("shop", host, 5432)
		svc.Ports[0].Protocol, svc.Allocated = mesh.TCP, virtual
		return svc
	}
	tcp("one.mesh", "240.240.1.1", "2001:2::1")
	tcp("two.mesh", "240.240.1.2", "2001:2::2")
	tcp("pinned.mesh", "240.240.1.4").Addresses = []string{"240.240.1.3"}
	tcp("far.mesh").Addresses = []string{"10.7.7.7"}
	web := w.service("shop", "web.mesh", 80)
	web.Allocated = []string{"240.240.1.5"}
	return w.snapshot()
}

// boundAt are the addresses at which a proxy's outbound listeners listen, and what is there.
func boundAt(v *View) map[string]string {
	out := map[string]string{}
	for p := range v.Parts() {
		l, ok := p.(*Listener)
		if !ok || !l.BindToPort || l.Inbound {
			continue
		}
		for _, c := range l.Chains {
			switch {
			case c.HTTP != nil:
				out[l.Name] = "routes " + c.HTTP.RouteName
			case c.TCP != nil:
				out[l.Name] = c.TCP.StatPrefix
			}
		}
	}
	return out
}

// TestLoopbackListeners: each service with a virtual address has listeners of its own, and the others
// have what they had.
func TestLoopbackListeners(t *testing.T) {
	t.Parallel()
	x := NewIndex(localMesh(t))
	p := proxyIn("shop", nil)
	p.Interception = InterceptNone
	own := p
	own.Loopback = true
	before, after := boundAt(x.Build(p)), boundAt(x.Build(own))
	for name, want := range map[string]string{
		"127.240.1.1_5432": "outbound|5432||one.mesh", "127.240.1.2_5432": "outbound|5432||two.mesh", "127.240.1.3_5432": "outbound|5432||pinned.mesh",
		"127.0.0.1_5432": "outbound|5432||far.mesh", "127.240.1.5_80": "routes 80", "127.0.0.1_80": "routes 80",
	} {
		if after[name] != want {
			t.Errorf("%s is %q, want %q", name, after[name], want)
		}
	}
	if len(after) != 6 || len(before) != 2 {
		t.Errorf("with loopback addresses: %v; without: %v", after, before)
	}
	vh := findPart(t, x.Build(own), func(r *RouteConfiguration) bool { return r.Name == "80" })
	if i := slices.IndexFunc(vh.VirtualHosts, func(h *VirtualHost) bool { return slices.Contains(h.Domains, "127.240.1.5") }); i < 0 {
		t.Error("a request to the address finds no virtual host")
	}
	captured := own
	captured.Interception = InterceptRedirect
	for name := range boundAt(x.Build(captured)) {
		if strings.HasPrefix(name, "127.240.") {
			t.Errorf("a proxy that captures listens at %s", name)
		}
	}
}

// TestFirstPort: no listener is made at a port that Envoy may not have, and the proxy says so;
// what a Sidecar asks for by its port is tried nevertheless.
func TestFirstPort(t *testing.T) {
	t.Parallel()
	p := proxyIn("shop", nil)
	p.Interception, p.Loopback, p.FirstPort = InterceptNone, true, 1024
	v := Build(localMesh(t), p)
	got := boundAt(v)
	if got["127.0.0.1_80"] != "" || got["127.240.1.5_80"] != "" || got["127.240.1.1_5432"] == "" {
		t.Errorf("listeners: %v", got)
	}
	if !slices.ContainsFunc(v.Warnings, func(w Warning) bool { return strings.Contains(w.Message, "may listen at ports from 1024 on") }) {
		t.Errorf("warnings: %v", v.Warnings)
	}
	w := newMeshFixture(t)
	w.service("shop", "web.mesh", 80)
	w.sidecar("shop", "own", `{"egress":[{"port":{"number":80,"name":"http","protocol":"HTTP"},"hosts":["*/*"]}]}`)
	if got := boundAt(Build(w.snapshot(), p)); got["127.0.0.1_80"] == "" {
		t.Errorf("listeners with a Sidecar: %v", got)
	}
}

// TestHTTPProxyPort: where the listener for applications that use an HTTP proxy is, with MeshConfig's
// port, the proxy's own, and where it cannot be.
func TestHTTPProxyPort(t *testing.T) {
	t.Parallel()
	const all, one = `{"egress":[{"hosts":["*/*"]}]}`, `{"egress":[{"port":{"number":80,"name":"http","protocol":"HTTP"},"hosts":["*/*"]}]}`
	for name, c := range map[string]struct {
		mesh    int32
		own     uint32
		sidecar string
		kind    ProxyType
		want    string
	}{
		"none":                {},
		"MeshConfig":          {mesh: 15080, want: "127.0.0.1_15080"},
		"own":                 {own: 15081, want: "127.0.0.1_15081"},
		"own over MeshConfig": {mesh: 15080, own: 15081, want: "127.0.0.1_15081"},
		"a Sidecar":           {own: 15081, sidecar: all, want: "127.0.0.1_15081"},
		"no routes for it":    {own: 15081, sidecar: one},
		"router":              {mesh: 15080, kind: Router},
		"a service's port":    {own: 80, want: "127.0.0.1_80"},
	} {
		for _, mode := range []Interception{InterceptNone, InterceptRedirect} {
			w := newMeshFixture(t)
			w.mc.ProxyHttpPort = c.mesh
			w.service("shop", "web.mesh", 80)
			if c.sidecar != "" {
				w.sidecar("shop", "own", c.sidecar)
			}
			p := proxyIn("shop", nil)
			p.Interception, p.HTTPProxyPort = mode, c.own
			if c.kind != "" {
				p.Type = c.kind
			}
			v := Build(w.snapshot(), p)
			var at []string
			for name, what := range boundAt(v) {
				if what == "routes "+httpProxyRoutes {
					at = append(at, name)
				}
			}
			if strings.Join(at, ",") != c.want {
				t.Errorf("%s, %s: at %v, want %q", name, mode, at, c.want)
			}
			if c.want == "" {
				continue
			}
			rc := findPart(t, v, func(r *RouteConfiguration) bool { return r.Name == httpProxyRoutes })
			if !rc.AllPorts || !slices.ContainsFunc(rc.VirtualHosts, func(h *VirtualHost) bool {
				return slices.Contains(h.Domains, "web.mesh:80") && slices.Contains(h.Domains, "web.mesh")
			}) {
				t.Errorf("%s, %s: %v", name, mode, rc)
			}
		}
	}
}
