package istiod

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// Normalize rewrites both sides' configurations into one form, where they say one thing in two
// ways. The rules are few, each for a reason that no list of places could say. They change the
// configuration.
func Normalize(c Config) {
	providers(c)
	for name, v := range c[Clusters] {
		walk(v, typedNames)
		sockets(v, c[Endpoints][name])
		unreadWeights(v, c[Endpoints][name])
	}
	oneFamily(c[Listeners])
	for _, v := range c[Listeners] {
		walk(v, typedNames)
		walk(v, inherit)
		ownPort(v)
		walk(v, oneRule)
		walk(v, oldMetadata)
		walk(v, outputHeaders)
	}
	for _, v := range c[Routes] {
		walk(v, inherit)
	}
	bounds(c[Clusters])
}

// Inline puts extensions, by name, in the place of the filters in listeners that name them. An
// error means that one is missing.
func Inline(c Config, extensions map[string]any) error {
	var err error
	for name, l := range c[Listeners] {
		walk(l, func(m map[string]any) {
			if _, ok := m["config_discovery"]; !ok {
				return
			}
			config := get(extensions[str(m["name"])], "typed_config")
			if config == nil {
				err = fmt.Errorf("listener %s names extension %q, which does not exist", name, m["name"])
			}
			delete(m, "config_discovery")
			m["typed_config"] = config
			// A slot with rules is a filter as istiod has it, but for its name.
			const rbac = "envoy.filters.http.rbac"
			if fields, ok := config.(map[string]any); ok && len(fields) > 1 && strings.HasPrefix(str(m["name"]), rbac+".") {
				m["name"] = rbac
			}
		})
	}
	return err
}

var ofProvider = regexp.MustCompile(`\|(ext_authz\.[^|]*|telemetry_[a-z]+)\|`)

// providers: an extension provider has a cluster of its own, so that nothing that a namespace has
// can take its place. istiod asks by the cluster of the service. What is equal but for its name
// is taken for that one.
func providers(c Config) {
	for _, kind := range []string{Clusters, Endpoints} {
		for _, name := range slices.Sorted(maps.Keys(c[kind])) {
			plain := ofProvider.ReplaceAllString(name, "||")
			if plain == name {
				continue
			}
			v := renamed(c[kind][name])
			if had, ok := c[kind][plain]; !ok || reflect.DeepEqual(had, v) {
				c[kind][plain] = v
				delete(c[kind], name)
			}
		}
	}
	for name, v := range c[Listeners] {
		c[Listeners][name] = renamed(v)
	}
}

// bounds leaves of a collector's cluster, besides that of its service, what bounds the reports.
func bounds(clusters map[string]any) {
	for name, v := range clusters {
		had, ok := clusters[ofProvider.ReplaceAllString(name, "||")]
		if strings.Contains(name, "|telemetry_") && ok {
			clusters[name] = besides(renamed(v), had)
		}
	}
}

// besides is what a tree has that another one has not, or has in another way. If the other one has
// more, it is the whole tree.
func besides(v, had any) any {
	switch v := v.(type) {
	case map[string]any:
		other, ok := had.(map[string]any)
		if !ok || slices.ContainsFunc(slices.Collect(maps.Keys(other)), func(k string) bool { _, has := v[k]; return !has }) {
			return v
		}
		out := map[string]any{}
		for k, x := range v {
			if !reflect.DeepEqual(x, other[k]) {
				out[k] = besides(x, other[k])
			}
		}
		return out
	case []any:
		other, ok := had.([]any)
		if !ok || len(other) != len(v) {
			return v
		}
		out := make([]any, len(v))
		for i := range v {
			out[i] = besides(v[i], other[i])
		}
		return out
	default:
		return v
	}
}

// renamed is a tree in which texts that name a provider's cluster name its service's.
func renamed(v any) any {
	switch v := v.(type) {
	case string:
		return ofProvider.ReplaceAllString(v, "||")
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = renamed(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = renamed(x)
		}
		return out
	default:
		return v
	}
}

// walk calls f for each message in a tree, outer ones first.
func walk(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		f(v)
		for _, x := range v {
			walk(x, f)
		}
	case []any:
		for _, x := range v {
			walk(x, f)
		}
	}
}

// unreadWeights: istiod gives each locality a weight, which Envoy reads only in a cluster with
// locality-weighted load balancing.
func unreadWeights(cluster, assignment any) {
	if get(cluster, "common_lb_config", "locality_weighted_lb_config") != nil {
		return
	}
	for _, v := range []any{get(cluster, "load_assignment", "endpoints"), get(assignment, "endpoints")} {
		list, _ := v.([]any)
		for _, l := range list {
			if group, ok := l.(map[string]any); ok {
				delete(group, "load_balancing_weight")
			}
		}
	}
}

