package manifest

import (
	"fmt"
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

// DecodeMeshConfig reads a file of mesh settings: Istio's MeshConfig, without
// kind or metadata. What is not set has Istio's default; defaultConfig and
// defaultProviders are merged, every other field that is set replaces its
// default whole. With any fault of severity error, what is not in force
// included, the settings are nil: the caller keeps those it had.
func DecodeMeshConfig(path string, content []byte) (*mesh.MeshConfig, []Fault) {
	r := &reporter{path: path, key: mesh.Key{Kind: mesh.KindMeshConfig}}
	if len(content) > MaxFileSize {
		r.add(CodeLimit, tree.Position{}, "", fmt.Sprintf("the file has %d bytes; at most %d are read", len(content), MaxFileSize))
		return nil, r.finish()
	}
	root := &tree.Node{Kind: tree.Map, Pos: tree.Position{Line: 1, Column: 1}}
	docs := tree.Parse(content)
	for i, doc := range docs {
		r.problems(doc.Problems)
		switch {
		case doc.Root == nil:
		case i > 0:
			r.add(CodeKind, doc.Root.Pos, "", "the mesh settings must be one document")
		case doc.Root.Kind != tree.Map:
			r.add(CodeType, doc.Root.Pos, "", fmt.Sprintf("the mesh settings must be an object, not %s", doc.Root.Kind))
		default:
			root = doc.Root
		}
	}
	written := &meshconfig.MeshConfig{}
	f := filler{report: r.add}
	f.message(written.ProtoReflect(), root)
	if HasErrors(r.faults) {
		return nil, r.finish()
	}
	spec := mergeMeshConfig(root, written)
	for _, rule := range webhook.MeshConfig(spec) {
		r.add(CodeWebhook, root.Nearest(rule.Path), rule.Path, rule.Message)
		if rule.Warning {
			r.faults[len(r.faults)-1].Severity = Warning
		}
	}
	meshNotInForce(root, written, spec, r)
	faults := r.finish()
	if HasErrors(faults) {
		return nil, faults
	}
	return newMeshConfig(r.origin(root.Pos), spec), faults
}

// mergeMeshConfig puts what was written over the defaults. A field that was
// written with its zero value counts as written.
func mergeMeshConfig(root *tree.Node, written *meshconfig.MeshConfig) *meshconfig.MeshConfig {
	spec := defaultMeshSpec()
	merged := map[protoreflect.Name]bool{"default_config": true, "default_providers": true}
	override(spec.ProtoReflect(), written.ProtoReflect(), root, merged)
	if n := root.Get("defaultConfig"); n != nil && n.Kind == tree.Map {
		metadata := spec.GetDefaultConfig().GetProxyMetadata()
		override(spec.GetDefaultConfig().ProtoReflect(), written.GetDefaultConfig().ProtoReflect(), n, nil)
		for k, v := range metadata {
			if _, set := spec.DefaultConfig.ProxyMetadata[k]; !set {
				spec.DefaultConfig.ProxyMetadata[k] = v
			}
		}
	}
	if n := root.Get("defaultProviders"); n != nil && n.Kind == tree.Map {
		override(spec.GetDefaultProviders().ProtoReflect(), written.GetDefaultProviders().ProtoReflect(), n, nil)
	}
	return spec
}

// override replaces in dst every field that is written in n, but not those in
// except, by its value in src.
func override(dst, src protoreflect.Message, n *tree.Node, except map[protoreflect.Name]bool) {
	fields := dst.Descriptor().Fields()
	for _, entry := range n.Fields {
		fd := fields.ByJSONName(entry.Key)
		if fd == nil {
			fd = fields.ByTextName(entry.Key)
		}
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

// meshNotInForce reports settings that this build does not implement, unless
// they say what is the default anyway.
func meshNotInForce(root *tree.Node, written, spec *meshconfig.MeshConfig, r *reporter) {
	standard := defaultMeshSpec().ProtoReflect()
	c := forceCheck{rules: inForce[mesh.KindMeshConfig], report: func(path, value string) {
		r.add(CodeNotInForce, root.Nearest(path), path, notInForceMessage(value))
	}}
	fields, table := standard.Descriptor().Fields(), forceFieldsOf(mesh.KindMeshConfig)
	for _, entry := range root.Fields {
		fd := fields.ByJSONName(entry.Key)
		if fd == nil {
			fd = fields.ByTextName(entry.Key)
		}
		if fd == nil || spec.ProtoReflect().Get(fd).Equal(standard.Get(fd)) {
			continue
		}
		if !written.ProtoReflect().Has(fd) {
			c.report(entry.Key, "")
			continue
		}
		c.at = tree.Trail{Base: entry.Key}
		c.field(fd, written.ProtoReflect().Get(fd), table[fd.Number()])
	}
}
