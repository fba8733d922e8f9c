package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// networks sets the MeshNetworks, written as JSON.
func (w *meshFixture) networks(text string) {
	n := &mesh.Networks{Meta: w.meta(mesh.KindMeshNetworks, "", ""), Spec: &meshconfig.MeshNetworks{}}
	n.Hash = ContentHash(struct{ Text string }{text})
	w.decode(text, n.Spec)
	w.f.MeshNetworks = n
}

// endpoint adds an endpoint to a service: "ADDRESS NETWORK LOCALITY WEIGHT", with "-" for none, and
// "plain" or "sick" behind it.
func endpoint(svc *mesh.Service, text string) {
	w := &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Namespace: svc.Namespace}, Origin: svc.Origin}, ServiceAccount: "orders"}
	var locality string
	var rest []string
	fields := strings.Fields(strings.ReplaceAll(text, "-", " - "))
	for i, f := range fields {
		if f == "-" {
			fields[i] = ""
		}
	}
	w.Address, w.Network, locality = fields[0], fields[1], fields[2]
	_, _ = fmt.Sscan(fields[3], &w.Weight)
	w.Locality, rest = mesh.ParseLocality(locality), fields[4:]
	if slices.Contains(rest, "plain") {
		w.ServiceAccount = ""
	}
	if slices.Contains(rest, "sick") {
		w.Health = mesh.Unhealthy
	}
	svc.Inline = append(svc.Inline, w)
}

func endpointsText(e *Endpoints) string {
	var out []string
	for _, l := range e.Localities {
		for _, x := range l.Endpoints {
			text := fmt.Sprintf("%s P%d %s:%d W%d", strings.Trim(l.Locality.Region+"/"+l.Locality.Zone, "/"), l.Priority, x.Address, x.Port, x.Weight)
			if x.Unhealthy {
				text += " sick"
			}
			out = append(out, strings.TrimSpace(text))
		}
	}
	return strings.Join(out, ", ")
}

