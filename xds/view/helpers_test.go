package view

import (
	"crypto/sha256"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// meshFixture is a mesh for a test. Objects that are added later are newer.
type meshFixture struct {
	tb testing.TB
	f  mesh.Fragment
	mc *meshconfig.MeshConfig
	n  int
}

func newMeshFixture(tb testing.TB) *meshFixture {
	tb.Helper()
	return &meshFixture{tb: tb, f: mesh.Fragment{Source: "test"}, mc: &meshconfig.MeshConfig{
		LocalityLbSetting: &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)}, // as by default
		TrustDomain:       "cluster.local", RootNamespace: "istio-system", ConnectTimeout: durationpb.New(10 * time.Second),
	}}
}

func (w *meshFixture) meta(kind mesh.Kind, ns, name string) mesh.Meta {
	w.n++
	k := mesh.Key{Kind: kind, Namespace: ns, Name: name}
	return mesh.Meta{
		Key: k, Created: time.Unix(int64(w.n), 0), Hash: sha256.Sum256([]byte(k.String())),
		Origin: &mesh.Origin{Source: "test", Path: name + ".yaml", Line: w.n, Column: 1},
	}
}

func (w *meshFixture) decode(text string, m proto.Message) {
	w.tb.Helper()
	if err := protojson.Unmarshal([]byte(text), m); err != nil {
		w.tb.Fatalf("reading %s: %v", text, err)
	}
}

// service adds a service with HTTP ports and one endpoint, whose service account has the
// name of the host.
func (w *meshFixture) service(ns, host string, ports ...uint32) *mesh.Service {
	s := &mesh.Service{Meta: w.meta(mesh.KindServiceEntry, ns, host), Hostname: mesh.Hostname(host), Resolution: mesh.ResolutionStatic}
	for _, p := range ports {
		s.Ports = append(s.Ports, mesh.Port{Name: "http", Number: p, Protocol: mesh.HTTP})
	}
	s.Inline = []*mesh.Workload{{
		Meta: mesh.Meta{Key: mesh.Key{Namespace: ns}, Origin: s.Origin}, Address: "10.0.0.9", ServiceAccount: host,
	}}
	w.f.Services = append(w.f.Services, s)
	return s
}

func (w *meshFixture) rule(ns, name, spec string, exports ...string) {
	m := &networking.DestinationRule{}
	w.decode(spec, m)
	w.f.DestinationRules = append(w.f.DestinationRules, &mesh.DestinationRule{
		Meta: w.meta(mesh.KindDestinationRule, ns, name), Spec: m, ExportTo: exports,
	})
}

func (w *meshFixture) routes(ns, name, spec string, exports ...string) {
	m := &networking.VirtualService{}
	w.decode(spec, m)
	w.f.VirtualServices = append(w.f.VirtualServices, &mesh.VirtualService{
		Meta: w.meta(mesh.KindVirtualService, ns, name), Spec: m, ExportTo: exports,
	})
}

func (w *meshFixture) sidecar(ns, name, spec string) {
	m := &networking.Sidecar{}
	w.decode(spec, m)
	w.f.Sidecars = append(w.f.Sidecars, &mesh.Sidecar{Meta: w.meta(mesh.KindSidecar, ns, name), Spec: m})
}

func (w *meshFixture) peer(ns, name, spec string) {
	m := &security.PeerAuthentication{}
	w.decode(spec, m)
	w.f.PeerAuthentications = append(w.f.PeerAuthentications, &mesh.PeerAuthentication{
		Meta: w.meta(mesh.KindPeerAuthentication, ns, name), Spec: m,
	})
}

func (w *meshFixture) authorize(ns, name, spec string) *mesh.AuthorizationPolicy {
	p := &mesh.AuthorizationPolicy{Meta: w.meta(mesh.KindAuthorizationPolicy, ns, name), Spec: &security.AuthorizationPolicy{}}
	w.decode(spec, p.Spec)
	w.f.AuthorizationPolicies = append(w.f.AuthorizationPolicies, p)
	slices.SortFunc(w.f.AuthorizationPolicies, func(a, b *mesh.AuthorizationPolicy) int { return a.Compare(b.Key) })
	return p
}

// authenticate adds a RequestAuthentication; keys are the key sets of its rules.
func (w *meshFixture) authenticate(ns, name, spec string, keys ...string) {
	r := &mesh.RequestAuthentication{Meta: w.meta(mesh.KindRequestAuthentication, ns, name), Spec: &security.RequestAuthentication{}, Keys: keys}
	w.decode(spec, r.Spec)
	w.f.RequestAuthentications = append(w.f.RequestAuthentications, r)
	slices.SortFunc(w.f.RequestAuthentications, func(a, b *mesh.RequestAuthentication) int { return a.Compare(b.Key) })
}

func (w *meshFixture) snapshot() *mesh.Snapshot {
	return mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: w.mc}, []*mesh.Fragment{&w.f})
}

func proxyIn(ns string, labels map[string]string) Proxy {
	return Proxy{
		Type: Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: ns, Name: "web"}, Addresses: []string{"10.0.0.1"},
		Labels: labels, Interception: InterceptRedirect,
	}
}

func findPart[T Part](tb testing.TB, v *View, want func(T) bool) T {
	tb.Helper()
	for p := range v.Parts() {
		if x, ok := p.(T); ok && want(x) {
			return x
		}
	}
	tb.Fatalf("no such %T", *new(T))
	return *new(T)
}

func hasCluster(v *View, ref ClusterRef) bool {
	for p := range v.Parts() {
		if c, ok := p.(*Cluster); ok && c.Ref == ref {
			return true
		}
	}
	return false
}

// byKey is the order of workloads in a fragment.
func byKey(a, b *mesh.Workload) int { return a.Compare(b.Key) }
