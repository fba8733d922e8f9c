package view

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// virtualService is a VirtualService with its delegates merged in, and with what is often
// read from it.
type virtualService struct {
	*mesh.VirtualService
	http []*networking.HTTPRoute
	// hasDelegates is set if routes of other VirtualServices are merged in.
	hasDelegates bool
	// excluded are the delegates that it would include, and that are left out because of their matches.
	excluded []Finding
	// forMesh is set if it applies to sidecars.
	forMesh bool
	hosts   []mesh.Hostname
	// allDestinations are the hosts that it leads to, sorted. They are empty if
	// bySourceNamespace is set: then they depend on the namespace of the proxy.
	allDestinations   []destinationPorts
	bySourceNamespace bool
	// sourceLabels are the labels by which its routes select their clients.
	sourceLabels []labelPair
}

// destinationPorts is a host that routes lead to, with the ports that they name; 0 stands
// for a destination without a port.
type destinationPorts struct {
	host  mesh.Hostname
	ports []uint32
}

func newVirtualService(vs *mesh.VirtualService, http []*networking.HTTPRoute) *virtualService {
	gateways := vs.Spec.GetGateways()
	out := &virtualService{
		VirtualService: vs, http: http,
		forMesh: len(gateways) == 0 || slices.Contains(gateways, meshGateway),
	}
	for _, h := range vs.Spec.GetHosts() {
		out.hosts = append(out.hosts, lower(h))
	}
	for _, r := range http {
		for _, m := range r.GetMatch() {
			out.bySourceNamespace = out.bySourceNamespace || m.GetSourceNamespace() != ""
		}
	}
	if !out.bySourceNamespace {
		out.allDestinations = destinationsOf(out, "")
	}
	out.sourceLabels = sourceLabels(out)
	return out
}

// destinations are the hosts that it leads to for proxies of a namespace.
func (vs *virtualService) destinations(ns string) []destinationPorts {
	if vs.bySourceNamespace {
		return destinationsOf(vs, ns)
	}
	return vs.allDestinations
}

// hasL4Routes reports whether it has routes for TCP or TLS.
func (vs *virtualService) hasL4Routes() bool {
	return len(vs.Spec.GetTcp()) > 0 || len(vs.Spec.GetTls()) > 0
}

// mergeDelegates replaces each route that delegates by the routes of its delegate. A route
// whose delegate is missing, or not exported to the root's namespace, is left out alone; for what would be too much, see
// inclusion. tenant reports whether a delegate is of a source that is bound to namespaces. A
// VirtualService without delegates that is in prev stays the same pointer.
func mergeDelegates(prev []*virtualService, list []*mesh.VirtualService, defaults []string, tenant func(mesh.Key) bool) []*virtualService {
	in := newInclusion(list, defaults, tenant)
	out := make([]*virtualService, 0, len(list))
	for _, vs := range list {
		if len(vs.Spec.GetHosts()) == 0 {
			continue
		}
		for len(prev) > 0 && prev[0].VirtualService != vs && compareMeta(&prev[0].Meta, &vs.Meta) < 0 {
			prev = prev[1:]
		}
		if len(prev) > 0 && prev[0].VirtualService == vs && !prev[0].hasDelegates {
			out = append(out, prev[0])
			continue
		}
		http := vs.Spec.GetHttp()
		delegating := hasDelegates(vs)
		var excluded []Finding
		if delegating {
			http = nil
			for _, rule := range vs.Spec.GetHttp() {
				to := in.delegateOf(vs, rule)
				switch {
				case rule.GetDelegate() == nil:
					http = append(http, rule)
				case to != nil && in.leftOut[share{vs, in.author(vs, to)}]:
					excluded = append(excluded, Finding{Kind: LeftOutDelegate, Object: vs.Key, Other: to.Key})
				default:
					http = append(http, resolveDelegate(vs, rule, to)...)
				}
			}
		}
		merged := newVirtualService(vs, http)
		merged.hasDelegates = delegating
		slices.SortFunc(excluded, Finding.Compare)
		merged.excluded = slices.Compact(excluded)
		out = append(out, merged)
	}
	return out
}

