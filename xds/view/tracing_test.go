package view

import (
	"fmt"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	zipkinAt = `{"zipkin":{"service":"spans.mesh","port":9411}}`
	otlpAt   = `{"opentelemetry":{"service":"spans.mesh","port":9411,"maxTagLength":64}}`
	sampled  = `{"opentelemetry":{"service":"spans.mesh","port":9411,"dynatraceSampler":{"tenant":"t"},"http":{"path":"/v1/traces"}}}`
)

// traced is a mesh with three tracers and one service for them; each of telemetries is the spec
// of a Telemetry: of the root namespace, of the workload's, and of the workload.
func traced(t *testing.T, telemetries [3]string, set func(*meshFixture)) *mesh.Snapshot {
	t.Helper()
	w := newMeshFixture(t)
	w.mc.EnableTracing = true
	w.service("watch", "spans.mesh", 9411)
	w.provide("zipkin", zipkinAt)
	w.provide("otlp", otlpAt)
	w.provide("sampled", sampled)
	w.provide("logs", `{"envoyFileAccessLog":{}}`)
	w.provide("nobody", `{"zipkin":{"service":"nobody.mesh","port":9411}}`)
	for i, spec := range telemetries {
		if spec == "" {
			continue
		}
		x := &mesh.Telemetry{Meta: w.meta(mesh.KindTelemetry, []string{"istio-system", "shop", "shop"}[i], fmt.Sprint("t", i)), Spec: &telemetry.Telemetry{}}
		w.decode(spec, x.Spec)
		w.f.Telemetries = append(w.f.Telemetries, x)
	}
	if set != nil {
		set(w)
	}
	return w.snapshot()
}

// sayTracing describes the tracing of a direction in short.
func sayTracing(x *Telemetry) string {
	if x == nil || x.Tracing == nil {
		return "none"
	}
	t := x.Tracing
	var tags strings.Builder
	for _, tag := range t.Tags {
		fmt.Fprintf(&tags, " %s=%s/%s/%d", tag.Name, tag.Value, tag.Default, tag.Kind)
	}
	return fmt.Sprintf("%s %v %s:%d ids=%t istio=%t path=%d leave=%t%s", t.Provider.GetName(), t.Percent, t.Collector.Host, t.Collector.Cluster.Port,
		!t.IgnoreRequestID, t.IstioTags, t.MaxPathLength, t.NoPropagation, tags.String())
}

