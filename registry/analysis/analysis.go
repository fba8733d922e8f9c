package analysis

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Code names a sort of finding. Codes are stable and never used again for
// something else.
type Code string

// The codes of this package.
const (
	// CodeUnknownHost: a route leads to a host that nothing defines.
	CodeUnknownHost Code = codes.UnknownHost
	// CodeUnknownSubset: a route leads to a subset that no DestinationRule defines.
	CodeUnknownSubset Code = codes.UnknownSubset
	// CodeUnknownPort: a route leads to a port that the service does not have.
	CodeUnknownPort Code = codes.UnknownPort
	// CodeRouteWithoutService: the host of a VirtualService is no service.
	CodeRouteWithoutService Code = codes.RouteWithoutService
	// CodeRuleWithoutService: the host of a DestinationRule is no service.
	CodeRuleWithoutService Code = codes.RuleWithoutService
	// CodeEmptySubset: a subset has no endpoints.
	CodeEmptySubset Code = codes.EmptySubset
	// CodeSelectsNothing: a selector selects no workload.
	CodeSelectsNothing Code = codes.SelectsNothing
	// CodeNoEndpoints: a service has no endpoints.
	CodeNoEndpoints Code = codes.NoEndpoints
	// CodeWorkloadUnused: no service selects a workload.
	CodeWorkloadUnused Code = codes.WorkloadUnused
	// CodeHostTwice: two VirtualServices route the same host.
	CodeHostTwice Code = codes.HostTwice
	// CodeRuleTwice: two DestinationRules are for the same host.
	CodeRuleTwice Code = codes.RuleTwice
	// CodeEgressNothing: a host in a Sidecar's egress is no service.
	CodeEgressNothing Code = codes.EgressNothing
	// CodeAnyIdentity: a service says not whose certificate its endpoints have.
	CodeAnyIdentity Code = codes.AnyIdentity
	// CodePortName: a port's name promises another protocol than it has.
	CodePortName Code = codes.PortName
	// CodePortNotServed: a PeerAuthentication names a port that no workload serves.
	CodePortNotServed Code = codes.PortNotServed
	// CodeDefaultTwice: a namespace has two objects of a kind it can have one of.
	CodeDefaultTwice Code = codes.DefaultTwice
	// CodeWeights: weights do not sum to 100.
	CodeWeights Code = codes.Weights
	// CodeKeyTwice: two objects have the same kind, namespace and name.
	CodeKeyTwice Code = codes.KeyTwice
	// CodeUnknownGateway: a VirtualService is bound to a Gateway that does not exist.
	CodeUnknownGateway Code = codes.UnknownGateway
	// CodeUnknownDelegate: a route includes a VirtualService that cannot be included.
	CodeUnknownDelegate Code = codes.UnknownDelegate
	// CodeCatalogHost: a ServiceEntry has the host of a catalog's service.
	CodeCatalogHost Code = codes.CatalogHost
	// CodeCatalogsDiffer: two datacenters disagree on a service.
	CodeCatalogsDiffer Code = codes.CatalogsDiffer
	// CodeForeignHost: a source that is bound to namespaces names another's host.
	CodeForeignHost Code = codes.ForeignHost
	// CodeForeignRoute: a source that is bound to namespaces has gateways of others call a third namespace.
	CodeForeignRoute Code = codes.ForeignRoute
	// CodeHashTables: the tables of consistentHash of a source that is bound to namespaces are too large.
	CodeHashTables = Code(manifest.CodeHashTables)
	// CodeForeignCredential: a source that is bound to namespaces has gateways of others present a
	// credential that is not given to it.
	CodeForeignCredential Code = codes.ForeignCredential
	// CodeIngressBind: an ingress listener of a Sidecar does not say where it listens.
	CodeIngressBind Code = codes.IngressBind
	// CodeDenies: a security policy that is not in force makes workloads deny all requests.
	CodeDenies Code = codes.Denies
	// CodeUnknownIdentity: an AuthorizationPolicy names who no workload of the mesh is.
	CodeUnknownIdentity Code = codes.UnknownIdentity
	// CodePathSlash: a path in an AuthorizationPolicy begins with no slash.
	CodePathSlash Code = codes.PathSlash
	// CodePathNever: a path in an AuthorizationPolicy matches no path that Envoy has normalized.
	CodePathNever Code = codes.PathNever
	// CodeNeverOnTCP: an ALLOW rule speaks of HTTP, and is for ports of TCP.
	CodeNeverOnTCP Code = codes.NeverOnTCP
	// CodeNoClaims: a rule speaks of tokens, which no RequestAuthentication checks.
	CodeNoClaims Code = codes.NoClaims
	// CodeShadowed: a DENY policy denies all that a rule allows.
	CodeShadowed Code = codes.Shadowed
	// CodeLongLived: a policy is for ports of TCP, where connections end when rules change.
	CodeLongLived Code = codes.LongLived
	// CodeNoProvider: a CUSTOM policy names an extension provider that cannot be asked.
	CodeNoProvider Code = codes.NoProvider
	// CodeNoReportProvider: metrics, access logs or traces are for a provider that does not exist.
	CodeNoReportProvider Code = codes.NoReportProvider
	// CodeReportKind: a provider is of a kind that cannot do what is asked of it.
	CodeReportKind Code = codes.ReportKind
	// CodeReportService: the service of a provider cannot be reached.
	CodeReportService Code = codes.ReportService
	// CodeAddressTaken: the address that stands for a host also stands for another one.
	CodeAddressTaken Code = codes.AddressTaken
	// CodeTakesStrangers: a port has no address by which it could be told from others.
	CodeTakesStrangers Code = codes.TakesStrangers
	// CodeServerLeftOut: a server of a Gateway is left out because of another one.
	CodeServerLeftOut Code = codes.ServerLeftOut
	// CodeGatewayHosts: a VirtualService has no host in common with a Gateway that it names.
	CodeGatewayHosts Code = codes.GatewayHosts
	// CodeCredentialUnused: a DestinationRule names a credential that sidecars do not use.
	CodeCredentialUnused Code = codes.CredentialUnused
)

