package mesh_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestMergeGateways has who gets a port. A server is PROTOCOL PORT HOST [BIND]; each is of a Gateway of its own.
func TestMergeGateways(t *testing.T) {
	t.Parallel()
	type server struct {
		protocol   string
		port       uint32
		host, bind string
	}
	for name, c := range map[string]struct {
		servers []server
		want    []string // the routes of each server that is left in; - for TCP, x for one that is left out
	}{
		"HTTP and HTTP":            {[]server{{"HTTP", 80, "a.b", ""}, {"GRPC", 80, "a.b", ""}}, []string{"http.80", "http.80"}},
		"HTTP and TCP":             {[]server{{"HTTP", 80, "a.b", ""}, {"TCP", 80, "a.b", ""}}, []string{"http.80", "x"}},
		"TCP and TCP":              {[]server{{"TCP", 80, "a.b", ""}, {"TCP", 80, "c.d", ""}}, []string{"-", "x"}},
		"TCP and TCP at two binds": {[]server{{"TCP", 80, "a.b", "10.0.0.1"}, {"TCP", 80, "c.d", "10.0.0.2"}}, []string{"-", "-"}},
		"HTTPS for two hosts":      {[]server{{"HTTPS", 443, "a.b", ""}, {"HTTPS", 443, "c.d", ""}}, []string{"https.443.p.g0.n", "https.443.p.g1.n"}},
		"HTTPS for one host":       {[]server{{"HTTPS", 443, "a.b", ""}, {"HTTPS", 443, "a.b", ""}}, []string{"https.443.p.g0.n", "x"}},
		"HTTPS at two binds":       {[]server{{"HTTPS", 443, "a.b", "10.0.0.1"}, {"HTTPS", 443, "a.b", "10.0.0.2"}}, []string{"https.443.p.g0.n.10.0.0.1", "https.443.p.g1.n.10.0.0.2"}},
		"HTTPS and HTTP":           {[]server{{"HTTPS", 443, "a.b", ""}, {"HTTP", 443, "c.d", ""}}, []string{"https.443.p.g0.n", "http.443"}},
		"HTTP and HTTPS":           {[]server{{"HTTP", 443, "c.d", ""}, {"HTTPS", 443, "a.b", ""}}, []string{"http.443", "https.443.p.g1.n"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var list []*mesh.Gateway
			for i, s := range c.servers {
				spec := &networking.Server{Port: &networking.Port{Number: s.port, Name: "p", Protocol: s.protocol}, Hosts: []string{s.host}, Bind: s.bind}
				if s.protocol == "HTTPS" {
					spec.Tls = &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}
				}
				list = append(list, &mesh.Gateway{
					Meta: mesh.Meta{Key: mesh.Key{Namespace: "n", Name: fmt.Sprintf("g%d", i)}}, Spec: &networking.Gateway{Servers: []*networking.Server{spec}},
				})
			}
			m := mesh.MergeGateways(list, nil)
			got := make([]string, len(list))
			for _, at := range m.Ports {
				for _, s := range m.Servers[at] {
					for i, g := range list {
						if s.Gateway == g {
							if got[i] = s.Routes; s.Routes == "" {
								got[i] = "-"
							}
						}
					}
				}
			}
			for _, r := range m.Rejected {
				for i, g := range list {
					if r.Server.Gateway == g {
						got[i] += "x"
					}
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