// TestEndpointsOfOtherNetworks holds what proxies of each network get in place of endpoints of
// another one, as Istio's EndpointsByNetworkFilter.
func TestEndpointsOfOtherNetworks(t *testing.T) {
	t.Parallel()
	const two = `{"networks":{
		"n1":{"endpoints":[{"fromCidr":"10.1.0.0/16"}],"gateways":[{"address":"1.1.1.1","port":15443}]},
		"n2":{"endpoints":[{"fromCidr":"10.2.0.0/16"}],"gateways":[{"address":"2.2.2.2","port":15443},{"address":"2.2.2.1","port":15443}]},
		"n3":{}}}`
	for name, c := range map[string]struct {
		networks, rule string
		endpoints      []string
		want           map[string]string // by network of the proxy
	}{
		"two": {two, "", []string{"10.1.0.1 - - 1", "10.2.0.1 - - 3", "10.2.0.2 - - 1 plain"}, map[string]string{
			"n1": "P0 10.1.0.1:80 W2, P0 2.2.2.1:15443 W3, P0 2.2.2.2:15443 W3",
			"n2": "P0 1.1.1.1:15443 W2, P0 10.2.0.1:80 W6, P0 10.2.0.2:80 W2",
			"n3": "P0 1.1.1.1:15443 W2, P0 2.2.2.1:15443 W3, P0 2.2.2.2:15443 W3",
			"":   "P0 1.1.1.1:15443 W2, P0 2.2.2.1:15443 W3, P0 2.2.2.2:15443 W3",
		}},
		"no-network-and-no-gateway": {two, "", []string{"10.9.0.1 - - 1", "10.9.0.2 n3 - 1", "10.9.0.3 n4 - 1"}, map[string]string{
			"n1": "P0 10.9.0.1:80 W2, P0 10.9.0.2:80 W2, P0 10.9.0.3:80 W2",
			"":   "P0 10.9.0.1:80 W2, P0 10.9.0.2:80 W2, P0 10.9.0.3:80 W2",
		}},
		"written-network-wins": {two, "", []string{"10.1.0.1 n2 - 1", "10.2.0.1 n1 - 1"}, map[string]string{
			"n1": "P0 10.2.0.1:80 W2, P0 2.2.2.1:15443 W1, P0 2.2.2.2:15443 W1",
		}},
		"no-networks": {`{}`, "", []string{"10.1.0.1 n1 - 1", "10.2.0.1 n2 - 1"}, map[string]string{
			"n1": "P0 10.1.0.1:80 W1, P0 10.2.0.1:80 W1",
		}},
		"no-address": {two, "", []string{"10.1.0.1 - - 1", "- n2 - 1", "- n2 - 1"}, map[string]string{
			"n1": "P0 10.1.0.1:80 W2, P0 2.2.2.1:15443 W2, P0 2.2.2.2:15443 W2",
			"n2": "P0 1.1.1.1:15443 W2",
		}},
		"unhealthy-ones-have-no-weight": {two, "", []string{"10.1.0.1 - - 1", "10.2.0.1 - - 4", "10.2.0.2 - - 1 sick"}, map[string]string{
			"n1": "P0 10.1.0.1:80 W2, P0 2.2.2.1:15443 W4, P0 2.2.2.2:15443 W4",
		}},
		"all-unhealthy": {two, "", []string{"10.1.0.1 - - 1", "10.2.0.1 - - 4 sick", "10.2.0.2 - - 1 sick"}, map[string]string{
			"n1": "P0 10.1.0.1:80 W2, P0 2.2.2.1:15443 W5 sick, P0 2.2.2.2:15443 W5 sick",
		}},
		"two-localities-behind-one-gateway": {two, "", []string{"10.2.0.1 - - 1", "10.1.0.1 - eu/a 1", "10.1.0.2 - eu/b 2"}, map[string]string{
			"n2": "P0 10.2.0.1:80 W2, eu/a P0 1.1.1.1:15443 W6",
		}},
		"failover": {
			two, `{"host":"orders.shop","trafficPolicy":{"outlierDetection":{}}}`,
			[]string{"10.2.0.1 - us 1", "10.1.0.1 - eu/a 1", "10.1.0.2 - eu/b 2", "10.1.0.3 - us 1 sick"},
			map[string]string{"n2": "eu/a P1 1.1.1.1:15443 W6, us P0 10.2.0.1:80 W2"},
		},
		"network-first": {
			two, `{"host":"orders.shop","trafficPolicy":{"outlierDetection":{},"loadBalancer":{"localityLbSetting":{"failoverPriority":["topology.istio.io/network"]}}}}`,
			[]string{"10.1.0.1 - us 1", "10.2.0.1 - us 1"},
			map[string]string{"n1": "us P0 10.1.0.1:80 W2, us P1 2.2.2.1:15443 W1, us P1 2.2.2.2:15443 W1", "n2": "us P0 10.2.0.1:80 W2, us P1 1.1.1.1:15443 W2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.mc.EnableAutoMtls = nil
			svc := w.service("shop", "orders.shop", 80)
			svc.Inline = nil
			for _, e := range c.endpoints {
				endpoint(svc, e)
			}
			if c.rule != "" {
				w.rule("shop", "orders", c.rule)
			}
			w.networks(c.networks)
			for network, want := range c.want {
				p := proxyIn("shop", nil)
				p.Network, p.Locality = network, mesh.Locality{Region: "us"}
				e := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
				if got := endpointsText(e); got != want {
					t.Errorf("from %q:\n got %s\nwant %s", network, got, want)
				}
			}
		})
	}
}

