package analysis

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

func TestServicesOfProviders(t *testing.T) {
	t.Parallel()
	type (
		otel      = meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider
		sampler   = meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler_
		dynatrace = meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler
		api       = meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider_DynatraceSampler_DynatraceApi
		zipkin    = meshconfig.MeshConfig_ExtensionProvider_ZipkinTracingProvider
		file      = meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider
		http      = meshconfig.MeshConfig_ExtensionProvider_HttpService
	)
	for name, c := range map[string]struct {
		settings proto.Message
		want     []reportService
	}{
		"a file":                    {&file{Path: "/dev/stdout"}, nil},
		"a service":                 {&zipkin{Service: "a", Port: 1}, []reportService{{"a", 1}}},
		"no service in what is set": {&otel{Service: "a", Port: 1, Http: &http{Path: "/v1/traces", Timeout: durationpb.New(1)}}, []reportService{{"a", 1}}},
		"a sampler's":               {&otel{Service: "a", Port: 1, Sampling: &sampler{DynatraceSampler: &dynatrace{HttpService: &api{Service: "b", Port: 2}}}}, []reportService{{"a", 1}, {"b", 2}}},
		"a sampler without one":     {&otel{Service: "a", Port: 1, Sampling: &sampler{DynatraceSampler: &dynatrace{}}}, []reportService{{"a", 1}}},
	} {
		if got := reportServices(c.settings.ProtoReflect()); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
