package manifest

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/mesh"
)

// nested is a document with one field, which may be in messages and lists.
func nested(name, value string) string {
	lists := map[string]bool{}
	for _, p := range meshPaths() {
		lists[p.name] = p.fd.IsList()
	}
	at, last := above(name), strings.LastIndexByte(name, '.')
	text := name[last+1:] + ": " + value
	for ; at != ""; at = above(at) {
		text = "{" + text + "}"
		if lists[at] {
			text = "[" + text + "]"
		}
		text = at[strings.LastIndexByte(at, '.')+1:] + ": " + text
	}
	return text + "\n"
}

// valueAt is the value of a field that is in no list.
func valueAt(c *mesh.MeshConfig, name string) protoreflect.Value {
	_, fields := meshFieldAt(name)
	m := c.Spec.ProtoReflect()
	for _, fd := range fields[:len(fields)-1] {
		m = m.Get(fd).Message()
	}
	return m.Get(fields[len(fields)-1])
}

// TestWrongValuesOfEveryField writes a value of another type into each field of MeshConfig and
// of the messages in it: it is reported at that field, nothing else changes, and a field that
// restricts keeps the whole file out.
func TestWrongValuesOfEveryField(t *testing.T) {
	t.Parallel()
	for _, p := range meshPaths() {
		if strings.Count(p.name, ".") > 3 {
			continue // as those around them
		}
		wrong, beside, besides := "[1]", "connectTimeout", "7s"
		if p.fd.IsList() || !p.leaf {
			wrong = "5"
		}
		if p.name == beside {
			beside = "dnsRefreshRate"
		}
		text := beside + ": " + besides + "\n" + nested(p.name, wrong)
		settings, faults := ReadMeshConfig("mesh.yaml", []byte(text))
		found := false
		for _, f := range faults {
			name, _ := meshFieldAt(f.Field)
			found = found || f.Severity == Error && name == p.name && f.Origin.Line == 2
		}
		if !found {
			t.Errorf("%s: there is no error for %s: %v", text, p.name, faults)
			continue
		}
		restricts := false
		for _, f := range meshFields {
			restricts = restricts || f.restricts && (within(f.path, p.name) || within(p.name, f.path))
		}
		if (settings == nil) != restricts {
			t.Errorf("%s: restricts %v, and there are settings: %v", p.name, restricts, settings != nil)
		}
		if settings == nil {
			continue
		}
		same := false // as without the field, or with an empty message around it
		withouts := []string{""}
		for i, c := range p.name {
			if c == '.' {
				withouts = append(withouts, nested(p.name[:i], "{}"))
			}
		}
		for _, without := range withouts {
			want, faults := ReadMeshConfig("mesh.yaml", []byte(beside+": "+besides+"\n"+without))
			same = same || !HasErrors(faults) && proto.Equal(settings.Config.Spec, want.Config.Spec)
		}
		if !same {
			t.Errorf("%s: got %v", text, settings.Config.Spec)
		}
	}
}

