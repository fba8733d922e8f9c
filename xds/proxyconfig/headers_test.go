package proxyconfig_test

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/proxyconfig"
)

// randomHeaders are nil, or have any of the fields in one of two forms.
func randomHeaders(r *rand.Rand) *meshconfig.ProxyConfig_ProxyHeaders {
	if r.IntN(4) == 0 {
		return nil
	}
	h := &meshconfig.ProxyConfig_ProxyHeaders{}
	m := h.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		fd := m.Descriptor().Fields().Get(i)
		if fd.Message() != nil && r.IntN(2) == 0 {
			m.Mutable(fd)
		}
	}
	if h.Server != nil {
		h.Server.Value = []string{"", "a", "b"}[r.IntN(3)]
	}
	if h.AttemptCount != nil {
		h.AttemptCount.Disabled = []*wrapperspb.BoolValue{nil, wrapperspb.Bool(false), wrapperspb.Bool(true)}[r.IntN(3)]
	}
	if h.XForwardedHost != nil {
		h.XForwardedHost.Enabled = []*wrapperspb.BoolValue{nil, wrapperspb.Bool(false), wrapperspb.Bool(true)}[r.IntN(3)]
	}
	h.ForwardedClientCert = meshconfig.ForwardClientCertDetails(r.IntN(3))
	return h
}

// TestHeadersAreThoseOfTheEffectiveConfig: what a proxy's view is made with, MeshConfig's headers
// below those of the workload, is what its effective ProxyConfig says.
func TestHeadersAreThoseOfTheEffectiveConfig(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		of := func() *meshconfig.ProxyConfig {
			if h := randomHeaders(r); h != nil || r.IntN(2) == 0 {
				return &meshconfig.ProxyConfig{ProxyHeaders: h}
			}
			return nil
		}
		settings := &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{DefaultConfig: of()}}
		w := &mesh.Workload{Meta: mesh.Meta{
			Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "ns", Name: "w"}, Annotations: map[string]string{mesh.GroupAnnotation: "g"}, Origin: &mesh.Origin{},
		}, ProxyConfig: of()}
		f := &mesh.Fragment{Source: "files", MeshConfig: settings, Workloads: []*mesh.Workload{w}}
		if r.IntN(2) == 0 {
			f.WorkloadGroups = []*mesh.WorkloadGroup{{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadGroup, Namespace: "ns", Name: "g"}, Origin: &mesh.Origin{}}, ProxyConfig: of()}}
		}
		s := mesh.NewSnapshot(nil, settings, []*mesh.Fragment{f})
		got := mesh.MergeProxyHeaders(settings.Spec.GetDefaultConfig().GetProxyHeaders(), s.HeadersOf(w))
		if want := proxyconfig.InputOf(s, w).Effective().GetProxyHeaders(); !proto.Equal(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}
