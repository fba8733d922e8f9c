package mesh_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayOf is a Gateway g of namespace n. A server is "PROTOCOL PORT[/PORTNAME] [MODE] HOST... [@BIND]".
func gatewayOf(tb testing.TB, name string, servers ...string) *mesh.Gateway {
	tb.Helper()
	g := &mesh.Gateway{Meta: mesh.Meta{Key: mesh.Key{Namespace: "n", Name: name}}, Spec: &networking.Gateway{}}
	for _, text := range servers {
		words := strings.Fields(text)
		port, portName, named := strings.Cut(words[1], "/")
		if !named {
			portName = "p"
		}
		s := &networking.Server{Port: &networking.Port{Name: portName, Protocol: words[0]}}
		if _, err := fmt.Sscan(port, &s.Port.Number); err != nil {
			tb.Fatal(err)
		}
		for _, w := range words[2:] {
			mode, isMode := networking.ServerTLSSettings_TLSmode_value[w]
			switch {
			case isMode:
				s.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_TLSmode(mode)}
			case w == "REDIRECT":
				s.Tls = &networking.ServerTLSSettings{HttpsRedirect: true}
			case w[0] == '@':
				s.Bind = w[1:]
			default:
				s.Hosts = append(s.Hosts, w)
			}
		}
		g.Spec.Servers = append(g.Spec.Servers, s)
	}
	return g
}

// TestRoutesByProtocolAndMode: requests have routes where the server speaks HTTP in plaintext, or ends HTTPS itself,
// whichever mode of TLS it has; TLS passes through for two modes only.
func TestRoutesByProtocolAndMode(t *testing.T) {
	t.Parallel()
	modes := []string{""}
	for mode := range networking.ServerTLSSettings_TLSmode_value {
		modes = append(modes, mode)
	}
	for protocol, kind := range map[string]string{
		"HTTP": "http", "HTTP2": "http", "GRPC": "http", "GRPC-WEB": "http", "http": "http", "HTTPS": "https", "https": "https",
		"TLS": "", "TCP": "", "MONGO": "", "other": "",
	} {
		for _, mode := range modes {
			g := gatewayOf(t, "g", protocol+" 443 "+mode+" a.b")
			s := mesh.NewGatewayServer(g, g.Spec.GetServers()[0], nil)
			passes := strings.HasSuffix(mode, "PASSTHROUGH")
			want := map[string]string{"http": "http.443", "https": "https.443.p.g.n"}[kind]
			if kind == "https" && passes {
				want = ""
			}
			if s.Routes != want || s.Passes() != passes || s.EndsHTTPS() != (kind == "https" && !passes) {
				t.Errorf("%s with %q: routes %q, passes %v, ends HTTPS %v", protocol, mode, s.Routes, s.Passes(), s.EndsHTTPS())
			}
		}
	}
}

