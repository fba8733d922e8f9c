package view

import (
	"math"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// apart are two networks that are written at workloads. The second one has two gateways.
const apart = `{"networks":{
	"n1":{"gateways":[{"address":"1.1.1.1","port":15443}]},
	"n2":{"gateways":[{"address":"2.2.2.1","port":15443},{"address":"2.2.2.2","port":15443}]}}}`

// TestAddressesOfTwoNetworks holds that two workloads with one address in two networks are two endpoints.
func TestAddressesOfTwoNetworks(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.mc.EnableAutoMtls = nil
	svc := w.service("shop", "orders.shop", 80)
	svc.Inline = nil
	for _, e := range []string{"10.0.0.1 n1 - 1", "10.0.0.1 n2 - 1", "10.0.0.1 n1 - 1"} {
		endpoint(svc, e)
	}
	w.networks(apart)
	for network, want := range map[string]string{
		"n1": "P0 10.0.0.1:80 W2, P0 2.2.2.1:15443 W1, P0 2.2.2.2:15443 W1",
		"n2": "P0 1.1.1.1:15443 W2, P0 10.0.0.1:80 W2",
		"":   "P0 1.1.1.1:15443 W2, P0 2.2.2.1:15443 W1, P0 2.2.2.2:15443 W1",
	} {
		p := proxyIn("shop", nil)
		p.Network = network
		e := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
		if got := endpointsText(e); got != want {
			t.Errorf("from %q:\n got %s\nwant %s", network, got, want)
		}
	}
}

// TestGatewaysInPlaceOfOneName holds that a cluster of type LOGICAL_DNS has one endpoint: with more, Envoy
// rejects the cluster.
func TestGatewaysInPlaceOfOneName(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.mc.EnableAutoMtls = nil
	svc := w.service("shop", "orders.shop", 80)
	svc.Inline, svc.Resolution = nil, mesh.ResolutionDNSRoundRobin
	endpoint(svc, "orders.example.com n2 - 1")
	w.networks(apart)
	for network, want := range map[string]struct {
		discovery Discovery
		endpoints string
	}{
		"n1": {DiscoverStrictDNS, "P0 2.2.2.1:15443 W1, P0 2.2.2.2:15443 W1"},
		"n2": {DiscoverLogicalDNS, "P0 orders.example.com:80 W2"},
	} {
		p := proxyIn("shop", nil)
		p.Network = network
		c := findPart(t, Build(w.snapshot(), p), func(c *Cluster) bool { return c.Ref.Host == "orders.shop" })
		if got := endpointsText(&Endpoints{Localities: c.Localities}); c.Discovery != want.discovery || got != want.endpoints {
			t.Errorf("from %q: got %v, %s; want %v, %s", network, c.Discovery, got, want.discovery, want.endpoints)
		}
	}
}

// TestWeightsHaveASumThatEnvoyAccepts holds that the weights of a locality fit into 32 bits, also where they
// are multiplied so that they can be divided among gateways, and that they keep their shares.
func TestWeightsHaveASumThatEnvoyAccepts(t *testing.T) {
	t.Parallel()
	for _, networks := range []string{"", apart} {
		w := newMeshFixture(t)
		w.mc.EnableAutoMtls = nil
		svc := w.service("shop", "orders.shop", 80)
		svc.Inline = nil
		for _, e := range []string{"10.0.0.1 n1 - 4000000000", "10.0.0.2 n1 - 2000000000", "10.0.0.3 n2 - 4000000000", "10.0.0.4 n1 - 1"} {
			endpoint(svc, e)
		}
		if networks != "" {
			w.networks(networks)
		}
		p := proxyIn("shop", nil)
		p.Network = "n1"
		e := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
		sum, weights := uint64(0), map[string]uint64{}
		for _, x := range e.Localities[0].Endpoints {
			sum += uint64(x.Weight)
			weights[x.Address] = uint64(x.Weight)
		}
		far := weights["10.0.0.3"] + weights["2.2.2.1"] + weights["2.2.2.2"]
		if sum > math.MaxUint32 || weights["10.0.0.1"]/2 != weights["10.0.0.2"] || far/100 != weights["10.0.0.1"]/100 || weights["10.0.0.4"] == 0 {
			t.Errorf("networks %q: %s", networks, endpointsText(e))
		}
	}
}

// TestEndpointsOutsideTheMeshAreInNoNetwork holds that no range and no source puts endpoints of a
// MESH_EXTERNAL service into a network, where nothing would lead to them.
func TestEndpointsOutsideTheMeshAreInNoNetwork(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.mc.EnableAutoMtls = nil
	svc := w.service("shop", "api.example.com", 443)
	svc.Inline, svc.External = nil, true
	endpoint(svc, "203.0.113.7 - - 1 plain")
	w.networks(`{"networks":{"n1":{"endpoints":[{"fromRegistry":"Kubernetes"}],"gateways":[{"address":"1.1.1.1","port":15443}]}}}`)
	p := proxyIn("shop", nil)
	p.Network = "n2"
	e := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == "api.example.com" })
	if got, want := endpointsText(e), "P0 203.0.113.7:443 W1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
