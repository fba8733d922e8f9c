package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestFragmentServices(t *testing.T) {
	t.Parallel()
	file := decodeFile(t, "testdata/good/shop.yaml")
	ignore := cmpopts.IgnoreTypes(mesh.Meta{})

	orders := file.Objects[0].Fragment().Services
	want := []*mesh.Service{{
		Hostname:   "orders.shop.example",
		Ports:      []mesh.Port{{Name: "http", Number: 80, Protocol: mesh.HTTP, TargetPort: 8080}},
		Resolution: mesh.ResolutionStatic,
		External:   false,
		ExportTo:   mesh.Exports{"shop"},
		Selector:   map[string]string{"app": "orders"},
		Inline:     []*mesh.Workload{},
	}}
	if diff := cmp.Diff(want, orders, ignore); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}

	external := file.Objects[6].Fragment().Services
	tls := []mesh.Port{{Name: "tls", Number: 443, Protocol: mesh.TLS}}
	want = []*mesh.Service{
		{Hostname: "a.example.com", Ports: tls, Resolution: mesh.ResolutionDNS, External: true, Inline: []*mesh.Workload{{Address: "a.example.com"}}},
		{Hostname: "b.example.com", Ports: tls, Resolution: mesh.ResolutionDNS, External: true, Inline: []*mesh.Workload{{Address: "b.example.com"}}},
	}
	if diff := cmp.Diff(want, external, ignore); diff != "" {
		t.Errorf("external (-want +got):\n%s", diff)
	}

	inline := file.Objects[7].Fragment().Services[0]
	if diff := cmp.Diff([]string{"10.1.0.5", "10.2.0.0/16"}, inline.Addresses); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	endpoint := &mesh.Workload{
		Address: "10.0.0.9", Ports: map[string]uint32{"tcp": 15432},
		Locality: mesh.Locality{Region: "eu", Zone: "z1", SubZone: "r1"},
	}
	if diff := cmp.Diff([]*mesh.Workload{endpoint}, inline.Inline, ignore); diff != "" {
		t.Errorf("inline endpoints (-want +got):\n%s", diff)
	}
	if got := inline.Inline[0].Origin.String(); got != "testdata/good/shop.yaml:92:5" {
		t.Errorf("the inline endpoint is at %s", got)
	}
}

func TestFragmentWorkload(t *testing.T) {
	t.Parallel()
	got := decodeFile(t, "testdata/good/shop.yaml").Objects[1].Fragment().Workloads[0]
	want := &mesh.Workload{
		Address: "10.0.0.1", ServiceAccount: "orders", Weight: 5, Locality: mesh.Locality{Region: "eu", Zone: "zone1"},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreTypes(mesh.Meta{})); diff != "" {
		t.Errorf("workload (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"app": "orders", "version": "v1"}, got.Labels); diff != "" {
		t.Errorf("labels of the metadata must win (-want +got):\n%s", diff)
	}
}

func TestFragmentRouting(t *testing.T) {
	t.Parallel()
	file := decodeFile(t, "testdata/good/shop.yaml")
	vs := file.Objects[2].Fragment().VirtualServices[0].Spec
	if diff := cmp.Diff([]string{"orders.shop.svc.cluster.local", "orders.shop.example"}, vs.GetHosts()); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"mesh"}, vs.GetGateways()); diff != "" {
		t.Errorf("gateways (-want +got):\n%s", diff)
	}
	want := &networking.Destination{Host: "orders.shop.svc.cluster.local", Subset: "v2"}
	if diff := cmp.Diff(want, vs.GetHttp()[0].GetRoute()[0].GetDestination(), protocmp.Transform()); diff != "" {
		t.Errorf("destination (-want +got):\n%s", diff)
	}
	if got := vs.GetHttp()[0].GetTimeout().AsDuration().String(); got != "1m0s" {
		t.Errorf("timeout is %s", got)
	}
	as, ok := file.Objects[2].Spec.(*networking.VirtualService)
	if !ok || as.GetHosts()[0] != "orders" {
		t.Error("resolving hosts has changed the object as written")
	}
	if got := file.Objects[3].Fragment().DestinationRules[0].Spec.GetHost(); got != "orders.shop.svc.cluster.local" {
		t.Errorf("the rule's host is %s", got)
	}
	for i, count := range map[int]func(*mesh.Fragment) int{
		4: func(f *mesh.Fragment) int { return len(f.PeerAuthentications) },
		5: func(f *mesh.Fragment) int { return len(f.Sidecars) },
		8: func(f *mesh.Fragment) int { return len(f.WorkloadGroups) },
	} {
		if f := file.Objects[i].Fragment(); f == nil || count(f) != 1 {
			t.Errorf("%s is not in its fragment: %v", file.Objects[i].Meta.Key, file.Objects[i].NotInForce)
		}
	}
}

