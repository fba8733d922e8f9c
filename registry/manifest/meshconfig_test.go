package manifest_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest"
)

func TestMeshConfigDefaults(t *testing.T) {
	t.Parallel()
	standard := manifest.DefaultMeshConfig()
	for _, text := range []string{"", "# nothing\n", "trustDomain: cluster.local\nenableAutoMtls: true\nenableTracing: true\n"} {
		got, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(text))
		if len(faults) != 0 || got == nil || !proto.Equal(got.Spec, standard.Spec) || got.Hash != standard.Hash {
			t.Errorf("%q: got %v, %v; want the defaults", text, got, faults)
		}
	}
}

func TestMeshConfigMerge(t *testing.T) {
	t.Parallel()
	const text = `
trustDomain: mesh.example
enableAutoMtls: false
connectTimeout: 1500ms
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
`
	got, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(text))
	if manifest.HasErrors(faults) {
		t.Fatal(faults)
	}
	spec := got.Spec
	if spec.GetTrustDomain() != "mesh.example" || spec.GetEnableAutoMtls().GetValue() || spec.GetConnectTimeout().AsDuration() != 1500*time.Millisecond ||
		spec.GetOutboundTrafficPolicy().GetMode() != meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY {
		t.Errorf("what was written is not there: %v", spec)
	}
	if spec.GetRootNamespace() != "istio-system" || spec.GetProxyListenPort() != 15001 {
		t.Errorf("defaults are missing: %v", spec)
	}
}

// TestMeshConfigFaults holds that a broken file gives no settings at all, and
// says where it is broken.
func TestMeshConfigFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"trustDomian: a\n":                           `mesh.yaml:1:1: error [FL0110] MeshConfig trustDomian: there is no field "trustDomian" here; did you mean "trustDomain"?`,
		"connectTimeout: 5\n":                        `mesh.yaml:1:17: error [FL0115] MeshConfig connectTimeout: "5" is not a duration; write one such as 500ms, 5s or 1h30m`,
		"outboundTrafficPolicy: {mode: ALLOW_AYN}":   `mesh.yaml:1:31: error [FL0113] MeshConfig outboundTrafficPolicy.mode: "ALLOW_AYN" is not one of its values; did you mean "ALLOW_ANY"?`,
		"trustDomain: a\ntrustDomain: b\n":           `mesh.yaml:2:1: error [FL0102] MeshConfig trustDomain: the key "trustDomain" is already set on line 1; remove one of them`,
		"- a\n":                                      `mesh.yaml:1:1: error [FL0111] MeshConfig: the mesh settings must be an object, not list`,
		"accessLogFile: /dev/stdout\n":               `mesh.yaml:1:16: error [FL0130] MeshConfig accessLogFile: not in force: this version of Fairlead does not implement this field; the object is kept out whole`,
		"enableTracing: false\n":                     `mesh.yaml:1:16: error [FL0130] MeshConfig enableTracing: not in force: this version of Fairlead does not implement this field; the object is kept out whole`,
		"rootNamespace: [\n":                         "not YAML",
		"proxyListenPort: 99999999999\n":             "is not between",
		"enableAutoMtls: \"true\"\n":                 "must be true or false",
		"trustDomain: a\n---\nrootNamespace: b\n":    "must be one document",
		"defaultConfig: {statusPort: abc}\n":         "must be an integer",
		"defaultConfig: {drainDuration: 1m}\n":       "not in force",
		"ingressClass: nginx\n":                      "not in force",
		"defaultConfig: {concurrency: 1.5}\n":        "must be an integer",
		"extensionProviders: [{name: a, zipkn: {}}]": `did you mean "zipkin"?`,
	} {
		got, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(text))
		if got != nil {
			t.Errorf("%q: settings were given in spite of %v", text, faults)
		}
		if len(faults) == 0 || !strings.Contains(faults[0].String(), want) {
			t.Errorf("%q: got %v; want %s", text, faults, want)
		}
	}
}
