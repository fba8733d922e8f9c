package proxyconfig_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networkingbeta "istio.io/api/networking/v1beta1"
	typebeta "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/proxyconfig"
)

// config is a ProxyConfig of its own kind, made at a minute.
func config(namespace, name string, minute int, spec *networkingbeta.ProxyConfig) *mesh.ProxyConfig {
	return &mesh.ProxyConfig{
		Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindProxyConfig, Namespace: namespace, Name: name}, Created: time.Unix(int64(60*minute), 0), Origin: &mesh.Origin{}},
		Spec: spec,
	}
}

func selecting(labels map[string]string, spec *networkingbeta.ProxyConfig) *networkingbeta.ProxyConfig {
	spec.Selector = &typebeta.WorkloadSelector{MatchLabels: labels}
	return spec
}

func threads(n int32) *networkingbeta.ProxyConfig {
	return &networkingbeta.ProxyConfig{Concurrency: wrapperspb.Int32(n)}
}

func variables(kv ...string) *networkingbeta.ProxyConfig {
	out := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		out[kv[i]] = kv[i+1]
	}
	return &networkingbeta.ProxyConfig{EnvironmentVariables: out}
}

// TestEffective has the cases of Istio's own test (pilot/pkg/model/proxy_config_test.go,
// TestEffectiveProxyConfig), the ones between them, and what its code says of selectors.
func TestEffective(t *testing.T) {
	t.Parallel()
	app := map[string]string{"app": "a"}
	n := func(v int32) *meshconfig.ProxyConfig {
		return &meshconfig.ProxyConfig{Concurrency: wrapperspb.Int32(v)}
	}
	metadata := func(kv ...string) *meshconfig.ProxyConfig {
		return &meshconfig.ProxyConfig{ProxyMetadata: variables(kv...).GetEnvironmentVariables()}
	}
	image := &typebeta.WorkloadSelector{}
	for name, c := range map[string]struct {
		defaults          *meshconfig.ProxyConfig
		configs           []*mesh.ProxyConfig
		group, annotation *meshconfig.ProxyConfig
		namespace         string
		want              *meshconfig.ProxyConfig
	}{
		"nothing":                              {want: &meshconfig.ProxyConfig{}},
		"mesh":                                 {defaults: n(2), want: n(2)},
		"root namespace over mesh":             {defaults: n(2), configs: []*mesh.ProxyConfig{config("istio-system", "a", 0, threads(3))}, want: n(3)},
		"namespace over root namespace":        {configs: []*mesh.ProxyConfig{config("istio-system", "a", 0, threads(3)), config("ns", "a", 1, threads(4))}, want: n(4)},
		"annotation over namespace":            {configs: []*mesh.ProxyConfig{config("ns", "a", 1, threads(4))}, annotation: n(5), want: n(5)},
		"group over namespace":                 {configs: []*mesh.ProxyConfig{config("ns", "a", 1, threads(4))}, group: n(5), want: n(5)},
		"annotation over group":                {group: n(5), annotation: n(6), want: n(6)},
		"selector over annotation":             {configs: []*mesh.ProxyConfig{config("ns", "a", 0, selecting(app, threads(3)))}, annotation: n(5), want: n(3)},
		"selector over namespace":              {configs: []*mesh.ProxyConfig{config("ns", "a", 0, threads(2)), config("ns", "b", 1, selecting(app, threads(3)))}, want: n(3)},
		"zero is a value":                      {defaults: n(2), annotation: n(0), want: n(0)},
		"other namespaces":                     {configs: []*mesh.ProxyConfig{config("other", "a", 0, threads(1)), config("other", "b", 0, selecting(app, threads(2))), config("istio-system", "c", 0, threads(3))}, want: n(3)},
		"a selector in the root namespace":     {configs: []*mesh.ProxyConfig{config("istio-system", "a", 0, selecting(app, threads(1)))}, want: &meshconfig.ProxyConfig{}},
		"a workload of the root namespace":     {namespace: "istio-system", configs: []*mesh.ProxyConfig{config("istio-system", "a", 0, selecting(app, threads(1))), config("istio-system", "b", 0, threads(2))}, want: n(1)},
		"an empty selector selects nobody":     {configs: []*mesh.ProxyConfig{config("ns", "a", 0, &networkingbeta.ProxyConfig{Selector: image, Concurrency: wrapperspb.Int32(1)})}, want: &meshconfig.ProxyConfig{}},
		"a selector that does not fit":         {configs: []*mesh.ProxyConfig{config("ns", "a", 0, selecting(map[string]string{"app": "b"}, threads(1)))}, want: &meshconfig.ProxyConfig{}},
		"the oldest of a namespace, alone":     {configs: []*mesh.ProxyConfig{config("ns", "a", 0, variables("A", "1")), config("ns", "b", 1, variables("B", "2"))}, want: metadata("A", "1")},
		"the oldest that selects it, alone":    {configs: []*mesh.ProxyConfig{config("ns", "a", 0, selecting(app, variables("A", "1"))), config("ns", "b", 1, selecting(app, variables("B", "2")))}, want: metadata("A", "1")},
		"variables of all places are together": {defaults: metadata("A", "1", "B", "1"), configs: []*mesh.ProxyConfig{config("ns", "a", 0, variables("B", "2"))}, annotation: metadata("C", "3"), want: metadata("A", "1", "B", "2", "C", "3")},
		"a message is replaced whole": {
			defaults:   &meshconfig.ProxyConfig{ProxyStatsMatcher: &meshconfig.ProxyConfig_ProxyStatsMatcher{InclusionPrefixes: []string{"a"}}, ExtraStatTags: []string{"a"}},
			annotation: &meshconfig.ProxyConfig{ProxyStatsMatcher: &meshconfig.ProxyConfig_ProxyStatsMatcher{InclusionSuffixes: []string{"b"}}, ExtraStatTags: []string{"b"}},
			want:       &meshconfig.ProxyConfig{ProxyStatsMatcher: &meshconfig.ProxyConfig_ProxyStatsMatcher{InclusionSuffixes: []string{"b"}}, ExtraStatTags: []string{"b"}},
		},
		"what is left out stays": {
			defaults:   &meshconfig.ProxyConfig{DrainDuration: durationpb.New(7 * time.Second), Concurrency: wrapperspb.Int32(2)},
			annotation: &meshconfig.ProxyConfig{TerminationDrainDuration: durationpb.New(time.Second)},
			want:       &meshconfig.ProxyConfig{DrainDuration: durationpb.New(7 * time.Second), Concurrency: wrapperspb.Int32(2), TerminationDrainDuration: durationpb.New(time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system", DefaultConfig: c.defaults}}
			before := proto.CloneOf(settings.Spec)
			if c.namespace == "" {
				c.namespace = "ns"
			}
			w := &mesh.Workload{Meta: mesh.Meta{
				Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: c.namespace, Name: "w"}, Labels: app, Annotations: map[string]string{"istio.io/autoRegistrationGroup": "g"}, Origin: &mesh.Origin{},
			}, ProxyConfig: c.annotation}
			f := &mesh.Fragment{Source: "files", MeshConfig: settings, Workloads: []*mesh.Workload{w}, ProxyConfigs: c.configs}
			if c.group != nil {
				f.WorkloadGroups = []*mesh.WorkloadGroup{{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadGroup, Namespace: c.namespace, Name: "g"}, Origin: &mesh.Origin{}}, ProxyConfig: c.group}}
			}
			in := proxyconfig.InputOf(mesh.NewSnapshot(nil, settings, []*mesh.Fragment{f}), w)
			if got := in.Effective(); !proto.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if _, _, err := in.Resource(); err != nil || !proto.Equal(settings.Spec, before) {
				t.Errorf("%v; the settings are %v now", err, settings.Spec)
			}
		})
	}
}

