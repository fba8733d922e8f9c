// Package layout is the plan of the house as data: every package, what it is
// for, and which packages of this project it may import. Its test reads the
// sources and fails where they differ, so that the plan cannot grow old.
package layout

// Module is the module's path.
const Module = "github.com/fairlead/fairlead"

// Room is one package, by its directory below the module's root.
type Room struct {
	// For says in a few words what the package owns.
	For string
	// MayImport are the directories of the packages it may import. A trailing
	// "/..." means the package and everything below it, "*" any package.
	// Imports of test files are not judged.
	MayImport []string
}

// Rooms is every package of the project. Data flows one way: registry, xds and
// pki never import one another's conductors; they meet in
// cmd/fairlead/internal/server. Children never import their conductor.
func Rooms() map[string]Room {
	return map[string]Room{
		"cmd/fairlead":                      {"flags, signals, exit codes; one file a subcommand", []string{"*"}},
		"cmd/fairlead/internal/server":      {"composition of the control plane: Config, New, Run", []string{"registry/...", "xds/...", "pki/...", "internal/loglevel", "internal/peeraddr", "internal/safetext", "internal/wallclock", "cmd/fairlead/internal/accept", "cmd/fairlead/internal/admin", "cmd/fairlead/internal/proxyconfig", "cmd/fairlead/internal/tracing"}},
		"cmd/fairlead/internal/tracing":     {"a trace of each change, by OTLP", []string{"internal/loglimit", "registry", "registry/files", "xds"}},
		"cmd/fairlead/internal/accept":      {"connections of hosts: TLS handshake, who is authenticated, limits for who is not", []string{"internal/loglimit", "internal/peeraddr"}},
		"cmd/fairlead/internal/admin":       {"HTTP and admin.sock of both processes", []string{"internal/portholder", "agent/peercred", "agent/proxy", "internal/loglevel", "internal/loglimit", "internal/unixsocket"}},
		"cmd/fairlead/internal/proxyconfig": {"the configuration of a proxy, for people: tables, JSON, YAML", []string{"internal/envoymask", "internal/safetext", "internal/wallclock"}},
		"cmd/fairlead/internal/authzcheck":  {"whether a proxy lets a request through, and by which rule, from its configuration", []string{"xds/authn", "xds/authz", "xds/authz/judge"}},

		"registry":                   {"owns the sources' fragments: guard, debounce, merge; publishes snapshots", []string{"internal/fairlist", "registry/addresses", "registry/mesh"}},
		"registry/gatewaynames":      {"addresses of names of gateways in MeshNetworks: looked up, kept on disk", []string{"internal/localaddr", "registry/mesh", "pki/durable"}},
		"registry/addresses":         {"virtual addresses for hosts that have none of their own", []string{"registry/mesh"}},
		"registry/sourcetest":        {"the contract of all sources, as a test", []string{"registry", "registry/mesh"}},
		"registry/mesh":              {"the vocabulary: Snapshot, Service, Workload, identities, Origin", []string{"registry/metakeys"}},
		"registry/metakeys":          {"names of the annotations, labels and keys of registrations that have a meaning", nil},
		"registry/manifest":          {"YAML documents: positions, per-object validation and defaults", []string{"internal/localaddr", "registry/codes", "registry/mesh", "registry/metakeys", "registry/manifest/schema", "registry/manifest/tree", "registry/manifest/webhook", "pki/jwks", "internal/safetext"}},
		"registry/manifest/schema":   {"what the CRDs of Istio say of a document's shape", []string{"registry/manifest/tree"}},
		"registry/manifest/tree":     {"YAML as Istio reads it, with positions", nil},
		"registry/manifest/webhook":  {"the rules of Istio's validating webhook", []string{"internal/localaddr", "registry/mesh", "registry/metakeys"}},
		"registry/codes":             {"the register of all codes of faults and findings", nil},
		"registry/persist":           {"what sources have on disk: written behind them, and not while it is held back", []string{"registry/mesh"}},
		"registry/lastgood":          {"texts with objects in them: what is in force of each, last good versions, also on disk", []string{"registry/codes", "pki/durable", "registry/persist", "registry/manifest", "registry/mesh"}},
		"registry/files":             {"source: YAML directories", []string{"registry/codes", "registry/lastgood", "registry/manifest", "registry/mesh"}},
		"registry/tenantrules":       {"table: what each field of a tenant's object may name; tests and documentation iterate it", []string{"registry/metakeys"}},
		"registry/agents":            {"source: what agents report of health", []string{"internal/refusals", "registry/mesh"}},
		"registry/consul":            {"source: the catalog of one datacenter of Consul", []string{"registry/consul/client", "registry/consul/mapping", "registry/persist", "registry/mesh", "pki/durable"}},
		"registry/consul/client":     {"how Consul is reached: connections, tokens, the rules of blocking queries", []string{"pki/durable"}},
		"registry/consul/kv":         {"source: manifests in Consul's key-value store; reading and writing them for people", []string{"registry/codes", "registry/consul/client", "registry/lastgood", "registry/manifest", "registry/mesh"}},
		"registry/consul/intentions": {"Consul's intentions as AuthorizationPolicies", []string{"registry/consul/client", "registry/consul/mapping", "registry/mesh"}},
		"registry/consul/mapping":    {"what Consul says of a service, as objects of the mesh", []string{"internal/localaddr", "registry/codes", "registry/mesh", "registry/metakeys", "internal/safetext"}},
		"registry/analysis":          {"whole-mesh checks with stable codes", []string{"internal/nearname", "registry/addresses", "registry/codes", "registry/manifest", "registry/mesh"}},

		"xds":             {"serves streams: connections, admission, pushes, status", []string{"internal/fairlist", "internal/loglimit", "internal/peeraddr", "internal/refusals", "registry/mesh", "xds/view", "xds/cache", "xds/vhds", "xds/stream", "xds/bootstrap", "xds/proxyconfig", "xds/wire", "internal/safetext"}},
		"xds/authn":       {"rules of RequestAuthentications as Envoy's filter for tokens", nil},
		"xds/cache":       {"makes the configuration of proxies: views, encoded parts, layers and resources, each once", []string{"internal/weakmap", "registry/mesh", "xds/view", "xds/envoy", "xds/vhds", "xds/stream"}},
		"xds/view":        {"what one proxy may see", []string{"internal/nearname", "internal/weakmap", "registry/addresses", "registry/mesh", "registry/metakeys"}},
		"xds/envoy":       {"Envoy's resources from the parts of a view", []string{"xds/authn", "xds/authz", "xds/bootstrap", "xds/vhds", "xds/view", "registry/mesh"}},
		"xds/authz":       {"AuthorizationPolicies as Envoy's RBAC", nil},
		"xds/authz/judge": {"whether RBAC allows a described request, and by which rule", nil},
		"xds/ecds":        {"extensions as resources of their own (ECDS): which ones a listener names", nil},
		"xds/vhds":        {"virtual hosts as resources of their own (VHDS): when, and how they are merged into one route configuration", nil},
		"xds/wire":        {"encoded messages over gRPC: codec and transport options", nil},
		"xds/bootstrap":   {"Envoy's bootstrap; node metadata in both directions", []string{"registry/metakeys"}},
		"xds/proxyconfig": {"how the proxy of one workload is to run: Istio's effective ProxyConfig", []string{"registry/mesh", "xds/bootstrap"}},
		"xds/stream":      {"the protocol core of delta xDS, both halves; knows no mesh", []string{"internal/safetext", "internal/weakmap"}},

		"pki":                     {"the authority: slots, signing, bundle, store", []string{"pki/profile", "pki/durable", "internal/wallclock"}},
		"pki/attest":              {"what hosts are entitled to", []string{"internal/wallclock", "pki/attest/jointoken", "pki/durable", "pki/profile", "pki/svid"}},
		"pki/attest/jointoken":    {"join tokens and their store", []string{"pki/durable", "pki/profile", "pki/svid"}},
		"pki/durable":             {"files that survive kill -9: atomic, fsynced, locked", nil},
		"pki/durable/durabletest": {"a file system that dies at a chosen step, for tests", []string{"pki/durable"}},
		"pki/issue":               {"IstioCertificateService: authenticate, entitlement, profile, sign, audit", []string{"internal/loglimit", "internal/peeraddr", "internal/refusals", "pki/attest", "pki/issue/serials", "pki/profile", "pki/svid", "internal/safetext", "internal/wallclock"}},
		"pki/issue/serials":       {"which certificates of a host are in use; a key that two hold", []string{"internal/peeraddr", "pki/durable", "pki/profile"}},
		"pki/jwks":                {"issuers' key sets for end users' tokens: fetched, checked, kept on disk", []string{"internal/localaddr", "internal/loglimit", "internal/safetext", "internal/wallclock", "pki/durable"}},
		"pki/profile":             {"what an X509-SVID says and what is accepted", nil},
		"pki/timecheck":           {"the server's clock against hosts' clocks, the kernel's and the saved time", []string{"pki/durable", "internal/peeraddr", "internal/wallclock"}},
		"pki/svid":                {"the workload side: key, CSR, renewal", []string{"pki/durable", "pki/profile", "internal/wallclock"}},

		"agent":                {"what runs beside an application", []string{"agent/capture/beat", "agent/collectors", "agent/credential", "agent/dns", "agent/peercred", "agent/logrotate", "agent/metrics", "agent/proxy", "agent/relay", "agent/workload", "agent/health", "pki/durable", "pki/svid", "xds/bootstrap", "xds/stream", "internal/envoymask", "internal/ownaddress", "internal/wallclock"}},
		"agent/dns":            {"answers DNS queries: names of the mesh, and all others by asking the nameservers of the host", []string{"xds/bootstrap", "xds/stream"}},
		"agent/collectors":     {"what collectors of spans and logs do not take", nil},
		"agent/proxy":          {"Envoy as a process: start, adopt, drain, quit, kill", []string{"agent/peercred", "internal/portholder", "pki/durable"}},
		"agent/relay":          {"xDS between the servers and Envoy; the last-known-good store", []string{"agent/peercred", "pki/durable", "xds/stream", "xds/ecds", "xds/vhds", "xds/bootstrap", "xds/wire", "internal/safetext", "internal/wallclock"}},
		"agent/workload":       {"Envoy's SDS on a unix socket", []string{"agent/credential", "agent/peercred", "pki/svid", "internal/safetext", "internal/wallclock"}},
		"agent/credential":     {"reads and checks the folders of keys that Gateways and DestinationRules name", nil},
		"agent/peercred":       {"unix sockets that ask the kernel who calls, and callers for a token", []string{"internal/loglimit", "internal/unixsocket"}},
		"agent/metrics":        {"Istio's metrics of requests and connections; the page that merges all metrics of a host", []string{"agent/peercred", "internal/loglimit", "pki/durable"}},
		"agent/capture":        {"the table of nf_tables that brings connections to Envoy", []string{"pki/durable"}},
		"agent/capture/beat":   {"the socket on which agents report to the capture service", []string{"agent/peercred", "internal/loglimit"}},
		"agent/capture/keeper": {"the capture service: keeps the table, and its routes", []string{"agent/capture", "agent/capture/beat", "internal/loglimit", "pki/durable"}},
		"agent/logrotate":      {"bounds what Envoy writes to log files", nil},
		"agent/check":          {"what is wrong on a host, and what to do", []string{"agent/peercred", "agent/proxy", "internal/ownaddress", "pki/svid"}},
		"agent/health":         {"probes of the application", nil},

		"bench":                         {"the figures people meet, each beside its budget", nil},
		"bench/fleet":                   {"the cost of a change: a mesh, a server, thousands of streams; a module of its own", []string{"bench/fleet/internal/catalog", "bench/fleet/internal/limit", "bench/fleet/internal/meshgen", "bench/fleet/internal/report", "bench/fleet/internal/scenario"}},
		"bench/fleet/internal/limit":    {"the least that a gRPC server can do for a fleet", nil},
		"bench/fleet/internal/report":   {"figures as tables, charts and a baseline", nil},
		"bench/peers":                   {"go-control-plane's caches as a server, a module of its own", nil},
		"bench/fleet/internal/wire":     {"a gRPC client light enough for thousands of streams", nil},
		"bench/fleet/internal/envoys":   {"what an Envoy does on its delta ADS stream, many times", []string{"bench/fleet/internal/wire"}},
		"bench/fleet/internal/meshgen":  {"generates the meshes of the measurements, and their changes", nil},
		"bench/fleet/internal/catalog":  {"a Consul full of services, and what is asked of it", nil},
		"bench/fleet/internal/scenario": {"runs servers and fleets as processes, and measures them", []string{"bench/fleet/internal/catalog", "bench/fleet/internal/envoys", "bench/fleet/internal/meshgen", "pki/svid"}},
		"docs":                          {"the tests of the documentation", nil},
		"examples/authorization":        {"the tests of the example", nil},
		"examples/edge-gateway":         {"the test of the example", nil},
		"examples/gateways":             {"the test of the examples", nil},
		"examples/authorization/authz":  {"the small authorization server of the example", []string{"internal/portholder"}},
		"examples/observability":        {"the tests of the example", nil},
		"examples/quickstart":           {"the tests of the example", nil},
		"examples/consul-fleet":         {"the tests of the example", nil},
		"examples/quickstart/app":       {"the small service of the examples and tests", []string{"internal/portholder"}},
		"systemd":                       {"units, sysusers, tmpfiles", nil},

		"internal/envoymask":     {"masks secrets in JSON of Envoy's configuration", nil},
		"internal/envoytest":     {"real Envoys in tests; what their configuration must not say", nil},
		"internal/otelcoltest":   {"real OpenTelemetry Collectors in tests, and what they received", []string{"internal/envoytest"}},
		"tools/otelcol":          {"an OpenTelemetry Collector for tests; a module of its own", nil},
		"internal/consultest":    {"real Consuls in tests: servers, clusters, what befalls them", []string{"internal/envoytest"}},
		"internal/issuertest":    {"issuers of end users' tokens in tests", nil},
		"internal/meshtest":      {"whole meshes in tests: real binary, real Envoys", []string{"internal/envoytest"}},
		"internal/layout":        {"this plan", nil},
		"internal/meshgen":       {"random meshes and changes of them, for tests", []string{"internal/race", "registry/manifest", "registry/manifest/schema", "registry/mesh"}},
		"internal/smallmesh":     {"small meshes by hand, for tests", []string{"registry/mesh"}},
		"internal/parallel":      {"more tests at a time than cores, where tests wait", []string{"internal/race"}},
		"internal/mutants":       {"tells which steps and fields of keys no test would miss", nil},
		"internal/compat":        {"tests of the runners of recorded answers in tools", nil},
		"internal/soak":          {"runs the tests that a change touches many times, beside a load", nil},
		"internal/wallclock":     {"the wall clock, without a monotonic reading; tests shift it by a build tag", nil},
		"internal/nearname":      {"which name somebody meant who wrote another one", nil},
		"internal/refusals":      {"what was refused lately, for people to see", []string{"internal/fairlist"}},
		"internal/fairlist":      {"lists of limited length in which nobody takes the places of others", nil},
		"internal/race":          {"whether tests run under the race detector", nil},
		"internal/weakmap":       {"values found by key for as long as somebody holds them", nil},
		"internal/loglevel":      {"log levels by component, changed at run time", nil},
		"internal/loglimit":      {"limits log lines that peers cause", nil},
		"internal/logpipe":       {"writes the log to a pipe without waiting for who reads it", nil},
		"internal/unixsocket":    {"listens on unix sockets; makes them again when somebody removes them", []string{"internal/loglimit"}},
		"internal/hosttest":      {"whole meshes in tests whose hosts are network namespaces", []string{"internal/envoytest", "internal/meshtest", "internal/nethost"}},
		"internal/nethost":       {"hosts in tests: network namespaces with links, users and servers", []string{"internal/envoytest"}},
		"internal/portholder":    {"names the process that listens at an address", []string{"internal/safetext"}},
		"internal/ownaddress":    {"the address by which other hosts reach this one", nil},
		"internal/localaddr":     {"addresses and names that lead each host to itself, or to a cloud's metadata server", nil},
		"internal/peeraddr":      {"what counts as one address where peers are counted by it", nil},
		"internal/safetext":      {"text from peers, made safe for a log and a terminal", nil},
		"internal/istiod":        {"tests: our configuration beside that of real istiod, each difference with its reason", nil},
		"internal/istiod/record": {"writes down what real istiod makes of the golden meshes; a module of its own", nil},
		"internal/e2e/traffic":   {"tests: protocols, mTLS modes, identities, rotation", nil},
		"internal/e2e/upgrade":   {"tests: what the release before left on disk goes on", nil},
		"internal/e2e/consul":    {"tests: a mesh over a Consul catalog holds, whatever befalls Consul", nil},
		"internal/e2e/clocks":    {"tests: clocks of server and hosts are set, and traffic goes on", nil},
		"internal/e2e/capture":   {"tests: connections of unmodified programs go where they are declared to go, whatever dies", nil},
		"internal/e2e/pages":     {"tests: the pages of the documentation, followed by copy and paste", nil},
		"internal/e2e/programs":  {"tests: unmodified programs call one another by name, by mTLS, whatever befalls their hosts", nil},
		"internal/e2e/network":   {"tests: a mesh holds when its network fails", nil},
		"internal/e2e/sites":     {"tests: two sites that meet at their gateways are one mesh, whatever fails in one of them", nil},
		"internal/e2e/faults":    {"tests: a mesh holds, whatever dies and however files change", nil},

		"internal/e2e/observability": {"tests: a real Prometheus has what rules and dashboards read", nil},
	}
}