// TestNetworksShareNothingOfEachOther holds that proxies share the endpoints of a service if they are in
// one network, whatever their hosts, and never across networks, also after the networks change.
func TestNetworksShareNothingOfEachOther(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	across := w.service("shop", "orders.shop", 80)
	across.Inline = nil
	endpoint(across, "10.1.0.1 - - 1")
	endpoint(across, "10.2.0.1 - - 1")
	w.service("shop", "web.shop", 80)
	networks := func(port, second int) string {
		return fmt.Sprintf(`{"networks":{
			"n1":{"endpoints":[{"fromCidr":"10.1.0.0/16"}],"gateways":[{"address":"1.1.1.1","port":%d}]},
			"n2":{"endpoints":[{"fromCidr":"10.2.0.%d/32"},{"fromCidr":"10.2.0.1"}],"gateways":[{"address":"2.2.2.2","port":15443}]}}}`, port, second)
	}
	config := &mesh.MeshConfig{Spec: w.mc}
	var s *mesh.Snapshot
	var x *Index
	views := map[string]*View{}
	proxies := map[string]Proxy{}
	for _, address := range []string{"10.1.0.7", "10.1.0.8", "10.2.0.7", "10.3.0.7"} {
		p := proxyIn("shop", nil)
		p.Addresses = []string{address}
		proxies[address] = p
	}
	for round, port := range []int{15443, 15444, 15444} {
		w.networks(networks(port, []int{7, 7, 9}[round])) // at last 10.2.0.7 leaves its network
		s = mesh.NewSnapshot(s, config, []*mesh.Fragment{new(w.f)})
		x = x.Next(s)
		for address, p := range proxies {
			views[address] = x.Rebuild(views[address], p)
		}
		of := func(host mesh.Hostname) map[string]*Endpoints {
			out := map[string]*Endpoints{}
			for address, p := range proxies {
				out[address] = findPart(t, views[address], func(e *Endpoints) bool { return e.Ref.Host == host })
				if fresh := findPart(t, Build(w.snapshot(), p), func(e *Endpoints) bool { return e.Ref.Host == host }); endpointsText(fresh) != endpointsText(out[address]) {
					t.Errorf("round %d, %s of %s: %s, a new index says %s", round, host, address, endpointsText(out[address]), endpointsText(fresh))
				}
			}
			return out
		}
		e := of("orders.shop")
		if e["10.1.0.7"] != e["10.1.0.8"] {
			t.Errorf("round %d: two proxies of one network do not share", round)
		}
		if e["10.1.0.7"] == e["10.2.0.7"] || e["10.1.0.7"] == e["10.3.0.7"] || (e["10.2.0.7"] == e["10.3.0.7"]) != (round == 2) {
			t.Errorf("round %d: proxies of two networks share", round)
		}
		if want := fmt.Sprintf("P0 1.1.1.1:%d W1, P0 10.2.0.1:80 W1", port); round < 2 && endpointsText(e["10.2.0.7"]) != want {
			t.Errorf("round %d: got %s, want %s", round, endpointsText(e["10.2.0.7"]), want)
		}
		local := of("web.shop")
		if local["10.1.0.7"] != local["10.2.0.7"] || local["10.1.0.7"] != local["10.3.0.7"] {
			t.Errorf("round %d: a service without endpoints in a network is not shared by all", round)
		}
	}
}