// typedNames: istiod uses a deprecated field for the names that a certificate may have, which
// matches names of every type. The types that can be meant follow from the text.
func typedNames(m map[string]any) {
	list, ok := m["match_subject_alt_names"].([]any)
	if !ok {
		return
	}
	delete(m, "match_subject_alt_names")
	typed, _ := m["match_typed_subject_alt_names"].([]any)
	for _, matcher := range list {
		types := []string{"DNS", "IP_ADDRESS"}
		if strings.Contains(text(matcher), "://") {
			types = []string{"URI"}
		}
		for _, t := range types {
			typed = append(typed, map[string]any{"san_type": t, "matcher": matcher})
		}
	}
	m["match_typed_subject_alt_names"] = typed
}

// oldMetadata: istiod uses a deprecated field for metadata of a principal, which Envoy will
// remove. The other one has the source of the metadata besides, which is the same by default.
func oldMetadata(m map[string]any) {
	if sourced, ok := m["sourced_metadata"].(map[string]any); ok && len(sourced) == 1 && sourced["metadata_matcher"] != nil {
		delete(m, "sourced_metadata")
		m["metadata"] = sourced["metadata_matcher"]
	}
}

// outputHeaders: with a provider that accepts no token, our filter for tokens has Envoy remove a
// client's own headers of those that rules write (package authn). It is left out if it is exactly
// what the other providers ask for: then the rest is compared with istiod's filter.
func outputHeaders(filter map[string]any) {
	const name = "fairlead-output-headers"
	providers, _ := filter["providers"].(map[string]any)
	if providers[name] == nil {
		return
	}
	var headers []string
	for other, p := range providers {
		if other == name {
			continue
		}
		if h := str(get(p, "forward_payload_header")); h != "" {
			headers = append(headers, h)
		}
		claims, _ := get(p, "claim_to_headers").([]any)
		for _, c := range claims {
			headers = append(headers, str(get(c, "header_name")))
		}
	}
	slices.Sort(headers)
	var removed []any
	for _, h := range slices.Compact(headers) {
		removed = append(removed, map[string]any{"header_name": h, "claim_name": "none"})
	}
	list := func(all ...any) map[string]any { return map[string]any{"requirements": all} }
	remove := map[string]any{"requires_any": list(map[string]any{"provider_name": name}, map[string]any{"allow_missing": map[string]any{}})}
	matches := func(header string, value map[string]any) any {
		return map[string]any{"name": header, "string_match": value}
	}
	notEmpty := map[string]any{"safe_regex": map[string]any{"regex": ".+"}}
	preflight := map[string]any{
		"match": map[string]any{"prefix": "/", "headers": []any{
			matches(":method", map[string]any{"exact": "OPTIONS"}), matches("access-control-request-method", notEmpty), matches("origin", notEmpty),
		}},
		"requires": remove,
	}
	rules, _ := filter["rules"].([]any)
	if len(rules) != 2 || filter["bypass_cors_preflight"] != nil || !reflect.DeepEqual(rules[0], preflight) || !reflect.DeepEqual(providers[name], map[string]any{
		"issuer": name, "local_jwks": map[string]any{"inline_string": ""}, "claim_to_headers": removed,
		"from_headers": []any{map[string]any{"name": "x-fairlead-nowhere"}},
	}) {
		return
	}
	rest, _ := rules[1].(map[string]any)
	all, _ := get(rest, "requires", "requires_all", "requirements").([]any)
	if len(all) != 2 || !reflect.DeepEqual(all[0], remove) || !reflect.DeepEqual(rest["requires"], map[string]any{"requires_all": list(all...)}) {
		return
	}
	delete(providers, name)
	rest["requires"], filter["rules"], filter["bypass_cors_preflight"] = all[1], []any{rest}, true
}

// ownPort: a chain of a listener that takes only connections to its own port need not say the
// port. It must where connections are redirected, which keep the port that they were made to.
func ownPort(listener any) {
	l, ok := listener.(map[string]any)
	if !ok || l["bind_to_port"] == false {
		return
	}
	port := str(get(l, "address", "socket_address", "port_value"))
	filters, _ := l["listener_filters"].([]any)
	if l["use_original_dst"] == true || slices.Contains(keys("listener_filters", filters), "envoy.filters.listener.original_dst") {
		return
	}
	chains, _ := l["filter_chains"].([]any)
	for _, c := range chains {
		match, ok := get(c, "filter_chain_match").(map[string]any)
		if ok && str(match["destination_port"]) == port {
			delete(match, "destination_port")
			if len(match) == 0 {
				delete(c.(map[string]any), "filter_chain_match") // it has a match
			}
		}
	}
	for _, f := range filters {
		f, ok := f.(map[string]any)
		if r := get(f, "filter_disabled", "not_match", "destination_port_range"); ok && r != nil && str(get(r, "start")) == port {
			delete(f, "filter_disabled")
		}
	}
}

// oneFamily: on a host with IPv6 alone istiod listens at all addresses of IPv6, or at its
// loopback address, and names listeners by it. They are compared with those of IPv4.
func oneFamily(listeners map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(listeners)) {
		four := name
		if port, ok := strings.CutPrefix(name, "::_"); ok {
			four = "0.0.0.0_" + port
		} else if port, ok := strings.CutPrefix(name, "::1_"); ok {
			four = "127.0.0.1_" + port
		}
		if _, taken := listeners[four]; !taken {
			listeners[four] = listeners[name]
			delete(listeners, name)
		}
	}
}

