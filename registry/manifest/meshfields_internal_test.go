package manifest

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// meshPath is a field of MeshConfig or of a message in it.
type meshPath struct {
	name   string
	fd     protoreflect.FieldDescriptor
	inList bool
	leaf   bool
	empty  bool // a message without fields
}

// meshPaths are all fields of MeshConfig and of the messages in it, as Istio's API has them.
func meshPaths() []meshPath {
	var out []meshPath
	var walk func(d protoreflect.MessageDescriptor, at string, inList bool)
	walk = func(d protoreflect.MessageDescriptor, at string, inList bool) {
		for i := range d.Fields().Len() {
			fd := d.Fields().Get(i)
			p := meshPath{name: join(at, fd.JSONName()), fd: fd, inList: inList}
			p.leaf = fd.IsMap() || fd.Message() == nil || fd.Message().ParentFile().Package() == "google.protobuf"
			p.empty = !p.leaf && fd.Message().Fields().Len() == 0
			out = append(out, p)
			if !p.leaf {
				walk(fd.Message(), p.name, inList || fd.IsList())
			}
		}
	}
	walk((&meshconfig.MeshConfig{}).ProtoReflect().Descriptor(), "", false)
	return out
}

// TestEveryFieldOfMeshConfigHasOneVerdict walks Istio's API, and not the table: a field that a
// new version of it brings, and one that is forgotten, have no row.
func TestEveryFieldOfMeshConfigHasOneVerdict(t *testing.T) {
	t.Parallel()
	paths := meshPaths()
	if len(paths) < 400 {
		t.Fatalf("%d fields: this test looks for them in the wrong way", len(paths))
	}
	exists := map[string]bool{}
	for _, p := range paths {
		exists[p.name] = true
		verdicts, below := 0, false
		for _, f := range meshFields {
			below = below || strings.HasPrefix(f.path, p.name+".")
			if f.values != "" || !within(p.name, f.path) {
				continue
			}
			verdicts++
			if f.verdict == fieldInForce && !p.leaf && !p.empty {
				t.Errorf("%s is in force with all that it may get: list its fields", f.path)
			}
			if p.inList && (f.verdict == fieldInForce || f.verdict == fieldKept) && !f.restricts {
				t.Errorf("%s is in a list, so that it cannot keep its last good value: let it keep the whole file out", f.path)
			}
		}
		if verdicts > 1 || verdicts == 1 && below || verdicts == 0 && (p.leaf || !below) {
			t.Errorf("%s has %d verdicts, and rows below it: %v; want one verdict, or rows for what is in it", p.name, verdicts, below)
		}
	}
	for i, f := range meshFields {
		if !exists[f.path] {
			t.Errorf("there is no field %s", f.path)
		}
		if i > 0 && (f.path < meshFields[i-1].path || f.path == meshFields[i-1].path && f.values <= meshFields[i-1].values) {
			t.Errorf("%s %s is not in order", f.path, f.values)
		}
		if strings.HasSuffix(f.why, ".") || f.why == "" && f.verdict != fieldInForce && f.path != "extensionProviders.name" {
			t.Errorf("%s: the reason %q", f.path, f.why)
		}
	}
}

// TestRowsWithValues: a row for some values stands beside one for all others, and names values
// that the field has.
func TestRowsWithValues(t *testing.T) {
	t.Parallel()
	for path, rows := range meshRows() {
		seen := map[string]bool{}
		for i, f := range rows {
			if last := i == len(rows)-1; last != (f.values == "") {
				t.Errorf("%s: want one row for all other values", path)
			}
			if f.restricts != rows[0].restricts {
				t.Errorf("%s restricts with some values only", path)
			}
			if f.values == "" {
				continue
			}
			at := slices.IndexFunc(meshPaths(), func(p meshPath) bool { return p.name == path })
			for value := range strings.SplitSeq(f.values, ",") {
				if enum := meshPaths()[at].fd.Enum(); seen[value] || enum != nil && enum.Values().ByName(protoreflect.Name(value)) == nil {
					t.Errorf("%s: the value %s is unknown, or there twice", path, value)
				}
				seen[value] = true
			}
		}
	}
}

// TestWhatRestricts: with these fields left out, more would be open than the file says.
func TestWhatRestricts(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"trustDomain", "trustDomainAliases", "rootNamespace", "enableAutoMtls", "meshMTLS.minProtocolVersion", "tlsDefaults.cipherSuites", "tlsDefaults.minProtocolVersion", "pathNormalization.normalization",
		"inboundTrafficPolicy.mode", "outboundTrafficPolicy.mode", "outboundTrafficPolicy.tls.caCertificates", "discoverySelectors.matchLabels", "serviceEntryVisibility.policies",
		"defaultServiceExportTo", "defaultVirtualServiceExportTo", "defaultDestinationRuleExportTo", "extensionProviders.envoyExtAuthzGrpc.failOpen", "extensionProviders.name",
		"configSources", "defaultConfig.proxyHeaders.forwardedClientCert", "defaultConfig.connectionSettings.httpMergeSlashes",
		// A name that nobody knows may be meant for one of these.
		"trustDomian", "defaultConfig.x", "defaultConfig.proxyHeaders.x", "extensionProviders.x", "inboundTrafficPolicy.x", "meshMTLS.x", "",
	} {
		if !meshRestricts(path) {
			t.Errorf("%q does not restrict", path)
		}
	}
	for _, path := range []string{"connectTimeout", "accessLogFile", "tcpKeepalive.x", "tcpKeepalive", "defaultConfig.tracing.x", "defaultConfig.tracing.zipkin.address", "extensionProviders.lightstep.port", "defaultHttpRetryPolicy"} {
		if meshRestricts(path) {
			t.Errorf("%q restricts", path)
		}
	}
}