// TestGatewayServices holds that the gateways of a network may be a service of the mesh, and follow it.
func TestGatewayServices(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	svc := w.service("shop", "orders.shop", 80)
	svc.Inline = nil
	endpoint(svc, "10.1.0.1 - - 1")
	gw := w.service("shop", "gateway.shop", 15443)
	gw.Inline = nil
	endpoint(gw, "1.1.1.1 - - 1")
	endpoint(gw, "1.1.1.2 - - 1")
	w.networks(`{"networks":{"n1":{"endpoints":[{"fromCidr":"10.1.0.0/16"}],"gateways":[{"registryServiceName":"gateway.shop","port":15443}]}}}`)
	config := &mesh.MeshConfig{Spec: w.mc}
	var s *mesh.Snapshot
	var x *Index
	var v *View
	look := func() string {
		s = mesh.NewSnapshot(s, config, []*mesh.Fragment{new(w.f)})
		x = x.Next(s)
		p := proxyIn("shop", nil)
		p.Addresses = []string{"10.2.0.1"}
		v = x.Rebuild(v, p)
		return endpointsText(findPart(t, v, func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" }))
	}
	if got, want := look(), "P0 1.1.1.1:15443 W1, P0 1.1.1.2:15443 W1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	next := new(*gw)
	sick := new(*gw.Inline[0])
	sick.Health = mesh.Unhealthy
	next.Inline = []*mesh.Workload{sick, gw.Inline[1]}
	w.f.Services = []*mesh.Service{next, svc}
	if got, want := look(), "P0 1.1.1.2:15443 W1"; got != want {
		t.Errorf("one is unhealthy: got %s, want %s", got, want)
	}
}

// TestTenantsAreNoGatewaysOfNetworks holds that who may write for one namespace does not get the requests
// for a network by declaring the host of its gateways, unless the operator writes this namespace.
func TestTenantsAreNoGatewaysOfNetworks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		registryServiceName string
		declared            bool // by a source that is bound to no namespace
		want                string
	}{
		"both":           {"gateway.mesh", true, "P0 1.1.1.1:15443 W1"},
		"alone":          {"gateway.mesh", false, "P0 10.1.0.1:80 W1"},
		"with-namespace": {"mallory/gateway.mesh", true, "P0 6.6.6.6:15443 W1"},
		"upper-case":     {"Gateway.mesh", true, "P0 1.1.1.1:15443 W1"},
		"final-dot":      {"gateway.mesh.", true, "P0 1.1.1.1:15443 W1"},
		"dot-alone":      {"gateway.mesh.", false, "P0 10.1.0.1:80 W1"},
		"dot-namespace":  {"mallory/gateway.mesh.", true, "P0 6.6.6.6:15443 W1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.mc.EnableAutoMtls = nil
			gateway := func(namespace, address string) *mesh.Service {
				svc := w.service(namespace, "gateway.mesh", 15443)
				svc.Inline = nil
				endpoint(svc, address+" - - 1")
				return svc
			}
			tenant := &mesh.Fragment{Services: []*mesh.Service{gateway("mallory", "6.6.6.6")}}
			w.f.Services = nil
			if c.declared {
				gateway("shop", "1.1.1.1")
			}
			svc := w.service("shop", "orders.shop", 80)
			svc.Inline = nil
			endpoint(svc, "10.1.0.1 n1 - 1")
			w.networks(`{"networks":{"n1":{"gateways":[{"registryServiceName":"` + c.registryServiceName + `","port":15443}]}}}`)
			s := mesh.Merge(mesh.Input{
				Fallback: &mesh.MeshConfig{Spec: w.mc}, Fragments: []*mesh.Fragment{&w.f, tenant},
				Bindings: []*mesh.Binding{nil, {Namespaces: []string{"mallory"}}},
			})
			e := findPart(t, Build(s, proxyIn("shop", nil)), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
			if got := endpointsText(e); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestRangesOfBothFamilies holds that addresses of IPv4 are in no range of IPv6, however wide it is.
func TestRangesOfBothFamilies(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.networks(`{"networks":{
		"four":{"endpoints":[{"fromCidr":"10.0.0.0/8"}]},
		"six":{"endpoints":[{"fromCidr":"::/0"}]},
		"mapped":{"endpoints":[{"fromCidr":"::ffff:192.0.2.0/120"}]}}}`)
	table := newNetworkTable(w.snapshot())
	for address, want := range map[string]string{
		"10.1.2.3": "four", "::ffff:10.1.2.3": "four", "11.1.2.3": "", "0.0.0.0": "", "192.0.2.7": "mapped", "::ffff:192.0.2.7": "mapped",
		"2001:db8::1": "six", "::": "six", "ffff:ffff::": "six",
	} {
		if got := table.of(&mesh.Workload{Address: address}); got != want {
			t.Errorf("%s is in network %q, want %q", address, got, want)
		}
	}
}
