package manifest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/manifest/webhook"
	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultMeshConfig is the settings of a mesh for which nobody wrote any: the
// defaults of Istio (pkg/config/mesh/mesh.go).
func DefaultMeshConfig() *mesh.MeshConfig {
	return newMeshConfig(&mesh.Origin{Path: "(defaults)"}, defaultMeshSpec())
}

func newMeshConfig(origin *mesh.Origin, spec *meshconfig.MeshConfig) *mesh.MeshConfig {
	m := &mesh.MeshConfig{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindMeshConfig}, Origin: origin}, Spec: spec}
	m.Hash = hashOf(&m.Meta, spec)
	return m
}

// WithTrustDomain is the settings with another trust domain, at the same
// origin.
func WithTrustDomain(c *mesh.MeshConfig, domain string) *mesh.MeshConfig {
	spec := proto.CloneOf(c.Spec)
	spec.TrustDomain = domain
	return newMeshConfig(c.Origin, spec)
}

// WithRootNamespace is the settings with another root namespace, at the same
// origin.
func WithRootNamespace(c *mesh.MeshConfig, namespace string) *mesh.MeshConfig {
	spec := proto.CloneOf(c.Spec)
	spec.RootNamespace = namespace
	return newMeshConfig(c.Origin, spec)
}

func defaultMeshSpec() *meshconfig.MeshConfig {
	everywhere := func() []string { return []string{"*"} }
	return &meshconfig.MeshConfig{
		ProxyListenPort:                15001,
		ProxyInboundListenPort:         15006,
		ConnectTimeout:                 durationpb.New(10 * time.Second),
		DnsRefreshRate:                 durationpb.New(time.Minute),
		ProtocolDetectionTimeout:       durationpb.New(0),
		IngressClass:                   "istio",
		IngressService:                 "istio-ingressgateway",
		IngressControllerMode:          meshconfig.MeshConfig_STRICT,
		TrustDomain:                    "cluster.local",
		RootNamespace:                  "istio-system",
		EnableAutoMtls:                 wrapperspb.Bool(true),
		EnableTracing:                  true,
		EnablePrometheusMerge:          wrapperspb.Bool(true),
		DefaultServiceExportTo:         everywhere(),
		DefaultVirtualServiceExportTo:  everywhere(),
		DefaultDestinationRuleExportTo: everywhere(),
		OutboundTrafficPolicy:          &meshconfig.MeshConfig_OutboundTrafficPolicy{Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		InboundTrafficPolicy:           &meshconfig.MeshConfig_InboundTrafficPolicy{Mode: meshconfig.MeshConfig_InboundTrafficPolicy_PASSTHROUGH},
		LocalityLbSetting:              &networking.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)},
		DefaultProviders:               &meshconfig.MeshConfig_DefaultProviders{},
		DefaultConfig: &meshconfig.ProxyConfig{
			ConfigPath:               "./etc/istio/proxy",
			BinaryPath:               "/usr/local/bin/envoy",
			ClusterName:              &meshconfig.ProxyConfig_ServiceCluster{ServiceCluster: "istio-proxy"},
			DrainDuration:            durationpb.New(45 * time.Second),
			TerminationDrainDuration: durationpb.New(5 * time.Second),
			ProxyAdminPort:           15000,
			StatusPort:               15020,
			DiscoveryAddress:         "istiod.istio-system.svc:15012",
			ControlPlaneAuthPolicy:   meshconfig.AuthenticationPolicy_MUTUAL_TLS,
			StatNameLength:           189,
		},
	}
}

// DecodeMeshConfig is [ReadMeshConfig] for settings that were never in force before: fields that
// cannot be in force have their defaults. With a fault that keeps the whole file out, the
// settings are nil. Other faults leave out single fields, so that there may be settings and
// errors.
func DecodeMeshConfig(path string, content []byte) (*mesh.MeshConfig, []Fault) {
	settings, faults := ReadMeshConfig(path, content)
	if settings == nil {
		return nil, faults
	}
	return settings.Config, faults
}

