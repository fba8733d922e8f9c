package tenantrules

import (
	"slices"
	"strings"
)

// Rule is what holds for a field in an object of a bound source.
type Rule string

// The rules.
const (
	// Plain fields name nothing of others: they describe the object itself, or are compared with the
	// requests that it applies to.
	Plain Rule = "plain"
	// Own means that what the field names counts for the object's namespace alone.
	Own Rule = "own namespace only"
	// Setting means that the object is kept out, unless a setting allows it for the source.
	Setting Rule = "needs a setting"
	// Refused means that the object is kept out.
	Refused Rule = "refused"
	// NoEffect means that the field does nothing, as in Istio, and is reported.
	NoEffect Rule = "no effect"
	// AsIstio means that it is allowed, as in Istio, also where others see it; the row says why.
	AsIstio Rule = "as in Istio"
)

// Row is the rule of some fields.
type Row struct {
	// Fields are names of messages and fields, without the package: "Destination.host"; and names of
	// annotations, labels and keys of registrations, as [metakeys.Key] has them.
	Fields []string
	// Class is what the fields name.
	Class string
	Rule  Rule
	// Why says what holds, in one sentence; empty for [Plain].
	Why string
	// Try are documents of a tenant in the namespace evil that name what is of others; empty if Test
	// is set. Those of annotations and labels have the first one; see [Row.Tries].
	Try string
	// Test is the test that tries the rule, where it does not show in the configuration of proxies.
	Test string
	// Elsewhere means that what the object does for its own namespace is not in the configuration of
	// proxies.
	Elsewhere bool
	// Flag is the flag that allows the object, for [Setting]; for a Name, which the flag gives to the
	// source, the object is in force, and only the proxies of others do not use the name.
	Flag, Name string
}

// Tries are the documents to try: those of the row and, if its fields are annotations or labels, the
// same with each of them in place of the first.
func (r *Row) Tries() []string {
	if r.Try == "" {
		return nil
	}
	out := []string{r.Try}
	_, first, keys := strings.Cut(r.Fields[0], " ")
	for _, f := range r.Fields[1:] {
		if _, name, _ := strings.Cut(f, " "); keys && !strings.Contains(r.Try, name+":") {
			out = append(out, strings.ReplaceAll(r.Try, first, name))
		}
	}
	return out
}

// Documents of a tenant.
const (
	serviceEntry    = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: try, namespace: evil}\nspec: "
	virtualService  = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: try, namespace: evil}\nspec: "
	destinationRule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: try, namespace: evil}\nspec: "
	gateway         = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: try, namespace: evil}\nspec: "
	sidecar         = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: try, namespace: evil}\nspec: "
	workloadEntry   = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: try, namespace: evil}\nspec: "
	workloadGroup   = "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: try, namespace: evil}\nspec: "
	proxyConfig     = "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: try, namespace: evil}\nspec: "
	envoyFilter     = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: try, namespace: evil}\nspec: "
	wasmPlugin      = "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: try, namespace: evil}\nspec: "
	authorization   = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: try, namespace: evil}\nspec: "
	peer            = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: try, namespace: evil}\nspec: "
	request         = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: try, namespace: evil}\nspec: "
	telemetry       = "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: try, namespace: evil}\nspec: "

	toApp = `http: [{route: [{destination: {host: app.evil.internal}}]}]`
)

// Rows is the table.
func Rows() []Row {
	return append(slices.Concat(networkingRows(), securityRows(), unenforcedRows(), annotationRows(), labelRows(), registrationRows()), plainRow())
}
