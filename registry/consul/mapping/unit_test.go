package mapping

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
)

// one maps one service of plain registrations that were changed.
func one(t *testing.T, c Config, count int, change func(in *Input)) Result {
	t.Helper()
	in := &Input{Source: "consul", Service: "web", Datacenter: "dc1", Local: true, Entries: fleet(t, "web", count)}
	change(in)
	return newMapper(t, c).Map(in)
}

// TestLoopback: who runs the mesh says whether loopback is an address, and no
// node's registration does; what merely leads there is none.
func TestLoopback(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"127.0.0.9": "127.0.0.9", "::1": "::1", "localhost": "localhost", "a.localhost": "a.localhost", "::ffff:127.0.0.1": "127.0.0.1",
		"64:ff9b::7f00:1": "", "::7f00:1": "", "0.0.0.0": "", "169.254.1.1": "", "127.0.0.1:80": "", "": "127.0.0.1",
	} {
		for _, loopback := range []bool{true, false} {
			r := one(t, Config{Loopback: loopback}, 1, func(in *Input) {
				in.Entries[0].Node.Address, in.Entries[0].Node.TaggedAddresses, in.Entries[0].Service.Address = "127.0.0.1", nil, address
			})
			got := ""
			if len(r.Fragment.Workloads) > 0 {
				got = r.Fragment.Workloads[0].Address
			}
			if loopback && got != want || !loopback && got != "" {
				t.Errorf("%q, loopback %t: %q, want %q", address, loopback, got, want)
			}
		}
	}
}

func TestVirtualAddresses(t *testing.T) {
	t.Parallel()
	r := one(t, Config{}, maxVirtual+2, func(in *Input) {
		for i, e := range in.Entries {
			e.Service.Connect = &api.AgentServiceConnect{Native: true}
			e.Service.TaggedAddresses = map[string]api.ServiceAddress{"consul-virtual": {Address: fmt.Sprintf("240.0.0.%d", 10+i), Port: 90 - i%3}}
		}
	})
	s := r.Fragment.Services[0]
	if len(s.Addresses) != maxVirtual || s.Addresses[0] != "240.0.0.10" || s.Ports[0].Number != 88 || len(r.Notes) != 1 || r.Notes[0].Code != CodeVirtual {
		t.Errorf("service at %v port %d, notes %v", s.Addresses, s.Ports[0].Number, r.Notes)
	}
}

// TestVirtualHash: another virtual address is another service.
func TestVirtualHash(t *testing.T) {
	t.Parallel()
	seen := map[mesh.Hash]bool{}
	for i := range 2 {
		r := one(t, Config{Rules: []Rule{{Pattern: "web", TrustMetadata: true}}}, 1, func(in *Input) {
			in.Entries[0].Service.TaggedAddresses = map[string]api.ServiceAddress{"virtual": {Address: fmt.Sprintf("10.96.0.%d", i), Port: 80}}
		})
		seen[r.Fragment.Services[0].Hash] = true
	}
	if len(seen) != 2 {
		t.Error("they have one hash")
	}
}

// TestTrustedReserved: not even who is trusted can be the control plane.
func TestTrustedReserved(t *testing.T) {
	t.Parallel()
	rule := Rule{Pattern: "web", Namespace: "istio-system", TrustMetadata: true}
	r := one(t, Config{Rules: []Rule{rule}}, 2, func(in *Input) { in.Entries[0].Service.Meta["fairlead-service-account"] = "fairlead" })
	if len(r.Fragment.Workloads) != 1 || r.Fragment.Workloads[0].ServiceAccount != "web" || len(r.Notes) != 1 || r.Notes[0].Code != CodeDisagrees {
		t.Errorf("got %+v", r)
	}
}

// TestTrustedSpelling: a namespace that another service claims is not this one's.
func TestTrustedSpelling(t *testing.T) {
	t.Parallel()
	r := one(t, Config{Rules: []Rule{{Pattern: "web", TrustMetadata: true}}}, 2, func(in *Input) {
		in.Entries[0].Service.Service = "WEB"
		in.Entries[0].Service.Meta["fairlead-namespace"] = "shop"
	})
	if r.Fragment.Services[0].Namespace != "default" {
		t.Errorf("the namespace is %s", r.Fragment.Services[0].Namespace)
	}
}

func TestIdentityTooLong(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("a", 63)
	r := newMapper(t, Config{ServiceAccount: "svc-{{.Service}}"}).Map(&Input{Service: name, Entries: fleet(t, name, 1)})
	if len(r.Fragment.Workloads) != 0 || len(r.Notes) != 1 || r.Notes[0].Code != CodeIdentity {
		t.Errorf("got %+v", r)
	}
}

