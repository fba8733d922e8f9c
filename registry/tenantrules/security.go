package tenantrules

// securityRows are fields of policies, of telemetry and of settings of proxies.
func securityRows() []Row {
	return []Row{
		{
			Fields: []string{"PolicyTargetReference.group", "PolicyTargetReference.kind", "PolicyTargetReference.name", "PolicyTargetReference.namespace"}, Class: "object", Rule: NoEffect,
			Why: "It attaches policies to gateways of Kubernetes.",
			Try: authorization + `{action: DENY, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: shared}], rules: [{}]}`,
		},
		{
			Fields: []string{"PeerAuthentication.portLevelMtls"}, Class: "port", Rule: Own,
			Why: "A policy is for workloads of its own namespace.",
			Try: peer + `{selector: {matchLabels: {app: orders}}, mtls: {mode: STRICT}, portLevelMtls: {80: {mode: DISABLE}}}`,
		},
		{
			Fields: []string{
				"Source.principals", "Source.notPrincipals", "Source.namespaces", "Source.notNamespaces", "Source.serviceAccounts", "Source.notServiceAccounts", "Source.trustDomains", "Source.notTrustDomains",
				"Source.requestPrincipals", "Source.notRequestPrincipals", "Source.ipBlocks", "Source.notIpBlocks", "Source.remoteIpBlocks", "Source.notRemoteIpBlocks",
				"Operation.hosts", "Operation.notHosts", "Operation.ports", "Operation.notPorts", "Condition.key", "Condition.values", "Condition.notValues",
			},
			Class: "identity, address, host, port", Rule: Own,
			Why: "A policy is for workloads of its own namespace, and who it names gets no rights elsewhere.",
			Try: authorization + `{action: DENY, selector: {matchLabels: {app: orders}}, rules: [{from: [{source: {principals: ["cluster.local/ns/third/sa/default"]}}]}]}`,
		},
		{
			Fields: []string{"AuthorizationPolicy.ExtensionProvider.name", "ProviderRef.name"}, Class: "provider", Rule: Own,
			Why: "A provider of MeshConfig is asked by workloads of the object's namespace alone.",
			Try: authorization + `{action: CUSTOM, provider: {name: checker}, selector: {matchLabels: {app: orders}}, rules: [{}]}`,
		},
		{
			Fields: []string{"JWTRule.issuer", "JWTRule.jwks", "JWTRule.audiences", "JWTRule.fromCookies", "JWTRule.fromParams", "JWTHeader.name", "JWTHeader.prefix"}, Class: "identity", Rule: Own,
			Why: "A policy is for workloads of its own namespace.",
			Try: request + `{selector: {matchLabels: {app: orders}}, jwtRules: [{issuer: evil, jwks: '{"keys":[]}'}]}`,
		},
		{
			Fields: []string{"JWTRule.jwksUri"}, Class: "URL", Rule: Setting,
			Why:  "The server fetches it, never from loopback and link-local addresses, and for a bound source not from private ones.",
			Test: "registry/mesh TestBoundSourcesHaveNoKeysOfPrivateAddresses",
		},
		{
			Fields: []string{"AccessLogging.Filter.expression", "MetricsOverrides.TagOverride.value", "Tracing.Formatter.value"}, Class: "expression", Rule: Own,
			Why: "Telemetry is for workloads of its own namespace.",
			Try: telemetry + `{selector: {matchLabels: {app: orders}}, accessLogging: [{providers: [{name: files}], filter: {expression: "response.code >= 400"}}]}`,
		},
		{
			Fields: []string{"Tracing.Environment.name"}, Class: "secret", Rule: Own,
			Why: "It is a variable of Envoys of the object's namespace.",
			Try: telemetry + `{selector: {matchLabels: {app: orders}}, tracing: [{providers: [{name: traces}], customTags: {home: {environment: {name: HOME}}}}]}`,
		},
		{
			Fields: []string{"ProxyConfig.environmentVariables", "ProxyImage.imageType"}, Class: "secret", Rule: NoEffect,
			Why: "The agent has flags instead.",
			Try: proxyConfig + `{selector: {matchLabels: {app: orders}}, environmentVariables: {PATH: /evil}}`,
		},
	}
}

// unenforcedRows are fields of kinds that are not in force.
func unenforcedRows() []Row {
	const why = "The kind is not in force."
	return []Row{
		{
			Fields: []string{"EnvoyFilter.*"}, Class: "all", Rule: Refused, Why: why,
			Try: envoyFilter + `{configPatches: [{applyTo: CLUSTER, match: {cluster: {service: orders.shop.internal}}, patch: {operation: REMOVE}}]}`,
		},
		{
			Fields: []string{"WasmPlugin.*", "WasmConfig.*", "EnvVar.*", "LuaConfig.*"}, Class: "URL, secret, code", Rule: Refused, Why: why,
			Try: wasmPlugin + `{url: "https://evil.example/x.wasm", imagePullSecret: shop}`,
		},
	}
}