// MeshSettings are the settings of a file; immutable.
type MeshSettings struct {
	// Config has what is in force of the file, and the defaults of everything else.
	Config *mesh.MeshConfig
	// Partial means that the file says more than Config, so that an earlier release might not
	// accept it.
	Partial bool

	// keep are the fields with values that cannot be in force, each with those around it.
	keep [][]protoreflect.FieldDescriptor
}

// ReadMeshConfig reads a file of mesh settings: Istio's MeshConfig, without kind or metadata.
// Fields that are not set have Istio's defaults; defaultConfig and defaultProviders are merged,
// and every other field that is set replaces its default whole.
//
// A field that is invalid or not in force is an error and is left out: see [MeshSettings.Over].
// If leaving it out could open something, or if it is unknown which field is meant, the settings
// are nil, and the caller keeps those that it had.
func ReadMeshConfig(path string, content []byte) (*MeshSettings, []Fault) {
	r := &reporter{path: path, key: mesh.Key{Kind: mesh.KindMeshConfig}}
	if len(content) > MaxFileSize {
		r.add(CodeLimit, tree.Position{}, "", fmt.Sprintf("the file has %d bytes; at most %d are read", len(content), MaxFileSize))
		return nil, r.finish()
	}
	root := oneDocument(content, r, "the mesh settings")
	if HasErrors(r.faults) {
		return nil, r.finish()
	}
	m := meshReading{root: root, written: &meshconfig.MeshConfig{}, r: r}
	f := filler{report: m.refuse}
	f.message(m.written.ProtoReflect(), root)
	spec := m.merge()
	m.tlsNames(spec)
	m.accessLogs(spec)
	m.spans(spec)
	if port := spec.GetProxyHttpPort(); port < 0 || port > maxPort || slices.Contains(append(portsOfEnvoy(), agentPort), port) {
		m.refuseLog("proxyHttpPort", fmt.Sprintf("%d is no port, or Envoy or its agent has it for something else; choose one such as 15080", port))
	}
	for _, rule := range webhook.MeshConfig(spec) {
		m.rule(rule)
	}
	m.checkProxyConfig(spec.GetDefaultConfig())
	m.notInForce(root, m.written.ProtoReflect(), defaultMeshSpec().ProtoReflect(), "")
	if m.refused {
		return nil, r.finish()
	}
	spec = m.merge() // without what the rules found
	prune(spec)
	settings := &MeshSettings{Config: newMeshConfig(r.origin(root.Pos), spec), keep: m.keep}
	settings.Partial = len(r.faults) > 0
	return settings, r.finish()
}

// oneDocument is the one document of a text, or an empty one; what says of what.
func oneDocument(content []byte, r *reporter, what string) *tree.Node {
	root := &tree.Node{Kind: tree.Map, Pos: tree.Position{Line: 1, Column: 1}}
	for i, doc := range tree.Parse(content) {
		r.problems(doc.Problems)
		switch {
		case doc.Root == nil:
		case i > 0:
			r.add(CodeKind, doc.Root.Pos, "", what+" must be one document")
		case doc.Root.Kind != tree.Map:
			r.add(CodeType, doc.Root.Pos, "", fmt.Sprintf("%s must be an object, not %s", what, doc.Root.Kind))
		default:
			root = doc.Root
		}
	}
	return root
}

// meshReading is a file of mesh settings that is being read.
type meshReading struct {
	root    *tree.Node
	written *meshconfig.MeshConfig
	r       *reporter
	// refused means that the whole file is kept out.
	refused bool
	// keep are the fields that the file cannot set.
	keep [][]protoreflect.FieldDescriptor
	// whole means that a fault keeps everything out, so that no field has a fate of its own.
	whole bool
}

