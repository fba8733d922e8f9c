package webhook

import (
	"strconv"
	"strings"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// backend is what most extension providers have: a service that a proxy calls.
type backend interface {
	GetService() string
	GetPort() uint32
}

// extensionProvider judges a provider beside those before it. Istio only logs what
// is wrong with one, since nothing may use it, so these are warnings.
func (c cursor) extensionProvider(p *meshconfig.MeshConfig_ExtensionProvider, before []*meshconfig.MeshConfig_ExtensionProvider) {
	var faults []Fault
	strict := cursor{faults: &faults, path: c.path}
	strict.provider(p)
	if p.GetName() == "" {
		strict.wrong("the provider has no name")
	}
	for _, b := range before {
		if p.GetName() != "" && b.GetName() == p.GetName() {
			strict.at("name").wrong("the provider %q is used twice; rename or remove one of them", p.GetName())
			break
		}
	}
	for _, f := range faults {
		f.Warning = true
		*c.faults = append(*c.faults, f)
	}
}

func (c cursor) provider(p *meshconfig.MeshConfig_ExtensionProvider) {
	switch v := p.GetProvider().(type) {
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyExtAuthzHttp:
		at := c.at("envoyExtAuthzHttp")
		at.backend(v.EnvoyExtAuthzHttp)
		at.statusOnError(v.EnvoyExtAuthzHttp.GetStatusOnError())
		if prefix := v.EnvoyExtAuthzHttp.GetPathPrefix(); prefix != "" && !strings.HasPrefix(prefix, "/") {
			at.at("pathPrefix").wrong("%q does not begin with a slash; write /%s", prefix, prefix)
		}
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc:
		c.at("envoyExtAuthzGrpc").backend(v.EnvoyExtAuthzGrpc)
		c.at("envoyExtAuthzGrpc").statusOnError(v.EnvoyExtAuthzGrpc.GetStatusOnError())
	case *meshconfig.MeshConfig_ExtensionProvider_Zipkin:
		c.at("zipkin").backend(v.Zipkin)
	//nolint:staticcheck // people's files still have the old provider
	case *meshconfig.MeshConfig_ExtensionProvider_Lightstep:
		c.at("lightstep").backend(v.Lightstep)
		c.at("lightstep").needed("accessToken", v.Lightstep.GetAccessToken())
	case *meshconfig.MeshConfig_ExtensionProvider_Datadog:
		c.at("datadog").backend(v.Datadog)
	//nolint:staticcheck // people's files still have the old provider
	case *meshconfig.MeshConfig_ExtensionProvider_Opencensus:
		c.at("opencensus").backend(v.Opencensus)
	case *meshconfig.MeshConfig_ExtensionProvider_Skywalking:
		c.at("skywalking").backend(v.Skywalking)
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		c.at("envoyOtelAls").backend(v.EnvoyOtelAls)
	case *meshconfig.MeshConfig_ExtensionProvider_Opentelemetry:
		c.at("opentelemetry").backend(v.Opentelemetry)
		if v.Opentelemetry.GetGrpc() != nil && v.Opentelemetry.GetHttp() != nil {
			c.at("opentelemetry").wrong("grpc and http exclude one another; keep one of them")
		}
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		c.at("envoyHttpAls").backend(v.EnvoyHttpAls)
	case *meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		c.at("envoyTcpAls").backend(v.EnvoyTcpAls)
	case *meshconfig.MeshConfig_ExtensionProvider_Prometheus, *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLog,
		*meshconfig.MeshConfig_ExtensionProvider_Stackdriver:
	default:
		c.wrong("the provider does not say what it is")
	}
}

func (c cursor) backend(b backend) {
	c.at("port").because(whyNotPort(b.GetPort()))
	at, s := c.at("service"), b.GetService()
	ns, host, slashed := strings.Cut(s, "/")
	switch {
	case s == "":
		at.wrong("the provider names no service; write host, or namespace/host")
	case !slashed:
		if whyNotFQDN(s) != "" && !isIP(s) {
			at.wrong("%q is neither a DNS name nor an IP address", s)
		}
	case ns != "*" && ns != "." && !isDNSLabel(ns):
		at.wrong("%q before the slash is not a namespace", ns)
	default:
		at.qualifiedHost(host, false)
	}
}

func (c cursor) statusOnError(s string) {
	if s == "" {
		return
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if _, known := typev3.StatusCode_name[int32(n)]; err != nil || !known {
		c.at("statusOnError").wrong("%q is not an HTTP status that Envoy can answer; write one such as \"403\"", s)
	}
}
