package webhook

import (
	_ "embed"
	"slices"
	"strings"

	// The extensions that patches are written for most. Their configuration is
	// judged to the last field; of all others only the name is known.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/compression/gzip/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/compressor/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_json_transcoder/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/oauth2/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/local_ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// envoyTypes are the messages of Envoy's extensions, of Istio's and of xDS itself.
//
//go:embed envoytypes.txt
var envoyTypes string

// anyType finds the message that a type URL names. Its descriptor is nil when
// nothing but the name is known here.
func anyType(url string) (d protoreflect.MessageDescriptor, known bool) {
	if mt, err := protoregistry.GlobalTypes.FindMessageByURL(url); err == nil {
		return mt.Descriptor(), true
	}
	name := url[strings.LastIndexByte(url, '/')+1:]
	if name == "" {
		return nil, false
	}
	for line := range strings.Lines(envoyTypes) {
		if strings.TrimSuffix(line, "\n") == name {
			return nil, true
		}
	}
	return nil, false
}

// whyNotType explains a type URL that anyType does not know.
func whyNotType(url string) string {
	name := url[strings.LastIndexByte(url, '/')+1:]
	if strings.Contains(name, ".v2.") {
		return "\"" + url + "\" is of Envoy's API v2, which is gone; write the v3 name"
	}
	dot := strings.LastIndexByte(name, '.')
	var alike []string
	for line := range strings.Lines(envoyTypes) {
		line = strings.TrimSuffix(line, "\n")
		if dot > 0 && (strings.HasPrefix(line, name[:dot+1]) || strings.HasSuffix(line, name[dot:])) {
			alike = append(alike, line)
		}
	}
	slices.Sort(alike)
	return "no Envoy extension is configured with \"" + url + "\"" + near(name, alike...)
}
