// Package smallmesh makes small meshes by hand, for tests of what is served: services
// with one port each, their workloads and their routes, all in the namespace shop.
// Random meshes of every kind are made by package meshgen.
package smallmesh

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Objects are what one source, called files, says. The zero value is empty.
type Objects struct {
	mesh.Fragment

	Plain bool // no mTLS
}

// Clone returns a fragment with lists of its own, whatever kinds there are. The next
// snapshot of a mesh shares the objects that did not change with the one before, and no list
// that a test may still write to.
func Clone(f *mesh.Fragment) *mesh.Fragment {
	out := *f
	for _, list := range reflect.ValueOf(&out).Elem().Fields() {
		if list.Kind() == reflect.Slice && !list.IsNil() {
			list.Set(reflect.AppendSlice(reflect.MakeSlice(list.Type(), 0, list.Len()), list))
		}
	}
	return &out
}

// Meta is that of an object in the namespace shop; its hash is that of the content.
func Meta(kind mesh.Kind, name string, content ...any) mesh.Meta {
	return mesh.Meta{
		Key:    mesh.Key{Kind: kind, Namespace: "shop", Name: name},
		Hash:   sha256.Sum256(fmt.Append(nil, kind, name, content)),
		Origin: &mesh.Origin{Source: "files", Path: name + ".yaml", Line: 1, Column: 1},
	}
}

// Workload adds WorkloadEntry name with the service account of that name. Without
// labels it has app=name.
func (o *Objects) Workload(name, address string, labels map[string]string) *Objects {
	if labels == nil {
		labels = map[string]string{"app": name}
	}
	w := &mesh.Workload{Meta: Meta(mesh.KindWorkloadEntry, name, address, labels), Address: address, ServiceAccount: name}
	w.Labels = labels
	o.Workloads = append(o.Workloads, w)
	return o
}

// Instance adds a workload as a Consul catalog has it: an instance of a service, on the
// node n1, with a port called http and the service account of the service.
func (o *Objects) Instance(service, id, address string, port uint32, labels map[string]string) *Objects {
	all := map[string]string{mesh.LabelConsulService: service}
	maps.Copy(all, labels)
	o.Workload("consul/dc1/n1/"+id, address, all)
	w := o.Workloads[len(o.Workloads)-1]
	w.ServiceAccount, w.Ports = service, map[string]uint32{"http": port}
	return o
}

// Service adds name.mesh on a port, served by the workloads with the label app=name.
func (o *Objects) Service(name string, port uint32) *Objects {
	o.Services = append(o.Services, &mesh.Service{
		Meta: Meta(mesh.KindServiceEntry, name, port), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports:    []mesh.Port{{Name: "http", Number: port, Protocol: mesh.HTTP}},
		Selector: map[string]string{"app": name},
	})
	return o
}

// Route sets, or replaces, the VirtualService of a host: one prefix goes there.
func (o *Objects) Route(host, prefix string) {
	o.VirtualServices = slices.DeleteFunc(slices.Clone(o.VirtualServices), func(v *mesh.VirtualService) bool { return v.Name == host })
	o.VirtualServices = append(o.VirtualServices, &mesh.VirtualService{
		Meta: Meta(mesh.KindVirtualService, host, prefix),
		Spec: &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: prefix}}}},
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
		}}},
	})
	slices.SortFunc(o.VirtualServices, func(a, b *mesh.VirtualService) int { return a.Compare(b.Key) })
}

// Snapshot is the mesh of these objects, which comes after prev, or first if prev is nil.
func (o *Objects) Snapshot(prev *mesh.Snapshot) *mesh.Snapshot {
	config := &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{
		TrustDomain: "cluster.local", RootNamespace: "istio-system", EnableAutoMtls: wrapperspb.Bool(!o.Plain),
		ConnectTimeout: durationpb.New(10 * time.Second), DnsRefreshRate: durationpb.New(time.Minute),
	}}
	if prev != nil && proto.Equal(prev.MeshConfig.Spec, config.Spec) {
		config = prev.MeshConfig
	}
	files := Clone(&o.Fragment)
	files.Source = "files"
	return mesh.NewSnapshot(prev, config, []*mesh.Fragment{files})
}

// Shop is a mesh of two workloads, web and orders; orders is a service.
func Shop() *Objects {
	return new(Objects).Workload("orders", "127.0.0.12", nil).Workload("web", "127.0.0.11", nil).Service("orders", 8080)
}

// Big is a mesh of services, called s0000 and so on, with ten workloads each.
func Big(services int) *Objects {
	o := new(Objects)
	for i := range services {
		name := fmt.Sprintf("s%04d", i)
		o.Service(name, 8080)
		for j := range 10 {
			o.Workload(fmt.Sprintf("%s-%d", name, j), fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), map[string]string{"app": name})
			o.Workloads[len(o.Workloads)-1].ServiceAccount = name
		}
	}
	return o
}