// Severity says how sure it is that something is wrong.
type Severity string

// The severities.
const (
	// Error: it cannot work as written.
	Error Severity = "error"
	// Warning: it is probably not meant.
	Warning Severity = "warning"
	// Info: nothing is wrong; it is good to know.
	Info Severity = "info"
)

// Diagnostic is one finding.
type Diagnostic struct {
	Code     Code
	Severity Severity
	// Message says what is wrong and what to write instead.
	Message string
	// Origin is where Field is written, or where the object is in a catalog; never
	// nil.
	Origin *mesh.Origin
	// Key names the object.
	Key mesh.Key
	// Field is the path of what is to be changed, or of the nearest thing to it.
	Field string
}

// String is "path:line:column: severity [code] Kind namespace/name field: message".
func (d Diagnostic) String() string {
	at := d.Key.String()
	if d.Field != "" {
		at += " " + d.Field
	}
	return fmt.Sprintf("%s: %s [%s] %s: %s", d.Origin, d.Severity, d.Code, at, d.Message)
}

// Input is a mesh as it was read.
type Input struct {
	// Objects are all objects of all files, in the order of their paths. Those that
	// are not valid count only for their keys.
	Objects []*manifest.Object
	// MeshConfig is the mesh's settings; nil means the defaults.
	MeshConfig *mesh.MeshConfig
	// Domain is the suffix of short host names; empty means "cluster.local".
	Domain string
	// Catalogs are what catalogs have, in the order in which they count; nothing of
	// it is judged but what stands between it and the objects.
	Catalogs []*mesh.Fragment
	// Foreign are the hosts of others that sources which are bound to namespaces name, and what else they may not,
	// as a snapshot of the mesh has them among its conflicts.
	Foreign []mesh.Conflict
	// Bound are the namespaces that sources are bound to.
	Bound []string
	// Gateways are those of a snapshot of the mesh, which knows those of bound sources; nil means that there
	// are no such sources.
	Gateways []*mesh.Gateway
	// OtherSources says that services may come from elsewhere too, a catalog for
	// instance: then it is no error that a host is unknown here.
	OtherSources bool
}

// analyzer is one check.
type analyzer struct {
	code Code
	run  func(w *meshIndex, r *report)
}

// analyzers are all checks, in the order of their codes, those of AuthorizationPolicies last.
// One that reports under several codes stands at its first.
func analyzers() []analyzer {
	return append([]analyzer{
		{CodeUnknownHost, destinations},
		{CodeRouteWithoutService, routeHosts},
		{CodeRuleWithoutService, ruleHosts},
		{CodeEmptySubset, emptySubsets},
		{CodeSelectsNothing, selectors},
		{CodeNoEndpoints, noEndpoints},
		{CodeWorkloadUnused, unusedWorkloads},
		{CodeHostTwice, hostsTwice},
		{CodeRuleTwice, rulesTwice},
		{CodeEgressNothing, egressHosts},
		{CodeAnyIdentity, anyIdentity},
		{CodePortName, portNames},
		{CodePortNotServed, portsNotServed},
		{CodeDefaultTwice, defaultsTwice},
		{CodeWeights, weights},
		{CodeKeyTwice, keysTwice},
		{CodeUnknownGateway, unknownGateways},
		{CodeUnknownDelegate, unknownDelegates},
		{CodeCatalogHost, catalogHosts},
		{CodeForeignHost, foreignHosts},
		{CodeHashTables, tenantConflicts(mesh.ConflictTables)},
		{CodeForeignCredential, tenantConflicts(mesh.ConflictCredential)},
		{CodeForeignRoute, tenantConflicts(mesh.ConflictRoute)},
		{CodeIngressBind, ingressBinds},
		{CodeDenies, deniers},
		{CodeNoProvider, providers},
		{CodeNoReportProvider, reportProviders},
		{CodeAddressTaken, hostAddresses},
		{CodeServerLeftOut, gateways},
		{CodeCredentialUnused, unusedCredentials},
	}, policyAnalyzers()...)
}

// Analyze checks the mesh and returns all findings by file and position.
func Analyze(in Input) []Diagnostic {
	w := newWorld(in)
	r := &report{}
	for _, a := range analyzers() {
		r.code = a.code
		a.run(w, r)
	}
	slices.SortStableFunc(r.found, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.Origin.Path, b.Origin.Path), cmp.Compare(a.Origin.Line, b.Origin.Line),
			cmp.Compare(a.Origin.Column, b.Origin.Column), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Message, b.Message),
		)
	})
	return r.found
}

// report collects findings.
type report struct {
	code  Code
	found []Diagnostic
}

// place is a field of an object.
type place struct {
	object *manifest.Object
	field  string
}

func (r *report) warn(at place, format string, args ...any) {
	r.add(at, Warning, fmt.Sprintf(format, args...))
}

func (r *report) wrong(at place, format string, args ...any) {
	r.add(at, Error, fmt.Sprintf(format, args...))
}

func (r *report) add(at place, severity Severity, message string) {
	r.found = append(r.found, Diagnostic{
		Code: r.code, Severity: severity, Message: message,
		Origin: at.object.Origin(at.field), Key: at.object.Meta.Key, Field: at.field,
	})
}

// under returns r for another code, for analyzers that have several.
func (r *report) under(code Code, run func(r *report)) {
	before := r.code
	r.code = code
	run(r)
	r.code = before
}
