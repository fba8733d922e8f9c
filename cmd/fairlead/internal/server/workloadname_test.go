package server

import (
	"net/netip"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestWorkloadName: a host has the name of the workload that it is, or that all have which it may
// be; never that of a workload of another host, namespace or account.
func TestWorkloadName(t *testing.T) {
	t.Parallel()
	var list []*mesh.Workload
	add := func(namespace, name, account, address, network, owner string, labels map[string]string) {
		w := &mesh.Workload{
			Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: namespace, Name: name}, Labels: labels, Annotations: map[string]string{}},
		}
		w.ServiceAccount, w.Address, w.Network = account, address, network
		if owner != "" {
			w.Annotations[mesh.AnnotationHost] = owner
		}
		list = append(list, w)
	}
	fleet := map[string]string{"service.istio.io/workload-name": "fleet", "app": "fleet", "version": "v2"}
	add("shop", "fleet-1", "fleet", "10.0.0.1", "", "", fleet)
	add("shop", "fleet-2", "fleet", "10.0.0.2", "", "", fleet)
	add("shop", "vm-1", "vm", "10.0.1.1", "", "", nil)
	add("shop", "vm-2", "vm", "10.0.1.2", "", "", nil)
	add("shop", "vm-3", "vm", "10.0.1.3", "", "host-3", nil)
	add("shop", "vm-4", "vm", "10.0.1.1", "other", "", nil)
	add("shop", "alone", "alone", "10.0.2.1", "", "", map[string]string{"app": "web"})
	add("shop", "only", "only", "10.0.3.1", "", "host-3", nil)
	add("else", "alone", "vm", "10.0.1.9", "", "host-9", nil)
	s := mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{}}, []*mesh.Fragment{{Source: "files", Workloads: list}})
	at := func(text string) attest.Address { return attest.Address{IP: netip.MustParseAddr(text)} }
	within := at("10.0.1.1")
	within.InNetwork, within.Network = true, "other"
	vm := func(name string) profile.WorkloadName {
		return profile.WorkloadName{Name: name, Service: name, Revision: "latest"}
	}
	for name, c := range map[string]struct {
		account   string
		host      string
		addresses []attest.Address
		held      []string
		want      profile.WorkloadName
	}{
		"one":                       {account: "alone", host: "h", want: profile.WorkloadName{Name: "alone", Service: "web", Revision: "latest"}},
		"all_alike":                 {account: "fleet", host: "h", want: profile.WorkloadName{Name: "fleet", Service: "fleet", Revision: "v2"}},
		"several":                   {account: "vm", host: "h"},
		"one_held":                  {account: "vm", host: "h", held: []string{"vm-2"}, want: vm("vm-2")},
		"two_held":                  {account: "vm", host: "h", held: []string{"vm-1", "vm-2"}},
		"named_by_it":               {account: "vm", host: "host-3", want: vm("vm-3")},
		"named_and_held":            {account: "vm", host: "host-3", held: []string{"vm-1"}},
		"held_one_that_is_anothers": {account: "vm", host: "h", held: []string{"vm-3"}},
		"held_one_that_is_gone":     {account: "vm", host: "h", held: []string{"vm-9"}},
		"token":                     {account: "vm", host: "h", addresses: []attest.Address{at("10.0.1.2")}, want: vm("vm-2")},
		"token_two_networks":        {account: "vm", host: "h", addresses: []attest.Address{at("10.0.1.1")}},
		"token_with_network":        {account: "vm", host: "h", addresses: []attest.Address{within}, want: vm("vm-4")},
		"held_before_token":         {account: "vm", host: "h", addresses: []attest.Address{at("10.0.1.2")}, held: []string{"vm-1"}, want: vm("vm-1")},
		"anothers":                  {account: "only", host: "h"},
		"nothing":                   {account: "none", host: "h"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			account := mesh.ServiceAccount{Namespace: "shop", Name: c.account}
			if got := nameOf(workloadsOf(s, account, attest.Host{Name: c.host, Addresses: c.addresses}, c.held)); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	if got := nameOf(workloadsOf(nil, mesh.ServiceAccount{Namespace: "shop", Name: "alone"}, attest.Host{}, nil)); got != (profile.WorkloadName{}) {
		t.Errorf("without a mesh: %+v", got)
	}
}
