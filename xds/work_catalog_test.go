package xds

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// deregister removes the catalog's instance at an address.
func (o *smallMesh) deregister(address string) {
	o.catalog.Workloads = slices.DeleteFunc(slices.Clone(o.catalog.Workloads), func(w *mesh.Workload) bool { return w.Address == address })
}

// tag sets the label that a tag of the catalog's last instance becomes.
func (o *smallMesh) tag(word string) {
	o.catalog.Workloads = slices.Clone(o.catalog.Workloads)
	w := *o.catalog.Workloads[len(o.catalog.Workloads)-1]
	w.Labels = map[string]string{mesh.LabelConsulService: "web", "tag": word}
	w.Hash[0]++
	o.catalog.Workloads[len(o.catalog.Workloads)-1] = &w
}

// writtenDown is a ServiceEntry for the host of the catalog's service.
func writtenDown(ns string, exports ...string) *mesh.Service {
	s := smallMeshService(ns, "mine")
	s.Hostname, s.ExportTo = "web.service.consul", exports
	s.Selector = map[string]string{mesh.LabelConsulService: "web"}
	return s
}

// TestWorkOfCatalogChange pins what changes of a catalog cost in a mesh that also has
// files, and changes of files about the catalog.
func TestWorkOfCatalogChange(t *testing.T) {
	t.Parallel()
	type amounts = map[stream.TypeURL]uint64
	endpoints := expectation{12, 0, amounts{stream.EndpointType: 1}, amounts{stream.EndpointType: 12}}
	routes := expectation{12, 0, amounts{stream.VirtualHostType: 1}, amounts{stream.VirtualHostType: 12}}
	for name, c := range map[string]struct {
		change func(*smallMesh)
		want   expectation
	}{
		"instance-deregistered": {func(o *smallMesh) { o.deregister("10.8.0.2") }, endpoints},
		"the-same-again":        {func(o *smallMesh) { o.instance("10.8.0.2", mesh.HealthUnknown) }, expectation{kept: 12}},
		// Nothing asks for the label that a tag becomes.
		"tag-changed": {func(o *smallMesh) { o.tag("blue") }, expectation{kept: 12}},
		"service-registered": {func(o *smallMesh) {
			o.catalog.Services = append(o.catalog.Services, smallMeshService("c", "consul/zoo"))
			o.catalog.Services[1].Hostname, o.catalog.Services[1].Catalog = "zoo.service.consul", true
		}, expectation{
			12, 0,
			amounts{stream.ClusterType: 1, stream.EndpointType: 1, stream.VirtualHostType: 1},
			amounts{stream.ClusterType: 12, stream.EndpointType: 12, stream.VirtualHostType: 12},
		}},
		"file-edited":          {func(o *smallMesh) { o.route("a0.mesh", "/v1") }, routes},
		"file-routes-its-host": {func(o *smallMesh) { o.routeFrom("c", "web.service.consul", "/v1") }, routes},
		// Who writes a host down has it, where that is exported to; its routes are the same.
		"host-is-written-down": {
			func(o *smallMesh) { o.Services = append(o.Services, writtenDown("a")) },
			expectation{
				12, 0,
				amounts{stream.ClusterType: 1, stream.EndpointType: 1},
				amounts{stream.ClusterType: 12, stream.EndpointType: 12},
			},
		},
		"host-is-written-down-for-b": {
			func(o *smallMesh) { o.Services = append(o.Services, writtenDown("b", "b")) },
			expectation{
				4, 8,
				amounts{stream.ClusterType: 1, stream.EndpointType: 1},
				amounts{stream.ClusterType: 4, stream.EndpointType: 4},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newSmallMesh()
			o.addCatalogService()
			o.instance("10.8.0.2", mesh.HealthUnknown)
			c.want.of(t, o, c.change)
		})
	}
}
