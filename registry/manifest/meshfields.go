package manifest

import (
	"slices"
	"strings"
	"sync"
)

// fieldVerdict is what this release makes of a field of MeshConfig.
type fieldVerdict uint8

const (
	// fieldNotBuilt: the field would have an effect in Istio and has none here. It is an error.
	fieldNotBuilt fieldVerdict = iota
	// fieldInForce: the field has Istio's effect.
	fieldInForce
	// fieldKept: the field is read, checked and part of the settings, and nothing uses it yet.
	fieldKept
	// fieldNoEffect: the field has no effect here, and loses none: it is about Kubernetes, about
	// something that Fairlead does in another way, or about something that nothing asks for.
	fieldNoEffect
)

// meshField is a row of the table: what this release makes of a field of MeshConfig and, unless
// it is in force, of all below it.
type meshField struct {
	// path is the field, without indices, with the names of its JSON form.
	path string
	// values, where they are not empty, limit the row to these values of the field, separated by
	// commas. All others have the row of the field without values.
	values  string
	verdict fieldVerdict
	// restricts means that leaving the field out could open something: with a value that is
	// invalid or not in force the whole file is kept out.
	restricts bool
	// why is the reason for what is not in force: what there is not, or what is there instead.
	why string
}

// The reasons that several rows have.
const (
	noLogService         = "the extension providers envoyHttpAls and envoyTcpAls name log services; defaultProviders chooses one"
	oneEndpoint          = "a request to the application has one endpoint, so that only attempts, retryOn and backoff count, as in Istio"
	noTracer             = "a stock Envoy has no such tracer; use the provider opentelemetry"
	serverEnvironment    = "the server's environment is not for proxies; write value"
	serviceInSpans       = "the label app, or the name, and the namespace of a workload name it in spans"
	noIngress            = "Ingress is of Kubernetes, and is not read"
	agentMakes           = "the agent runs Envoy: it finds the binary, and makes the bootstrap itself"
	noConnectionSettings = "the limits and timeouts of connections have Istio's defaults"
	noMetadata           = "these are variables of Istio's agent; Fairlead's has flags"
	noImage              = "it is about the containers of a pod; the agent runs the Envoy of its host"
	oneCluster           = "there is one mesh, without clusters"
)

