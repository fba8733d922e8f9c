package manifest_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest"
)

// annotated is a WorkloadEntry with the annotation.
func annotated(text string) string {
	return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: vm1\n  annotations:\n    proxy.istio.io/config: |\n      " +
		strings.ReplaceAll(text, "\n", "\n      ") + "\nspec:\n  address: 10.0.0.1\n"
}

// TestAnnotatedProxyConfig: what the annotation says of agents is read as in MeshConfig, with its
// probe.
func TestAnnotatedProxyConfig(t *testing.T) {
	t.Parallel()
	file, faults := manifest.Decode(manifest.Options{}, "we.yaml", []byte(annotated(
		"concurrency: 3\ndrainDuration: 7s\nterminationDrainDuration: 20s\nstatNameLength: 10\nextraStatTags: [a]\nproxyStatsMatcher:\n  inclusionRegexps: [\".*x.*\"]\n"+
			"readinessProbe:\n  httpGet: {port: 8080, path: /ready}\n  periodSeconds: 2")))
	if len(file.Objects) != 1 || !file.Objects[0].InForce() {
		t.Fatalf("%v %v", file.Objects, faults)
	}
	o := file.Objects[0]
	if len(o.Faults) != 1 || o.Faults[0].Severity != manifest.Warning || !strings.Contains(o.Faults[0].String(), "statNameLength: no effect here") {
		t.Errorf("faults %v", o.Faults)
	}
	want := &meshconfig.ProxyConfig{}
	if err := protojson.Unmarshal([]byte(`{"concurrency": 3, "drainDuration": "7s", "terminationDrainDuration": "20s", "extraStatTags": ["a"],
		"proxyStatsMatcher": {"inclusionRegexps": [".*x.*"]}, "readinessProbe": {"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 2}}`), want); err != nil {
		t.Fatal(err)
	}
	if got := o.Fragment().Workloads[0].ProxyConfig; !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, none := range []string{"", "{}", "# nothing"} {
		file, _ := manifest.Decode(manifest.Options{}, "we.yaml", []byte(annotated(none)))
		if o := file.Objects[0]; !o.InForce() || len(o.Faults) > 0 {
			t.Errorf("%q: %v", none, o.Faults)
		}
	}
}

// TestBrokenAnnotation: each fault is at the annotation, and keeps the object out, so that its last
// good version stays in force.
func TestBrokenAnnotation(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"concurrency: [", "YAML"},
		{"a\n---\nb", "must be an object"},
		{"concurency: 3", `did you mean "concurrency"?`},
		{"drainDuration: 5s\nconcurrency: x", "line 2 of the annotation: concurrency: must be an integer"},
		{"concurrency: -1", "concurrency: not in force: -1 is not from 0"},
		{"statusPort: 22", "statusPort: not in force: agents listen at ports from 1024 on"},
		{"statusPort: 15006", "15006 cannot be used"},
		{"terminationDrainDuration: 2h", "terminationDrainDuration: not in force: 2h0m0s is not from 0s to 1h0m0s"},
		{"drainDuration: 1.5s", "whole seconds"},
		{"tracing: {zipkin: {address: 'a:1'}}", "tracing.zipkin: not in force: a tracer is for all proxies"},
		{"tracing: {tlsSettings: {mode: SIMPLE}}", "tracing.tlsSettings: not in force"},
		{"tracing: {customTags: {a: {header: {name: 'a b'}}}}", "is not the name of a header"},
		{"proxyMetadata: {ISTIO_META_DNS_CAPTURE: \"true\"}", "proxyMetadata.ISTIO_META_DNS_CAPTURE: not in force: an agent answers DNS queries with its flag --dns, and the resolver of the host sends it the names of the mesh (docs/dns.md)"},
		{"proxyStatsMatcher: {inclusionRegexps: [\"(\"]}", "not a regular expression"},
		{"proxyStatsMatcher: {inclusionRegexps: [\"((a{100}){100}){100}\"]}", "regular expression"},
		{"proxyStatsMatcher: {inclusionRegexps: [\"a{1000}b{1000}c{1000}d{1000}e{1000}\"]}", "too large"},
		{"proxyStatsMatcher: {inclusionPrefixes: [\"\"]}", "must have 1 to 512"},
		{"extraStatTags: [\"a)|(b\"]", "extraStatTags[0]: not in force: a tag has letters"},
		{"readinessProbe: {exec: {command: [rm]}}", "agents run no commands"},
		{"readinessProbe: {}", "one of httpGet and tcpSocket is needed"},
		{"readinessProbe: {tcpSocket: {port: 0}}", "port 0 is not within"},
		{"readinessProbe: {httpGet: {port: 80, host: metadata.internal}}", "an agent probes its own host only"},
		{"readinessProbe: {httpGet: {port: 80, scheme: ftp}}", "neither http nor https"},
		{"readinessProbe: {httpGet: {port: 80}, periodSeconds: -1}", "must not be negative"},
		{"readinessProbe: {httpGet: {prt: 80}}", "did you mean"},
		{"proxyHeaders: {server: {value: \"a\\nb\"}}", "proxyHeaders.server.value: "},
		{"proxyHeaders: {servr: {disabled: true}}", "did you mean"},
		{"extraStatTags: [" + strings.Repeat("a,", 65) + "]", "65 tags, at most 64"},
		{"proxyStatsMatcher: {inclusionPrefixes: [" + strings.Repeat("a,", 257) + "]}", "257 patterns, at most 256"},
	} {
		text, want := c[0], c[1]
		file, _ := manifest.Decode(manifest.Options{}, "we.yaml", []byte(annotated(text)))
		o := file.Objects[0]
		found := false
		for _, f := range o.Faults {
			found = found || f.Severity == manifest.Error && strings.Contains(f.String(), want) && f.Field == `metadata.annotations["proxy.istio.io/config"]` && f.Origin.Line == 6
		}
		if !found || o.Valid || o.Fragment() != nil {
			t.Errorf("%q: valid %t, %v; want %s", text, o.Valid, o.Faults, want)
		}
	}
}

