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

// TestMeshConfigFaults holds that a broken file says where it is broken, and what of it counts:
// nothing, or the rest.
func TestMeshConfigFaults(t *testing.T) {
	t.Parallel()
	const (
		file  = "; leaving this field out could open something, so the whole file is kept out"
		value = "; the field keeps its last good value, or its default if there was none"
		left  = "; the field is left out"
	)
	for text, want := range map[string]string{
		"trustDomian: a\n":                                                 `mesh.yaml:1:1: error [FL0110] MeshConfig trustDomian: there is no field "trustDomian" here; did you mean "trustDomain"?` + file,
		"connectTimeout: 5\n":                                              `mesh.yaml:1:17: error [FL0115] MeshConfig connectTimeout: "5" is not a duration; write one such as 500ms, 5s or 1h30m` + value,
		"connectTimeout: 2h\n":                                             `mesh.yaml:1:17: error [FL0120] MeshConfig connectTimeout: 2h0m0s to connect is out of range; use 1ms to 1h` + value,
		"outboundTrafficPolicy: {mode: ALLOW_AYN}":                         `mesh.yaml:1:31: error [FL0113] MeshConfig outboundTrafficPolicy.mode: "ALLOW_AYN" is not one of its values; did you mean "ALLOW_ANY"?` + file,
		"trustDomain: a\ntrustDomain: b\n":                                 `mesh.yaml:2:1: error [FL0102] MeshConfig trustDomain: the key "trustDomain" is already set on line 1; remove one of them`,
		"- a\n":                                                            `mesh.yaml:1:1: error [FL0111] MeshConfig: the mesh settings must be an object, not list`,
		"accessLogFile: logs/a\n":                                          `mesh.yaml:1:16: error [FL0130] MeshConfig accessLogFile: not in force: "logs/a" is not an absolute path` + value,
		"accessLogFile: /run/fairlead-agent/xds.sock\n":                    `is, or may be, a file of Fairlead` + value,
		"accessLogFormat: \"%NOBODY%\"\n":                                  `%NOBODY% is not allowed here: not every Envoy from 1.36 on has this command operator, or it reads something of the host; remove it, or write %% for a percent sign` + value,
		"accessLogFormat: \"%CEL(string(1))%\"\n":                          `stock Envoys have no string(); numbers need none, and texts are compared as they are` + value,
		"accessLogFormat: \"%REQ_WITHOUT_QUERY%\"\n":                       `%REQ_WITHOUT_QUERY% needs an argument, such as %REQ_WITHOUT_QUERY(X-ENVOY-ORIGINAL-PATH?:PATH)%` + value,
		"extensionProviders: [{name: a, envoyFileAccessLog: {path: a}}]\n": `is not an absolute path` + file,
		"extensionProviders: [{name: a, envoyFileAccessLog: {logFormat: {text: \"%A%\"}}}]\n":                         `%A% is not allowed here: not every Envoy from 1.36 on has this command operator, or it reads something of the host; remove it, or write %% for a percent sign` + file,
		"extensionProviders: [{name: a, envoyOtelAls: {service: a.b, port: 1, logFormat: {labels: {a: \"%A%\"}}}}]\n": `%A% is not allowed here: not every Envoy from 1.36 on has this command operator, or it reads something of the host; remove it, or write %% for a percent sign` + file,
		"inboundTrafficPolicy: {mode: LOCALHOST}": `mesh.yaml:1:30: error [FL0130] MeshConfig inboundTrafficPolicy.mode: not in force: this version of Fairlead does not implement the value LOCALHOST: ` +
			`requests go to the address that they were for` + file,
		"ingressClass: nginx\n":                      `mesh.yaml:1:15: warning [FL0131] MeshConfig ingressClass: no effect here: Ingress is of Kubernetes, and is not read`,
		"rootNamespace: [\n":                         "not YAML",
		"proxyListenPort: 99999999999\n":             "is not between",
		"enableAutoMtls: \"true\"\n":                 "must be true or false, not string" + file,
		"trustDomain: a\n---\nrootNamespace: b\n":    "must be one document",
		"defaultConfig: {statusPort: abc}\n":         "must be an integer, not string" + value,
		"defaultConfig: {drainDuration: 2h}\n":       "not in force: 2h0m0s is not from 0s to 1h0m0s" + value,
		"defaultConfig: {concurrency: 1.5}\n":        "must be an integer, not number" + value,
		"defaultConfig: {concurrency: 5000}\n":       "not in force: 5000 is not from 0, which means one thread for each core, to 1024" + value,
		"extensionProviders: [{name: a, zipkn: {}}]": `did you mean "zipkin"?` + file,
	} {
		got, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(text))
		if len(faults) != 1 || !strings.Contains(faults[0].String(), want) {
			t.Errorf("%q: got %v; want %s", text, faults, want)
			continue
		}
		switch says := faults[0].String(); {
		case !strings.HasSuffix(says, value) && !strings.HasSuffix(says, left) && faults[0].Severity == manifest.Error:
			if got != nil {
				t.Errorf("%q: settings were given in spite of %v", text, faults)
			}
		case got == nil || !proto.Equal(got.Spec, manifest.DefaultMeshConfig().Spec):
			t.Errorf("%q: got %v; want the defaults", text, got)
		}
	}
}

// TestFormatsOfJSONLogs: with accessLogEncoding: JSON the format is an object, and each text in it
// is judged.
func TestFormatsOfJSONLogs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`a`:                     "MeshConfig accessLogFormat: not in force: with accessLogEncoding: JSON it must be a JSON object, in one text; the field keeps",
		`{"a": {"b": ["%C%"]}}`: "MeshConfig accessLogFormat.a.b[0]: not in force: %C% is not allowed here",
		`{"a": 5, "b": "%PROTOCOL%", "c": "%REQ_WITHOUT_QUERY(:PATH)%", "d": "%CEL(request.path)%", "e": "%ENVIRONMENT(A)%"}`: "",
	} {
		settings, faults := manifest.ReadMeshConfig("mesh.yaml", []byte("accessLogEncoding: JSON\naccessLogFormat: '"+text+"'\n"))
		switch {
		case settings == nil || len(faults) > 1 || (len(faults) == 0) != (want == ""):
			t.Errorf("%s: %v", text, faults)
		case want != "" && !strings.Contains(faults[0].String(), want):
			t.Errorf("%s: got %v; want %s", text, faults[0], want)
		case want == "" && settings.Config.Spec.GetAccessLogFormat() != text:
			t.Errorf("%s: in force is %q", text, settings.Config.Spec.GetAccessLogFormat())
		}
	}
}
