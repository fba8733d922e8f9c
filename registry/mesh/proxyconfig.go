package mesh

import (
	"maps"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
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
	if h := next.GetProxyHeaders(); h != nil && headers != nil {
		for _, name := range []protoreflect.Name{"forwarded_client_cert", "request_id", "attempt_count", "server", "envoy_debug_headers"} {
			fd := h.ProtoReflect().Descriptor().Fields().ByName(name)
			if !h.ProtoReflect().Has(fd) && headers.ProtoReflect().Has(fd) {
				h.ProtoReflect().Set(fd, headers.ProtoReflect().Get(fd))
			}
		}
	}
}
