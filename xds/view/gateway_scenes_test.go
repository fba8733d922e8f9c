package view

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayText is what a gateway listens for and where it leads, a line for each chain, virtual host and warning.
func gatewayText(v *View) string {
	var out []string
	clusters := func(list []WeightedCluster) string {
		var names []string
		for _, c := range list {
			names = append(names, strings.Trim(fmt.Sprintf("%s:%d/%s", c.Cluster.Host, c.Cluster.Port, c.Cluster.Subset), "/"))
		}
		return strings.Join(names, "+")
	}
	for p := range v.Parts() {
		switch p := p.(type) {
		case *Listener:
			if p.InspectTLS {
				out = append(out, fmt.Sprintf("%s of port %d inspects TLS", p.Name, p.Port))
			}
			for _, c := range p.Chains {
				var to string
				if c.TCP != nil {
					to = "tcp " + clusters(c.TCP.Destinations)
				} else {
					to = "http " + c.HTTP.RouteName
				}
				tls := ""
				switch {
				case c.TLS != nil:
					tls = strings.TrimRight(" mesh "+strings.Join(c.TLS.Names, "+"), " ")
				case c.Gateway != nil:
					tls = " " + c.Gateway.Settings.GetMode().String()
				}
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s %q%s%s", p.Name, c.Match.ServerNames, " "+c.Match.Transport, tls))+" "+to)
			}
		case *RouteConfiguration:
			for _, vh := range p.VirtualHosts {
				words := []string{p.Name, vh.Name, fmt.Sprintf("%q", vh.Domains)}
				if vh.RequireTLS {
					words = append(words, "redirects")
				}
				for _, r := range vh.Routes {
					words = append(words, r.Match.GetUri().GetPrefix()+">"+routeTo(r))
				}
				out = append(out, strings.Join(words, " "))
			}
		}
	}
	for _, w := range v.Warnings {
		out = append(out, "warning: "+w.Message)
	}
	return strings.Join(append(out, ""), "\n")
}

func routeTo(r *Route) string {
	if s := r.Rule.GetDirectResponse().GetStatus(); s != 0 {
		return strconv.FormatUint(uint64(s), 10)
	}
	var out []string
	for _, d := range r.Destinations {
		out = append(out, fmt.Sprintf("%s:%d", d.Cluster.Host, d.Cluster.Port))
	}
	return strings.Join(out, "+")
}