// TestUnenforced holds that a security policy that is not built is passed on,
// so that what it protects can be closed.
func TestUnenforced(t *testing.T) {
	t.Parallel()
	file := decodeFile(t, "testdata/good/policy.yaml")
	for i, want := range map[int]map[string]string{3: {"app": "orders"}, 1: nil} {
		f := file.Objects[i].Fragment()
		if f == nil || len(f.Unenforced) != 1 {
			t.Errorf("%s gives %+v; want it unenforced", file.Objects[i].Meta.Key, f)
			continue
		}
		if diff := cmp.Diff(want, f.Unenforced[0].Selector); diff != "" {
			t.Errorf("selector (-want +got):\n%s", diff)
		}
	}
	for i, want := range map[int]string{3: "and so the workloads with app=orders deny every request", 1: `and so all workloads of namespace "shop"`} {
		o := file.Objects[i]
		if !o.Denies() || !strings.Contains(o.NotInForce[0].Message, "deny every request") || !strings.Contains(o.NotInForce[0].Message, want) {
			t.Errorf("%s denies %v: %s", o.Meta.Key, o.Denies(), o.NotInForce[0].Message)
		}
	}
}

// TestAuthorizationPolicies holds that a policy that is in force reaches the mesh as it is
// written, and that one that is attached to gateways replaces what was there by nothing.
func TestAuthorizationPolicies(t *testing.T) {
	t.Parallel()
	file := decodeFile(t, "testdata/good/policy.yaml")
	for i, dry := range map[int]bool{0: false, 4: true, 5: false} {
		o := file.Objects[i]
		f := o.Fragment()
		if f == nil || len(f.AuthorizationPolicies) != 1 || o.Denies() {
			t.Errorf("%s gives %+v, and denies %v", o.Meta.Key, f, o.Denies())
			continue
		}
		if p := f.AuthorizationPolicies[0]; p.Spec != o.Spec || p.DryRun != dry {
			t.Errorf("%s: %+v", o.Meta.Key, p)
		}
	}
	o := file.Objects[2]
	if f := o.Fragment(); f == nil || len(f.AuthorizationPolicies)+len(f.Unenforced) > 0 {
		t.Errorf("a policy attached to a gateway gives %+v", f)
	}
	if !slices.ContainsFunc(o.Faults, func(f manifest.Fault) bool {
		return f.Severity == manifest.Warning && f.Field == "spec.targetRefs" && strings.Contains(f.Message, "no effect")
	}) {
		t.Errorf("nothing says that it has no effect: %v", o.Faults)
	}
}

// TestNoEffect: what Istio accepts and ignores keeps no object out, and is a warning at each place.
func TestNoEffect(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nmetadata: {name: a, namespace: shop}\n"
	for text, want := range map[string][]string{
		"kind: VirtualService\nspec: {hosts: [a.b], tcp: [{match: [{port: 1}, {sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: a.b}}]}, {match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: a.b}}]}]}\n": {
			"spec.tcp[0].match[1].sourceSubnet", "spec.tcp[1].match[0].sourceSubnet",
		},
		"kind: Gateway\nspec: {selector: {a: b}, servers: [{port: {number: 80, name: a, protocol: HTTP}, hosts: ['*'], defaultEndpoint: '127.0.0.1:80'}]}\n": {"spec.servers[0].defaultEndpoint"},
		"kind: Sidecar\nspec: {ingress: [{port: {number: 443, name: tls, protocol: HTTPS}, tls: {mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, verifyCertificateSpki: [a], verifyCertificateHash: [b]}}]}": {
			"spec.ingress[0].tls.verifyCertificateHash", "spec.ingress[0].tls.verifyCertificateSpki",
		},
	} {
		file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(head+text))
		if manifest.HasErrors(faults) || !file.Objects[0].InForce() {
			t.Fatalf("%s: in force %v, %v", text, file.Objects[0].InForce(), faults)
		}
		var got []string
		for _, f := range append(slices.Clone(faults), file.Objects[0].Faults...) {
			if f.Severity == manifest.Warning && strings.Contains(f.Message, "has no effect, as in Istio: ") {
				got = append(got, f.Field)
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
			t.Errorf("%s\n (-want +got):\n%s", text, diff)
		}
	}
}

