package view

import (
	"cmp"
	"maps"
	"slices"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Tracing is how a proxy traces requests of one direction.
type Tracing struct {
	// Provider says who gets the spans: one of Zipkin, Datadog, Skywalking and Opentelemetry.
	Provider *meshconfig.MeshConfig_ExtensionProvider
	// Collector is the provider's service, and Sampler the one that a Dynatrace sampler asks; zero
	// if there is none.
	Collector, Sampler Collector
	// Percent is how many requests are traced that no trace has chosen before, from 0 to 100.
	Percent float64
	// IgnoreRequestID means that the choice of a trace does not depend on the request's id.
	IgnoreRequestID bool
	// IstioTags says that spans say which workload and namespace they are of.
	IstioTags bool
	// Tags are further ones, sorted by name.
	Tags []TraceTag
	// MaxPathLength is how much of a path a span has, in bytes; 0 means Envoy's default, 256.
	MaxPathLength uint32
	// NoPropagation leaves headers of traces out of requests.
	NoPropagation bool
}

// TraceTag is a tag of all spans. Value is a text, or the name of a header or a variable of
// Envoy's environment, or a format as in an access log.
type TraceTag struct {
	Name, Value, Default string
	Kind                 TraceTagKind
}

// TraceTagKind says where the value of a tag comes from.
type TraceTagKind uint8

// The kinds of tags.
const (
	TagLiteral TraceTagKind = iota
	TagHeader
	TagEnvironment
	TagFormat
)

// defaultSampling is how many of 100 requests are traced (Istio's PILOT_TRACE_SAMPLING).
const defaultSampling = 1

// tracesRequests reports whether proxies may trace requests: then routes name what they are for.
func tracesRequests(c *meshconfig.MeshConfig) bool {
	return tracer(c) != nil || slices.ContainsFunc(c.GetExtensionProviders(), isTracer)
}

// isTracer reports whether Envoy can send spans to the provider.
func isTracer(p *meshconfig.MeshConfig_ExtensionProvider) bool {
	return p.GetZipkin() != nil || p.GetDatadog() != nil || p.GetSkywalking() != nil || p.GetOpentelemetry() != nil
}

// tracing is that of one direction; nil if requests are not traced, or if the provider's service
// has no address. (Istio's Telemetries.Tracing, pilot/pkg/model/telemetry.go, and
// configureTracing, pilot/pkg/networking/core/tracing.go.)
func (b *telemetryBuilder) tracing(mode telemetry.WorkloadMode) *Tracing {
	var entries []*telemetry.Tracing
	for _, t := range b.applying {
		entries = append(entries, t.Spec.GetTracing()...)
	}
	defaults := b.config.GetDefaultProviders().GetTracing()
	own := b.ownTracing()
	if len(entries) == 0 && len(defaults) == 0 {
		p := tracer(b.config)
		if p == nil {
			return nil
		}
		out := &Tracing{IstioTags: true}
		if own.GetEnableIstioTags() != nil {
			out.IstioTags = own.GetEnableIstioTags().GetValue()
		}
		return b.complete(out, p, own)
	}
	use := mergeTracing(entries, defaults, mode)
	p := b.provider(use.provider)
	if use.disabled || !isTracer(p) {
		return nil
	}
	out := &Tracing{IgnoreRequestID: use.ignoreRequestID, IstioTags: !use.withoutIstioTags, Tags: b.tags(use.custom)}
	if out.NoPropagation = use.noPropagation && b.proxy.EnvoyVersion.atLeast(38); use.noPropagation && !out.NoPropagation {
		b.leftOut = append(b.leftOut, "tracing: disableContextPropagation is left out: this Envoy, before 1.38, does not know it")
	}
	if out = b.complete(out, p, own); out != nil && use.percent != nil && p.GetOpentelemetry().GetSampling() == nil {
		out.Percent = *use.percent
	}
	return out
}

// complete adds the provider and what a ProxyConfig says; nil if the provider cannot be reached.
func (b *telemetryBuilder) complete(t *Tracing, p *meshconfig.MeshConfig_ExtensionProvider, own *meshconfig.Tracing) *Tracing {
	t.Provider, t.Percent = p, samplingOf(own)
	t.MaxPathLength = cmp.Or(p.GetZipkin().GetMaxTagLength(), p.GetDatadog().GetMaxTagLength(), p.GetOpentelemetry().GetMaxTagLength(), own.GetMaxPathTagLength())
	if t.Tags == nil {
		t.Tags = b.tags(mesh.TraceTags(own))
	}
	var service string
	var port uint32
	form := ReportRequests
	switch {
	case p.GetZipkin() != nil:
		service, port = p.GetZipkin().GetService(), p.GetZipkin().GetPort()
	case p.GetDatadog() != nil:
		service, port = p.GetDatadog().GetService(), p.GetDatadog().GetPort()
	case p.GetSkywalking() != nil:
		service, port, form = p.GetSkywalking().GetService(), p.GetSkywalking().GetPort(), ReportStream
	default:
		service, port = p.GetOpentelemetry().GetService(), p.GetOpentelemetry().GetPort()
		if p.GetOpentelemetry().GetHttp() == nil {
			form = ReportCalls
		}
	}
	var ok bool
	if t.Collector, ok = b.collector(service, port, form); !ok && p.GetName() == "" {
		t.Collector, ok = b.address(service, port), true
	}
	if !ok {
		return nil
	}
	if s := p.GetOpentelemetry().GetDynatraceSampler(); s != nil {
		t.Percent, t.Sampler = 100, t.Collector
		if api := s.GetHttpService(); api != nil {
			if t.Sampler, ok = b.collector(api.GetService(), api.GetPort(), ReportRequests); !ok {
				return nil
			}
		}
	}
	return t
}

// ownTracing is what the ProxyConfig of the workload says of tracing.
func (b *telemetryBuilder) ownTracing() *meshconfig.Tracing {
	return cmp.Or(b.proxy.Tracing, b.config.GetDefaultConfig().GetTracing())
}

// tracer is the tracer of MeshConfig's defaultConfig, as a provider without a name; nil if there is
// none.
func tracer(c *meshconfig.MeshConfig) *meshconfig.MeshConfig_ExtensionProvider {
	if !c.GetEnableTracing() {
		return nil
	}
	t := c.GetDefaultConfig().GetTracing()
	host, port, ok := mesh.TracerAddress(cmp.Or(t.GetZipkin().GetAddress(), t.GetDatadog().GetAddress()))
	switch {
	case !ok:
		return nil
	case t.GetZipkin() != nil:
		return &meshconfig.MeshConfig_ExtensionProvider{Provider: &meshconfig.MeshConfig_ExtensionProvider_Zipkin{
			Zipkin: &meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: host, Port: port},
		}}
	default:
		return &meshconfig.MeshConfig_ExtensionProvider{Provider: &meshconfig.MeshConfig_ExtensionProvider_Datadog{
			Datadog: &meshconfig.MeshConfig_ExtensionProvider_DatadogTracingProvider{Service: host, Port: port},
		}}
	}
}

