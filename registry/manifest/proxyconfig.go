package manifest

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/manifest/webhook"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

const defaultConfigField = "defaultConfig"

// annotatedConfig reads what a WorkloadEntry or WorkloadGroup says of its proxies. An annotation
// that is broken is an error of the object, whose last good version stays in force.
func (o *Object) annotatedConfig(r *reporter) {
	switch spec := o.Spec.(type) {
	case *networking.WorkloadEntry:
		o.proxyConfig = o.readAnnotation(o.Meta.Annotations, "metadata.annotations", r)
	case *networking.WorkloadGroup:
		// As istioctl reads them for a host of the group (istioctl/pkg/workload).
		outer := o.readAnnotation(o.Meta.Annotations, "metadata.annotations", r)
		inner := o.readAnnotation(spec.GetMetadata().GetAnnotations(), "spec.metadata.annotations", r)
		o.proxyConfig = mesh.MergeProxyConfigs(outer, inner)
		probe := spec.GetProbe()
		if probe == nil {
			return
		}
		fits := true
		checkProxyConfig(&meshconfig.ProxyConfig{ReadinessProbe: probe}, func(path, why string) {
			fits = false
			at := "spec.probe" + strings.TrimPrefix(path, "readinessProbe")
			r.warn(CodeNoEffect, o.root.Nearest(at), at, "the probe has no effect: "+why)
		})
		if fits {
			o.proxyConfig = mesh.MergeProxyConfigs(o.proxyConfig, &meshconfig.ProxyConfig{ReadinessProbe: proto.CloneOf(probe)})
		}
	}
}

// readAnnotation reads the annotation, and reports what is wrong with it at its position. The
// result has only what is in force, and is nil if there is no annotation.
func (o *Object) readAnnotation(annotations map[string]string, at string, r *reporter) *meshconfig.ProxyConfig {
	text, ok := annotations[metakeys.ProxyConfig]
	if !ok {
		return nil
	}
	at = tree.Join(at, metakeys.ProxyConfig)
	own := &reporter{source: r.source, path: r.path}
	pc := readProxyConfig(text, own)
	for _, f := range own.finish() {
		field := strings.TrimPrefix(strings.TrimPrefix(f.Field, defaultConfigField), ".")
		message := f.Message
		if field != "" {
			message = field + ": " + message
		}
		if f.Origin.Line > 1 {
			message = fmt.Sprintf("line %d of the annotation: %s", f.Origin.Line, message)
		}
		pos := o.root.Nearest(at)
		if f.Severity == Warning {
			r.warn(f.Code, pos, at, message)
		} else {
			r.add(f.Code, pos, at, message)
		}
	}
	return pc
}

// readProxyConfig reads a ProxyConfig as it stands in MeshConfig's defaultConfig, by the same
// rules. The paths of faults begin with defaultConfig.
func readProxyConfig(text string, r *reporter) *meshconfig.ProxyConfig {
	doc := &tree.Node{Kind: tree.Map, Pos: tree.Position{Line: 1, Column: 1}}
	for i, d := range tree.Parse([]byte(text)) {
		r.problems(d.Problems)
		switch {
		case d.Root == nil || d.Root.Kind == tree.Null:
		case i > 0:
			r.add(CodeKind, d.Root.Pos, "", "the annotation must be one document")
		case d.Root.Kind != tree.Map:
			r.add(CodeType, d.Root.Pos, "", fmt.Sprintf("the annotation must be an object, not %s", d.Root.Kind))
		default:
			doc = d.Root
		}
	}
	if HasErrors(r.faults) {
		return nil
	}
	root := &tree.Node{Kind: tree.Map, Pos: doc.Pos, Fields: []tree.Field{{Key: defaultConfigField, KeyPos: doc.Pos, Value: doc}}}
	m := meshReading{root: root, written: &meshconfig.MeshConfig{}, r: r, whole: true}
	f := filler{report: m.refuse}
	f.message(m.written.ProtoReflect(), root)
	spec := m.merge()
	for _, rule := range webhook.MeshConfig(spec) {
		m.rule(rule)
	}
	m.checkProxyConfig(spec.GetDefaultConfig())
	m.spans(spec)
	for _, tracer := range []string{"zipkin", "datadog"} {
		if at := "defaultConfig.tracing." + tracer; root.Nearest(at) != root.Nearest("defaultConfig.tracing") {
			m.refuse(CodeNotInForce, root.Nearest(at), at, "not in force: a tracer is for all proxies; write it in MeshConfig's defaultConfig, or name a provider in a Telemetry")
		}
	}
	// The probe is in force here, and not for the whole mesh: checkProxyConfig has judged it.
	probe := m.written.GetDefaultConfig().GetReadinessProbe()
	if probe != nil {
		m.written.DefaultConfig.ReadinessProbe = nil
		doc.SetFields(slices.DeleteFunc(slices.Clone(doc.Fields), func(f tree.Field) bool { return f.Key == "readinessProbe" || f.Key == "readiness_probe" }))
	}
	m.notInForce(root, m.written.ProtoReflect(), defaultMeshSpec().ProtoReflect(), "")
	out := &meshconfig.MeshConfig{DefaultConfig: m.written.GetDefaultConfig()}
	pruneMessage(out.ProtoReflect(), nil, "")
	if probe != nil {
		out.DefaultConfig.ReadinessProbe = probe
	}
	return out.GetDefaultConfig()
}

