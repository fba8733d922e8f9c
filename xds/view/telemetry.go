package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Telemetry is what a proxy reports of its traffic in one direction. Immutable; nil means
// nothing.
type Telemetry struct {
	base
	// AccessLogs are in the order of their providers' names.
	AccessLogs []AccessLog
	// ListenerLogs says that connections that match no filter chain are logged, too.
	ListenerLogs bool
	// Metrics is nil if nothing is counted, and Tracing if nothing is traced.
	Metrics *Metrics
	Tracing *Tracing
}

// AccessLog is one access log. One of File, HTTP, TCP and OpenTelemetry is set.
type AccessLog struct {
	File *FileLog
	// HTTP and TCP are access log services (ALS), and OpenTelemetry is a receiver of logs by
	// OTLP, with the provider's settings.
	HTTP          *meshconfig.MeshConfig_ExtensionProvider_EnvoyHttpGrpcV3LogProvider
	TCP           *meshconfig.MeshConfig_ExtensionProvider_EnvoyTcpGrpcV3LogProvider
	OpenTelemetry *meshconfig.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider
	// Collector is the receiver's service; empty for a file.
	Collector Collector
	// OldForm is for Envoys that know only the form that later ones call deprecated.
	OldForm bool
	// Filter is a CEL expression for what is logged; empty means everything.
	Filter string
}

// FileLog is an access log in a file of the host.
type FileLog struct {
	Path string
	// Text is the format of a line; empty means Istio's, unless JSON is set. An empty JSON is
	// Istio's.
	Text            string
	JSON            *structpb.Struct
	OmitEmptyValues bool
}

// proxyTelemetry is what one proxy reports, by direction.
type proxyTelemetry struct {
	Inbound, Outbound *Telemetry
	collectors        []Part // the clusters and endpoints of the services that get it
	origins           []*mesh.Origin
	fallbacks         []string // what its Envoy lacks, sorted
}

// telemetryIndex has the Telemetries of each namespace, the oldest first.
type telemetryIndex map[string][]*mesh.Telemetry

func newTelemetryIndex(s *mesh.Snapshot) telemetryIndex {
	out := telemetryIndex{}
	for _, t := range s.Telemetries {
		out[t.Namespace] = append(out[t.Namespace], t)
	}
	return out
}

// applying returns the Telemetries that apply to a workload, in the order in which one overrides
// those before it: the root namespace's, the namespace's, and those that select the workload. Of
// several for a whole namespace the oldest counts. (Istio's applicableTelemetries,
// pilot/pkg/model/telemetry.go.)
func (x telemetryIndex) applying(root, namespace string, labels map[string]string) []*mesh.Telemetry {
	var out []*mesh.Telemetry
	for _, ns := range slices.Compact([]string{root, namespace}) {
		i := slices.IndexFunc(x[ns], func(t *mesh.Telemetry) bool { return len(t.Spec.GetSelector().GetMatchLabels()) == 0 })
		if ns != "" && i >= 0 {
			out = append(out, x[ns][i])
		}
	}
	for _, t := range x[namespace] {
		if want := t.Spec.GetSelector().GetMatchLabels(); len(want) > 0 && mesh.Selects(want, labels) {
			out = append(out, t)
		}
	}
	return out
}

// addTelemetry fills in what the proxy reports.
func (pc *proxyContext) addTelemetry() {
	b := telemetryBuilder{proxyContext: pc, applying: pc.Index.telemetry.applying(pc.s.RootNamespace(), pc.namespace(), pc.proxy.Labels)}
	for _, t := range b.applying {
		pc.telemetry.origins = append(pc.telemetry.origins, t.Origin)
	}
	pc.telemetry.Inbound = b.build(telemetry.WorkloadMode_SERVER)
	pc.telemetry.Outbound = b.build(telemetry.WorkloadMode_CLIENT)
	pc.telemetry.fallbacks = fallbacksOf(pc.proxy.EnvoyVersion, pc.telemetry.Inbound, pc.telemetry.Outbound, b.leftOut)
}