// TestFieldsKeepTheirLastGoodValues: a field that can be in force and does not keep the file out
// keeps the value that it had, or its default; the rest of the file is in force.
func TestFieldsKeepTheirLastGoodValues(t *testing.T) {
	t.Parallel()
	good := map[string]string{
		"accessLogEncoding": "JSON", "accessLogFile": "/var/log/a.log", "accessLogFormat": "'{}'", "defaultProviders.accessLogging": "[a]", "defaultProviders.metrics": "[a]", "disableEnvoyListenerLog": "true",
		"connectTimeout": "3s", "dnsRefreshRate": "9s", "h2UpgradePolicy": "UPGRADE", "localityLbSetting.enabled": "false", "localityLbSetting.failoverPriority": "[a]", "protocolDetectionTimeout": "4s",
		"defaultConfig.proxyHeaders.attemptCount.disabled": "true", "defaultConfig.proxyHeaders.envoyDebugHeaders.disabled": "true", "defaultConfig.proxyHeaders.requestId.disabled": "true",
		"defaultConfig.proxyHeaders.server.disabled": "true", "defaultConfig.proxyHeaders.server.value": "a", "defaultConfig.proxyHeaders.xForwardedPort.enabled": "true", "defaultConfig.proxyHeaders.xForwardedHost.enabled": "true", "defaultConfig.proxyHeaders.preserveHttp1HeaderCase": "true",
		"defaultConfig.proxyHeaders.setCurrentClientCertDetails.cert": "true", "defaultConfig.proxyHeaders.setCurrentClientCertDetails.chain": "true",
		"defaultConfig.proxyHeaders.setCurrentClientCertDetails.dns": "true", "defaultConfig.proxyHeaders.setCurrentClientCertDetails.subject": "true", "defaultConfig.proxyHeaders.setCurrentClientCertDetails.uri": "true",
		"defaultConfig.tracing.customTags": "{a: {literal: {value: b}}}", "defaultConfig.tracing.datadog.address": "'a:1'", "defaultConfig.tracing.enableIstioTags": "true", "defaultConfig.tracing.maxPathTagLength": "9",
		"defaultConfig.tracing.sampling": "9", "defaultConfig.tracing.zipkin.address": "'a:1'", "defaultProviders.tracing": "[a]", "enableTracing": "false",
		"defaultConfig.concurrency": "3", "defaultConfig.statusPort": "15077", "defaultConfig.drainDuration": "7s", "defaultConfig.terminationDrainDuration": "8s", "defaultConfig.extraStatTags": "[a]",
		"defaultConfig.proxyStatsMatcher.inclusionPrefixes": "[a]", "defaultConfig.proxyStatsMatcher.inclusionRegexps": "[a]", "defaultConfig.proxyStatsMatcher.inclusionSuffixes": "[a]",
		"proxyHttpPort": "15080", "proxyInboundListenPort": "16006", "proxyListenPort": "16001", "tcpKeepalive.interval": "7s", "tcpKeepalive.probes": "4", "tcpKeepalive.time": "60s",
		"defaultHttpRetryPolicy.attempts": "5", "defaultHttpRetryPolicy.backoff": "2s", "defaultHttpRetryPolicy.perTryTimeout": "1s",
		"defaultInboundHttpRetryPolicy.attempts": "5", "defaultInboundHttpRetryPolicy.backoff": "2s", "defaultInboundHttpRetryPolicy.retryOn": "\"503\"",
		"defaultHttpRetryPolicy.retryIgnorePreviousHosts": "true", "defaultHttpRetryPolicy.retryOn": "\"503\"", "defaultHttpRetryPolicy.retryRemoteLocalities": "true",
	}
	read := func(text string) *MeshSettings {
		t.Helper()
		s, faults := ReadMeshConfig("mesh.yaml", []byte(text))
		if s == nil {
			t.Fatalf("%s: %v", text, faults)
		}
		return s
	}
	standard := DefaultMeshConfig()
	for _, f := range meshFields {
		if f.verdict != fieldInForce || f.restricts {
			continue
		}
		value, known := good[f.path]
		if !known {
			t.Errorf("%s can keep its last good value: give this test one", f.path)
			continue
		}
		last := read(nested(f.path, value)).Config
		if valueAt(last, f.path).Equal(valueAt(standard, f.path)) {
			t.Fatalf("%s: %s is the default", f.path, value)
		}
		wrong := "[]"
		if strings.HasPrefix(value, "[") {
			wrong = "5"
		}
		text := nested(f.path, wrong) + "rootNamespace: config\n"
		broken := read(text)
		if got := broken.Over(nil); !valueAt(got, f.path).Equal(valueAt(standard, f.path)) || got.Spec.GetRootNamespace() != "config" {
			t.Errorf("%s over nothing: %v", text, got.Spec)
		}
		got := broken.Over(last)
		if !valueAt(got, f.path).Equal(valueAt(last, f.path)) || got.Spec.GetRootNamespace() != "config" {
			t.Errorf("%s over %s: %v", text, value, got.Spec)
		}
		if again := broken.Over(got); !proto.Equal(again.Spec, got.Spec) || again.Hash != got.Hash {
			t.Errorf("%s over itself: %v", text, again.Spec)
		}
		if got := read("rootNamespace: config\n").Over(last); !valueAt(got, f.path).Equal(valueAt(standard, f.path)) {
			t.Errorf("%s was removed, and is still %v", f.path, valueAt(got, f.path))
		}
		checkEncoded(t, got)
	}
}

func checkEncoded(t *testing.T, c *mesh.MeshConfig) {
	t.Helper()
	texts := EncodeMeshConfig(c)
	s, faults := ReadMeshConfig("mesh.yaml", texts[len(texts)-1])
	if s == nil || HasErrors(faults) || s.Config.Hash != c.Hash {
		t.Errorf("%s gives %v, %v; want %v", texts[len(texts)-1], s, faults, c.Spec)
	}
}