// checkProxyConfig reports what agents could not use.
func (m *meshReading) checkProxyConfig(pc *meshconfig.ProxyConfig) {
	checkProxyConfig(pc, func(path, why string) {
		path = defaultConfigField + "." + path
		switch {
		case m.reported(path):
		case !m.whole && within(path, defaultConfigField+".proxyMetadata"):
			// Istio's charts set some of them: what they write loads.
			m.r.warn(CodeNoEffect, m.root.Nearest(path), path, "no effect here: "+why)
		default:
			m.refuse(CodeNotInForce, m.root.Nearest(path), path, "not in force: "+why)
		}
	})
}

// checkProxyConfigKind reports what of a ProxyConfig of its own kind is not in force or has no
// effect.
func checkProxyConfigKind(o *Object, spec *networkingbeta.ProxyConfig, report func(path, why string), warnings *reporter) {
	checkProxyConfig(&meshconfig.ProxyConfig{Concurrency: spec.GetConcurrency(), ProxyMetadata: spec.GetEnvironmentVariables()}, func(path, why string) {
		path = strings.Replace(path, "proxyMetadata", "environmentVariables", 1)
		report("spec."+path, why)
	})
	for field, set := range map[string]bool{"image": spec.GetImage() != nil, "environmentVariables": len(spec.GetEnvironmentVariables()) > 0} {
		if set {
			why := map[string]string{"image": noImage, "environmentVariables": noMetadata}[field]
			warnings.warn(CodeNoEffect, o.root.Nearest("spec."+field), "spec."+field, "no effect here: "+why)
		}
	}
}

// Limits of a ProxyConfig. An agent rejects what exceeds them.
const (
	maxConcurrency = 1024
	maxDrain       = time.Hour
	maxPatterns    = 256
	maxPattern     = 512
	maxTags        = 64
	maxProgram     = 4096 // instructions of a regular expression
	minStatusPort  = 1024 // agents have no privilege for others
	maxPort        = 65535
	agentPort      = 15020 // unless statusPort says another one
)

// portsOfEnvoy are ports of a host that Envoy or its agent has for something else.
func portsOfEnvoy() []int32 { return []int32{15000, 15001, 15004, 15006, 15008, 15021, 15053, 15090} }

