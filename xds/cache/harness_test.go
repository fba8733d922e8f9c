package cache

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// objects is a mesh to be: services with one port each, and workloads.
type objects struct {
	services  []*mesh.Service
	workloads []*mesh.Workload

	virtualServices []*mesh.VirtualService
}

func meta(kind mesh.Kind, name string, content ...any) mesh.Meta {
	return mesh.Meta{
		Key:    mesh.Key{Kind: kind, Namespace: "shop", Name: name},
		Hash:   sha256.Sum256(fmt.Append(nil, kind, name, content)),
		Origin: &mesh.Origin{Source: "files", Path: name + ".yaml", Line: 1, Column: 1},
	}
}

// workload adds WorkloadEntry name with the service account of that name.
func (o *objects) workload(name, address string, labels map[string]string) *objects {
	if labels == nil {
		labels = map[string]string{"app": name}
	}
	w := &mesh.Workload{Meta: meta(mesh.KindWorkloadEntry, name, address, labels), Address: address, ServiceAccount: name}
	w.Labels = labels
	o.workloads = append(o.workloads, w)
	return o
}

// service adds name.mesh on a port, served by the workloads with the label app=name.
func (o *objects) service(name string, port uint32) *objects {
	o.services = append(o.services, &mesh.Service{
		Meta: meta(mesh.KindServiceEntry, name, port), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports:    []mesh.Port{{Name: "http", Number: port, Protocol: mesh.HTTP}},
		Selector: map[string]string{"app": name},
	})
	return o
}

func (o *objects) snapshot(prev *mesh.Snapshot) *mesh.Snapshot {
	spec := &meshconfig.MeshConfig{
		TrustDomain: "cluster.local", RootNamespace: "istio-system", EnableAutoMtls: wrapperspb.Bool(true),
		ConnectTimeout: durationpb.New(10 * time.Second), DnsRefreshRate: durationpb.New(time.Minute),
	}
	config := &mesh.MeshConfig{Spec: spec}
	if prev != nil {
		config = prev.MeshConfig
	}
	return mesh.NewSnapshot(prev, config, []*mesh.Fragment{{
		Source: "files", Services: slices.Clone(o.services), Workloads: slices.Clone(o.workloads), VirtualServices: slices.Clone(o.virtualServices),
	}})
}

// shop is a mesh of two workloads.
func shop() *objects {
	return new(objects).workload("orders", "127.0.0.12", nil).workload("web", "127.0.0.11", nil).service("orders", 8080)
}

// big is a mesh of services with ten workloads each.
func big(services int) *objects {
	o := new(objects)
	for i := range services {
		name := fmt.Sprintf("s%04d", i)
		o.service(name, 8080)
		for j := range 10 {
			w := o.workload(fmt.Sprintf("%s-%d", name, j), fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), map[string]string{"app": name}).workloads
			w[len(w)-1].ServiceAccount = name
		}
	}
	return o
}

// eventually waits until a claim holds, for as long as a machine may need that
// does much else beside it.
func eventually(t *testing.T, claim string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not in time: %s", claim)
		}
	}
}

func newRandom(t *testing.T, seed uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seed, 11))
}

// scramble changes a mesh in one of the ways in which meshes change.
func scramble(rnd *rand.Rand, o *objects, step int) {
	i := rnd.IntN(len(o.services))
	host := string(o.services[i].Hostname)
	switch rnd.IntN(7) {
	case 0:
		o.service(fmt.Sprintf("new%d", step), 8080)
	case 1:
		if len(o.services) > 25 {
			o.services = slices.Delete(o.services, i, i+1)
		}
	case 2:
		o.workload(fmt.Sprintf("more%d", step), fmt.Sprintf("10.98.%d.%d", step/250, step%250), map[string]string{"app": "s0003"})
	case 3:
		j := rnd.IntN(len(o.workloads))
		if o.workloads[j].Name > "s0010" || o.workloads[j].Name < "s" {
			o.workloads = slices.Delete(o.workloads, j, j+1)
		}
	case 4, 5:
		o.route(host, fmt.Sprint("/v", step))
	default:
		o.workloads = slices.Clone(o.workloads) // nothing
	}
}

// route sets, or replaces, the VirtualService of a host.
func (o *objects) route(host, prefix string) {
	o.virtualServices = slices.DeleteFunc(slices.Clone(o.virtualServices), func(v *mesh.VirtualService) bool { return v.Name == host })
	o.virtualServices = append(o.virtualServices, &mesh.VirtualService{
		Meta: meta(mesh.KindVirtualService, host, prefix),
		Spec: &networking.VirtualService{Hosts: []string{host}, Http: []*networking.HTTPRoute{{
			Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: prefix}}}},
			Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}}},
		}}},
	})
	slices.SortFunc(o.virtualServices, func(a, b *mesh.VirtualService) int { return a.Compare(b.Key) })
}
