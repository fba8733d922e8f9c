package cache

import "maps"

// tracingScenes are those of traces of requests.
func tracingScenes() map[string]scenario {
	const zipkin = "zipkin: {service: c.mesh, port: 80}"
	providers := func(chosen string) string {
		return "extensionProviders: [{name: other, " + zipkin + "}, {name: chosen, " + chosen + "}]\n"
	}
	chooses := func(spec, was, is string) scenario {
		return scenario{config: providers("datadog: {service: c.mesh, port: 80}"), documents: telemetryOf("tracing: [{providers: [{name: chosen}], " + spec + "}]"), was: was, is: is}
	}
	// provider has the provider of all workloads changed.
	provider := func(text, was, is string) scenario {
		return scenario{config: providers(text) + "defaultProviders: {tracing: [chosen]}\n", was: was, is: is}
	}
	tag := func(text, was, is string) scenario { return chooses("customTags: {a: {"+text+"}}", was, is) }
	out := map[string]scenario{
		"MeshConfig.enableTracing": {config: "enableTracing: true\ndefaultConfig: {tracing: {zipkin: {address: 'c.mesh:80'}}}\n", was: "enableTracing: true", is: "enableTracing: false"},
		"DefaultProviders.tracing": {config: providers("datadog: {service: c.mesh, port: 80}") + "defaultProviders: {tracing: [chosen]}\n", was: "[chosen]", is: "[other]"},

		"Telemetry.tracing":                        chooses("randomSamplingPercentage: 9", "[{providers: [{name: chosen}], randomSamplingPercentage: 9}]", "[]"),
		"TracingSelector.mode":                     chooses("match: {mode: CLIENT}", "CLIENT", "SERVER"),
		"Tracing.providers":                        chooses("randomSamplingPercentage: 9", "providers: [{name: chosen}], ", ""),
		"Tracing.randomSamplingPercentage":         chooses("randomSamplingPercentage: 9", "9", "8"),
		"Tracing.disableSpanReporting":             chooses("disableSpanReporting: true", "true", "false"),
		"Tracing.customTags":                       tag("literal: {value: x}", "customTags: {a: {literal: {value: x}}}", ""),
		"Tracing.useRequestIdForTraceSampling":     chooses("useRequestIdForTraceSampling: false", "false", "true"),
		"Tracing.enableIstioTags":                  chooses("enableIstioTags: false", "false", "true"),
		"Tracing.disableContextPropagation":        chooses("disableContextPropagation: true", "true", "false"),
		"SkyWalkingTracingProvider.accessToken":    provider("skywalking: {service: c.mesh, port: 80, accessToken: a}", "accessToken: a", "accessToken: b"),
		"ZipkinTracingProvider.path":               provider("zipkin: {service: c.mesh, port: 80, path: /a}", "/a", "/b"),
		"ZipkinTracingProvider.timeout":            provider("zipkin: {service: c.mesh, port: 80, timeout: 9s}", "9s", "8s"),
		"ZipkinTracingProvider.headers":            provider("zipkin: {service: c.mesh, port: 80, headers: [{name: a, value: b}]}", ", headers: [{name: a, value: b}]", ""),
		"ZipkinTracingProvider.enable64bitTraceId": provider("zipkin: {service: c.mesh, port: 80, enable64bitTraceId: true}", "true", "false"),
		"ZipkinTracingProvider.traceContextOption": provider("zipkin: {service: c.mesh, port: 80, traceContextOption: USE_B3_WITH_W3C_PROPAGATION}", "USE_B3_WITH_W3C_PROPAGATION", "USE_B3"),
	}
	for kind, message := range map[string]string{"zipkin": "Zipkin", "datadog": "Datadog", "skywalking": "SkyWalking", "opentelemetry": "OpenTelemetry"} {
		at := kind + ": {service: c.mesh, port: 80"
		out[message+"TracingProvider.port"] = provider(at+"}", "{name: chosen, "+at, "{name: chosen, "+kind+": {service: c.mesh, port: 9000")
		out[message+"TracingProvider.service"] = provider(at+"}", "{name: chosen, "+at, "{name: chosen, "+kind+": {service: nobody.mesh, port: 80")
		out[message+"TracingProvider.maxTagLength"] = provider(at+", maxTagLength: 9}", "maxTagLength: 9", "maxTagLength: 8")
	}
	delete(out, "SkyWalkingTracingProvider.maxTagLength") // it has none
	maps.Copy(out, openTelemetryScenes(provider))
	return out
}

func openTelemetryScenes(provider func(text, was, is string) scenario) map[string]scenario {
	otlp := func(text, was, is string) scenario {
		return provider("opentelemetry: {service: c.mesh, port: 80, "+text+"}", was, is)
	}
	const http, sampler = "http: {path: /a, timeout: 9s, headers: [{name: a, value: b}]}", "dynatraceSampler: {tenant: a, clusterId: 3, rootSpansPerMinute: 9, httpService: {service: c.mesh, port: 9000, http: {path: /s}}}"
	return map[string]scenario{
		"HttpService.path":                    otlp(http, "/a", "/b"),
		"HttpService.timeout":                 otlp(http, "9s", "8s"),
		"HttpService.headers":                 otlp(http, "[{name: a, value: b}]", "[]"),
		"HttpHeader.name":                     otlp(http, "name: a", "name: b"),
		"HttpHeader.value":                    otlp(http, "value: b", "value: c"),
		"GrpcService.timeout":                 otlp("grpc: {timeout: 9s}", "9s", "8s"),
		"GrpcService.initialMetadata":         otlp("grpc: {initialMetadata: [{name: a, value: b}]}", "[{name: a, value: b}]", "[]"),
		"DynatraceSampler.tenant":             otlp(sampler, "tenant: a", "tenant: b"),
		"DynatraceSampler.clusterId":          otlp(sampler, "clusterId: 3", "clusterId: 4"),
		"DynatraceSampler.rootSpansPerMinute": otlp(sampler, "PerMinute: 9", "PerMinute: 8"),
		"DynatraceApi.service":                otlp(sampler, "{service: c.mesh, port: 9000, http", "{service: nobody.mesh, port: 9000, http"),
		"DynatraceApi.port":                   otlp(sampler, "port: 9000", "port: 80"),
	}
}
