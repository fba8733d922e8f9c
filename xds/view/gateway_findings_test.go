package view

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestServersThatAreLeftOutAreFindings has two Gateways of one gateway. What one of them loses names both, with
// their files, and the line that turns the order; a mesh that loses nothing has no finding.
func TestServersThatAreLeftOutAreFindings(t *testing.T) {
	t.Parallel()
	may30, may31 := time.Date(2026, 5, 30, 0, 0, 0, 0, time.UTC), time.Date(2026, 5, 31, 0, 0, 0, 0, time.UTC)
	server := func(port, protocol, rest string) string {
		return `{"servers": [{"port": {"number": ` + port + `, "name": "p", "protocol": "` + protocol + `"}, ` + rest + `}]}`
	}
	tls := func(hosts string) string {
		return server("443", "HTTPS", `"hosts": [`+hosts+`], "tls": {"mode": "SIMPLE", "credentialName": "c"}`)
	}
	passes := func(hosts ...string) string {
		return server("15443", "TLS", `"hosts": [`+strings.Join(hosts, ", ")+`], "tls": {"mode": "AUTO_PASSTHROUGH"}`)
	}
	for name, c := range map[string]struct {
		serves, new string
		want        []string // words of the finding; none if there is none
	}{
		"port":           {server("9000", "TCP", `"hosts": ["*"]`), server("9000", "TCP", `"hosts": ["*"]`), []string{"port 9000", "has the port first"}},
		"host":           {tls(`"a.test", "b.test"`), tls(`"b.test"`), []string{"port 443", `has the host "b.test" first`}},
		"name":           {tls(`"shop/a.test"`), tls(`"pay/a.test"`), []string{"port 443", `has the server name "a.test" first`}},
		"one_of_names":   {tls(`"shop/a.test"`), tls(`"pay/a.test", "c.test"`), []string{"port 443 serves only some of its names, and nothing that is meant for a.test", `has the server name "a.test" first`}},
		"upper_case":     {tls(`"a.test"`), tls(`"A.test"`), []string{"port 443", `has the server name "a.test" first`}},
		"all_names":      {tls(`"shop/*"`), tls(`"pay/*"`), []string{"port 443", `has the server name "*" first`}},
		"same_passing":   {passes(`"*.mesh"`), passes(`"*.mesh"`), nil},
		"within_passing": {passes(`"*.mesh"`), passes(`"*.web.mesh"`, `"*.mesh"`), nil},
		"cover_passing":  {passes(`"*"`), passes(`"*.mesh"`), nil},
		"more_passing":   {passes(`"*.mesh"`), passes(`"*.mesh"`, `"*.other"`), []string{"port 15443 is left out", `has the host "*.mesh" first`}},
		"other_names":    {tls(`"shop/a.test"`), tls(`"pay/b.test"`), nil},
		"other_ports":    {server("9000", "TCP", `"hosts": ["*"]`), server("9001", "TCP", `"hosts": ["*"]`), nil},
		"one_host_HTTP":  {server("80", "HTTP", `"hosts": ["*"]`), server("80", "HTTP", `"hosts": ["*"]`), nil},
		"TLS_beside":     {server("443", "HTTP", `"hosts": ["*"]`), tls(`"a.test"`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("shop", "ok.mesh", 80)
			w.gateway("zebra", c.serves).Created = may30
			w.gateway("aardvark", c.new).Created = may31
			if name == "TLS_beside" { // of one age
				w.f.Gateways[0].Created = may31
			}
			w.f.Gateways[0], w.f.Gateways[1] = w.f.Gateways[1], w.f.Gateways[0]
			s := mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: w.mc}, []*mesh.Fragment{&w.f})
			list := NewIndex(s).Build(routerIn("shop", "a")).Findings.All()
			if len(c.want) == 0 {
				if len(list) != 0 {
					t.Fatalf("findings %+v", list)
				}
				return
			}
			if len(list) != 1 || list[0].Kind != LeftOutServer {
				t.Fatalf("findings %+v", list)
			}
			e := list[0].Explain(s)
			all := e.Origin.String() + " " + e.Key.String() + ": " + e.Text + "; " + e.Action
			for _, word := range append(c.want, e.Origin.String(), "Gateway shop/aardvark", "(Gateway shop/zebra, "+findGateway(s, list[0].Other).Origin.String()+", whose creationTimestamp is older)",
				"if it is to be served instead, write `creationTimestamp: \"2026-05-29T23:59:59Z\"` into the metadata of Gateway shop/aardvark") {
				if !strings.Contains(all, word) {
					t.Errorf("no %q in %s", word, all)
				}
			}
		})
	}
}