// fallbacksOf says what of the telemetry a release of Envoy does in another way than later ones,
// and what it leaves out.
func fallbacksOf(v Version, inbound, outbound *Telemetry, leftOut []string) []string {
	if v == (Version{}) {
		return nil // not known yet
	}
	out := slices.Clone(leftOut)
	for _, t := range []*Telemetry{inbound, outbound} {
		switch {
		case t == nil:
			continue
		case t.Metrics != nil && len(t.Metrics.Requests) > 0 && t.Metrics.Form == MetricsByAgent:
			out = append(out, "metrics: this Envoy does not count requests; its agent counts them in the access log, and loses those that come while it is away")
			if slices.ContainsFunc(t.Metrics.Requests, func(m RequestMetric) bool { return len(m.Labels) > 0 }) {
				out = append(out, "metrics: labels that a Telemetry adds or changes are left out: this Envoy cannot set them")
			}
		}
		if slices.ContainsFunc(t.AccessLogs, func(l AccessLog) bool { return l.OldForm }) {
			out = append(out, "accessLogging: OpenTelemetry by the form that later releases call deprecated; the logs are the same")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// telemetryBuilder makes the Telemetry of one proxy.
type telemetryBuilder struct {
	*proxyContext
	applying []*mesh.Telemetry
	reached  map[ClusterRef]bool // clusters that the proxy has already
	leftOut  []string            // what of tracing its Envoy lacks
}

// build makes the Telemetry of one direction.
func (b *telemetryBuilder) build(mode telemetry.WorkloadMode) *Telemetry {
	t := &Telemetry{AccessLogs: b.accessLogs(mode), Metrics: b.metrics(mode), Tracing: b.tracing(mode)}
	if len(t.AccessLogs) == 0 && t.Metrics == nil && t.Tracing == nil {
		return nil
	}
	t.ListenerLogs = len(t.AccessLogs) > 0 && !b.config.GetDisableEnvoyListenerLog()
	return b.telemetries.intern(t)
}

// accessLogs are those of the providers that are in use. Where nobody chose a provider that
// writes access logs, MeshConfig's accessLogFile counts.
func (b *telemetryBuilder) accessLogs(mode telemetry.WorkloadMode) []AccessLog {
	var levels [][]*telemetry.AccessLogging
	for _, t := range b.applying {
		if l := t.Spec.GetAccessLogging(); len(l) > 0 {
			levels = append(levels, l)
		}
	}
	uses := mergeAccessLogging(levels, b.config.GetDefaultProviders().GetAccessLogging(), mode)
	slices.SortStableFunc(uses, func(a, c logUse) int { return cmp.Compare(b.providerName(a.provider), b.providerName(c.provider)) })
	var out []AccessLog
	known := false
	for _, use := range uses {
		log := b.accessLog(b.provider(use.provider))
		known = known || log != nil
		if log != nil && !use.disabled {
			log.Filter = use.filter.GetExpression()
			out = append(out, *log)
		}
	}
	if path := b.config.GetAccessLogFile(); !known && path != "" {
		return []AccessLog{{File: b.meshFormat(path)}}
	}
	return out
}

// provider finds an extension provider of MeshConfig, as Istio does: by its name in any case.
func (b *telemetryBuilder) provider(name string) *meshconfig.MeshConfig_ExtensionProvider {
	for _, p := range b.config.GetExtensionProviders() {
		if strings.EqualFold(p.GetName(), name) {
			return p
		}
	}
	return nil
}

func (b *telemetryBuilder) providerName(name string) string { return b.provider(name).GetName() }

// istioFileProvider is the provider that Istio's own MeshConfig has: it writes what the fields
// accessLogFormat and accessLogEncoding of MeshConfig say.
const istioFileProvider = "envoy"

// accessLog is the access log of a provider; nil if there is none, if it writes none, or if its
// service cannot be reached.
func (b *telemetryBuilder) accessLog(p *meshconfig.MeshConfig_ExtensionProvider) *AccessLog {
	switch {
	case p.GetEnvoyFileAccessLog() != nil:
		f := p.GetEnvoyFileAccessLog()
		path := cmp.Or(f.GetPath(), "/dev/stdout")
		if p.GetName() == istioFileProvider && f.GetLogFormat() == nil && !f.GetOmitEmptyValues() {
			return &AccessLog{File: b.meshFormat(path)}
		}
		out := &FileLog{Path: path, Text: f.GetLogFormat().GetText(), OmitEmptyValues: f.GetOmitEmptyValues()}
		if labels, ok := f.GetLogFormat().GetLogFormat().(*meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels); ok {
			out.JSON = cmp.Or(labels.Labels, &structpb.Struct{})
		}
		return &AccessLog{File: out}
	case p.GetEnvoyHttpAls() != nil:
		return b.remoteLog(AccessLog{HTTP: p.GetEnvoyHttpAls()}, ReportStream, p.GetEnvoyHttpAls().GetService(), p.GetEnvoyHttpAls().GetPort())
	case p.GetEnvoyTcpAls() != nil:
		return b.remoteLog(AccessLog{TCP: p.GetEnvoyTcpAls()}, ReportStream, p.GetEnvoyTcpAls().GetService(), p.GetEnvoyTcpAls().GetPort())
	case p.GetEnvoyOtelAls() != nil:
		log := AccessLog{OpenTelemetry: p.GetEnvoyOtelAls(), OldForm: !b.proxy.EnvoyVersion.atLeast(37)}
		return b.remoteLog(log, ReportCalls, p.GetEnvoyOtelAls().GetService(), p.GetEnvoyOtelAls().GetPort())
	default:
		return nil
	}
}

// remoteLog completes the log of a service, and adds the cluster for it; nil if it has no
// address.
func (b *telemetryBuilder) remoteLog(log AccessLog, how ReportForm, service string, port uint32) *AccessLog {
	c, ok := b.collector(service, port, how)
	if !ok {
		return nil
	}
	log.Collector = c
	return &log
}

// meshFormat is a file with the format of MeshConfig's accessLogFormat and accessLogEncoding.
func (b *telemetryBuilder) meshFormat(path string) *FileLog {
	out := &FileLog{Path: path, Text: b.config.GetAccessLogFormat()}
	if b.config.GetAccessLogEncoding() == meshconfig.MeshConfig_JSON {
		out.JSON, out.Text = &structpb.Struct{}, ""
		if text := b.config.GetAccessLogFormat(); text != "" && protojson.Unmarshal([]byte(text), out.JSON) != nil {
			out.JSON = &structpb.Struct{} // decoding refuses such a text
		}
	}
	return out
}

// logUse says whether and what a provider logs.
type logUse struct {
	provider string
	disabled bool
	filter   *telemetry.AccessLogging_Filter
}

// mergeAccessLogging merges what Telemetries say of access logs, the most general first. An entry
// without providers is about those of the entry before it, or the mesh's default ones. The last
// one that names providers for the direction says which providers are in use at all.
// (Istio's mergeLogs, pilot/pkg/model/telemetry.go. As there, a filter counts only in an entry
// that names the provider, and what an entry says for one direction is about the same providers
// as the entry after it, whatever its direction.)
func mergeAccessLogging(levels [][]*telemetry.AccessLogging, defaults []string, mode telemetry.WorkloadMode) []logUse {
	inUse := defaults
	filters := map[string]*telemetry.AccessLogging_Filter{}
	for _, level := range levels {
		var named []string
		for _, entry := range level {
			if !inMode(entry.GetMatch().GetMode(), mode) {
				continue
			}
			for _, p := range entry.GetProviders() {
				named = append(named, p.GetName())
				filters[p.GetName()] = entry.GetFilter()
			}
		}
		if len(named) > 0 {
			inUse = named
		}
	}
	out := map[string]logUse{}
	if len(levels) == 0 {
		for _, name := range defaults {
			out[name] = logUse{provider: name}
		}
	}
	names := defaults
	for _, entry := range slices.Concat(levels...) {
		if len(entry.GetProviders()) > 0 {
			names = nil
			for _, p := range entry.GetProviders() {
				names = append(names, p.GetName())
			}
		}
		if !inMode(entry.GetMatch().GetMode(), mode) {
			continue
		}
		for _, name := range names {
			switch {
			case !slices.Contains(inUse, name):
			case entry.GetDisabled().GetValue():
				out[name] = logUse{provider: name, disabled: true}
			default:
				out[name] = logUse{provider: name, filter: filters[name]}
			}
		}
	}
	uses := make([]logUse, 0, len(out))
	for _, name := range slices.Sorted(maps.Keys(out)) {
		uses = append(uses, out[name])
	}
	return uses
}

// inMode reports whether what is for one mode counts in another, which is CLIENT or SERVER.
func inMode(of, mode telemetry.WorkloadMode) bool {
	return of == telemetry.WorkloadMode_CLIENT_AND_SERVER || of == mode
}
