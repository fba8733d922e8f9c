package mapping

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
)

func newMapper(t testing.TB, c Config) *Mapper {
	t.Helper()
	m, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestMapService maps a service as most are.
func TestMapService(t *testing.T) {
	t.Parallel()
	r := newMapper(t, Config{}).Map(&Input{
		Source: "consul", Service: "web", Datacenter: "dc1", Local: true,
		Entries: []*api.ServiceEntry{
			{
				Node: &api.Node{Node: "n1", Address: "10.0.0.1"},
				Service: &api.AgentService{
					ID: "web-1", Service: "web", Port: 8080,
					Tags: []string{"v1", "version=v1"}, Meta: map[string]string{"protocol": "http"},
				},
			},
		},
	})
	if len(r.Notes) > 0 || len(r.Fragment.Services) != 1 || len(r.Fragment.Workloads) != 1 {
		t.Fatalf("got %+v", r)
	}
	s, w := *r.Fragment.Services[0], *r.Fragment.Workloads[0]
	if s.Hash.IsZero() || w.Hash.IsZero() {
		t.Error("no hash")
	}
	s.Hash, w.Hash = mesh.Hash{}, mesh.Hash{}
	if diff := cmp.Diff(mesh.Service{
		Meta: mesh.Meta{
			Key:    mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "default", Name: "consul/web"},
			Origin: &mesh.Origin{Source: "consul", Path: "consul://dc1/service/web"},
		},
		Hostname:   "web.service.consul",
		Ports:      []mesh.Port{{Name: "http", Number: 8080, Protocol: mesh.HTTP}},
		Resolution: mesh.ResolutionStatic,
		Selector:   map[string]string{mesh.LabelConsulService: "web"},
		Catalog:    true,
	}, s); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(mesh.Workload{
		Meta: mesh.Meta{
			Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "default", Name: "consul/dc1/n1/web-1"},
			Labels: map[string]string{
				mesh.LabelConsulService: "web", mesh.LabelConsulDatacenter: "dc1", mesh.LabelConsulNode: "n1",
				"protocol": "http", "v1": "true", "version": "v1", "security.istio.io/tlsMode": "disabled",
			},
			Origin: &mesh.Origin{Source: "consul", Path: "consul://dc1/service/web/n1/web-1"},
		},
		Address: "10.0.0.1", Ports: map[string]uint32{"http": 8080}, ServiceAccount: "web",
		Locality: mesh.Locality{Region: "dc1"}, Weight: 1, Health: mesh.Healthy,
	}, w); diff != "" {
		t.Errorf("workload (-want +got):\n%s", diff)
	}
}