// rule reports a rule of Istio's webhook that is broken.
func (m *meshReading) rule(f webhook.Fault) {
	switch {
	case m.reported(f.Path):
	case f.Warning:
		m.r.warn(CodeWebhook, m.root.Nearest(f.Path), f.Path, f.Message)
	default:
		m.refuse(CodeWebhook, m.root.Nearest(f.Path), f.Path, f.Message)
	}
}

// refuse reports a value that cannot be in force. It has the form of what a filler reports to.
func (m *meshReading) refuse(code Code, pos tree.Position, field, message string) {
	if m.whole {
		m.r.add(code, pos, field, message)
		return
	}
	path, fields := meshFieldAt(field)
	switch {
	case meshRestricts(path):
		m.refused = true
		message += "; leaving this field out could open something, so the whole file is kept out"
	case fields == nil || !meshHasForce(nameOf(fields)):
		message += "; the field is left out"
	default:
		m.keep = append(m.keep, fields)
		what := "the field"
		if around := nameOf(fields); around != path {
			what = around
		}
		message += "; " + what + " keeps its last good value, or its default if there was none"
	}
	m.r.add(code, pos, field, message)
}

// reported reports whether an error was found at a path, or in or around it.
func (m *meshReading) reported(path string) bool {
	return slices.ContainsFunc(m.r.faults, func(f Fault) bool {
		return f.Severity == Error && (within(path, f.Field) || within(f.Field, path))
	})
}

// meshFieldAt finds the field that a path names: its path without indices, as the table has it,
// and the fields down to it. Where the path goes on with a name that nobody knows, fields has the
// message with that name; below a list or a map they are nil.
func meshFieldAt(path string) (name string, fields []protoreflect.FieldDescriptor) {
	d, inList := (&meshconfig.MeshConfig{}).ProtoReflect().Descriptor(), false
	for path != "" && d != nil {
		step := path[:indexOr(path, ".[")]
		path = path[len(step):]
		if inList {
			fields = nil
		}
		fd := fieldNamed(d.Fields(), step)
		if fd == nil {
			return join(name, step), fields
		}
		name = join(name, fd.JSONName())
		if !inList {
			fields = append(fields, fd)
		}
		inList = inList || fd.IsList() || fd.IsMap()
		if d = fd.Message(); fd.IsMap() {
			d = nil
		}
		if strings.HasPrefix(path, "[") {
			path = strings.TrimPrefix(path[indexOr(path, "]"):], "]")
		}
		path = strings.TrimPrefix(path, ".")
	}
	return name, fields
}

// nameOf is the path of a field that is in no list.
func nameOf(fields []protoreflect.FieldDescriptor) string {
	name := ""
	for _, fd := range fields {
		name = join(name, fd.JSONName())
	}
	return name
}

// indexOr is the index of the first of some characters, or the length.
func indexOr(s, chars string) int {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return i
	}
	return len(s)
}

// fieldNamed is the field of a name in either spelling, or nil.
func fieldNamed(fields protoreflect.FieldDescriptors, name string) protoreflect.FieldDescriptor {
	if fd := fields.ByJSONName(name); fd != nil {
		return fd
	}
	return fields.ByTextName(name)
}

// notInForce reports what is written in n and not in force, unless it is the default anyway.
// standard is nil where there is no default.
func (m *meshReading) notInForce(n *tree.Node, written, standard protoreflect.Message, at string) {
	for i := range n.Fields {
		entry := &n.Fields[i]
		fd := fieldNamed(written.Descriptor().Fields(), entry.Key)
		if fd == nil || entry.Value.Kind == tree.Null {
			continue
		}
		at := tree.Join(at, entry.Key)
		name, _ := meshFieldAt(at)
		value := written.Get(fd)
		row := meshRow(name, func(v string) bool { return hasValue(fd, value, v) })
		switch {
		case standard != nil && value.Equal(standard.Get(fd)):
		case row != nil:
			m.judge(row, at, shownValue(fd, value, name))
		case fd.IsMap() || fd.Message() == nil || fd.Message().ParentFile().Package() == "google.protobuf":
			// The table is of another version of Istio's API. Nothing is known of the field.
			m.refuse(CodeNotInForce, m.root.Nearest(at), at, "not in force: this version of Fairlead does not know this field")
		case fd.IsList():
			for j, item := range entry.Value.Items {
				if j < value.List().Len() {
					m.notInForce(item, value.List().Get(j).Message(), nil, fmt.Sprintf("%s[%d]", at, j))
				}
			}
		default:
			m.notInForce(entry.Value, value.Message(), messageOf(standard, fd), at)
		}
	}
}

