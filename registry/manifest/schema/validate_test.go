package schema_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// TestValidate has one case a keyword that Istio's schemas use.
func TestValidate(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	networking := func(kind string) schema.GVK {
		return schema.GVK{Group: "networking.istio.io", Version: "v1", Kind: kind}
	}
	entry, rule, service := networking("WorkloadEntry"), networking("DestinationRule"), networking("ServiceEntry")
	virtual := networking("VirtualService")
	jwt := schema.GVK{Group: "security.istio.io", Version: "v1", Kind: "RequestAuthentication"}
	wasm := schema.GVK{Group: "extensions.istio.io", Version: "v1alpha1", Kind: "WasmPlugin"}
	for _, test := range []struct {
		gvk  schema.GVK
		text string
		want []string // code and path of each problem
	}{
		{entry, "spec: {address: a, weight: 4294967295}", nil},
		{entry, "spec: {address: a, weight: 4294967296}", []string{"OutOfBounds spec.weight"}},
		{entry, "spec: {address: a, weight: 1.0}", nil},
		{entry, "spec: {address: a, weight: 1.5}", []string{"WrongType spec.weight"}},
		{entry, "spec: {address: ''}", nil},
		{entry, "spec: {address: a, locality: null}", []string{"WrongType spec.locality"}},
		{entry, "spec: []", []string{"WrongType spec"}},
		{entry, "spec: {network: ''}", nil},
		{entry, "spec: {}", []string{"RuleBroken spec"}},
		{entry, "spec: {address: 'unix:///a', ports: {a: 1}}", []string{"RuleBroken spec"}},
		{entry, "spec: {address: a, weigth: b}", []string{"UnknownField spec.weigth"}},
		{entry, "{spec: {address: a}, spce: {}, apiVersion: a, kind: b, metadata: {}}", []string{"UnknownField spce"}},
		{entry, "{spec: {address: a}, status: {anything: 1, conditions: [{lastProbeTime: yesterday}]}}", []string{"BadFormat status.conditions[0].lastProbeTime"}},
		{rule, "spec: {host: a, trafficPolicy: {loadBalancer: {simple: RONDOM}}}", []string{"NotAllowed spec.trafficPolicy.loadBalancer.simple"}},
		{rule, "spec: {host: a, trafficPolicy: {loadBalancer: {simple: RANDOM, consistentHash: {useSourceIp: true}}}}", []string{"OneOf spec.trafficPolicy.loadBalancer"}},
		{rule, "spec: {host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: null, interval: 1us}}}", []string{"RuleBroken spec.trafficPolicy.outlierDetection.interval"}},
		{rule, "spec: {subsets: [{name: a}, {}]}", []string{"Missing spec.subsets[1].name", "Missing spec.host"}},
		{service, "spec: {hosts: []}", []string{"OutOfBounds spec.hosts"}},
		{service, "spec: {hosts: ['*']}", []string{"RuleBroken spec.hosts[0]"}},
		{service, "spec: {hosts: [a], ports: [{name: a, number: 1}, {name: a, number: 2}]}", []string{"DuplicateItem spec.ports[1]"}},
		{service, "spec: {hosts: [a], ports: [{name: a, number: 1}, {name: b, number: 1}]}", []string{"RuleBroken spec.ports"}},
		{virtual, "spec: {http: [{route: [{weight: 2147483648, destination: {host: a}}]}]}", []string{"OutOfBounds spec.http[0].route[0].weight"}},
		{jwt, "spec: {jwtRules: [{issuer: a, jwksUri: 'https://a'}]}", nil},
		{jwt, "spec: {jwtRules: [{issuer: a, jwksUri: 'ftp://a'}, {issuer: b, jwksUri: 'a/b'}]}", []string{"RuleBroken spec.jwtRules[0].jwksUri", "RuleBroken spec.jwtRules[1].jwksUri"}},
		{jwt, "spec: {selector: {matchLabels: {'': a, b: '*'}}}", []string{"RuleBroken spec.selector.matchLabels.b"}},
		{jwt, "spec: {selector: {matchLabels: {'': a}}}", []string{"RuleBroken spec.selector.matchLabels"}},
		{wasm, "spec: {url: a, sha256: zz}", []string{"BadFormat spec.sha256"}},
		{wasm, "spec: {url: 'x://a', pluginConfig: {anything: [1]}}", []string{"RuleBroken spec.url"}},
	} {
		docs := tree.Parse([]byte(test.text))
		var got []string
		for _, p := range set.Validate(docs[0].Root, set.Lookup(test.gvk)) {
			got = append(got, fmt.Sprintf("%s %s", codeName(p.Code), p.Path))
			if p.Message == "" || p.Pos.Line == 0 {
				t.Errorf("%s: %+v has no message or position", test.text, p)
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.gvk.Kind, test.text, diff)
		}
	}
}

func codeName(c schema.Code) string {
	return [...]string{
		"UnknownField", "WrongType", "Missing", "NotAllowed", "OutOfBounds", "BadFormat", "OneOf", "DuplicateItem", "RuleBroken",
	}[c]
}

func TestNear(t *testing.T) {
	t.Parallel()
	names := []string{"route", "corsPolicy", "timeout", "retries", "host", "hosts"}
	for name, want := range map[string]string{
		"rout": "route", "cors_policy": "corsPolicy", "Timeout": "timeout", "tiemout": "timeout", "Hosts": "hosts", "zzz": "", "": "",
	} {
		if got := schema.Near(name, names); got != want {
			t.Errorf("near %q is %q; want %q", name, got, want)
		}
	}
}