func TestPeers(t *testing.T) {
	t.Parallel()
	r := one(t, Config{}, 2, func(in *Input) { in.Entries[0].Node.PeerName = "other" })
	if len(r.Fragment.Workloads) != 1 || len(r.Notes) != 1 || r.Notes[0].Code != CodeForeign {
		t.Errorf("got %+v", r)
	}
}

// TestDatacenter: where nobody said which it is, the entries do.
func TestDatacenter(t *testing.T) {
	t.Parallel()
	r := one(t, Config{}, 1, func(in *Input) { in.Datacenter = "" })
	if w := r.Fragment.Workloads[0]; w.Name != "consul/dc1/node-0/web-0" || w.Locality.Region != "dc1" || w.Labels[mesh.LabelConsulDatacenter] != "dc1" {
		t.Errorf("got %+v", w)
	}
}

// TestProtocolTie: which of two counts does not depend on the order, and requests
// stay visible.
func TestProtocolTie(t *testing.T) {
	t.Parallel()
	for i := range 2 {
		r := one(t, Config{}, 2, func(in *Input) { in.Entries[i].Service.Meta["protocol"] = "tcp" })
		if p := r.Fragment.Services[0].Ports[0].Protocol; p != mesh.HTTP {
			t.Errorf("the protocol is %s", p)
		}
	}
}

// TestDuplicatesInAnyOrder: where the later of two registrations stays, the order is that
// of the keys.
func TestDuplicatesInAnyOrder(t *testing.T) {
	t.Parallel()
	r := one(t, Config{}, 4, func(in *Input) {
		in.Entries[0].Checks[0].Status = "critical"
		in.Entries[3].Node.TaggedAddresses = in.Entries[0].Node.TaggedAddresses
	})
	var got []string
	for _, w := range r.Fragment.Workloads {
		got = append(got, w.Name)
	}
	if want := []string{"consul/dc1/node-1/web-1", "consul/dc1/node-2/web-2", "consul/dc1/node-3/web-3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestSameKey: one of two registrations of one node and ID counts, whichever came
// first.
func TestSameKey(t *testing.T) {
	t.Parallel()
	var addresses []string
	for i := range 2 {
		r := one(t, Config{}, 2, func(in *Input) {
			in.Entries[1].Node.Node, in.Entries[1].Service.ID = in.Entries[0].Node.Node, in.Entries[0].Service.ID
			if i == 1 {
				slices.Reverse(in.Entries)
			}
		})
		for _, w := range r.Fragment.Workloads {
			addresses = append(addresses, w.Address)
		}
	}
	if len(addresses) != 2 || addresses[0] != addresses[1] {
		t.Errorf("instances at %v", addresses)
	}
}

// TestSuggestions: what a note tells to write may be copied into a shell.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	name := "Web$(reboot)"
	r := newMapper(t, Config{}).Map(&Input{Service: name, Entries: fleet(t, name, 1)})
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Message, `write a rule for it: "PATTERN:fold-case=true"`) {
		t.Errorf("notes %+v", r.Notes)
	}
}

// TestReuseOrigin: an object that came from somewhere else is another one, though
// its content is equal.
func TestReuseOrigin(t *testing.T) {
	t.Parallel()
	pieces := make([]*mesh.Fragment, 0, 2)
	for _, dc := range []string{"dc1", "dc2"} {
		pieces = append(pieces, one(t, Config{}, 1, func(in *Input) { in.Datacenter = dc }).Fragment)
	}
	if pieces[0].Services[0].Hash != pieces[1].Services[0].Hash {
		t.Error("the content depends on the datacenter")
	}
	if got := Reuse(pieces[0], pieces[1]); got.Services[0] != pieces[1].Services[0] {
		t.Error("the service of another datacenter is taken for this one's")
	}
}

// TestNameGiven: a name that a rule gives away is that service's alone, also where
// another has a rule of its own.
func TestNameGiven(t *testing.T) {
	t.Parallel()
	m := newMapper(t, Config{Rules: []Rule{{Pattern: "Shop", Name: "web"}, {Pattern: "web", FoldCase: true}}})
	for service, want := range map[string]int{"web": 0, "Shop": 1} {
		r := m.Map(&Input{Service: service, Entries: fleet(t, service, 1)})
		if len(r.Fragment.Services) != want {
			t.Errorf("%s has %d hosts", service, len(r.Fragment.Services))
		}
	}
}
