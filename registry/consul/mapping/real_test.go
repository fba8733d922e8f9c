package mapping

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestRealConsul registers services as people do, and as they should not, in a
// Consul and maps what it answers: the form of its answers is Consul's, not ours.
func TestRealConsul(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{Config: map[string]any{
		"connect":   map[string]any{"enabled": true},
		"node_meta": map[string]string{"rack": "r1"},
		"locality":  map[string]string{"region": "eu-west-1", "zone": "eu-west-1a"},
	}})
	c := a.Client()
	registerByAgent(t, c)
	registerByCatalog(t, c)

	names, _, err := c.Catalog().Services(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := newMapper(t, Config{Rules: []Rule{{Pattern: "secure", TLS: "istio"}}, Loopback: true})
	node, _, err := c.Catalog().Node(a.Name, nil)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "real.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	// An agent tells its server of some changes a moment later.
	envoytest.Eventually(t, envoytest.Patience, func() error {
		var got strings.Builder
		for _, name := range slices.Sorted(maps.Keys(names)) {
			entries, _, err := c.Health().Service(name, "", false, nil)
			if err != nil {
				return fmt.Errorf("reading %q: %w", name, err)
			}
			result := dump(m.Map(&Input{Source: "consul", Service: name, Datacenter: "dc1", Local: true, Entries: entries}))
			fmt.Fprintf(&got, "== %s\n%s", name, strings.NewReplacer(node.Node.Address, "ADDRESS", a.Name, "NODE").Replace(result))
		}
		if diff := cmp.Diff(string(want), got.String()); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
}

// registerByAgent does what service files do.
func registerByAgent(t *testing.T, c *api.Client) {
	t.Helper()
	ttl := func(name, status string) *api.AgentServiceCheck {
		return &api.AgentServiceCheck{Name: name, TTL: "1h", Status: status}
	}
	for _, s := range []*api.AgentServiceRegistration{
		{
			ID: "web-1", Name: "web", Port: 8080, Address: "10.0.0.1", Tags: []string{"v1", "version=v1"},
			Meta: map[string]string{"protocol": "http"}, Weights: &api.AgentWeights{Passing: 10, Warning: 3},
			TaggedAddresses: map[string]api.ServiceAddress{
				"wan": {Address: "203.0.113.1", Port: 18080}, "virtual": {Address: "240.0.0.9", Port: 80},
			},
			Locality: &api.Locality{Region: "us-east-1", Zone: "us-east-1b"},
			Connect:  &api.AgentServiceConnect{SidecarService: &api.AgentServiceRegistration{Port: 21000}},
			Checks:   api.AgentServiceChecks{ttl("http", "passing"), ttl("disk", "warning")},
		},
		{ID: "web-2", Name: "web", Port: 8080, Check: ttl("http", "critical")},
		{ID: "web-3", Name: "web", Port: 8081, Address: "10.0.0.3"},
		{ID: "other", Name: "WEB", Port: 8080, Address: "10.0.0.4"},
		{
			ID: "native", Name: "native", Port: 90, Connect: &api.AgentServiceConnect{Native: true},
			TaggedAddresses: map[string]api.ServiceAddress{"consul-virtual": {Address: "240.0.0.200", Port: 1}},
		},
		{ID: "secure", Name: "secure", Port: 91},
		{ID: "gateway", Name: "gateway", Kind: api.ServiceKindMeshGateway, Port: 8443},
		{ID: "socket", Name: "socket", SocketPath: "/run/socket.sock"},
		{ID: "no-port", Name: "no-port"},
	} {
		if err := c.Agent().ServiceRegister(s); err != nil {
			t.Fatalf("registering %s: %v", s.ID, err)
		}
		// Virtual addresses are given out in the order in which the server hears of
		// services.
		awaitService(t, c, s.Name, s.ID)
		if s.Connect != nil && s.Connect.SidecarService != nil {
			awaitService(t, c, s.Name+"-sidecar-proxy", s.ID+"-sidecar-proxy")
		}
	}
	if err := c.Agent().EnableServiceMaintenance("web-3", "because"); err != nil {
		t.Fatal(err)
	}
}

// awaitService waits until an agent has told its server of an instance.
func awaitService(t *testing.T, c *api.Client, name, id string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		list, _, err := c.Catalog().Service(name, "", nil)
		if err != nil {
			return fmt.Errorf("reading %q: %w", name, err)
		}
		if !slices.ContainsFunc(list, func(s *api.CatalogService) bool { return s.ServiceID == id }) {
			return fmt.Errorf("%q has %d instances, none of them %s", name, len(list), id)
		}
		return nil
	})
}

// registerByCatalog does what consul-esm and scripts do.
func registerByCatalog(t *testing.T, c *api.Client) {
	t.Helper()
	for _, r := range []*api.CatalogRegistration{
		{
			Node: "outside", Address: "api.example.com", NodeMeta: map[string]string{"external-node": "true", "external-probe": "true"},
			Service: &api.AgentService{ID: "pay", Service: "pay", Port: 443},
		},
		{
			Node: "evil", Address: "0.0.0.0",
			Service: &api.AgentService{
				ID: "evil/1", Service: "evil", Port: 70000, Address: "169.254.169.254", Tags: []string{"consul.fairlead.io/service=pay"},
				TaggedAddresses: map[string]api.ServiceAddress{"consul-virtual": {Address: "240.0.0.1", Port: 90}},
			},
		},
		{Node: "evil", Address: "0.0.0.0", Service: &api.AgentService{ID: "evil/2", Service: "evil", Port: 80}},
		{
			Node: "old", Address: "10.0.0.9", Service: &api.AgentService{ID: "odd", Service: "odd", Port: 80},
			Checks: api.HealthChecks{{Node: "old", CheckID: "c", Name: "c", Status: "fine", ServiceID: "odd"}},
		},
		{Node: "old", Address: "10.0.0.9", Service: &api.AgentService{ID: "slash", Service: "a/b", Port: 80}},
	} {
		if _, err := c.Catalog().Register(r, nil); err != nil {
			t.Fatalf("registering on %s: %v", r.Node, err)
		}
	}
}
