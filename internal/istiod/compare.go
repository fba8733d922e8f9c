package istiod

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Absent is the value of what one side does not have.
const Absent = "absent"

// Config is the configuration of one proxy: kind of resource, name, and its message as JSON
// with the names of the protocol buffers.
type Config map[string]map[string]any

// The kinds of resources.
const (
	Clusters  = "clusters"
	Endpoints = "endpoints"
	Listeners = "listeners"
	Routes    = "routes"
)

// Difference is one place where the two sides differ.
type Difference struct {
	// Path begins with the kind and the name of the resource. Elements of lists have keys
	// instead of numbers, where there is something to know them by.
	Path []string
	// Ours and Istiod are JSON, or [Absent].
	Ours, Istiod string
}

// String is the place and both values.
func (d Difference) String() string {
	return JoinPath(d.Path) + ": ours " + d.Ours + ", istiod " + d.Istiod
}

// JoinPath writes a path with slashes; "/" in an element becomes "~1", as in a JSON pointer.
func JoinPath(path []string) string {
	out := make([]string, len(path))
	for i, p := range path {
		out[i] = strings.ReplaceAll(p, "/", "~1")
	}
	return strings.Join(out, "/")
}

// Compare lists the differences of two normalized configurations, in the order of their paths.
// What only istiod has is one difference, at its root; what only we have is one for each leaf,
// so that a change of it shows.
func Compare(ours, istiod Config) []Difference {
	var c comparison
	for _, kind := range union(ours, istiod) {
		for _, name := range union(ours[kind], istiod[kind]) {
			c.resource(kind, name, ours, istiod)
		}
	}
	return c.found
}

// CompareResource lists the differences of one resource.
func CompareResource(kind, name string, ours, istiod Config) []Difference {
	var c comparison
	c.resource(kind, name, ours, istiod)
	return c.found
}

type comparison struct{ found []Difference }

func (c *comparison) resource(kind, name string, ours, istiod Config) {
	c.values([]string{kind, name}, valueAt(ours[kind], name), valueAt(istiod[kind], name))
}

// nothing is the value of what a side does not have: no JSON value is equal to it.
type nothing struct{}

func valueAt(m map[string]any, key string) any {
	if v, ok := m[key]; ok {
		return v
	}
	return nothing{}
}

func (c *comparison) values(path []string, a, b any) {
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	al, aIsList := a.([]any)
	bl, bIsList := b.([]any)
	_, noB := b.(nothing)
	field := path[len(path)-1]
	switch {
	case aIsMap && bIsMap, aIsMap && noB && len(am) > 0:
		for _, k := range union(am, bm) {
			c.values(below(path, k), valueAt(am, k), valueAt(bm, k))
		}
	case aIsList && bIsList, aIsList && noB && len(al) > 0:
		ka, kb := keys(field, al), keys(field, bl)
		ma, mb := mapOf(ka, al), mapOf(kb, bl)
		for _, k := range union(ma, mb) {
			c.values(below(path, k), valueAt(ma, k), valueAt(mb, k))
		}
		if !inAnyOrder(field) {
			both := func(in map[string]any) func(string) bool {
				return func(k string) bool { _, ok := in[k]; return !ok }
			}
			ka, kb = slices.DeleteFunc(ka, both(mb)), slices.DeleteFunc(kb, both(ma))
			if !slices.Equal(ka, kb) {
				c.add(below(path, "order"), strings.Join(ka, " "), strings.Join(kb, " "))
			}
		}
	default:
		if ja, jb := text(a), text(b); ja != jb {
			c.add(path, ja, jb)
		}
	}
}

func (c *comparison) add(path []string, ours, istiod string) {
	c.found = append(c.found, Difference{Path: path, Ours: ours, Istiod: istiod})
}

func below(path []string, key string) []string { return append(slices.Clone(path), key) }

func union[V any](a, b map[string]V) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

func mapOf(keys []string, list []any) map[string]any {
	out := make(map[string]any, len(list))
	for i, k := range keys {
		out[k] = list[i]
	}
	return out
}