func hasDelegates(vs *mesh.VirtualService) bool {
	return slices.ContainsFunc(vs.Spec.GetHttp(), func(r *networking.HTTPRoute) bool { return r.GetDelegate() != nil })
}

// resolveDelegate is the routes of a delegate in the place of the route that includes them; none for no delegate.
// Before a route that some gateways do not follow is one that answers 503 there.
func resolveDelegate(root *mesh.VirtualService, rule *networking.HTTPRoute, to *mesh.VirtualService) []*networking.HTTPRoute {
	if to == nil {
		return nil
	}
	var out []*networking.HTTPRoute
	for i, sub := range to.Spec.GetHttp() {
		merged := mergeRule(rule, sub)
		if merged == nil {
			continue
		}
		if to.Refused.Anywhere(i) { // few are, and the root may name thousands of Gateways
			if refusal := refusalAt(refusing(root, to, i), merged); refusal != nil {
				out = append(out, refusal)
			}
		}
		out = append(out, merged)
	}
	return out
}

// refusing are the gateways of a root that do not follow a route of a delegate.
func refusing(root, delegate *mesh.VirtualService, route int) []string {
	var out []string
	for _, g := range root.Spec.GetGateways() {
		if ns, _, named := strings.Cut(g, "/"); named && ns != delegate.Namespace && delegate.Refused.At(route, ns) {
			out = append(out, g)
		}
	}
	return out
}

// refusalAt is what gateways do that may not follow a route; nil if there are none for which the route counts.
func refusalAt(gateways []string, r *networking.HTTPRoute) *networking.HTTPRoute {
	if len(gateways) == 0 {
		return nil
	}
	out := mesh.Refusal(r)
	out.Match = nil
	for _, m := range r.GetMatch() {
		at := gateways
		if own := m.GetGateways(); len(own) > 0 {
			at = slices.DeleteFunc(slices.Clone(own), func(g string) bool { return !slices.Contains(gateways, g) })
		}
		if len(at) > 0 {
			m, _ = proto.Clone(m).(*networking.HTTPMatchRequest)
			m.Gateways = at
			out.Match = append(out.Match, m)
		}
	}
	switch {
	case len(r.GetMatch()) == 0:
		out.Match = []*networking.HTTPMatchRequest{{Gateways: gateways}}
	case len(out.Match) == 0:
		return nil
	}
	return out
}

// mergeRule is the delegate's route with the root's match, and the root's settings where
// the delegate has none; nil if their matches contradict.
func mergeRule(root, sub *networking.HTTPRoute) *networking.HTTPRoute {
	match, ok := mergeMatches(root.GetMatch(), sub.GetMatch())
	if !ok {
		return nil
	}
	out, _ := proto.Clone(sub).(*networking.HTTPRoute)
	out.Match = match
	switch {
	case out.GetName() == "":
		out.Name = root.GetName()
	case root.GetName() != "":
		out.Name = root.GetName() + "-" + out.GetName()
	}
	inherit(&out.Rewrite, root.Rewrite)
	inherit(&out.DirectResponse, root.DirectResponse)
	inherit(&out.Timeout, root.Timeout)
	inherit(&out.Retries, root.Retries)
	inherit(&out.Fault, root.Fault)
	inherit(&out.Mirror, root.Mirror)
	inherit(&out.MirrorPercent, root.MirrorPercent) //nolint:staticcheck // deprecated, and in use
	inherit(&out.MirrorPercentage, root.MirrorPercentage)
	inherit(&out.CorsPolicy, root.CorsPolicy)
	inherit(&out.Headers, root.Headers)
	if out.Mirrors == nil {
		out.Mirrors = root.Mirrors
	}
	return out
}

func inherit[T any](to **T, from *T) {
	if *to == nil {
		*to = from
	}
}