// TestVersionsAreHashes: equal content has one version, whoever made it, and the input tells what
// may differ.
func TestVersionsAreHashes(t *testing.T) {
	t.Parallel()
	settings := &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{DefaultConfig: &meshconfig.ProxyConfig{ProxyMetadata: map[string]string{"A": "1", "B": "2", "C": "3"}}}}
	workload := func(labels map[string]string) *mesh.Workload {
		return &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "ns", Name: "w"}, Labels: labels}}
	}
	one := proxyconfig.Input{Mesh: settings, Workload: workload(map[string]string{"app": "a", "x": "1"})}
	body, version, err := one.Resource()
	if err != nil || version == "" {
		t.Fatal(version, err)
	}
	for range 20 {
		same := proxyconfig.Input{Mesh: settings, Workload: workload(map[string]string{"app": "a", "x": "2"})}
		again, v, err := same.Resource()
		if err != nil || v != version || string(again) != string(body) {
			t.Fatalf("%q and %q, %v", v, version, err)
		}
	}
	other := proxyconfig.Input{Mesh: settings, Workload: workload(map[string]string{"app": "b"})}
	if _, v, _ := other.Resource(); v == version {
		t.Error("another workload has the same version")
	}
	list := []*mesh.ProxyConfig{config("ns", "a", 0, threads(1))}
	changed := one
	changed.Configs = list
	if one.Same(other) || one.Same(changed) || !one.Same(one) || !changed.Same(changed) {
		t.Error("inputs are compared in a wrong way")
	}
	grouped := one
	grouped.Group = &mesh.WorkloadGroup{}
	settled := one
	settled.Mesh = &mesh.MeshConfig{}
	if one.Same(grouped) || one.Same(settled) {
		t.Error("a group or settings do not count")
	}
}
