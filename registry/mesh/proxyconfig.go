package mesh

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// MergeProxyConfigs puts ProxyConfigs over each other; a later one has precedence, and nil ones
// say nothing. As in Istio (MergeProxyConfig in pkg/config/mesh) a field that is set replaces the
// one before it whole, but proxyMetadata is merged by name, and five fields of proxyHeaders that
// the later one leaves out stay. The result shares nothing with its parts; it is nil if all are.
func MergeProxyConfigs(list ...*meshconfig.ProxyConfig) *meshconfig.ProxyConfig {
	var out *meshconfig.ProxyConfig
	for _, pc := range list {
		switch {
		case pc == nil:
		case out == nil:
			out = proto.CloneOf(pc)
		default:
			overlay(out, proto.CloneOf(pc))
		}
	}
	return out
}

func overlay(out, next *meshconfig.ProxyConfig) {
	metadata, headers := out.GetProxyMetadata(), out.GetProxyHeaders()
	next.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		out.ProtoReflect().Set(fd, v)
		return true
	})
	if len(metadata) > 0 {
		merged := maps.Clone(metadata)
		maps.Copy(merged, next.GetProxyMetadata())
		out.ProxyMetadata = merged
	}
	if h := next.GetProxyHeaders(); h != nil {
		out.ProxyHeaders = MergeProxyHeaders(headers, h)
	}
}

// MergeProxyHeaders puts proxyHeaders over others; next has precedence. As in Istio, five fields
// that next leaves out stay, and all others are what next says. It changes neither; the result is
// one of them if the other one is nil.
func MergeProxyHeaders(base, next *meshconfig.ProxyConfig_ProxyHeaders) *meshconfig.ProxyConfig_ProxyHeaders {
	if base == nil || next == nil {
		return cmp.Or(next, base)
	}
	out := proto.CloneOf(next)
	for _, name := range []protoreflect.Name{"forwarded_client_cert", "request_id", "attempt_count", "server", "envoy_debug_headers"} {
		fd := out.ProtoReflect().Descriptor().Fields().ByName(name)
		if !out.ProtoReflect().Has(fd) && base.ProtoReflect().Has(fd) {
			out.ProtoReflect().Set(fd, base.ProtoReflect().Get(fd))
		}
	}
	return out
}

// GroupAnnotation names the WorkloadGroup that a WorkloadEntry belongs to
// (Istio's annotation.IoIstioAutoRegistrationGroup).
const GroupAnnotation = metakeys.AutoRegistrationGroup

// GroupOf is the WorkloadGroup that a workload names; or nil.
func (s *Snapshot) GroupOf(w *Workload) *WorkloadGroup {
	name := w.Annotations[GroupAnnotation]
	if name == "" {
		return nil
	}
	key := Key{Kind: KindWorkloadGroup, Namespace: w.Namespace, Name: name}
	i, ok := slices.BinarySearchFunc(s.WorkloadGroups, key, func(g *WorkloadGroup, k Key) int { return g.Compare(k) })
	if !ok {
		return nil
	}
	return s.WorkloadGroups[i]
}

// TracingOf is what the annotation of a workload, or of its group, says of tracing; or nil.
func (s *Snapshot) TracingOf(w *Workload) *meshconfig.Tracing {
	if t := w.ProxyConfig.GetTracing(); t != nil {
		return t
	}
	if g := s.GroupOf(w); g != nil {
		return g.ProxyConfig.GetTracing()
	}
	return nil
}

// HeadersOf is what the annotations of a workload and of its group say of the headers that its
// proxy writes; or nil.
func (s *Snapshot) HeadersOf(w *Workload) *meshconfig.ProxyConfig_ProxyHeaders {
	var group *meshconfig.ProxyConfig_ProxyHeaders
	if g := s.GroupOf(w); g != nil {
		group = g.ProxyConfig.GetProxyHeaders()
	}
	return MergeProxyHeaders(group, w.ProxyConfig.GetProxyHeaders())
}

// TopologyOf is what the annotation of a workload, or of its group, says of the proxies before a gateway;
// or nil.
func (s *Snapshot) TopologyOf(w *Workload) *meshconfig.Topology {
	if t := w.ProxyConfig.GetGatewayTopology(); t != nil {
		return t
	}
	if g := s.GroupOf(w); g != nil {
		return g.ProxyConfig.GetGatewayTopology()
	}
	return nil
}

// TraceTags are the tags of spans in a ProxyConfig, as a Telemetry has them.
func TraceTags(t *meshconfig.Tracing) map[string]*telemetry.Tracing_CustomTag {
	out := make(map[string]*telemetry.Tracing_CustomTag, len(t.GetCustomTags()))
	for name, tag := range t.GetCustomTags() {
		to := &telemetry.Tracing_CustomTag{}
		switch of := tag.GetType().(type) {
		case *meshconfig.Tracing_CustomTag_Literal:
			to.Type = &telemetry.Tracing_CustomTag_Literal{Literal: &telemetry.Tracing_Literal{Value: of.Literal.GetValue()}}
		case *meshconfig.Tracing_CustomTag_Header:
			to.Type = &telemetry.Tracing_CustomTag_Header{Header: &telemetry.Tracing_RequestHeader{Name: of.Header.GetName(), DefaultValue: of.Header.GetDefaultValue()}}
		case *meshconfig.Tracing_CustomTag_Environment:
			to.Type = &telemetry.Tracing_CustomTag_Environment{Environment: &telemetry.Tracing_Environment{Name: of.Environment.GetName(), DefaultValue: of.Environment.GetDefaultValue()}}
		}
		out[name] = to
	}
	return out
}

// hostIP stands, in the address of a tracer, for the host of the proxy (Istio's
// pkg/bootstrap/option).
const hostIP = "$(HOST_IP)"

// TracerAddress reads the address of a tracer in a ProxyConfig, HOST:PORT. The host of the proxy
// is its loopback address.
func TracerAddress(text string) (host string, port uint32, ok bool) {
	host, number, err := net.SplitHostPort(strings.Replace(text, hostIP, "127.0.0.1", 1))
	if err != nil || host == "" || strings.ContainsAny(host, "/$ ") {
		return "", 0, false
	}
	n, err := strconv.ParseUint(number, 10, 16)
	return strings.ToLower(host), uint32(n), err == nil && n > 0
}
