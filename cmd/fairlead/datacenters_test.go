package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestDatacentersAreLocalitiesAndNetworks: instances of two datacenters are one service. Their
// datacenters, or the metadata of their nodes, are localities with priorities, and a datacenter is a
// network if MeshNetworks names it.
func TestDatacentersAreLocalitiesAndNetworks(t *testing.T) {
	t.Parallel()
	m, err := mapping.New(mapping.Config{})
	if err != nil {
		t.Fatal(err)
	}
	catalog := func(datacenter string, local bool, instances ...*api.ServiceEntry) *mesh.Fragment {
		return m.Map(&mapping.Input{Source: "consul:" + datacenter, Service: "orders", Datacenter: datacenter, Local: local, Entries: instances}).Fragment
	}
	instance := func(address string, meta map[string]string) *api.ServiceEntry {
		return &api.ServiceEntry{
			Node:    &api.Node{ID: address, Node: "n-" + strings.ReplaceAll(address, ".", "-"), Address: address, Meta: meta},
			Service: &api.AgentService{ID: "orders-1", Service: "orders", Port: 8080, Tags: []string{"security.istio.io/tlsMode=istio"}},
			Checks:  api.HealthChecks{},
		}
	}
	rule, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: default}
spec: {host: orders.service.consul, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}}
`))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	networks, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte("networks: {two: {endpoints: [{fromRegistry: dc2}], gateways: [{address: 203.0.113.2, port: 15443}]}}"))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	fragments := []*mesh.Fragment{
		catalog("dc1", true, instance("10.1.0.1", map[string]string{"zone": "a"}), instance("10.1.0.2", map[string]string{"zone": "b"})),
		catalog("dc2", false, instance("10.2.0.1", nil), instance("10.2.0.2", map[string]string{"topology.istio.io/network": "one"})),
		rule.Objects[0].Fragment(),
	}
	for _, c := range []struct {
		networks *mesh.Networks
		want     string
	}{
		{nil, "P0 dc1/a 10.1.0.1:8080 W1, P1 dc1/b 10.1.0.2:8080 W1, P2 dc2/ 10.2.0.1:8080 W1, P2 dc2/ 10.2.0.2:8080 W1"},
		{networks, "P0 dc1/a 10.1.0.1:8080 W1, P1 dc1/b 10.1.0.2:8080 W1, P2 dc2/ 203.0.113.2:15443 W2"},
	} {
		s := mesh.NewSnapshot(nil, manifest.DefaultMeshConfig(), append([]*mesh.Fragment{{Source: "networks", MeshNetworks: c.networks}}, fragments...))
		v := view.Build(s, view.Proxy{
			Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "default", Name: "web"}, Addresses: []string{"10.1.0.9"},
			Interception: view.InterceptRedirect, Locality: mesh.Locality{Region: "dc1", Zone: "a"},
		})
		var got []string
		for part := range v.Parts() {
			e, ok := part.(*view.Endpoints)
			if !ok || e.Ref.Host != "orders.service.consul" {
				continue
			}
			for _, l := range e.Localities {
				for _, x := range l.Endpoints {
					got = append(got, fmt.Sprintf("P%d %s/%s %s:%d W%d", l.Priority, l.Locality.Region, l.Locality.Zone, x.Address, x.Port, x.Weight))
				}
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("got  %s\nwant %s", text, c.want)
		}
	}
}
