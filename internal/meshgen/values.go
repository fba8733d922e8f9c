package meshgen

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
)

// The words that values are made of. They are few, so that objects meet: a name is
// a service's and a route's and a rule's.

func namespaces() []string { return []string{"shop", "shop", "other", "istio-system"} }

func hostnames() []string {
	return []string{"a.shop.svc.cluster.local", "c.mesh", "d.mesh", "x.w.mesh"}
}

func addressesOf() []string { return []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.5"} }

func labelKeys() []string { return []string{"app", "app", "version"} }

// labelValues are those of a label: what a selector asks for somebody has.
func labelValues(key string) []string {
	if key == "version" {
		return []string{"v1", "v2"}
	}
	return []string{"a", "b"}
}

func ports() []float64 { return []float64{80, 80, 8080, 9000, 443} }

// word is a family of values, for the fields whose names hold one of some words.
type word struct {
	names  []string // lower case, without "_"
	values []string
}

// words are tried in this order.
//
//nolint:gochecknoglobals // a read-only table
var words = sync.OnceValue(func() []word {
	return []word{
		{[]string{"exportto"}, []string{"*", "*", ".", "shop", "other", "~"}},
		{[]string{"namespace"}, namespaces()},
		{[]string{"gateway"}, []string{"mesh", "edge"}},
		{[]string{"trustdomain"}, []string{"cluster.local", "td1", "td2"}},
		{[]string{"subjectaltnames"}, []string{"spiffe://cluster.local/ns/shop/sa/web", "a.mesh"}},
		{[]string{"header"}, []string{"x-a", "x-b"}},
		{[]string{"subset"}, []string{"v1", "v2", ""}},
		{[]string{"subnet"}, []string{"10.0.0.0/16", "10.1.1.1", "10.1.0.0/16"}},
		{[]string{"endpoint"}, []string{"127.0.0.1:8080", "127.0.0.1:9000", "0.0.0.0:9000", "unix:///tmp/app.sock", ""}},
		{[]string{"bind"}, []string{"127.0.0.1", "0.0.0.0", "127.0.0.5", "10.0.0.1", ""}},
		{[]string{"hosts"}, slices.Concat(hostnames(), []string{"C.mesh", "*.w.mesh", "*.mesh", "*", "*/*", "*/*", "./*", "shop/*", "*/c.mesh", "~/*", "~*/d.mesh", "*/*.mesh"})},
		{[]string{"host", "sni", "authority"}, slices.Concat(hostnames(), []string{"a", "*.mesh"})},
		{[]string{"addresses"}, []string{"10.1.1.1", "10.1.1.2", "10.2.0.0/16", "10.0.0.9"}},
		{[]string{"address"}, slices.Concat(addressesOf(), []string{"c.mesh", "db.example"})},
		{[]string{"protocol"}, []string{"HTTP", "HTTP", "HTTP2", "GRPC", "GRPC-WEB", "HTTPS", "TLS", "TCP", "TCP", "UDP", "MONGO", "HTTP_PROXY", "", ""}},
		{[]string{"failoverpriority"}, []string{"app", "version", "version=v1", "topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/network"}},
		{[]string{"locality"}, []string{"eu/a", "eu/b", "us/a/1", ""}},
		{[]string{"region", "subzone", "zone"}, []string{"eu", "us", "a", "b", ""}},
		{[]string{"network"}, []string{"", "", "net1", "net2"}},
		{[]string{"serviceaccount", "account"}, []string{"web", "api", "one", ""}},
		{[]string{"service"}, slices.Concat(hostnames(), []string{"shop/c.mesh", "other/d.mesh"})},
		{[]string{"method"}, []string{"GET", "POST"}},
		{[]string{"scheme"}, []string{"http", "https", "HTTP", "HTTPS"}},
		{[]string{"uri", "path", "prefix", "exact"}, []string{"/a", "/b", "/a/b", "x"}},
		{[]string{"regex"}, []string{"/a.*", "[a-z]+"}},
		{[]string{"retryon"}, []string{"5xx", "gateway-error,503", "connect-failure"}},
		{[]string{"status", "httpstatus", "grpcstatus"}, []string{"UNAVAILABLE", "503", "INTERNAL"}},
		{[]string{"mode"}, []string{"STRICT"}},
		{[]string{"certificate", "key", "file"}, []string{"/etc/certs/a.pem", "/etc/certs/b.pem"}},
		{[]string{"label"}, []string{"a", "b", "v1", "v2"}},
		{[]string{"id"}, []string{"sidecar~10.0.0.1~web.shop~shop.svc.cluster.local", "sidecar~10.0.0.2~web.other~other.svc.cluster.local", "sidecar~10.0.0.1~web.shop~shop.svc.mesh"}},
		{[]string{"workload", "name"}, []string{"v1", "v2", "n0", "n1", "n2", "n3", "http", "tcp", "x-a"}},
	}
})

// everything is for fields of which no name says what they hold.
//
//nolint:gochecknoglobals // a read-only table
var everything = sync.OnceValue(func() []string {
	var out []string
	for _, w := range words() {
		out = append(out, w.values...)
	}
	out = append(out, "eu/*", "1:2", "50%", "*", "a=b", "max-age=1", "http://a.mesh", "spiffe://x/y", "%REQ(x)%")
	slices.Sort(out)
	return slices.Compact(out)
})

// wordsFor are the values for a field of a name.
func wordsFor(name string) []string {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "")
	for _, w := range words() {
		if slices.ContainsFunc(w.names, func(n string) bool { return strings.Contains(name, n) }) {
			return w.values
		}
	}
	return nil
}

func numbersFor(name string) []float64 {
	name = strings.ToLower(name)
	switch {
	case strings.Contains(name, "port") || name == "number":
		return ports()
	case strings.Contains(name, "percent") || strings.Contains(name, "weight") || strings.Contains(name, "value"):
		return []float64{1, 10, 50, 100, 50, 0}
	case strings.Contains(name, "status") || strings.Contains(name, "code"):
		return []float64{503, 301, 302, 200, 404}
	default:
		return []float64{1, 2, 3, 5, 10, 100, 1024, 0}
	}
}

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

// mostly are fields without which others of a message say nothing, and beside which some
// may not be.
func mostly(name string) bool { return name == "route" }

// often are the words of fields that hold much of what an object is about.
func often(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc([]string{"host", "port", "route", "labels", "selector", "endpoint", "policy", "http", "address"}, func(n string) bool {
		return strings.HasPrefix(name, n) || strings.HasSuffix(name, n)
	})
}

// nearlyAlways are fields without which a message says next to nothing.
func nearlyAlways(name string) bool {
	return slices.Contains([]string{"number", "address", "host", "protocol", "mode", "destination", "ports", "resolution"}, name)
}
