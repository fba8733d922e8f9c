package view

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestNetworksWithoutGateways holds that a network is named, with the reason for each of its gateways,
// exactly where no gateway of it is in the table.
func TestNetworksWithoutGateways(t *testing.T) {
	t.Parallel()
	service := func(name string) string { return `{"registryServiceName":"` + name + `","port":15443}` }
	for name, c := range map[string]struct {
		gateways string
		why      []string
	}{
		"none":          {"", nil},
		"an-address":    {`{"address":"203.0.113.1","port":15443}`, nil},
		"a-service":     {service("gateway.shop"), nil},
		"one-is-enough": {service("gone.shop") + "," + service("gateway.shop"), nil},
		"no-service":    {service("gone.shop"), []string{`registryServiceName gone.shop: there is no service "gone.shop"`}},
		"no-port":       {`{"registryServiceName":"gateway.shop","port":1}`, []string{"registryServiceName gateway.shop: the service gateway.shop has no port 1 for TCP"}},
		"no-workload":   {service("empty.shop"), []string{"registryServiceName empty.shop: the service has no workload with an IP address"}},
		"a-tenants":     {service("gateway.mallory"), []string{"registryServiceName gateway.mallory: gateway.mallory is only in a namespace that sources are bound to; if you mean this service, write mallory/gateway.mallory"}},
		"two": {service("gone.shop") + "," + service("empty.shop"), []string{
			`registryServiceName gone.shop: there is no service "gone.shop"`, "registryServiceName empty.shop: the service has no workload with an IP address",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			endpoint(w.service("shop", "gateway.shop", 15443), "1.1.1.1 - - 1 sick")
			w.service("shop", "empty.shop", 15443).Inline = nil
			tenants := w.service("mallory", "gateway.mallory", 15443)
			endpoint(tenants, "6.6.6.6 - - 1")
			w.f.Services = w.f.Services[:len(w.f.Services)-1]
			w.networks(`{"networks":{"n1":{"gateways":[` + c.gateways + `]},"n2":{}}}`)
			s := mesh.Merge(mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{w.f.Sorted(), {Services: []*mesh.Service{tenants}}},
				Bindings: []*mesh.Binding{nil, {Namespaces: []string{"mallory"}}},
			})
			var want []NetworkWithoutGateway
			if c.why != nil {
				want = []NetworkWithoutGateway{{"n1", c.why}}
			}
			if d := cmp.Diff(want, NetworksWithoutGateways(s)); d != "" {
				t.Error(d)
			}
			if has := len(newNetworkTable(s).Gateways["n1"]) > 0; c.gateways != "" && has != (c.why == nil) {
				t.Errorf("gateways in the table: %v", has)
			}
		})
	}
	if got := NetworksWithoutGateways(newMeshFixture(t).snapshot()); got != nil {
		t.Errorf("without networks: %v", got)
	}
}

// TestUnknownRegistries holds that a source of workloads, the files and what the caller knows are known.
func TestUnknownRegistries(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	var registries []string
	for _, r := range []string{"dc1", "dc2", "dc3", "Kubernetes", "kubernetes"} {
		registries = append(registries, `{"fromRegistry":"`+r+`"}`)
	}
	w.networks(`{"networks":{"n1":{"endpoints":[` + strings.Join(registries, ",") + `,{"fromCidr":"10.0.0.0/8"}]}}}`)
	x := &mesh.Workload{Meta: w.meta(mesh.KindWorkloadEntry, "shop", "a"), Address: "10.0.0.1"}
	x.Labels = map[string]string{mesh.LabelConsulDatacenter: "dc1"}
	w.f.Workloads = append(w.f.Workloads, x)
	if d := cmp.Diff([]string{"dc3", "kubernetes"}, UnknownRegistries(w.snapshot(), []string{"dc2"})); d != "" {
		t.Error(d)
	}
	if got := UnknownRegistries(newMeshFixture(t).snapshot(), nil); len(got) > 0 {
		t.Errorf("without networks: %q", got)
	}
}