func mergeMatches(root, sub []*networking.HTTPMatchRequest) ([]*networking.HTTPMatchRequest, bool) {
	switch {
	case len(root) == 0:
		return sub, true
	case len(sub) == 0:
		return root, true
	}
	var out []*networking.HTTPMatchRequest
	for _, s := range sub {
		found := false
		for _, r := range root {
			if !contradict(r, s) {
				out = append(out, mergeMatch(r, s))
				found = true
			}
		}
		if !found {
			return nil, false
		}
	}
	return out, true
}

func mergeMatch(root, sub *networking.HTTPMatchRequest) *networking.HTTPMatchRequest {
	out, _ := proto.Clone(sub).(*networking.HTTPMatchRequest)
	switch {
	case out.GetName() == "":
		out.Name = root.GetName()
	case root.GetName() != "":
		out.Name = root.GetName() + "-" + out.GetName()
	}
	inherit(&out.Uri, root.Uri)
	inherit(&out.Scheme, root.Scheme)
	inherit(&out.Method, root.Method)
	inherit(&out.Authority, root.Authority)
	out.Headers = union(root.Headers, sub.Headers)
	out.WithoutHeaders = union(root.WithoutHeaders, sub.WithoutHeaders)
	out.QueryParams = union(root.QueryParams, sub.QueryParams)
	out.SourceLabels = union(root.SourceLabels, sub.SourceLabels)
	if out.GetPort() == 0 {
		out.Port = root.GetPort()
	}
	if out.GetSourceNamespace() == "" {
		out.SourceNamespace = root.GetSourceNamespace()
	}
	if len(out.GetGateways()) == 0 {
		out.Gateways = root.GetGateways()
	}
	if out.GetStatPrefix() == "" {
		out.StatPrefix = root.GetStatPrefix()
	}
	return out
}

func union[V any](a, b map[string]V) map[string]V {
	if len(a) == 0 {
		return b
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// contradict reports whether no request can match both, or sub matches requests that root
// does not.
func contradict(root, sub *networking.HTTPMatchRequest) bool {
	if stringsContradict(root.Uri, sub.Uri) || stringsContradict(root.Scheme, sub.Scheme) ||
		stringsContradict(root.Method, sub.Method) || stringsContradict(root.Authority, sub.Authority) {
		return true
	}
	if mapsContradict(root.Headers, sub.Headers) || mapsContradict(root.WithoutHeaders, sub.WithoutHeaders) ||
		mapsContradict(root.QueryParams, sub.QueryParams) {
		return true
	}
	if root.GetIgnoreUriCase() != sub.GetIgnoreUriCase() ||
		(root.GetPort() > 0 && sub.GetPort() > 0 && root.GetPort() != sub.GetPort()) ||
		(root.GetSourceNamespace() != "" && sub.GetSourceNamespace() != root.GetSourceNamespace()) {
		return true
	}
	for k, v := range sub.GetSourceLabels() {
		if other, ok := root.GetSourceLabels()[k]; ok && other != v {
			return true
		}
	}
	if len(root.GetGateways()) > 0 {
		return slices.ContainsFunc(sub.GetGateways(), func(g string) bool { return !slices.Contains(root.GetGateways(), g) })
	}
	return false
}

func mapsContradict(root, sub map[string]*networking.StringMatch) bool {
	for k, v := range sub {
		if stringsContradict(root[k], v) {
			return true
		}
	}
	return false
}

func stringsContradict(root, sub *networking.StringMatch) bool {
	if root == nil || sub == nil {
		return false
	}
	switch r := root.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return sub.GetRegex() != "" || sub.GetPrefix() != "" || sub.GetExact() != r.Exact
	case *networking.StringMatch_Prefix:
		if p := sub.GetPrefix(); p != "" {
			return !strings.HasPrefix(p, r.Prefix)
		}
		if e := sub.GetExact(); e != "" {
			return !strings.HasPrefix(e, r.Prefix)
		}
		return true
	default:
		return true
	}
}