func TestNotInForce(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nmetadata: {name: a, namespace: shop}\n"
	for text, want := range map[string][]string{
		"kind: ServiceEntry\nspec: {hosts: ['*.a.example'], resolution: DYNAMIC_DNS, ports: [{number: 443, name: tls, protocol: TLS}]}\n":                 nil,
		"kind: ServiceEntry\nspec: {hosts: [a.example], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}\n":                             nil,
		"kind: Sidecar\nspec: {ingress: [{port: {number: 443, name: tls, protocol: HTTPS}, tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b}}]}": nil,
		"kind: VirtualService\nspec: {hosts: [a.b], tcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: a.b}}]}]}\n":                 nil,
		"kind: Sidecar\nspec: {ingress: [{port: {number: 443, name: tls, protocol: HTTPS}, tls: {}}]}":                                                    {"spec.ingress[0].tls"},
		"kind: Sidecar\nspec: {ingress: [{port: {number: 443, name: tls, protocol: HTTPS}, tls: {mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, insecureSkipVerify: true}}]}": {
			"spec.ingress[0].tls.insecureSkipVerify",
		},
		"kind: DestinationRule\nspec: {host: a.b, trafficPolicy: {loadBalancer: {simple: RANDOM, zoneAwareLbSetting: {enabled: true}}}}\n": {
			"spec.trafficPolicy.loadBalancer.zoneAwareLbSetting",
		},
		"kind: DestinationRule\nspec: {host: a.b, trafficPolicy: {tls: {mode: SIMPLE, caCertCredentialName: a}}}\n":                                                                                                     {"spec.trafficPolicy.tls.caCertCredentialName"},
		"kind: DestinationRule\nspec: {host: a.b, trafficPolicy: {loadBalancer: {backendUtilization: {weightUpdatePeriod: 1s}}, outlierDetection: {failurePercentageThreshold: 30}}}\n":                                 nil,
		"kind: DestinationRule\nspec: {host: a.b, trafficPolicy: {loadBalancer: {backendUtilization: {weightExpirationPeriod: -1s}}}}\n":                                                                                {"spec.trafficPolicy.loadBalancer.backendUtilization.weightExpirationPeriod"},
		"kind: Gateway\nspec: {selector: {a: b}, servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: a, ecdhCurves: [P-256, X25519], alpnProtocols: [h2]}}]}\n": nil,
		"kind: Gateway\nspec: {selector: {a: b}, servers: [{port: {number: 443, name: a, protocol: HTTPS}, hosts: ['*'], tls: {mode: SIMPLE, credentialName: a, ecdhCurves: [P-256, P-224, P-256], alpnProtocols: [h2, '']}}]}\n": {
			"spec.servers[0].tls.ecdhCurves[1]", "spec.servers[0].tls.ecdhCurves[2]", "spec.servers[0].tls.alpnProtocols[1]",
		},
		"kind: Sidecar\nspec: {ingress: [{port: {number: 443, name: tls, protocol: HTTPS}, tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b, ecdhCurves: [x]}}]}": {"spec.ingress[0].tls.ecdhCurves[0]"},
		"kind: VirtualService\nspec: {hosts: [a.b], gateways: [x/y], http: [{match: [{gateways: [x/y]}], route: [{destination: {host: a.b}}]}]}\n":                         nil,
	} {
		file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(head+text))
		if manifest.HasErrors(faults) {
			t.Fatalf("%s: %v", text, faults)
		}
		var got []string
		for _, f := range file.Objects[0].NotInForce {
			got = append(got, f.Field)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		if o := file.Objects[0]; o.InForce() != (want == nil) || (o.Fragment() == nil) != (want != nil) {
			t.Errorf("%s: in force %v, fragment %v", text, o.InForce(), o.Fragment())
		}
	}
}

// TestGateways: gateways of VirtualServices have their namespaces, and so do the hosts of Gateways.
func TestGateways(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: networking.istio.io/v1\nmetadata: {name: a, namespace: shop}\n"
	file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(head+
		"kind: VirtualService\nspec: {hosts: [a.b], gateways: [x, y/z, mesh], http: [{match: [{gateways: [x]}], route: [{destination: {host: a.b}}]}]}\n---\n"+head+
		"kind: Gateway\nspec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: 127.0.0.1:80, hosts: [./a.b, '*/c.d', other/e.f, '*.g']}, "+
		"{port: {number: 81, name: all, protocol: HTTP}, hosts: [./a.b, '*/*']}]}\n"))
	if len(faults) != 1 || faults[0].Severity != manifest.Warning || faults[0].Field != "spec.servers[0].defaultEndpoint" {
		t.Fatal(faults)
	}
	vs := file.Objects[0].Fragment().VirtualServices[0].Spec
	if diff := cmp.Diff([]string{"shop/x", "y/z", "mesh"}, vs.GetGateways()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"shop/x"}, vs.GetHttp()[0].GetMatch()[0].GetGateways()); diff != "" {
		t.Error(diff)
	}
	servers := file.Objects[1].Fragment().Gateways[0].Spec.GetServers()
	if diff := cmp.Diff([][]string{{"shop/a.b", "c.d", "other/e.f", "*.g"}, {"*"}}, [][]string{servers[0].GetHosts(), servers[1].GetHosts()}); diff != "" {
		t.Error(diff)
	}
}
