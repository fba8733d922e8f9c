package cache

// logs is a scene with an extension provider of a kind, and a Telemetry that chooses it.
func logs(provider, was, is string) scenario {
	return scenario{
		config:    "extensionProviders: [{name: other, envoyFileAccessLog: {path: /other.log}}, {name: chosen, " + provider + "}]\n",
		documents: telemetryOf("accessLogging: [{providers: [{name: chosen}]}]"), was: was, is: is,
	}
}

func telemetryOf(spec string) string {
	return "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {namespace: shop, name: t}\nspec: {" + spec + "}\n"
}

// logScenes are those of access logs.
func logScenes() map[string]scenario {
	const target, files = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}", "extensionProviders: [{name: one, envoyFileAccessLog: {path: /one.log}}, {name: two, envoyFileAccessLog: {path: /two.log}}]\n"
	chooses := func(entry, was, is string) scenario {
		return scenario{config: files, documents: telemetryOf("accessLogging: [{" + entry + "}]"), was: was, is: is}
	}
	mesh := func(config, was, is string) scenario { return scenario{config: config, was: was, is: is} }
	const one = "providers: [{name: one}]"
	out := map[string]scenario{
		"Telemetry.accessLogging":  chooses(one, "accessLogging: [{"+one+"}]", "accessLogging: []"),
		"Telemetry.targetRefs":     {config: files, documents: telemetryOf("accessLogging: [{" + one + "}]"), was: "{accessLogging", is: "{targetRefs: [" + target + "], accessLogging"},
		"AccessLogging.disabled":   chooses(one+", disabled: true", "disabled: true", "disabled: false"),
		"AccessLogging.providers":  chooses("providers: [{name: one}, {name: two}]", "one}, {name: two}]", "one}]"),
		"Filter.expression":        chooses(one+", filter: {expression: 'response.code > 400'}", "code > 400", "code > 500"),
		"LogSelector.mode":         chooses(one+", match: {mode: CLIENT}", "mode: CLIENT", "mode: SERVER"),
		"ProviderRef.name":         chooses(one, "name: one}", "name: two}"),
		"MeshConfig.accessLogFile": mesh("accessLogFile: /a.log\n", "/a.log", "/b.log"),

		"MeshConfig.accessLogEncoding":       mesh("accessLogFile: /a.log\naccessLogEncoding: JSON\n", "JSON", "TEXT"),
		"MeshConfig.accessLogFormat":         mesh("accessLogFile: /a.log\naccessLogFormat: \"%PROTOCOL%\"\n", "PROTOCOL", "DURATION"),
		"MeshConfig.disableEnvoyListenerLog": mesh("accessLogFile: /a.log\ndisableEnvoyListenerLog: true\n", "true", "false"),
		"DefaultProviders.accessLogging":     mesh(files+"defaultProviders: {accessLogging: [one]}\n", "[one]", "[two]"),

		"EnvoyFileAccessLogProvider.path":            logs("envoyFileAccessLog: {path: /a.log}", "/a.log", "/b.log"),
		"EnvoyFileAccessLogProvider.omitEmptyValues": logs("envoyFileAccessLog: {omitEmptyValues: true}", "true", "false"),
		"LogFormat.text":                             logs("envoyFileAccessLog: {logFormat: {text: a}}", "text: a", "text: b"),

		"EnvoyHttpGrpcV3LogProvider.additionalRequestHeadersToLog":   logs("envoyHttpAls: {service: c.mesh, port: 80, additionalRequestHeadersToLog: [a]}", "[a]", "[b]"),
		"EnvoyHttpGrpcV3LogProvider.additionalResponseHeadersToLog":  logs("envoyHttpAls: {service: c.mesh, port: 80, additionalResponseHeadersToLog: [a]}", "[a]", "[b]"),
		"EnvoyHttpGrpcV3LogProvider.additionalResponseTrailersToLog": logs("envoyHttpAls: {service: c.mesh, port: 80, additionalResponseTrailersToLog: [a]}", "[a]", "[b]"),
	}
	for kind, message := range map[string]string{
		"envoyHttpAls": "EnvoyHttpGrpcV3LogProvider.", "envoyTcpAls": "EnvoyTcpGrpcV3LogProvider.", "envoyOtelAls": "EnvoyOpenTelemetryLogProvider.",
	} {
		at := kind + ": {service: c.mesh, port: 80"
		out[message+"port"] = logs(at+"}", "port: 80", "port: 9000")
		out[message+"service"] = logs(at+"}", "c.mesh", "nobody.mesh")
		out[message+"logName"] = logs(at+", logName: a}", "logName: a", "logName: b")
		out[message+"filterStateObjectsToLog"] = logs(at+", filterStateObjectsToLog: [a]}", "[a]", "[b]")
	}
	delete(out, "EnvoyOpenTelemetryLogProvider.filterStateObjectsToLog") // it has none
	return out
}

// metricScenes are those of metrics.
func metricScenes() map[string]scenario {
	const providers = "defaultProviders: {metrics: [prometheus]}\nextensionProviders: [{name: one, prometheus: {}}, {name: two, envoyFileAccessLog: {}}]\n"
	chooses := func(spec, was, is string) scenario {
		return scenario{config: providers, documents: telemetryOf("metrics: [{" + spec + "}]"), was: was, is: is}
	}
	overrides := func(o, was, is string) scenario { return chooses("overrides: [{"+o+"}]", was, is) }
	return map[string]scenario{
		"DefaultProviders.metrics":    {config: providers, was: "metrics: [prometheus]", is: "metrics: []"},
		"Telemetry.metrics":           overrides("disabled: true", "[{overrides: [{disabled: true}]}]", "[]"),
		"Metrics.overrides":           overrides("disabled: true", "[{disabled: true}]", "[]"),
		"Metrics.providers":           chooses("providers: [{name: two}], reportingInterval: 9s", "providers: [{name: two}], ", ""),
		"Metrics.reportingInterval":   chooses("reportingInterval: 9s", "9s", "8s"),
		"MetricsOverrides.disabled":   overrides("match: {metric: REQUEST_COUNT}, disabled: true", "disabled: true", "disabled: false"),
		"MetricSelector.metric":       overrides("match: {metric: REQUEST_COUNT}, disabled: true", "REQUEST_COUNT", "REQUEST_SIZE"),
		"MetricSelector.customMetric": overrides("match: {customMetric: REQUEST_COUNT}, disabled: true", "REQUEST_COUNT", "other"),
		"MetricSelector.mode":         overrides("match: {mode: CLIENT}, disabled: true", "CLIENT", "SERVER"),
		"MetricsOverrides.tagOverrides": overrides("tagOverrides: {a: {value: request.host}, b: {value: request.host}}",
			", b: {value: request.host}", ""),
	}
}