// text is a value as compact JSON; a string is itself.
func text(v any) string {
	switch v := v.(type) {
	case nothing:
		return Absent
	case string:
		return v
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // it was decoded from JSON
		panic("istiod: " + err.Error())
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// keys are what the elements of a list are known by, in the order of the list: the same on
// both sides for what is to be compared with each other. Elements with equal keys are
// numbered.
func keys(field string, list []any) []string {
	out := make([]string, len(list))
	seen := map[string]int{}
	for i, v := range list {
		k := strconv.Itoa(i)
		if f, ok := keyFuncs()[field]; ok {
			k = f(v)
		}
		seen[k]++
		if n := seen[k]; n > 1 {
			k += "#" + strconv.Itoa(n)
		}
		out[i] = k
	}
	return out
}

// keyFuncs says by what the elements of lists are known. Elements of all other lists are known
// by their place.
func keyFuncs() map[string]func(any) string {
	name := func(v any) string { return str(get(v, "name")) }
	return map[string]func(any) string{
		"additional_addresses":               func(v any) string { return addressOf(get(v, "address")) },
		"alpn_protocols":                     text,
		"application_protocols":              text,
		"domains":                            text,
		"endpoints":                          localityOf,
		"filter_chains":                      chainOf,
		"filters":                            name,
		"headers":                            name,
		"http_filters":                       name,
		"lb_endpoints":                       func(v any) string { return addressOf(get(v, "endpoint", "address")) },
		"listener_filters":                   name,
		"match_typed_subject_alt_names":      identityOf,
		"prefix_ranges":                      func(v any) string { return str(get(v, "address_prefix")) },
		"query_parameters":                   name,
		"retry_host_predicate":               func(v any) string { return str(get(v, "typed_config", "@type")) },
		"rules":                              portsOf,
		"server_names":                       text,
		"source_prefix_ranges":               func(v any) string { return str(get(v, "address_prefix")) },
		"tls_certificate_sds_secret_configs": name,
		"upgrade_configs":                    func(v any) string { return str(get(v, "upgrade_type")) },
		"virtual_hosts":                      virtualHostOf,
	}
}

// inAnyOrder reports whether Envoy reads the elements of a list without regard to their order.
func inAnyOrder(field string) bool {
	switch field {
	case "additional_addresses", "application_protocols", "domains", "endpoints", "filter_chains", "headers", "lb_endpoints",
		"match_typed_subject_alt_names", "prefix_ranges", "query_parameters", "rules", "server_names", "source_prefix_ranges", "virtual_hosts":
		return true
	default:
		return false
	}
}

// get walks maps by keys; nil if there is no such value.
func get(v any, path ...string) any {
	for _, k := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func str(v any) string {
	s, ok := v.(string)
	if !ok && v != nil {
		return text(v)
	}
	return s
}

func addressOf(v any) string {
	if path := str(get(v, "pipe", "path")); path != "" {
		return "unix://" + path
	}
	return str(get(v, "socket_address", "address")) + ":" + str(get(v, "socket_address", "port_value"))
}

// identityOf is a name, or the trust domain of which all names are accepted.
func identityOf(v any) string {
	m := get(v, "matcher")
	name := str(get(m, "prefix"))
	if re := str(get(m, "safe_regex", "regex")); re != "" {
		name, _, _ = strings.Cut(strings.ReplaceAll(re, "\\", ""), "(")
	}
	if td, ok := strings.CutPrefix(name, "spiffe://"); ok {
		return "all of " + strings.TrimSuffix(td, "/")
	}
	return str(get(v, "san_type")) + " " + text(m)
}

// virtualHostOf is a name. Inbound, where there is only one, the names have other ports.
func virtualHostOf(v any) string {
	if name := str(get(v, "name")); !strings.HasPrefix(name, "inbound|http|") {
		return name
	}
	return "inbound"
}

// portsOf is a rule by which a listener filter is left out.
func portsOf(v any) string {
	if r := get(v, "destination_port_range"); r != nil {
		return "port " + str(get(r, "start"))
	}
	return text(v)
}

func localityOf(v any) string {
	l := get(v, "locality")
	out := fmt.Sprintf("%s/%s/%s", str(get(l, "region")), str(get(l, "zone")), str(get(l, "sub_zone")))
	if p := get(v, "priority"); p != nil {
		out += " P" + str(p)
	}
	return out
}

// chainOf is the connections that a filter chain takes. Which names of ALPN stand for mTLS of
// the mesh and for plaintext HTTP is the control plane's choice, so the key has what they stand
// for; the names themselves are compared.
func chainOf(v any) string {
	m := get(v, "filter_chain_match")
	var out []string
	add := func(label string, v any) {
		if s := str(v); s != "" {
			out = append(out, label+s)
		}
	}
	add("port ", get(m, "destination_port"))
	for _, f := range []string{"prefix_ranges", "server_names"} {
		list, _ := get(m, f).([]any)
		all := keys(f, list)
		slices.Sort(all)
		add("", strings.Join(all, ","))
	}
	if t := str(get(m, "transport_protocol")); t != "raw_buffer" { // what is not TLS is this, or nothing
		add("", t)
	}
	list, _ := get(m, "application_protocols").([]any)
	switch names := keys("application_protocols", list); {
	case slices.Contains(names, "istio"):
		out = append(out, "mesh")
	case slices.Contains(names, "istio-h2"):
		out = append(out, "mesh http")
	case len(names) > 0:
		out = append(out, "http")
	}
	if len(out) == 0 {
		return "any"
	}
	return strings.Join(out, " ")
}