// TestGroupsProxyConfig: the annotations of a WorkloadGroup, and its probe.
func TestGroupsProxyConfig(t *testing.T) {
	t.Parallel()
	const group = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata:
  name: vms
  annotations:
    proxy.istio.io/config: "{concurrency: 1, drainDuration: 9s}"
spec:
  metadata:
    annotations:
      proxy.istio.io/config: "{concurrency: 2}"
  probe:
    PROBE
  template:
    serviceAccount: vms
`
	file, _ := manifest.Decode(manifest.Options{}, "wg.yaml", []byte(strings.Replace(group, "PROBE", "tcpSocket: {port: 8080}", 1)))
	o := file.Objects[0]
	if !o.InForce() || len(o.Faults) > 0 {
		t.Fatal(o.Faults)
	}
	got := o.Fragment().WorkloadGroups[0].ProxyConfig
	if got.GetConcurrency().GetValue() != 2 || got.GetDrainDuration().GetSeconds() != 9 || got.GetReadinessProbe().GetTcpSocket().GetPort() != 8080 {
		t.Errorf("got %v", got)
	}
	file, _ = manifest.Decode(manifest.Options{}, "wg.yaml", []byte(strings.Replace(group, "PROBE", "exec: {command: [ls]}", 1)))
	if o := file.Objects[0]; !o.InForce() || len(o.Faults) != 1 || !strings.Contains(o.Faults[0].String(), "the probe has no effect") || o.Fragment().WorkloadGroups[0].ProxyConfig.GetReadinessProbe() != nil {
		t.Errorf("%v", o.Faults)
	}
}

// TestProxyConfigKind: what agents could not use keeps the object out, and what has no effect is a
// warning.
func TestProxyConfigKind(t *testing.T) {
	t.Parallel()
	decode := func(spec string) *manifest.Object {
		file, _ := manifest.Decode(manifest.Options{}, "pc.yaml", []byte("apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata:\n  name: pc\nspec: "+spec+"\n"))
		return file.Objects[0]
	}
	o := decode(`{selector: {matchLabels: {app: a}}, concurrency: 0, environmentVariables: {A: b}, image: {imageType: debug}}`)
	if !o.InForce() || o.Fragment().ProxyConfigs[0].Spec.GetConcurrency() == nil {
		t.Fatal(o.Faults, o.NotInForce)
	}
	if len(o.Faults) != 2 || manifest.HasErrors(o.Faults) {
		t.Errorf("faults %v", o.Faults)
	}
	for spec, want := range map[string]string{
		"{concurrency: 2000}": "2000 is not from 0",
		`{environmentVariables: {ISTIO_META_DNS_CAPTURE: "true"}}`: "spec.environmentVariables.ISTIO_META_DNS_CAPTURE: not in force: an agent answers DNS queries with its flag --dns, and the resolver of the host sends it the names of the mesh (docs/dns.md)",
	} {
		if o := decode(spec); len(o.NotInForce) != 1 || !strings.Contains(o.NotInForce[0].String(), want) || o.Fragment() != nil {
			t.Errorf("%s: %v; want %s", spec, o.NotInForce, want)
		}
	}
	if o := decode(`{environmentVariables: {ISTIO_META_DNS_CAPTURE: "false"}}`); !o.InForce() {
		t.Errorf("what is switched off is refused: %v", o.NotInForce)
	}
}