var statTag = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.]{0,127}$`)

// refusedMetadata are the variables of Istio's agent that would change what a proxy does with
// traffic, and what there is not.
//
//nolint:gochecknoglobals // a read-only table
var refusedMetadata = map[string]string{
	"ISTIO_META_DNS_CAPTURE":             "an agent answers DNS queries with its flag --dns, and the resolver of the host sends it the names of the mesh (docs/dns.md)",
	"ISTIO_META_ENABLE_HBONE":            "there is no HBONE",
	"ISTIO_META_HTTP10":                  "proxies refuse HTTP/1.0",
	"ISTIO_META_HTTP_PROXY_PORT":         "agents have the flag --http-proxy-port",
	"ISTIO_META_IDLE_TIMEOUT":            "connections have Istio's default idle timeout",
	"ISTIO_META_REQUESTED_NETWORK_VIEW":  "proxies see the endpoints of all networks",
	"ISTIO_META_TLS_CLIENT_CERT_CHAIN":   "workloads have certificates of the server's authority",
	"ISTIO_META_TLS_CLIENT_KEY":          "workloads have certificates of the server's authority",
	"ISTIO_META_TLS_CLIENT_ROOT_CERT":    "workloads have certificates of the server's authority",
	"ISTIO_META_TLS_SERVER_CERT_CHAIN":   "workloads have certificates of the server's authority",
	"ISTIO_META_TLS_SERVER_KEY":          "workloads have certificates of the server's authority",
	"ISTIO_META_TLS_SERVER_ROOT_CERT":    "workloads have certificates of the server's authority",
	"ISTIO_META_CREDENTIAL_METADATA_DIR": "workloads have certificates of the server's authority",
}

// checkProxyConfig reports, with its path, what an agent could not use or this build does not do.
func checkProxyConfig(pc *meshconfig.ProxyConfig, report func(path, why string)) {
	if n := pc.GetConcurrency().GetValue(); n < 0 || n > maxConcurrency {
		report("concurrency", fmt.Sprintf("%d is not from 0, which means one thread for each core, to %d", n, maxConcurrency))
	}
	for path, d := range map[string]*durationpb.Duration{"drainDuration": pc.GetDrainDuration(), "terminationDrainDuration": pc.GetTerminationDrainDuration()} {
		if d != nil && (d.AsDuration() < 0 || d.AsDuration() > maxDrain) {
			report(path, fmt.Sprintf("%s is not from 0s to %s", d.AsDuration(), maxDrain))
		}
	}
	if port := pc.GetStatusPort(); port != 0 && (port < minStatusPort || slices.Contains(portsOfEnvoy(), port)) {
		report("statusPort", fmt.Sprintf("agents listen at ports from %d on, and not at those of Envoy; %d cannot be used", minStatusPort, port))
	}
	checkStats(pc, report)
	if probe := pc.GetReadinessProbe(); probe != nil {
		checkProbe(probe, report)
	}
	for _, name := range slices.Sorted(maps.Keys(pc.GetProxyMetadata())) {
		why, refused := refusedMetadata[name]
		switch value := pc.GetProxyMetadata()[name]; {
		case refused && value != "" && value != "false" && value != "0":
			report(tree.Join("proxyMetadata", name), why)
		case len(name)+len(value) > maxPattern*8:
			report(tree.Join("proxyMetadata", name), fmt.Sprintf("name and value have more than %d bytes", maxPattern*8))
		}
	}
}

func checkStats(pc *meshconfig.ProxyConfig, report func(path, why string)) {
	if n := len(pc.GetExtraStatTags()); n > maxTags {
		report("extraStatTags", fmt.Sprintf("%d tags, at most %d are allowed", n, maxTags))
	}
	for i, tag := range pc.GetExtraStatTags() {
		if tag != "" && !statTag.MatchString(tag) { // as Istio, an empty one counts as none
			report(fmt.Sprintf("extraStatTags[%d]", i), "a tag has letters, digits, '_' and '.', and begins with a letter or '_'")
		}
	}
	m, total := pc.GetProxyStatsMatcher(), 0
	for name, list := range map[string][]string{"inclusionPrefixes": m.GetInclusionPrefixes(), "inclusionSuffixes": m.GetInclusionSuffixes(), "inclusionRegexps": m.GetInclusionRegexps()} {
		total += len(list)
		for i, p := range list {
			at := fmt.Sprintf("proxyStatsMatcher.%s[%d]", name, i)
			if len(p) > maxPattern || p == "" {
				report(at, fmt.Sprintf("the pattern has %d bytes, and must have 1 to %d", len(p), maxPattern))
			} else if name == "inclusionRegexps" {
				if why := whyNotPattern(p); why != "" {
					report(at, why)
				}
			}
		}
	}
	if total > maxPatterns {
		report("proxyStatsMatcher", fmt.Sprintf("%d patterns, at most %d are allowed", total, maxPatterns))
	}
}

// whyNotPattern judges a regular expression by RE2's rules, and its size: Envoy does not start with
// one that it refuses.
func whyNotPattern(p string) string {
	re, err := syntax.Parse(p, syntax.Perl)
	if err == nil {
		var prog *syntax.Prog
		if prog, err = syntax.Compile(re.Simplify()); err == nil && len(prog.Inst) > maxProgram {
			return fmt.Sprintf("the regular expression is too large: %d steps, at most %d are allowed", len(prog.Inst), maxProgram)
		}
	}
	if err != nil {
		return fmt.Sprintf("it is not a regular expression as RE2 reads them: %v", err)
	}
	return ""
}

// checkProbe judges a probe as agents do. They probe the application of their own host only:
// whoever can write a manifest must not have hosts connect to others.
func checkProbe(p *networking.ReadinessProbe, report func(path, why string)) {
	for name, n := range map[string]int32{
		"initialDelaySeconds": p.GetInitialDelaySeconds(), "timeoutSeconds": p.GetTimeoutSeconds(), "periodSeconds": p.GetPeriodSeconds(),
		"successThreshold": p.GetSuccessThreshold(), "failureThreshold": p.GetFailureThreshold(),
	} {
		if n < 0 {
			report("readinessProbe."+name, "must not be negative")
		}
	}
	var (
		at, host string
		port     uint32
	)
	switch m := p.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		at, host, port = "readinessProbe.httpGet", m.HttpGet.GetHost(), m.HttpGet.GetPort()
		if s := strings.ToLower(m.HttpGet.GetScheme()); s != "" && s != "http" && s != "https" {
			report(at+".scheme", fmt.Sprintf("%q is neither http nor https", m.HttpGet.GetScheme()))
		}
	case *networking.ReadinessProbe_TcpSocket:
		at, host, port = "readinessProbe.tcpSocket", m.TcpSocket.GetHost(), m.TcpSocket.GetPort()
	default:
		report("readinessProbe", "one of httpGet and tcpSocket is needed; agents run no commands, and do not probe by gRPC")
		return
	}
	const maxPort = 65535
	if port < 1 || port > maxPort {
		report(at+".port", fmt.Sprintf("port %d is not within 1 and %d", port, maxPort))
	}
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" {
		report(at+".host", "an agent probes its own host only: leave it out, or write localhost or an address of the host")
	}
}