// oneRule: one rule by which a listener filter is left out is a list of one.
func oneRule(filter map[string]any) {
	if rule, ok := filter["filter_disabled"].(map[string]any); ok && rule["or_match"] == nil {
		filter["filter_disabled"] = map[string]any{"or_match": map[string]any{"rules": []any{rule}}}
	}
}

// inherit: what Envoy's routes take from their virtual host is written in each route.
func inherit(host map[string]any) {
	routes, ok := host["routes"].([]any)
	if !ok || host["domains"] == nil {
		return
	}
	for _, r := range routes {
		r, ok := r.(map[string]any)
		if !ok {
			continue
		}
		if action, ok := r["route"].(map[string]any); ok && host["retry_policy"] != nil && action["retry_policy"] == nil {
			action["retry_policy"] = host["retry_policy"]
		}
		if host["metadata"] != nil && r["metadata"] == nil {
			r["metadata"] = host["metadata"]
		}
	}
	delete(host, "retry_policy")
	delete(host, "metadata")
}

// Keys of what sockets writes.
const (
	socketsKey    = "transport_sockets"
	meshSocketKey = "transport_socket_with_mtls"
	socketKey     = "transport_socket"
	plaintext     = "plaintext"
)

// matchMetadata is the metadata by which Envoy chooses a transport socket for an endpoint.
const matchMetadata = "envoy.transport_socket_match"

// sockets: istiod marks endpoints that take mTLS of the mesh, and we those that do not. What
// counts is which transport socket Envoy chooses for each endpoint, so the cluster gets the
// list of its TLS sockets, and each endpoint the name of its own.
func sockets(cluster, assignment any) {
	c, ok := cluster.(map[string]any)
	if !ok {
		return
	}
	choices, named := socketChoices(c)
	delete(c, "transport_socket_matches")
	delete(c, socketKey)
	c[socketsKey] = named
	// Also for an endpoint with mTLS, if there is none now: istiod marks it, and we do not.
	c[meshSocketKey] = choose(choices, nil)
	if mark := map[string]any{"tlsMode": "istio"}; slices.ContainsFunc(choices, func(c socketChoice) bool { return text(c.match) == text(mark) }) {
		c[meshSocketKey] = choose(choices, mark)
	}
	mark := func(m map[string]any) {
		if m["endpoint"] == nil {
			return
		}
		m[socketKey] = choose(choices, get(m, "metadata", "filter_metadata", matchMetadata))
		if f, ok := get(m, "metadata", "filter_metadata").(map[string]any); ok {
			delete(f, matchMetadata)
			if len(f) == 0 {
				delete(m, "metadata")
			}
		}
	}
	walk(c["load_assignment"], mark)
	walk(assignment, mark)
}

// socketChoice is a transport socket by its name, for endpoints with the metadata of a match.
type socketChoice struct {
	match any
	name  string
}

// choose is the transport socket for an endpoint with some metadata: the first that matches.
func choose(choices []socketChoice, has any) string {
	return choices[slices.IndexFunc(choices, func(c socketChoice) bool { return covers(has, c.match) })].name
}

// socketChoices are the transport sockets of a cluster in the order in which Envoy tries them,
// the last one for everything, and those with TLS by name.
func socketChoices(cluster map[string]any) ([]socketChoice, map[string]any) {
	named := map[string]any{}
	nameOf := func(socket any) string {
		if config, ok := get(socket, "typed_config").(map[string]any); ok && config["transport_socket"] != nil {
			// One socket around another: both sides' inner ones shall stand at one place.
			inner, _ := config["transport_socket"].(map[string]any)
			delete(config, "transport_socket")
			if strings.HasSuffix(str(get(inner, "typed_config", "@type")), ".RawBuffer") {
				return text(socket) + " with " + plaintext
			}
			inner["around"] = socket
			socket = inner
		}
		if socket == nil || strings.HasSuffix(str(get(socket, "typed_config", "@type")), ".RawBuffer") {
			return plaintext
		}
		for _, n := range slices.Sorted(maps.Keys(named)) {
			if text(named[n]) == text(socket) {
				return n
			}
		}
		n := "tls"
		for i := 2; named[n] != nil; i++ {
			n = fmt.Sprintf("tls#%d", i)
		}
		named[n] = socket
		return n
	}
	var choices []socketChoice
	matches, _ := cluster["transport_socket_matches"].([]any)
	for _, m := range matches {
		choices = append(choices, socketChoice{get(m, "match"), nameOf(get(m, socketKey))})
	}
	return append(choices, socketChoice{nil, nameOf(cluster[socketKey])}), named
}

// covers reports whether metadata has all fields of a match.
func covers(has, match any) bool {
	m, _ := match.(map[string]any)
	for k, v := range m {
		if text(get(has, k)) != text(v) {
			return false
		}
	}
	return true
}