func samplingOf(t *meshconfig.Tracing) float64 {
	switch s := t.GetSampling(); {
	case s <= 0, s > 100: // the latter as Istio
		return defaultSampling
	default:
		return s
	}
}

// traceUse is what Telemetries say of tracing in one direction.
type traceUse struct {
	provider         string
	disabled         bool
	percent          *float64
	custom           map[string]*telemetry.Tracing_CustomTag
	ignoreRequestID  bool
	withoutIstioTags bool
	noPropagation    bool
}

// mergeTracing merges what Telemetries say, the most general first: a field that is set has
// precedence over the ones before it. Only the first provider counts.
func mergeTracing(entries []*telemetry.Tracing, defaults []string, mode telemetry.WorkloadMode) traceUse {
	out := traceUse{}
	if len(defaults) > 0 {
		out.provider = defaults[0]
	}
	for _, e := range entries {
		if !inMode(e.GetMatch().GetMode(), mode) {
			continue
		}
		if list := e.GetProviders(); len(list) > 0 {
			out.provider = list[0].GetName()
		}
		if v := e.GetDisableSpanReporting(); v != nil {
			out.disabled = v.GetValue()
		}
		if v := e.GetCustomTags(); v != nil {
			out.custom = v
		}
		if v := e.GetRandomSamplingPercentage(); v != nil {
			percent := v.GetValue()
			out.percent = &percent
		}
		if v := e.GetUseRequestIdForTraceSampling(); v != nil {
			out.ignoreRequestID = !v.GetValue()
		}
		if v := e.GetEnableIstioTags(); v != nil {
			out.withoutIstioTags = !v.GetValue()
		}
		if v := e.GetDisableContextPropagation(); v != nil {
			out.noPropagation = v.GetValue()
		}
	}
	return out
}

// tags are in the order of their names, without those that the Envoy does not know.
func (b *telemetryBuilder) tags(custom map[string]*telemetry.Tracing_CustomTag) []TraceTag {
	var out []TraceTag
	for _, name := range slices.Sorted(maps.Keys(custom)) {
		switch tag := custom[name].GetType().(type) {
		case *telemetry.Tracing_CustomTag_Literal:
			out = append(out, TraceTag{Name: name, Value: tag.Literal.GetValue()})
		case *telemetry.Tracing_CustomTag_Header:
			out = append(out, TraceTag{Name: name, Value: tag.Header.GetName(), Default: tag.Header.GetDefaultValue(), Kind: TagHeader})
		case *telemetry.Tracing_CustomTag_Environment:
			out = append(out, TraceTag{Name: name, Value: tag.Environment.GetName(), Default: tag.Environment.GetDefaultValue(), Kind: TagEnvironment})
		case *telemetry.Tracing_CustomTag_Formatter:
			if b.proxy.EnvoyVersion.atLeast(37) {
				out = append(out, TraceTag{Name: name, Value: tag.Formatter.GetValue(), Kind: TagFormat})
			} else {
				b.leftOut = append(b.leftOut, "tracing: the tag "+name+" is left out: this Envoy, before 1.37, knows no tags by a formatter")
			}
		}
	}
	return out
}