// messageOf is a message in a message, or nil.
func messageOf(m protoreflect.Message, fd protoreflect.FieldDescriptor) protoreflect.Message {
	if m == nil || !m.Has(fd) {
		return nil
	}
	return m.Get(fd).Message()
}

// hasValue reports whether a field has a value, and no other, if it is a list.
func hasValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, want string) bool {
	if !fd.IsList() {
		return scalarText(fd, v) == want
	}
	for i := range v.List().Len() {
		if scalarText(fd, v.List().Get(i)) != want {
			return false
		}
	}
	return true
}

// shownValue is the value of a field of which others are in force, for messages; or "".
func shownValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, name string) string {
	if rows := meshRows()[name]; fd.IsList() || rows[0].values == "" || rows[0].verdict != fieldInForce {
		return ""
	}
	return scalarText(fd, v)
}

// judge reports what the row of a field says.
func (m *meshReading) judge(row *meshField, at, value string) {
	pos := m.root.Nearest(at)
	switch {
	case row.verdict == fieldInForce || row.why == "":
	case slices.ContainsFunc(m.r.faults, func(f Fault) bool { return f.Severity == Error && f.Field == at }):
	case row.verdict == fieldNoEffect || row.verdict == fieldKept:
		m.r.warn(CodeNoEffect, pos, at, "no effect here: "+row.why)
	case value != "":
		m.refuse(CodeNotInForce, pos, at, fmt.Sprintf("not in force: this version of Fairlead does not implement the value %s: %s", value, row.why))
	default:
		m.refuse(CodeNotInForce, pos, at, "not in force: "+row.why)
	}
}

// merge puts what was written over the defaults. A field that was written with its zero value
// counts as written, but for the fields that keep their values.
func (m *meshReading) merge() *meshconfig.MeshConfig {
	spec, written := defaultMeshSpec(), proto.CloneOf(m.written)
	merged := map[protoreflect.Name]bool{"default_config": true, "default_providers": true}
	override(spec.ProtoReflect(), written.ProtoReflect(), m.root, merged)
	for i := range m.root.Fields {
		n := m.root.Fields[i].Value
		fd := fieldNamed(spec.ProtoReflect().Descriptor().Fields(), m.root.Fields[i].Key)
		if fd != nil && merged[fd.Name()] && n.Kind == tree.Map {
			override(spec.ProtoReflect().Mutable(fd).Message(), written.ProtoReflect().Get(fd).Message(), n, nil)
		}
	}
	standard := defaultMeshSpec().ProtoReflect()
	for _, fields := range m.keep {
		copyField(spec.ProtoReflect(), standard, fields)
	}
	return spec
}

// override replaces in dst every field that is written in n, but not those in
// except, by its value in src.
func override(dst, src protoreflect.Message, n *tree.Node, except map[protoreflect.Name]bool) {
	fields := dst.Descriptor().Fields()
	for _, entry := range n.Fields {
		fd := fieldNamed(fields, entry.Key)
		if fd == nil || except[fd.Name()] || entry.Value.Kind == tree.Null {
			continue
		}
		if !src.Has(fd) {
			dst.Clear(fd)
			continue
		}
		dst.Set(fd, src.Get(fd))
	}
}