// TestGatewayScenes holds what a gateway gets of Gateways and VirtualServices, rule by rule.
func TestGatewayScenes(t *testing.T) {
	t.Parallel()
	port := func(number int, protocol, rest string) string {
		return fmt.Sprintf(`{"port": {"number": %d, "name": "p%d", "protocol": %q}, %s}`, number, number, protocol, rest)
	}
	const answer = `"http": [{"directResponse": {"status": 204}}]`
	for name, c := range map[string]struct {
		servers []string
		routes  []string // VirtualServices of namespace shop, "NS " in front for another one
		mesh    func(w *meshFixture)
		proxy   func(p *Proxy)
		want    string
	}{
		"no-VirtualService": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 blackhole:80 [\"*\"]\n",
		},
		"conflict": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`), port(80, "TCP", `"name": "second", "hosts": ["*"]`)},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 blackhole:80 [\"*\"]\n" +
				"warning: the server \"second\" on port 80 is left out: a server of HTTP has the port first, and a server of TCP cannot share it (Gateway shop/a)\n",
		},
		"IPv6-only": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)}, proxy: func(p *Proxy) { p.Addresses = []string{"fd00::8"} },
			want: "::_80 [] http http.80\n" +
				"http.80 blackhole:80 [\"*\"]\n",
		},
		"low-port": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`), port(1024, "HTTP", `"hosts": ["*"]`), port(81, "HTTP", `"hosts": ["*"], "bind": "unix:///run/x.sock"`)}, proxy: func(p *Proxy) { p.FirstPort = 1024 },
			want: "0.0.0.0_1024 [] http http.1024\n" +
				"unix:///run/x.sock_81 [] http http.81.unix:///run/x.sock\n" +
				"http.1024 blackhole:1024 [\"*\"]\n" +
				"http.81.unix:///run/x.sock blackhole:81 [\"*\"]\n" +
				"warning: port 80: no listener: Envoy on this host may listen at ports from 1024 on\n",
		},
		"host-of-a-namespace": {
			servers: []string{port(80, "HTTP", `"hosts": ["shop/a.test", "other/b.test", "c.test"]`)},
			routes:  []string{`{"hosts": ["*.test"], "gateways": ["shop/a"], ` + answer + `}`},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 a.test:80 [\"a.test\" \"c.test\"] >204\n",
		},
		"one-virtual-host-for-equal-routes": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)},
			routes:  []string{`{"hosts": ["*.a.test", "long.a.test", "x.test"], "gateways": ["shop/a"], ` + answer + `}`, `{"hosts": ["y.test"], "gateways": ["shop/a"], ` + answer + `}`},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 long.a.test:80 [\"long.a.test\" \"x.test\" \"*.a.test\"] >204\n" +
				"http.80 y.test:80 [\"y.test\"] >204\n",
		},
		"catch-all-last": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)},
			routes: []string{
				`{"hosts": ["a.test"], "gateways": ["shop/a"], "http": [{"match": [{"uri": {"prefix": "/x"}}], "directResponse": {"status": 201}}, {"directResponse": {"status": 202}}]}`,
				`{"hosts": ["a.test"], "gateways": ["shop/a"], "http": [{"match": [{"uri": {"prefix": "/y"}}], "directResponse": {"status": 203}}, {"match": [{"uri": {"prefix": "/"}}], "directResponse": {"status": 204}}]}`,
			},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 a.test:80 [\"a.test\"] /x>201 /y>203 >202 />204\n",
		},
		"redirects": {
			servers: []string{port(80, "HTTP", `"hosts": ["a.test", "shop/b.test", "other/c.test"], "tls": {"httpsRedirect": true}`), port(8080, "HTTP", `"hosts": ["a.test"]`)},
			routes:  []string{`{"hosts": ["b.test"], "gateways": ["shop/a"], ` + answer + `}`},
			want: "0.0.0.0_80 [] http http.80\n" +
				"0.0.0.0_8080 [] http http.8080\n" +
				"http.80 a.test:80 [\"a.test\"] redirects\n" +
				"http.80 b.test:80 [\"b.test\"] redirects >204\n" +
				"http.8080 blackhole:8080 [\"*\"]\n",
		},
		"match-by-gateway-and-port": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`), port(81, "HTTP", `"hosts": ["*"]`)},
			routes: []string{`{"hosts": ["a.test"], "gateways": ["shop/a", "mesh"], "http": [{"match": [{"gateways": ["mesh"], "uri": {"prefix": "/mesh"}}, {"gateways": ["shop/b"], "uri": {"prefix": "/b"}}, {"gateways": ["shop/a"], "uri": {"prefix": "/a"}},
				{"port": 81, "uri": {"prefix": "/81"}}, {"sourceLabels": {"edge": "b"}, "uri": {"prefix": "/label"}}], "directResponse": {"status": 204}}]}`},
			want: "0.0.0.0_80 [] http http.80\n" +
				"0.0.0.0_81 [] http http.81\n" +
				"http.80 a.test:80 [\"a.test\"] /a>204\n" +
				"http.81 a.test:81 [\"a.test\"] /a>204 /81>204\n",
		},
		"exported-elsewhere": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)},
			routes:  []string{`other {"hosts": ["a.test"], "gateways": ["shop/a"], "exportTo": ["other"], ` + answer + `}`, `other {"hosts": ["b.test"], "gateways": ["shop/a"], "exportTo": ["shop"], ` + answer + `}`},
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 b.test:80 [\"b.test\"] >204\n",
		},
		"destination-in-the-namespace-of-the-routes": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`)},
			routes:  []string{`other {"hosts": ["a.test"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "web.mesh"}}]}]}`},
			mesh:    func(w *meshFixture) { w.service("other", "web.mesh", 9080); w.service("shop", "web.mesh", 7000) },
			want: "0.0.0.0_80 [] http http.80\n" +
				"http.80 a.test:80 [\"a.test\"] >web.mesh:9080\n",
		},
		"HTTPS-of-each-mode": {
			servers: []string{
				port(443, "HTTPS", `"hosts": ["shop/b.test", "a.test"], "tls": {"mode": "SIMPLE", "credentialName": "x"}`), port(444, "HTTPS", `"hosts": ["*"], "tls": {"mode": "ISTIO_MUTUAL"}`),
				port(445, "TLS", `"hosts": ["c.test"], "tls": {"mode": "MUTUAL", "credentialName": "x"}`),
			},
			routes: []string{`{"hosts": ["c.test"], "gateways": ["shop/a"], "tcp": [{"route": [{"destination": {"host": "web.mesh", "port": {"number": 80}}}]}]}`},
			want: "0.0.0.0_443 of port 443 inspects TLS\n" +
				"0.0.0.0_443 [\"a.test\" \"b.test\"]  SIMPLE http https.443.p443.a.shop\n" +
				"0.0.0.0_444 of port 444 inspects TLS\n" +
				"0.0.0.0_444 [\"*\"]  mesh http https.444.p444.a.shop\n" +
				"0.0.0.0_445 of port 445 inspects TLS\n" +
				"0.0.0.0_445 [\"c.test\"]  MUTUAL tcp web.mesh:80\n" +
				"https.443.p443.a.shop blackhole:443 [\"*\"]\n" +
				"https.444.p444.a.shop blackhole:444 [\"*\"]\n",
		},
		"plaintext-beside-HTTPS-for-a-name": {
			servers: []string{port(80, "HTTPS", `"hosts": ["a.test"], "tls": {"mode": "SIMPLE", "credentialName": "x"}`), `{"port": {"number": 80, "name": "plain", "protocol": "HTTP"}, "hosts": ["*"]}`},
			want: "0.0.0.0_80 of port 80 inspects TLS\n" +
				"0.0.0.0_80 [\"a.test\"]  SIMPLE http https.80.p80.a.shop\n" +
				"0.0.0.0_80 [] http http.80\n" +
				"http.80 blackhole:80 [\"*\"]\n" +
				"https.80.p80.a.shop blackhole:80 [\"*\"]\n",
		},
		"HTTPS-for-all-beside-TCP": {
			servers: []string{
				port(80, "HTTPS", `"hosts": ["*"], "tls": {"mode": "ISTIO_MUTUAL"}`), `{"port": {"number": 80, "name": "plain", "protocol": "TCP"}, "hosts": ["*"]}`,
				port(81, "HTTPS", `"hosts": ["*"], "tls": {"mode": "SIMPLE", "credentialName": "x"}`), `{"port": {"number": 81, "name": "passes", "protocol": "TLS"}, "hosts": ["*"], "tls": {"mode": "PASSTHROUGH"}}`,
			},
			routes: []string{`{"hosts": ["a.test"], "gateways": ["shop/a"], "tcp": [{"route": [{"destination": {"host": "web.mesh", "port": {"number": 80}}}]}], "tls": [{"match": [{"sniHosts": ["a.test"]}], "route": [{"destination": {"host": "web.mesh"}}]}]}`},
			want: "0.0.0.0_80 of port 80 inspects TLS\n" +
				"0.0.0.0_80 [\"*\"] tls mesh http https.80.p80.a.shop\n" +
				"0.0.0.0_80 [] raw_buffer tcp web.mesh:80\n" +
				"0.0.0.0_81 of port 81 inspects TLS\n" +
				"0.0.0.0_81 [\"*\"]  SIMPLE http https.81.p81.a.shop\n" +
				"https.80.p80.a.shop blackhole:80 [\"*\"]\n" +
				"https.81.p81.a.shop blackhole:81 [\"*\"]\n" +
				"warning: the server \"passes\" on port 81 is left out: a server there has the host \"*\" first (Gateway shop/a)\n",
		},
		"identities-that-may-connect": {
			servers: []string{port(443, "HTTPS", `"hosts": ["a.test"], "tls": {"mode": "ISTIO_MUTUAL", "subjectAltNames": ["spiffe://x/one"]}`)},
			want: "0.0.0.0_443 of port 443 inspects TLS\n" +
				"0.0.0.0_443 [\"a.test\"]  mesh spiffe://x/one http https.443.p443.a.shop\n" +
				"https.443.p443.a.shop blackhole:443 [\"*\"]\n",
		},
		"port-that-a-service-leads-to-another": {
			servers: []string{port(80, "HTTP", `"hosts": ["*"]`), port(81, "HTTP", `"hosts": ["*"]`)},
			mesh: func(w *meshFixture) {
				svc := w.service("shop", "edge.mesh", 80, 81)
				svc.Ports[0].TargetPort, svc.Inline[0].Address, svc.Inline[0].ServiceAccount = 8080, "10.0.0.8", "edge"
			},
			want: "0.0.0.0_8080 [] http http.8080\n" +
				"0.0.0.0_81 [] http http.81\n" +
				"http.8080 blackhole:80 [\"*\"]\n" +
				"http.81 blackhole:81 [\"*\"]\n",
		},
		"TCP": {
			servers: []string{port(1, "TCP", `"hosts": ["*"]`), port(2, "TCP", `"hosts": ["*"]`), port(3, "TCP", `"hosts": ["other.test"]`)},
			routes: []string{`{"hosts": ["a.test"], "gateways": ["shop/a"], "tcp": [{"route": []}, {"match": [{"port": 1, "gateways": ["shop/b"]}], "route": [{"destination": {"host": "wrong.mesh", "port": {"number": 80}}}]},
				{"match": [{"port": 1}], "route": [{"destination": {"host": "one.mesh", "port": {"number": 80}}}]}, {"match": [{"gateways": ["shop/a"]}], "route": [{"destination": {"host": "web.mesh", "port": {"number": 80}}}]}]}`},
			want: "0.0.0.0_1 [] tcp one.mesh:80\n" +
				"0.0.0.0_2 [] tcp web.mesh:80\n",
		},
		"passthrough": {
			servers: []string{port(443, "TLS", `"hosts": ["*.test"], "tls": {"mode": "PASSTHROUGH"}`), port(444, "HTTPS", `"hosts": ["a.test"], "tls": {"mode": "PASSTHROUGH"}`)},
			routes: []string{
				`{"hosts": ["a.test"], "gateways": ["shop/a"], "tls": [{"match": [{"sniHosts": ["A.test"]}, {"port": 9, "sniHosts": ["b.test"]}, {"gateways": ["shop/b"], "sniHosts": ["c.test"]}], "route": [{"destination": {"host": "one.mesh"}}]}]}`,
				`{"hosts": ["*.test"], "gateways": ["shop/a"], "tls": [{"match": [{"sniHosts": ["b.test", "a.test"]}], "route": [{"destination": {"host": "two.mesh"}}]}, {"match": [{"sniHosts": ["d.test"]}], "route": [{"destination": {"host": "two.mesh"}}]}]}`,
				`{"hosts": ["else.where"], "gateways": ["shop/a"], "tls": [{"match": [{"sniHosts": ["else.where"]}], "route": [{"destination": {"host": "three.mesh"}}]}]}`,
			},
			want: "0.0.0.0_443 of port 443 inspects TLS\n" +
				"0.0.0.0_443 [\"a.test\"] tcp one.mesh:443\n" +
				"0.0.0.0_443 [\"d.test\"] tcp two.mesh:443\n" +
				"0.0.0.0_444 of port 444 inspects TLS\n" +
				"0.0.0.0_444 [\"a.test\"] tcp one.mesh:444\n" +
				"0.0.0.0_444 [\"d.test\"] tcp two.mesh:444\n" +
				"warning: port 443: a route of VirtualService shop/routes1 is left out: an earlier one has the server name \"a.test\"\n" +
				"warning: port 444: a route of VirtualService shop/routes1 is left out: an earlier one has the server name \"a.test\"\n",
		},
		"auto-passthrough": {
			servers: []string{port(15443, "TLS", `"hosts": ["*.mesh"], "tls": {"mode": "AUTO_PASSTHROUGH"}`)},
			mesh: func(w *meshFixture) {
				w.service("shop", "web.mesh", 80, 81).Ports[1].Protocol = mesh.UDP
				w.service("shop", "out.mesh", 80).External = true
				w.service("shop", "*.wild.mesh", 80)
				w.service("shop", "other.test", 80)
				w.rule("shop", "web", `{"host": "web.mesh", "subsets": [{"name": "v1"}]}`)
			},
			want: "0.0.0.0_15443 of port 15443 inspects TLS\n" +
				"0.0.0.0_15443 [\"outbound_.80_._.web.mesh\"] tcp web.mesh:80\n" +
				"0.0.0.0_15443 [\"outbound_.80_.v1_.web.mesh\"] tcp web.mesh:80/v1\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.gateway("a", `{"servers": [`+strings.Join(c.servers, ", ")+`]}`)
			for i, text := range c.routes {
				ns, spec, other := strings.Cut(text, " {")
				if spec = "{" + spec; !other || strings.HasPrefix(text, "{") {
					ns, spec = "shop", text
				}
				w.routes(ns, fmt.Sprint("routes", i), spec)
				vs := w.f.VirtualServices[i]
				vs.ExportTo = vs.Spec.GetExportTo()
			}
			if c.mesh != nil {
				c.mesh(w)
			}
			p := routerIn("shop", "a")
			if c.proxy != nil {
				c.proxy(&p)
			}
			if got := gatewayText(NewIndex(w.snapshot()).Build(p)); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}