// meshFields is what this release makes of MeshConfig. Each field of the message, and of those
// in it, has exactly one row that is its own or that of a message around it; what is in force is
// listed field by field, so that a new field of a message never counts as in force. A field
// without a row keeps the whole file out.
//
//nolint:gochecknoglobals // a read-only table
var meshFields = []meshField{
	{path: "accessLogEncoding", verdict: fieldInForce},
	{path: "accessLogFile", verdict: fieldInForce},
	{path: "accessLogFormat", verdict: fieldInForce},
	{path: "ca", why: "the server's own authority signs all certificates"},
	{path: "caCertificates", why: "proxies trust the server's own authority only"},
	{path: "certificates", verdict: fieldNoEffect, why: "Istio does not issue certificates for Kubernetes' DNS names any more"},
	{path: "configSources", restricts: true, why: "the server's flags --config-dir and --consul-address name the sources"},
	{path: "connectTimeout", verdict: fieldInForce},
	{path: "defaultConfig.availabilityZone", verdict: fieldNoEffect, why: "WorkloadEntries and the catalog have the localities"},
	{path: "defaultConfig.binaryPath", verdict: fieldNoEffect, why: agentMakes + " (--envoy)"},
	{path: "defaultConfig.caCertificatesPem", why: "proxies trust the server's own authority only"},
	{path: "defaultConfig.concurrency", verdict: fieldInForce},
	{path: "defaultConfig.configPath", verdict: fieldNoEffect, why: agentMakes},
	{path: "defaultConfig.connectionSettings.clusterPerConnectionBufferLimitBytes", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.globalDownstreamConnectionLimit", why: noConnectionSettings + "; the agent's flag --envoy-max-connections limits all connections"},
	{path: "defaultConfig.connectionSettings.http2InitialConnectionWindowSize", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.http2InitialStreamWindowSize", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpDrainTimeout", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpHeadersWithUnderscoresAction", restricts: true, why: "headers with underscores pass"},
	{path: "defaultConfig.connectionSettings.httpIdleTimeout", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpMaxConcurrentStreams", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpMaxConnectionDuration", why: noConnectionSettings + "; the server's flag --max-connection-age limits connections with mTLS"},
	{path: "defaultConfig.connectionSettings.httpMaxStreamDuration", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpMergeSlashes", restricts: true, why: "pathNormalization is the setting for paths"},
	{path: "defaultConfig.connectionSettings.httpPathWithEscapedSlashesAction", restricts: true, why: "pathNormalization is the setting for paths"},
	{path: "defaultConfig.connectionSettings.httpRequestHeadersTimeout", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpRequestTimeout", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.httpStreamIdleTimeout", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.listenerConnectionLimit", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.listenerPerConnectionBufferLimitBytes", why: noConnectionSettings},
	{path: "defaultConfig.connectionSettings.profile", restricts: true, why: "the profile also changes which paths and headers pass"},
	{path: "defaultConfig.controlPlaneAuthPolicy", verdict: fieldNoEffect, why: "agents reach the server by mTLS, always"},
	{path: "defaultConfig.customConfigFile", why: agentMakes},
	{path: "defaultConfig.discoveryAddress", verdict: fieldNoEffect, why: "the agent's flag --server or its join token names the server"},
	{path: "defaultConfig.discoveryRefreshDelay", verdict: fieldNoEffect, why: "the server sends changes without being asked"},
	{path: "defaultConfig.drainDuration", verdict: fieldInForce},
	{path: "defaultConfig.envoyAccessLogService", why: noLogService},
	{path: "defaultConfig.envoyMetricsService", why: "Envoy's metrics are read from its --stats-port, not sent"},
	{path: "defaultConfig.envoyMetricsServiceAddress", why: "Envoy's metrics are read from its --stats-port, not sent"},
	{path: "defaultConfig.extraStatTags", verdict: fieldInForce},
	{path: "defaultConfig.fileFlushInterval", verdict: fieldNoEffect, why: "Envoy writes access logs every 10 s, or when it has 64 KiB"},
	{path: "defaultConfig.fileFlushMinSizeKb", verdict: fieldNoEffect, why: "Envoy writes access logs every 10 s, or when it has 64 KiB"},
	{path: "defaultConfig.gatewayTopology.forwardClientCertDetails", verdict: fieldInForce, restricts: true},
	{path: "defaultConfig.gatewayTopology.numTrustedProxies", verdict: fieldInForce, restricts: true},
	{path: "defaultConfig.gatewayTopology.proxyProtocol", verdict: fieldInForce, restricts: true},
	{path: "defaultConfig.holdApplicationUntilProxyStarts", verdict: fieldNoEffect, why: "it is about the containers of a pod; systemd orders the units of a host"},
	{path: "defaultConfig.image", verdict: fieldNoEffect, why: noImage},
	{path: "defaultConfig.interceptionMode", verdict: fieldNoEffect, why: "the agent's flag --capture says whether packets are captured"},
	{path: "defaultConfig.meshId", verdict: fieldNoEffect, why: oneCluster},
	{path: "defaultConfig.privateKeyProvider", why: "Envoy uses private keys itself"},
	{path: "defaultConfig.proxyAdminPort", verdict: fieldNoEffect, why: "Envoy's admin interface is a unix socket; the agent's flag --admin-address opens a port"},
	{path: "defaultConfig.proxyBootstrapTemplatePath", why: agentMakes},
	{path: "defaultConfig.proxyHeaders.attemptCount.disabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.envoyDebugHeaders.disabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.forwardedClientCert", verdict: fieldInForce, restricts: true},
	{path: "defaultConfig.proxyHeaders.metadataExchangeHeaders", verdict: fieldNoEffect, why: "proxies exchange no metadata in headers"},
	{path: "defaultConfig.proxyHeaders.preserveHttp1HeaderCase", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.requestId.disabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.server.disabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.server.value", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.setCurrentClientCertDetails.cert", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.setCurrentClientCertDetails.chain", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.setCurrentClientCertDetails.dns", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.setCurrentClientCertDetails.subject", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.setCurrentClientCertDetails.uri", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.xForwardedHost.enabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyHeaders.xForwardedPort.enabled", verdict: fieldInForce},
	{path: "defaultConfig.proxyMetadata", verdict: fieldNoEffect, why: noMetadata},
	{path: "defaultConfig.proxyStatsMatcher.inclusionPrefixes", verdict: fieldInForce},
	{path: "defaultConfig.proxyStatsMatcher.inclusionRegexps", verdict: fieldInForce},
	{path: "defaultConfig.proxyStatsMatcher.inclusionSuffixes", verdict: fieldInForce},
	{path: "defaultConfig.readinessProbe", why: "applications differ, and one wrong probe for all would take all of them out of service: write it for each workload or group: by the annotation proxy.istio.io/config, or by the agent's flag --probe-http or --probe-tcp"},
	{path: "defaultConfig.runtimeValues", why: "Envoy's runtime values are those of the agent's bootstrap"},
	{path: "defaultConfig.sds", verdict: fieldNoEffect, why: "Istio does not use it any more"},
	{path: "defaultConfig.serviceCluster", verdict: fieldNoEffect, why: "the workload names the proxy"},
	{path: "defaultConfig.statNameLength", verdict: fieldNoEffect, why: "Envoy's names have no limit any more"},
	{path: "defaultConfig.statsCompression", verdict: fieldNoEffect, why: "Envoy's metrics are not compressed"},
	{path: "defaultConfig.statsdUdpAddress", why: "Envoy's metrics are read from its --stats-port, not sent"},
	{path: "defaultConfig.statusPort", verdict: fieldInForce},
	{path: "defaultConfig.terminationDrainDuration", verdict: fieldInForce},
	{path: "defaultConfig.tracing.customTags", verdict: fieldInForce},
	{path: "defaultConfig.tracing.datadog.address", verdict: fieldInForce},
	{path: "defaultConfig.tracing.enableIstioTags", verdict: fieldInForce},
	{path: "defaultConfig.tracing.lightstep", why: noTracer},
	{path: "defaultConfig.tracing.maxPathTagLength", verdict: fieldInForce},
	{path: "defaultConfig.tracing.openCensusAgent", why: noTracer},
	{path: "defaultConfig.tracing.sampling", verdict: fieldInForce},
	{path: "defaultConfig.tracing.stackdriver", why: noTracer},
	{path: "defaultConfig.tracing.tlsSettings", why: "name the service of the tracer in extensionProviders; the TLS of that service counts"},
	{path: "defaultConfig.tracing.zipkin.address", verdict: fieldInForce},
	{path: "defaultConfig.tracingServiceName", verdict: fieldNoEffect, why: serviceInSpans},
	{path: "defaultConfig.zipkinAddress", why: "write tracing.zipkin.address"},
	{path: "defaultDestinationRuleExportTo", verdict: fieldInForce, restricts: true},
	{path: "defaultHttpRetryPolicy.attempts", verdict: fieldInForce},
	{path: "defaultHttpRetryPolicy.backoff", verdict: fieldInForce},
	{path: "defaultHttpRetryPolicy.perTryTimeout", verdict: fieldInForce},
	{path: "defaultHttpRetryPolicy.retryIgnorePreviousHosts", verdict: fieldInForce},
	{path: "defaultHttpRetryPolicy.retryOn", verdict: fieldInForce},
	{path: "defaultHttpRetryPolicy.retryRemoteLocalities", verdict: fieldInForce},
	{path: "defaultInboundHttpRetryPolicy.attempts", verdict: fieldInForce},
	{path: "defaultInboundHttpRetryPolicy.backoff", verdict: fieldInForce},
	{path: "defaultInboundHttpRetryPolicy.perTryTimeout", verdict: fieldNoEffect, why: oneEndpoint},
	{path: "defaultInboundHttpRetryPolicy.retryIgnorePreviousHosts", verdict: fieldNoEffect, why: oneEndpoint},
	{path: "defaultInboundHttpRetryPolicy.retryOn", verdict: fieldInForce},
	{path: "defaultInboundHttpRetryPolicy.retryRemoteLocalities", verdict: fieldNoEffect, why: oneEndpoint},
	{path: "defaultProviders.accessLogging", verdict: fieldInForce},
	{path: "defaultProviders.metrics", verdict: fieldInForce},
	{path: "defaultProviders.tracing", verdict: fieldInForce},
	{path: "defaultServiceExportTo", verdict: fieldInForce, restricts: true},
	{path: "defaultTrafficPolicy", why: "clusters have Istio's defaults"},
	{path: "defaultVirtualServiceExportTo", verdict: fieldInForce, restricts: true},
	{path: "disableEnvoyListenerLog", verdict: fieldInForce},
	{path: "discoverySelectors", restricts: true, why: "namespaces have no labels, so that all of them are in the mesh"},
	{path: "dnsRefreshRate", verdict: fieldInForce},
	{path: "enableAutoMtls", verdict: fieldInForce, restricts: true},
	{path: "enableEnvoyAccessLogService", why: noLogService},
	{path: "enablePrometheusMerge", verdict: fieldNoEffect, why: "the metrics of Envoy, agent and application are never merged"},
	{path: "enableTracing", verdict: fieldInForce},
	{path: "extensionProviders.datadog.maxTagLength", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.datadog.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.datadog.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.clearRouteCache", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.failOpen", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.includeRequestBodyInCheck.allowPartialMessage", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.includeRequestBodyInCheck.maxRequestBytes", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.includeRequestBodyInCheck.packAsBytes", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.statusOnError", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzGrpc.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.clearRouteCache", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.failOpen", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.headersToDownstreamOnAllow", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.headersToDownstreamOnDeny", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.headersToUpstreamOnAllow", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeAdditionalHeadersInCheck", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeHeadersInCheck", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeRequestBodyInCheck.allowPartialMessage", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeRequestBodyInCheck.maxRequestBytes", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeRequestBodyInCheck.packAsBytes", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.includeRequestHeadersInCheck", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.pathPrefix", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.statusOnError", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyExtAuthzHttp.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyFileAccessLog.logFormat.labels", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyFileAccessLog.logFormat.text", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyFileAccessLog.omitEmptyValues", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyFileAccessLog.path", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.additionalRequestHeadersToLog", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.additionalResponseHeadersToLog", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.additionalResponseTrailersToLog", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.filterStateObjectsToLog", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.logName", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyHttpAls.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyOtelAls.logFormat.labels", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyOtelAls.logFormat.text", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyOtelAls.logName", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyOtelAls.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyOtelAls.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyTcpAls.filterStateObjectsToLog", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyTcpAls.logName", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyTcpAls.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.envoyTcpAls.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.lightstep", verdict: fieldNoEffect, why: noTracer},
	{path: "extensionProviders.name", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opencensus", verdict: fieldNoEffect, why: noTracer},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.clusterId", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.http.headers.envName", verdict: fieldNoEffect, restricts: true, why: serverEnvironment},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.http.headers.name", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.http.headers.value", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.http.path", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.http.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.httpService.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.rootSpansPerMinute", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.dynatraceSampler.tenant", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.grpc.initialMetadata.envName", verdict: fieldNoEffect, restricts: true, why: serverEnvironment},
	{path: "extensionProviders.opentelemetry.grpc.initialMetadata.name", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.grpc.initialMetadata.value", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.grpc.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.http.headers.envName", verdict: fieldNoEffect, restricts: true, why: serverEnvironment},
	{path: "extensionProviders.opentelemetry.http.headers.name", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.http.headers.value", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.http.path", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.http.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.maxTagLength", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.resourceDetectors.dynatrace", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.resourceDetectors.environment", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.opentelemetry.serviceAttributeEnrichment", verdict: fieldNoEffect, restricts: true, why: serviceInSpans},
	{path: "extensionProviders.prometheus", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.sds", verdict: fieldNoEffect, why: "a gateway's agent has the credentials, in files of its host"},
	{path: "extensionProviders.skywalking.accessToken", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.skywalking.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.skywalking.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.stackdriver", verdict: fieldNoEffect, why: noTracer},
	{path: "extensionProviders.zipkin.enable64bitTraceId", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.headers.envName", verdict: fieldNoEffect, restricts: true, why: serverEnvironment},
	{path: "extensionProviders.zipkin.headers.name", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.headers.value", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.maxTagLength", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.path", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.port", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.service", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.timeout", verdict: fieldInForce, restricts: true},
	{path: "extensionProviders.zipkin.traceContextOption", verdict: fieldInForce, restricts: true},
	{path: "h2UpgradePolicy", verdict: fieldInForce},
	{path: "hboneIdleTimeout", verdict: fieldNoEffect, why: "there is no ztunnel"},
	{path: "inboundClusterStatName", why: "clusters have Envoy's names in its metrics"},
	{path: "inboundTrafficPolicy.mode", restricts: true, why: "requests go to the address that they were for"},
	{path: "inboundTrafficPolicy.mode", values: "PASSTHROUGH", verdict: fieldInForce, restricts: true},
	{path: "ingressClass", verdict: fieldNoEffect, why: noIngress},
	{path: "ingressControllerMode", verdict: fieldNoEffect, why: noIngress},
	{path: "ingressSelector", verdict: fieldNoEffect, why: noIngress},
	{path: "ingressService", verdict: fieldNoEffect, why: noIngress},
	{path: "localityLbSetting.distribute.from", verdict: fieldInForce, restricts: true},
	{path: "localityLbSetting.distribute.to", verdict: fieldInForce, restricts: true},
	{path: "localityLbSetting.enabled", verdict: fieldInForce},
	{path: "localityLbSetting.failover.from", verdict: fieldInForce, restricts: true},
	{path: "localityLbSetting.failover.to", verdict: fieldInForce, restricts: true},
	{path: "localityLbSetting.failoverPriority", verdict: fieldInForce},
	{path: "meshMTLS.cipherSuites", verdict: fieldInForce, restricts: true},
	{path: "meshMTLS.ecdhCurves", restricts: true, why: "Envoy chooses the curves of mTLS, as in Istio"},
	{path: "meshMTLS.minProtocolVersion", verdict: fieldInForce, restricts: true},
	{path: "outboundClusterStatName", why: "clusters have Envoy's names in its metrics"},
	{path: "outboundTrafficPolicy.mode", restricts: true, why: "only REGISTRY_ONLY and ALLOW_ANY are implemented"},
	{path: "outboundTrafficPolicy.mode", values: "REGISTRY_ONLY,ALLOW_ANY", verdict: fieldInForce, restricts: true},
	{path: "outboundTrafficPolicy.tls", restricts: true, why: "it belongs to the mode ALLOW_ANY_DYNAMIC_DNS"},
	{path: "pathNormalization.normalization", verdict: fieldInForce, restricts: true},
	{path: "protocolDetectionTimeout", verdict: fieldInForce},
	{path: "proxyHttpPort", verdict: fieldInForce},
	{path: "proxyInboundListenPort", verdict: fieldInForce},
	{path: "proxyListenPort", verdict: fieldInForce},
	{path: "rootNamespace", verdict: fieldInForce, restricts: true},
	{path: "serviceEntryVisibility", restricts: true, why: "exportTo says who sees a service"},
	{path: "serviceScopeConfigs", verdict: fieldNoEffect, why: oneCluster},
	{path: "serviceSettings", verdict: fieldNoEffect, why: oneCluster},
	{path: "tcpKeepalive.interval", verdict: fieldInForce},
	{path: "tcpKeepalive.probes", verdict: fieldInForce},
	{path: "tcpKeepalive.time", verdict: fieldInForce},
	{path: "tlsDefaults.cipherSuites", verdict: fieldInForce, restricts: true},
	{path: "tlsDefaults.ecdhCurves", verdict: fieldInForce, restricts: true},
	{path: "tlsDefaults.minProtocolVersion", verdict: fieldInForce, restricts: true},
	{path: "trustDomain", verdict: fieldInForce, restricts: true},
	{path: "trustDomainAliases", verdict: fieldInForce, restricts: true},
	{path: "verifyCertificateAtClient", verdict: fieldNoEffect, why: "the certificates of servers are verified, always"},
	{path: "zoneAwareLbSetting", why: "an Envoy would have to know the endpoints of its own service; localityLbSetting balances by locality"},
}

// meshRows are the rows of each path, those with values first.
//
//nolint:gochecknoglobals // a read-only table, made once
var meshRows = sync.OnceValue(func() map[string][]*meshField {
	out := make(map[string][]*meshField, len(meshFields))
	for i := range meshFields {
		f := &meshFields[i]
		if f.values == "" {
			out[f.path] = append(out[f.path], f)
		} else {
			out[f.path] = append([]*meshField{f}, out[f.path]...)
		}
	}
	return out
})

// row returns the row for a value of a field that has rows of its own, or nil.
func meshRow(path string, is func(value string) bool) *meshField {
	for _, f := range meshRows()[path] {
		if f.values == "" || slices.ContainsFunc(strings.Split(f.values, ","), is) {
			return f
		}
	}
	return nil
}

// meshRestricts reports whether leaving out what is wrong at a path could open something. What
// is wrong may be a name that nobody knows: then it may stand for any field of its message.
func meshRestricts(path string) bool {
	for ; ; path = above(path) {
		if rows := meshRows()[path]; len(rows) > 0 {
			return rows[0].restricts
		}
		known := path == ""
		for _, f := range meshFields {
			if path != "" && !strings.HasPrefix(f.path, path+".") {
				continue
			}
			known = true
			if f.restricts {
				return true
			}
		}
		if known {
			return false
		}
	}
}

// meshHasForce reports whether the field of a path, or something in it, can be in force.
func meshHasForce(path string) bool {
	return slices.ContainsFunc(meshFields, func(f meshField) bool { return f.verdict == fieldInForce && within(f.path, path) })
}

// meshHasAny reports whether the field of a path, or something in it, is a part of the settings.
func meshHasAny(path string) bool {
	return slices.ContainsFunc(meshFields, func(f meshField) bool {
		return (f.verdict == fieldInForce || f.verdict == fieldKept) && within(f.path, path)
	})
}

// above is the path of the message that a field is in; empty for MeshConfig.
func above(path string) string {
	at := strings.LastIndexByte(path, '.')
	return path[:max(at, 0)]
}

// meshFieldsInForce are the rules of what is in force, in the notation of [inForce].
func meshFieldsInForce() []string {
	var out []string
	for _, f := range meshFields {
		switch {
		case f.verdict != fieldInForce:
		case f.values != "":
			out = append(out, f.path+"="+f.values)
		default:
			out = append(out, f.path)
		}
	}
	return out
}
