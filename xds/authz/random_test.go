package authz_test

import (
	"fmt"
	"math/rand/v2"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authz"
)

// dice makes random policies and requests. What requests say and what policies ask for come
// from the same few words, so that they often meet.
type dice struct {
	*rand.Rand
	// strange adds values that nobody means: they must do no harm to an Envoy.
	strange bool
	// joins says that the rules are for an Envoy that joins headers.
	joins bool
}

func newDice(seed int) dice { return dice{Rand: rand.New(rand.NewPCG(uint64(seed), 58))} }

func (d dice) one(list ...string) string { return list[d.IntN(len(list))] }

// chance is true p times in a hundred.
func (d dice) chance(p int) bool { return d.IntN(100) < p }

// some are one to three values.
func (d dice) some(value func() string) []string {
	var out []string
	for range 1 + d.IntN(3) {
		if d.strange && d.chance(20) {
			out = append(out, d.weird())
			continue
		}
		out = append(out, value())
	}
	return out
}

// maybe are values, or none.
func (d dice) maybe(p int, value func() string) []string {
	if !d.chance(p) {
		return nil
	}
	return d.some(value)
}

// weird is a value that makes trouble where it is not expected.
func (d dice) weird() string {
	return d.one("", "*", "**", "***", "a*b", "*a*", "[", "]", "[]", "[*]", "[[x]]", "(", "a(b", `\`, `\Q`, "a+b", "^$", ".*", "{", "}", "{*}", "{**}",
		"/{*}{*}", "/{**}/{**}", "/x{*}", "//{*}", "/{*}/", "/a=b/{*}", "/{*}/%zz", "/", "/ä/{*}", "ä", "\n", "\x00", " ", ",", "a/b/c/d/e", "*/a/b/c/d", "a/b", "/", "//",
		"10.0.0.0/8", "10.0.0.0/99", "::", "::/0", "fe80::1%lo", "1", "65535", "65536", "-1", "0x1",
		strings.Repeat("x", 300), strings.Repeat("*", 900), strings.Repeat("ä", 1100), strings.Repeat("x", 5000), strings.Repeat("a*", 500))
}

func (d dice) namespace() string { return d.one("a", "b", "ab", "a.b") }
func (d dice) domain() string    { return d.one("cluster.local", "old.example", "td", "td-2") }

func (d dice) peer() string {
	return d.domain() + "/ns/" + d.namespace() + "/sa/" + d.one("x", "y", "xy")
}

func (d dice) principal() string {
	return d.one(d.peer(), d.peer(), d.peer(), "*", "*/sa/"+d.one("x", "y"), d.domain()+"/ns/"+d.namespace()+"/*", "*y", "cluster*")
}

func (d dice) path() string {
	return d.one("/", "/a", "/a/", "/a/b", "/a/b/c", "/A", "/a.b", "/b/a", "/b?q=/a", "/a/b?q", "/a=b/c", "/a*b/b", "/%20/a", "/~a")
}

func (d dice) source() *security.Source {
	ns := func() string { return d.one(d.namespace(), d.namespace(), "a*", "*b", "*", "a*b") }
	td := func() string { return d.one(d.domain(), d.domain(), "*", "td*", "*.local") }
	ip := func() string { return d.one("127.0.0.1", "127.0.1.0/24", "127.0.0.0/16", "::1", "0.0.0.0/0") }
	remote := func() string { return d.one("10.1.1.1", "10.1.0.0/16", "fd00::/8", "192.0.2.7") }
	account := func() string { return d.one("x", "y", d.namespace()+"/"+d.one("x", "y", "xy")) }
	token := func() string { return d.one("iss/sub", "iss/*", "*/sub", "*", "is*", "*ub", "https://i/sub") }
	s := &security.Source{
		Principals: d.maybe(30, d.principal), NotPrincipals: d.maybe(10, d.principal),
		RequestPrincipals: d.maybe(15, token), NotRequestPrincipals: d.maybe(8, token),
		Namespaces: d.maybe(20, ns), NotNamespaces: d.maybe(10, ns),
		IpBlocks: d.maybe(15, ip), NotIpBlocks: d.maybe(8, ip),
		RemoteIpBlocks: d.maybe(15, remote), NotRemoteIpBlocks: d.maybe(8, remote),
		TrustDomains: d.maybe(15, td), NotTrustDomains: d.maybe(8, td),
	}
	if d.chance(20) {
		s = &security.Source{ServiceAccounts: d.some(account), NotServiceAccounts: d.maybe(20, account)}
	}
	return s
}

func (d dice) operation() *security.Operation {
	host := func() string { return d.one("a.example", "A.example", "*.example", "b*", "*") }
	method := func() string { return d.one("GET", "POST", "P*", "*T", "*") }
	path := func() string {
		return d.one(d.path(), d.path(), "/a*", "*/b", "*", "/a/{*}", "/{*}/b", "/{**}", "/a/{**}", "/{*}/", "/{*}/{**}/c", "/~a/{*}", "/a=b/{*}")
	}
	return &security.Operation{
		Hosts: d.maybe(25, host), NotHosts: d.maybe(10, host),
		Methods: d.maybe(30, method), NotMethods: d.maybe(10, method),
		Paths: d.maybe(40, path), NotPaths: d.maybe(15, path),
		Ports: d.maybe(25, d.port), NotPorts: d.maybe(10, d.port),
	}
}

func (d dice) port() string { return d.one("80", "81", "8080", "9000") }

func (d dice) claim() string { return d.one("a", "b", "ab", "abc") }

func (d dice) condition() *security.Condition {
	s := d.source()
	text := func() string { return d.one(d.claim(), d.claim(), "a*", "*b", "*") }
	pick := func(key string, value func() string) *security.Condition {
		c := &security.Condition{Key: key, Values: d.maybe(75, value), NotValues: d.maybe(30, value)}
		if len(c.GetValues())+len(c.GetNotValues()) == 0 {
			c.Values = d.some(value)
		}
		return c
	}
	of := func(key string, values, except []string) *security.Condition {
		if len(values)+len(except) == 0 {
			return pick("request.headers[x-a]", text)
		}
		return &security.Condition{Key: key, Values: values, NotValues: except}
	}
	if d.strange && d.chance(10) {
		return pick(d.one("request.headers", "request.headers[", "request.headers[]", "request.headers[a b]", "request.headers[a\x00]", "request.headers[:path]",
			"request.auth.claims[]", "request.auth.claims[a][]", "request.auth.claims[a]b", "experimental.envoy.filters.", "experimental.envoy.filters.x[",
			"experimental.envoy.filters.x[]", "experimental.envoy.filters.[y]", "nothing", ""), text)
	}
	switch d.IntN(17) {
	case 0:
		return of("source.ip", s.GetIpBlocks(), s.GetNotIpBlocks())
	case 1:
		return of("remote.ip", s.GetRemoteIpBlocks(), s.GetNotRemoteIpBlocks())
	case 2:
		return of("source.namespace", s.GetNamespaces(), s.GetNotNamespaces())
	case 3:
		return of("source.principal", s.GetPrincipals(), s.GetNotPrincipals())
	case 4:
		return of("source.serviceAccount", s.GetServiceAccounts(), s.GetNotServiceAccounts())
	case 5:
		return of("source.trustDomain", s.GetTrustDomains(), s.GetNotTrustDomains())
	case 6:
		return of("request.auth.principal", s.GetRequestPrincipals(), s.GetNotRequestPrincipals())
	case 7:
		return pick("request.auth.audiences", text)
	case 8:
		return pick("request.auth.presenter", text)
	case 9:
		return pick("request.auth.claims["+d.one("groups", "iss", "n][m", "x.y")+"]", text)
	case 10:
		return pick("destination.ip", func() string { return d.one("10.99.0.1", "10.99.0.0/24", "fd00::9", "::/0") })
	case 11:
		return pick("destination.port", d.port)
	case 12:
		return pick("connection.sni", func() string { return d.one("a.example", "*.example", "b*", "*") })
	case 13:
		return pick("experimental.envoy.filters.test[k]", text)
	case 14:
		return pick("experimental.envoy.filters.test[tlv]", func() string { return d.one(text(), text(), "[a]") })
	default:
		return pick(d.one("request.headers[x-a]", "request.headers[X-B]"), text)
	}
}

func (d dice) rule() *security.Rule {
	r := &security.Rule{}
	for range d.IntN(3) {
		r.From = append(r.From, &security.Rule_From{Source: d.filledSource()})
	}
	for range d.IntN(3) {
		r.To = append(r.To, &security.Rule_To{Operation: d.filledOperation()})
	}
	if d.chance(40) {
		for range 1 + d.IntN(2) {
			r.When = append(r.When, d.condition())
		}
	}
	return r
}

// filledSource is a source that says something, as it has to.
func (d dice) filledSource() *security.Source {
	for {
		if s := d.source(); s.String() != "" {
			return s
		}
	}
}

func (d dice) filledOperation() *security.Operation {
	for {
		if o := d.operation(); o.String() != "" {
			return o
		}
	}
}

func (d dice) policy(name string, action security.AuthorizationPolicy_Action) authz.Policy {
	p := authz.Policy{Namespace: d.namespace(), Name: name, Spec: &security.AuthorizationPolicy{Action: action}}
	for range d.IntN(4) {
		p.Spec.Rules = append(p.Spec.GetRules(), d.rule())
	}
	return p
}

func (d dice) policies() []authz.Policy {
	var out []authz.Policy
	for i := range 1 + d.IntN(4) {
		action := security.AuthorizationPolicy_ALLOW
		switch n := d.IntN(100); {
		case n < 40:
			action = security.AuthorizationPolicy_DENY
		case n < 50:
			action = security.AuthorizationPolicy_AUDIT
		}
		p := d.policy(fmt.Sprint("p-", i), action)
		p.DryRun = action != security.AuthorizationPolicy_AUDIT && d.chance(20)
		out = append(out, p)
	}
	return out
}

func (d dice) options() authz.Options {
	o := authz.Options{TrustDomains: []string{d.domain()}, JoinsHeaders: d.joins}
	if d.chance(50) {
		o.TrustDomains = append(o.TrustDomains, "alias", d.domain())
	}
	return o
}

func (d dice) request(ipv6 bool) request {
	maybe := func(p int, v string) string {
		if d.chance(p) {
			return v
		}
		return ""
	}
	r := request{
		TCP: d.chance(30), Destination: d.one("10.99.0.1:", "10.99.1.1:") + d.port(),
		Remote: d.one("10.1.1.1", "10.2.1.1", "192.0.2.7"), Source: d.one("127.0.0.1", "127.0.1.1", "127.1.0.1"), Meta: maybe(30, d.claim()),
	}
	if d.chance(15) {
		r.Destination, r.Remote = d.one("[fd00::9]:", "[fd00::8]:")+d.port(), d.one("fd00::1", "2001:db8::1")
	}
	if ipv6 && d.chance(15) {
		r.Source = "::1"
	}
	if r.Peer = maybe(70, d.one(d.peer(), d.peer(), d.peer(), d.peer(), "none")); r.Peer != "" {
		r.SNI = maybe(50, d.one("a.example", "B.example", "b", "c"))
	}
	if r.TCP {
		return r
	}
	r.Method, r.Path, r.Host = d.one("GET", "POST", "PUT", "DELETE"), d.path(), d.one("a.example", "A.EXAMPLE", "b", "b.example:80")
	r.Headers = map[string]string{}
	if d.chance(50) {
		r.Headers["x-a"] = d.claim()
	}
	if d.chance(30) {
		r.Headers["X-b"] = d.claim()
	}
	if d.chance(30) {
		r.Again = map[string]string{"X-A": d.claim()}
	}
	if d.chance(50) {
		r.Claims = d.claims()
	}
	return r
}

func (d dice) claims() map[string]any {
	c := map[string]any{"iss": d.one("iss", "iss2", "https://i"), "sub": d.one("sub", "sub2")}
	value := func() any {
		switch d.IntN(4) {
		case 0:
			return []any{d.claim(), d.claim()}
		case 1:
			return []any{d.IntN(3), d.claim()}
		default:
			return d.claim()
		}
	}
	for _, name := range []string{"azp", "groups", "x.y"} {
		if d.chance(50) {
			c[name] = value()
		}
	}
	if d.chance(50) { // Envoy takes no other audiences
		c["aud"] = []any{d.claim(), []any{d.claim(), d.claim()}}[d.IntN(2)]
	}
	if d.chance(50) {
		c["n"] = map[string]any{"m": value()}
	}
	if d.chance(10) {
		delete(c, d.one("iss", "sub"))
	}
	return c
}
