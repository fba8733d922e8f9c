package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// What Envoy would refuse in the configuration of a tracer would keep out the whole listener, so
// it is refused here.

// httpHeaderName is what Envoy takes for the name of a header.
var httpHeaderName = regexp.MustCompile(`^[A-Za-z0-9!#$&'*+.^_|~-]+$`)

// spanPath is what the path of a receiver of spans may have.
var spanPath = regexp.MustCompile(`^/?[A-Za-z0-9._~!$&'()*+,;=:@/?-]*$`)

// serverName is what the header server may have.
var serverName = regexp.MustCompile(`^[ -~]{0,256}$`)

// tagCommands are what the format of a tag may have besides [FormatCommands].
//
//nolint:gochecknoglobals // a read-only table
var tagCommands = map[string]func(argument string) string{
	"CEL": logCommands["CEL"], "RESPONSE_CODE_DETAILS": logCommands["RESPONSE_CODE_DETAILS"],
}

// tags judges the tags of spans.
func (u unfitCheck) tags(tags map[string]*telemetry.Tracing_CustomTag, at string) {
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		at := tree.Join(at, name)
		u.needed(name, at)
		switch tag := tags[name].GetType().(type) {
		case *telemetry.Tracing_CustomTag_Literal:
			u.needed(tag.Literal.GetValue(), at+".literal.value")
		case *telemetry.Tracing_CustomTag_Environment:
			u.needed(tag.Environment.GetName(), at+".environment.name")
			u.tagText(tag.Environment.GetDefaultValue(), at+".environment.defaultValue")
		case *telemetry.Tracing_CustomTag_Header:
			u.tagHeader(tag.Header.GetName(), at+".header.name")
			u.tagText(tag.Header.GetDefaultValue(), at+".header.defaultValue")
		case *telemetry.Tracing_CustomTag_Formatter:
			u.needed(tag.Formatter.GetValue(), at+".formatter.value")
			if why := formatFaultWith(tag.Formatter.GetValue(), tagCommands); why != "" {
				u.report(at+".formatter.value", why)
			}
		default:
			u.report(at, "the tag has no value; write literal, header or environment")
		}
	}
}

func (u unfitCheck) tagText(s, at string) {
	if strings.ContainsAny(s, "\x00\r\n") {
		u.report(at, "the text has a line break or a zero byte")
	}
}

func (u unfitCheck) tagHeader(name, at string) {
	if !httpHeaderName.MatchString(strings.TrimPrefix(name, ":")) {
		u.report(at, fmt.Sprintf("%q is not the name of a header", clipFormat(name)))
	}
}

// spans judges where spans go, and the tags of MeshConfig.
func (m *meshReading) spans(spec *meshconfig.MeshConfig) {
	u := unfitCheck{report: m.refuseLog}
	for i, p := range spec.GetExtensionProviders() {
		at := fmt.Sprintf("extensionProviders[%d]", i)
		if z := p.GetZipkin(); z != nil {
			u.spanService(z.GetPath(), z.GetTimeout(), z.GetHeaders(), at+".zipkin")
		}
		if o := p.GetOpentelemetry(); o != nil {
			u.spanService(o.GetHttp().GetPath(), o.GetHttp().GetTimeout(), o.GetHttp().GetHeaders(), at+".opentelemetry.http")
			u.spanTimeout(o.GetGrpc().GetTimeout(), at+".opentelemetry.grpc.timeout")
			u.spanHeaders(o.GetGrpc().GetInitialMetadata(), at+".opentelemetry.grpc.initialMetadata")
			u.sampler(o, at+".opentelemetry")
		}
		u.tagText(p.GetSkywalking().GetAccessToken(), at+".skywalking.accessToken")
	}
	if !serverName.MatchString(spec.GetDefaultConfig().GetProxyHeaders().GetServer().GetValue()) {
		m.refuseLog("defaultConfig.proxyHeaders.server.value", "the value of a header has characters that can be seen, and at most 256 of them")
	}
	u.tags(mesh.TraceTags(spec.GetDefaultConfig().GetTracing()), "defaultConfig.tracing.customTags")
}

func (u unfitCheck) sampler(o *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider, at string) {
	s := o.GetDynatraceSampler()
	own := s.GetHttpService()
	at += ".dynatraceSampler"
	switch {
	case s == nil:
		return
	case own == nil && o.GetHttp() == nil:
		u.report(at, "the sampler needs an address of HTTP: write httpService, or http for the spans")
	case own != nil && own.GetService() == "":
		u.report(at+".httpService.service", "the sampler names no service; write host, or namespace/host")
	case own != nil && (own.GetPort() < 1 || own.GetPort() > 65535):
		u.report(at+".httpService.port", "the sampler names no port")
	}
	u.tagText(s.GetTenant(), at+".tenant")
	u.spanService(own.GetHttp().GetPath(), own.GetHttp().GetTimeout(), own.GetHttp().GetHeaders(), at+".httpService.http")
}

// needed judges a name or value of a tag.
func (u unfitCheck) needed(s, at string) {
	if s == "" {
		u.report(at, "the tag has an empty name or value")
	}
	u.tagText(s, at)
}

func (u unfitCheck) spanService(path string, timeout *durationpb.Duration, headers []*meshconfig.MeshConfig_ExtensionProvider_HttpHeader, at string) {
	if !spanPath.MatchString(path) {
		u.report(at+".path", fmt.Sprintf("%q is not a path", clipFormat(path)))
	}
	u.spanTimeout(timeout, at+".timeout")
	u.spanHeaders(headers, at+".headers")
}

func (u unfitCheck) spanTimeout(d *durationpb.Duration, at string) {
	if d != nil && (d.AsDuration() <= 0 || d.AsDuration() > maxDrain) {
		u.report(at, fmt.Sprintf("%s is not above 0s and up to %s", d.AsDuration(), maxDrain))
	}
}

// spanHeaders judges headers of requests with spans. Some Envoys read their values as formats, so
// that a percent sign is not the same for all of them.
func (u unfitCheck) spanHeaders(headers []*meshconfig.MeshConfig_ExtensionProvider_HttpHeader, at string) {
	for i, h := range headers {
		at := fmt.Sprintf("%s[%d]", at, i)
		if name := strings.ToLower(h.GetName()); !httpHeaderName.MatchString(name) || name == "host" {
			u.report(at+".name", fmt.Sprintf("%q is not the name of a header that can be set", clipFormat(name)))
		}
		if strings.ContainsAny(h.GetValue(), "%\x00\r\n") {
			u.report(at+".value", "the value has a percent sign, a line break or a zero byte")
		}
	}
}