// TestTracing: what Telemetries, MeshConfig and the workload's annotation say of tracing, as in
// Istio.
func TestTracing(t *testing.T) {
	t.Parallel()
	own := func(text string) func(*meshFixture) {
		return func(w *meshFixture) {
			w.mc.DefaultConfig = &meshconfig.ProxyConfig{}
			w.decode(text, w.mc.DefaultConfig)
		}
	}
	const of = `{"selector":{"matchLabels":{"app":"a"}},"tracing":[%s]}`
	const usual = " spans.mesh:9411 ids=true istio=true path=0 leave=false"
	for name, c := range map[string]struct {
		telemetries  [3]string
		set          func(*meshFixture)
		annotation   string
		version      uint32 // minor; 0 is the newest
		client, both string // both is for the client, too
	}{
		"nothing": {both: "none"},
		"a default provider": {set: func(w *meshFixture) {
			w.mc.DefaultProviders = &meshconfig.MeshConfig_DefaultProviders{Tracing: []string{"zipkin", "otlp"}}
		}, both: "zipkin 1" + usual},
		"without a provider":          {telemetries: [3]string{`{"tracing":[{"randomSamplingPercentage":7}]}`}, both: "none"},
		"a provider of another kind":  {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"logs"}]}]}`}, both: "none"},
		"an unknown provider":         {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"who"}]}]}`}, both: "none"},
		"a service that there is not": {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"nobody"}]}]}`}, both: "none"},
		"the first provider":          {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"otlp"},{"name":"zipkin"}]}]}`}, both: "otlp 1 spans.mesh:9411 ids=true istio=true path=64 leave=false"},
		"each level over the one before": {
			telemetries: [3]string{
				`{"tracing":[{"providers":[{"name":"zipkin"}],"randomSamplingPercentage":0,"enableIstioTags":false,"customTags":{"a":{"literal":{"value":"1"}},"b":{"literal":{"value":"2"}}}}]}`,
				`{"tracing":[{"randomSamplingPercentage":9,"useRequestIdForTraceSampling":false}]}`,
				fmt.Sprintf(of, `{"disableContextPropagation":true,"customTags":{"c":{"header":{"name":"x","defaultValue":"y"}}}}`),
			},
			both: "zipkin 9 spans.mesh:9411 ids=false istio=false path=0 leave=true c=x/y/1",
		},
		"no sampling": {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}],"randomSamplingPercentage":0}]}`}, both: "zipkin 0" + usual},
		"one mode": {
			telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}]}]}`, "", fmt.Sprintf(of, `{"match":{"mode":"CLIENT"},"disableSpanReporting":true}`)},
			both:        "zipkin 1" + usual, client: "none",
		},
		"switched on again": {telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}],"disableSpanReporting":true}]}`, `{"tracing":[{"disableSpanReporting":false}]}`}, both: "zipkin 1" + usual},
		"a sampler of its own": {
			telemetries: [3]string{`{"tracing":[{"providers":[{"name":"sampled"}],"randomSamplingPercentage":3}]}`}, both: "sampled 100" + usual,
		},
		"an old Envoy": {
			telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}],"disableContextPropagation":true,"customTags":{"a":{"formatter":{"value":"%PROTOCOL%"}},"b":{"environment":{"name":"B"}}}}]}`},
			version:     36, both: "zipkin 1" + usual + " b=B//2",
		},
		"a format": {
			telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}],"customTags":{"a":{"formatter":{"value":"%PROTOCOL%"}}}}]}`},
			both:        "zipkin 1" + usual + " a=%PROTOCOL%//3",
		},
		"MeshConfig's own tracer": {
			set:  own(`{"tracing":{"zipkin":{"address":"spans.mesh:9411"},"sampling":20,"maxPathTagLength":99,"customTags":{"a":{"literal":{"value":"1"}}}}}`),
			both: " 20 spans.mesh:9411 ids=true istio=true path=99 leave=false a=1//0",
		},
		"a tracer outside":         {set: own(`{"tracing":{"datadog":{"address":"$(HOST_IP):8126"},"enableIstioTags":false,"sampling":200}}`), both: " 1 127.0.0.1:8126 ids=true istio=false path=0 leave=false"},
		"a tracer and a Telemetry": {set: own(`{"tracing":{"zipkin":{"address":"spans.mesh:9411"},"sampling":20}}`), telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}]}]}`}, both: "zipkin 20" + usual},
		"tracing switched off": {
			set: func(w *meshFixture) {
				own(`{"tracing":{"zipkin":{"address":"spans.mesh:9411"}}}`)(w)
				w.mc.EnableTracing = false
			},
			both: "none",
		},
		"an annotation": {
			set: own(`{"tracing":{"zipkin":{"address":"spans.mesh:9411"},"sampling":20,"maxPathTagLength":99}}`), annotation: `{"sampling":50}`, both: " 50" + usual,
		},
		"an annotation and a Telemetry": {
			telemetries: [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}]}]}`}, annotation: `{"sampling":50,"customTags":{"a":{"environment":{"name":"A","defaultValue":"d"}}}}`,
			both: "zipkin 50" + usual + " a=A/d/2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := traced(t, c.telemetries, c.set)
			p := Proxy{Type: Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Labels: map[string]string{"app": "a"}, Addresses: []string{"10.0.0.1"}, EnvoyVersion: Version{1, 40, 0}}
			if c.version != 0 {
				p.EnvoyVersion.Minor = c.version
			}
			if c.annotation != "" {
				p.Tracing = &meshconfig.Tracing{}
				newMeshFixture(t).decode(c.annotation, p.Tracing)
			}
			pc := NewIndex(s).contextOf(p)
			client := c.client
			if client == "" {
				client = c.both
			}
			if got := sayTracing(pc.telemetry.Outbound); got != client {
				t.Errorf("client: %s; want %s", got, client)
			}
			if got := sayTracing(pc.telemetry.Inbound); got != c.both {
				t.Errorf("server: %s; want %s", got, c.both)
			}
			if x := pc.telemetry.Inbound; x != nil && x.Tracing != nil && len(pc.telemetry.collectors) == 0 {
				t.Error("the proxy has no cluster for its spans")
			}
		})
	}
}

// TestFallbacks: what an older Envoy lacks is named, and nothing else is.
func TestFallbacks(t *testing.T) {
	t.Parallel()
	all := [3]string{`{"tracing":[{"providers":[{"name":"zipkin"}],"disableContextPropagation":true,"customTags":{"a":{"formatter":{"value":"%PROTOCOL%"}},"b":{"literal":{"value":"1"}}}}],
	 "metrics":[{"providers":[{"name":"prometheus"}],"overrides":[{"match":{"metric":"REQUEST_COUNT"},"tagOverrides":{"x":{"value":"request.method"}}}]}],
	 "accessLogging":[{"providers":[{"name":"otel"}]}]}`}
	s := traced(t, all, func(w *meshFixture) {
		w.provide("otel", `{"envoyOtelAls":{"service":"spans.mesh","port":9411}}`)
		w.provide("prometheus", `{"prometheus":{}}`)
	})
	index := NewIndex(s)
	for version, want := range map[Version][]string{
		{}: nil, {1, 40, 0}: nil, {1, 38, 3}: nil,
		{1, 37, 0}: {"tracing: disableContextPropagation"},
		{1, 36, 2}: {"accessLogging: OpenTelemetry", "metrics: labels that", "metrics: this Envoy does not count", "tracing: disableContextPropagation", "tracing: the tag a is left out"},
	} {
		got := index.Build(Proxy{
			Type: Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop"}, Addresses: []string{"10.0.0.1"}, EnvoyVersion: version, AccessLogService: true,
		}).Fallbacks
		same := len(got) == len(want)
		for i := range min(len(got), len(want)) {
			same = same && strings.HasPrefix(got[i], want[i])
		}
		if !same {
			t.Errorf("%v: %q; want %q", version, got, want)
		}
	}
}
