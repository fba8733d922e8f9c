package analysis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// reportUse is something that proxies report of their traffic.
type reportUse struct {
	what string // for messages
	// kinds are the fields of MeshConfig's extensionProviders that can be used for it.
	kinds []string
	// builtin is a provider that needs not be in MeshConfig; or "".
	builtin string
	// named and defaults return the providers that a Telemetry and MeshConfig name for it.
	named    func(*telemetry.Telemetry) [][]*telemetry.ProviderRef
	defaults func(*meshconfig.MeshConfig_DefaultProviders) []string
	// field is its field in a Telemetry and in defaultProviders.
	field string
}

func reportUses() []reportUse {
	type defaults = meshconfig.MeshConfig_DefaultProviders
	return []reportUse{
		{
			what: "counts metrics", field: "metrics", kinds: []string{"prometheus"}, builtin: "prometheus",
			defaults: (*defaults).GetMetrics,
			named: func(t *telemetry.Telemetry) (out [][]*telemetry.ProviderRef) {
				for _, m := range t.GetMetrics() {
					out = append(out, m.GetProviders())
				}
				return out
			},
		},
		{
			what: "writes access logs", field: "accessLogging", kinds: []string{"envoyFileAccessLog", "envoyHttpAls", "envoyTcpAls", "envoyOtelAls"},
			defaults: (*defaults).GetAccessLogging,
			named: func(t *telemetry.Telemetry) (out [][]*telemetry.ProviderRef) {
				for _, l := range t.GetAccessLogging() {
					out = append(out, l.GetProviders())
				}
				return out
			},
		},
		{
			what: "gets traces", field: "tracing", kinds: []string{"opentelemetry", "zipkin", "datadog", "skywalking"},
			defaults: (*defaults).GetTracing,
			named: func(t *telemetry.Telemetry) (out [][]*telemetry.ProviderRef) {
				for _, tr := range t.GetTracing() {
					out = append(out, tr.GetProviders())
				}
				return out
			},
		},
	}
}

// reportProviders warns of providers that Telemetries and MeshConfig name and that report nothing.
func reportProviders(w *meshIndex, r *report) {
	c := reportCheck{w: w}
	for o, spec := range specs[*telemetry.Telemetry](w) {
		if o.Fragment() == nil || len(o.Fragment().Telemetries) == 0 {
			continue
		}
		for _, use := range reportUses() {
			for i, list := range use.named(spec) {
				for j, p := range list {
					if code, message := c.judge(use, p.GetName()); message != "" {
						at := place{o, fmt.Sprintf("spec.%s[%d].providers[%d].name", use.field, i, j)}
						r.under(code, func(r *report) { r.warn(at, "%s", message) })
					}
				}
			}
		}
	}
	config := w.in.MeshConfig
	if config == nil || config.Origin == nil {
		return
	}
	for _, use := range reportUses() {
		for i, name := range use.defaults(config.Spec.GetDefaultProviders()) {
			if code, message := c.judge(use, name); message != "" {
				r.found = append(r.found, Diagnostic{
					Code: code, Severity: Warning, Message: message,
					Origin: config.Origin, Key: mesh.Key{Kind: mesh.KindMeshConfig}, Field: fmt.Sprintf("defaultProviders.%s[%d]", use.field, i),
				})
			}
		}
	}
}

// reportCheck judges providers.
type reportCheck struct {
	w        *meshIndex
	snapshot *mesh.Snapshot // made when it is needed
}

// judge says why a provider reports nothing; an empty message means that it does.
func (c *reportCheck) judge(use reportUse, name string) (Code, string) {
	var config *meshconfig.MeshConfig
	if c.w.in.MeshConfig != nil {
		config = c.w.in.MeshConfig.Spec
	}
	providers := config.GetExtensionProviders()
	i := slices.IndexFunc(providers, func(p *meshconfig.MeshConfig_ExtensionProvider) bool { return strings.EqualFold(p.GetName(), name) })
	if i < 0 {
		if use.builtin != "" && strings.EqualFold(name, use.builtin) {
			return "", ""
		}
		hint := ""
		if config == nil {
			hint = "; name the file that has it with --mesh-config"
		}
		names := make([]string, 0, len(providers))
		for _, p := range providers {
			names = append(names, p.GetName())
		}
		return CodeNoReportProvider, fmt.Sprintf("MeshConfig's extensionProviders have no provider %q%s that is in force, so nothing %s through it%s", name, near(name, names), use.what, hint)
	}
	p := providers[i].ProtoReflect()
	kind := p.WhichOneof(p.Descriptor().Oneofs().ByName("provider"))
	if kind == nil || !slices.Contains(use.kinds, kind.JSONName()) {
		has := "says of no kind what it is"
		if kind != nil {
			has = "is of the kind " + kind.JSONName()
		}
		return CodeReportKind, fmt.Sprintf("the provider %q %s, and nothing %s through it; name one with %s", name, has, use.what, orList(use.kinds))
	}
	for _, s := range reportServices(p.Get(kind).Message()) {
		if c.snapshot == nil {
			c.snapshot = c.w.snapshot()
		}
		_, _, err := c.snapshot.ProviderService(s.host, s.port)
		if unknown := errors.Is(err, mesh.ErrNoProviderService); err != nil && (!unknown || !c.w.in.OtherSources) {
			return CodeReportService, fmt.Sprintf("nothing %s through the provider %q: %v", use.what, name, err)
		}
	}
	return "", ""
}

// reportService is a service that gets what proxies report.
type reportService struct {
	host string
	port uint32
}

// reportServices are those of a provider's settings, and of what is set in them: a sampler may have
// one of its own. A file has none.
func reportServices(settings protoreflect.Message) (out []reportService) {
	fields := settings.Descriptor().Fields()
	if host, port := fields.ByName("service"), fields.ByName("port"); host != nil && port != nil {
		out = append(out, reportService{settings.Get(host).String(), uint32(settings.Get(port).Uint())})
	}
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() != nil && !f.IsList() && !f.IsMap() && settings.Has(f) {
			out = append(out, reportServices(settings.Get(f).Message())...)
		}
	}
	return out
}

// orList is "a", "a or b", or "a, b or c".
func orList(list []string) string {
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " or " + list[last]
}