// TestPortsThatLeadToOthers: where a service leads a port to another one, the gateway listens there, and as in
// Istio the names of routes of plain HTTP follow; those of HTTPS do not.
func TestPortsThatLeadToOthers(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, "g", "HTTP 80 a.b", "HTTPS 443 SIMPLE a.b", "HTTP 81 a.b @10.0.0.1")
	targets := []mesh.PortTarget{{Port: 80, Target: 8080}, {Port: 443, Target: 8443}, {Port: 9, Target: 81}}
	m := mesh.MergeGateways([]*mesh.Gateway{g}, targets)
	var got []string
	for _, at := range m.Ports {
		for _, s := range m.Servers[at] {
			got = append(got, fmt.Sprint(at.Number, " ", s.ListensAt, " ", s.Routes))
		}
	}
	if diff := cmp.Diff([]string{"8443 8443 https.443.p.g.n", "8080 8080 http.8080", "81 81 http.81.10.0.0.1"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestHostsOfServers: a server's host may be for one namespace. Server names are those of all, each once.
func TestHostsOfServers(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, "g", "HTTPS 443 SIMPLE b/x.com a/x.com y.com a/*.Z.com")
	s := mesh.NewGatewayServer(g, g.Spec.GetServers()[0], nil)
	if got := s.SNIHosts(); !slices.Equal(got, []string{"*.Z.com", "x.com", "y.com"}) {
		t.Errorf("server names %q", got)
	}
	for ns, want := range map[string][]mesh.Hostname{"a": {"x.com", "y.com", "*.z.com"}, "b": {"x.com", "y.com"}, "c": {"y.com"}} {
		if got := s.HostsFor(ns); !slices.Equal(got, want) {
			t.Errorf("for %s: %q, want %q", ns, got, want)
		}
	}
}

// TestMergedServers has several servers in one Gateway, or in several: which ports there are, with which routes.
func TestMergedServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gateways [][]string
		ports    string // PORT BIND ROUTES=SERVERS, by port
		routes   string // ROUTES=SERVERS
		rejected string // SERVER:KEPT
	}{
		"HTTP_of_two_Gateways":   {[][]string{{"HTTP 80 a.b"}, {"HTTP2 80 a.b"}}, "80 HTTP http.80=0.0,1.0", "http.80=0.0,1.0", ""},
		"redirects_share_a_host": {[][]string{{"HTTP 80 REDIRECT a.b"}, {"HTTP 80 c.d"}}, "80 HTTP http.80=0.0,1.0", "http.80=0.0,1.0", ""},
		"redirect_after_HTTP":    {[][]string{{"HTTP 80 a.b"}, {"HTTP 80 REDIRECT c.d"}}, "80 HTTP http.80=0.0,1.0", "http.80=0.0,1.0", ""},
		"TLS_before_redirect_HTTP": {
			[][]string{{"HTTP 80 REDIRECT a.b"}, {"HTTPS 80 SIMPLE c.d"}},
			"80 HTTPS https.80.p.g1.n=1.0; 80 HTTP http.80=0.0", "http.80=0.0; https.80.p.g1.n=1.0", "",
		},
		"TLS_before_plaintext_of_one_Gateway": {
			[][]string{{"HTTP 80 a.b", "HTTPS 80/q SIMPLE c.d"}}, "80 HTTPS https.80.q.g0.n=0.1; 80 HTTP http.80=0.0", "http.80=0.0; https.80.q.g0.n=0.1", "",
		},
		"HTTP_at_two_binds": {
			[][]string{{"HTTP 80 a.b @10.0.0.1"}, {"HTTP 80 a.b @10.0.0.2"}},
			"80 HTTP 10.0.0.1 http.80.10.0.0.1=0.0; 80 HTTP 10.0.0.2 http.80.10.0.0.2=1.0", "http.80.10.0.0.1=0.0; http.80.10.0.0.2=1.0", "",
		},
		"third_server_at_the_second_bind": {
			[][]string{{"HTTP 80 a.b @10.0.0.1"}, {"HTTP 80 a.b @10.0.0.2"}, {"HTTP 80 c.d @10.0.0.2"}},
			"80 HTTP 10.0.0.1 http.80.10.0.0.1=0.0; 80 HTTP 10.0.0.2 http.80.10.0.0.2=1.0,2.0", "http.80.10.0.0.1=0.0; http.80.10.0.0.2=1.0,2.0", "",
		},
		"back_at_the_first_bind": {
			[][]string{{"HTTP 80 a.b @10.0.0.1"}, {"HTTP 80 a.b @10.0.0.2"}, {"HTTP 80 c.d @10.0.0.1"}},
			"80 HTTP 10.0.0.1 http.80.10.0.0.1=0.0,2.0; 80 HTTP 10.0.0.2 http.80.10.0.0.2=1.0", "http.80.10.0.0.1=0.0,2.0; http.80.10.0.0.2=1.0", "",
		},
		"one_name_of_two_ports": {[][]string{{"HTTPS 443 SIMPLE a.b", "HTTPS 443 SIMPLE c.d"}}, "443 HTTPS https.443.p.g0.n=0.0", "https.443.p.g0.n=0.0", "0.1:0.0"},
		"two_names_of_ports":    {[][]string{{"HTTPS 443/p SIMPLE a.b", "HTTPS 443/q SIMPLE c.d"}}, "443 HTTPS https.443.p.g0.n=0.0,0.1", "https.443.p.g0.n=0.0; https.443.q.g0.n=0.1", ""},
		"HTTPS_and_TLS": {
			[][]string{{"HTTPS 443 SIMPLE a.b"}, {"TLS 443 PASSTHROUGH c.d"}},
			"443 HTTPS https.443.p.g0.n=0.0; 443 TLS =1.0", "https.443.p.g0.n=0.0", "",
		},
		"TLS_for_one_host": {[][]string{{"TLS 443 PASSTHROUGH a.b"}, {"HTTPS 443 SIMPLE c.d a.b"}}, "443 TLS =0.0", "", "1.0:0.0"},
		"hosts_of_the_left_out": {
			[][]string{{"HTTPS 443 SIMPLE a.b"}, {"HTTPS 443 SIMPLE c.d a.b"}, {"HTTPS 443 SIMPLE c.d"}},
			"443 HTTPS https.443.p.g0.n=0.0,2.0", "https.443.p.g0.n=0.0; https.443.p.g2.n=2.0", "1.0:0.0",
		},
		"one_host_at_two_ports": {
			[][]string{{"HTTPS 443 SIMPLE a.b"}, {"HTTPS 8443 SIMPLE a.b"}},
			"443 HTTPS https.443.p.g0.n=0.0; 8443 HTTPS https.8443.p.g1.n=1.0", "https.443.p.g0.n=0.0; https.8443.p.g1.n=1.0", "",
		},
		"plaintext_after_TLS": {
			[][]string{{"HTTPS 443 SIMPLE a.b"}, {"TCP 443 c.d"}, {"TCP 443 e.f"}},
			"443 HTTPS https.443.p.g0.n=0.0; 443 TCP =1.0", "https.443.p.g0.n=0.0", "2.0:1.0",
		},
		"TCP_and_HTTP": {[][]string{{"TCP 80 a.b"}, {"HTTP 80 a.b"}}, "80 TCP =0.0", "", "1.0:0.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			names := map[*networking.Server]string{}
			var list []*mesh.Gateway
			for i, servers := range c.gateways {
				g := gatewayOf(t, fmt.Sprint("g", i), servers...)
				for j, s := range g.Spec.GetServers() {
					names[s] = fmt.Sprintf("%d.%d", i, j)
				}
				list = append(list, g)
			}
			m := mesh.MergeGateways(list, nil)
			servers := func(list []*mesh.GatewayServer) string {
				var out []string
				for _, s := range list {
					out = append(out, names[s.Server])
				}
				return strings.Join(out, ",")
			}
			var ports, routes, rejected []string
			for _, at := range m.Ports {
				ports = append(ports, strings.Join(strings.Fields(fmt.Sprintf("%d %s %s %s=%s", at.Number, at.Protocol, at.Bind, m.Routes[at], servers(m.Servers[at]))), " "))
			}
			for r, list := range m.ByRoute {
				routes = append(routes, r+"="+servers(list))
			}
			slices.Sort(routes)
			for _, r := range m.Rejected {
				rejected = append(rejected, names[r.Server.Server]+":"+names[r.Kept.Server])
			}
			got := [3]string{strings.Join(ports, "; "), strings.Join(routes, "; "), strings.Join(rejected, "; ")}
			if diff := cmp.Diff([3]string{c.ports, c.routes, c.rejected}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCommonHosts: the narrower of two hosts is common, each once, in the order of the first list.
func TestCommonHosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ a, b, want string }{
		{"*.x.com", "a.x.com", "a.x.com"},
		{"a.x.com", "*.x.com", "a.x.com"},
		{"*", "a.x.com *.y.com", "a.x.com *.y.com"},
		{"a.x.com b.x.com", "*.x.com *", "a.x.com b.x.com"},
		{"*.x.com", "*.a.x.com", "*.a.x.com"},
		{"a.x.com", "b.x.com", ""},
		{"*.x.com", "x.com", ""},
		{"", "*", ""},
	} {
		hosts := func(text string) []mesh.Hostname {
			var out []mesh.Hostname
			for h := range strings.FieldsSeq(text) {
				out = append(out, mesh.Hostname(h))
			}
			return out
		}
		if got := mesh.CommonHosts(hosts(c.a), hosts(c.b)); !slices.Equal(got, hosts(c.want)) {
			t.Errorf("%q and %q: %q, want %q", c.a, c.b, got, c.want)
		}
	}
}
