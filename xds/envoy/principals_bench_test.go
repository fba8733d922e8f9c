package envoy_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/ssl/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	principals    = 1000
	principalNets = 10
)

// principal is one of those that the rule names, without its scheme.
func principal(i int) string {
	return fmt.Sprintf("cluster.local/ns/team-%02d/sa/service-%04d", i%principalNets, i)
}

// principalForm is a way to write the same rule.
type principalForm struct {
	name string
	// of changes the filter that is generated; nil means that there is no policy at all.
	of func(b *testing.B, filter *rbacv3.RBAC)
	// caller is the principal that asks.
	caller int
}

func principalForms() []principalForm {
	last := principals - 1
	generated := func(*testing.B, *rbacv3.RBAC) {}
	return []principalForm{
		{name: "without", caller: last},
		{name: "without-again", caller: last},
		{name: "generated-last", of: generated, caller: last},
		{name: "generated-first", of: generated, caller: 0},
		{name: "regex", of: asRegex, caller: last},
		{name: "by-namespace", of: byPrefix(func(name string) string { return name[:strings.LastIndex(name, "/")+1] }), caller: last},
		{name: "by-two-prefixes", of: byTwoPrefixes, caller: last},
		{name: "map", of: asMap, caller: last},
	}
}

// exactNames are the identities of the generated rule.
func exactNames(b *testing.B, f *rbacv3.RBAC) (*rbacconfigv3.Policy, []string) {
	b.Helper()
	if len(f.GetRules().GetPolicies()) != 1 {
		b.Fatalf("%d policies", len(f.GetRules().GetPolicies()))
	}
	for _, p := range f.GetRules().GetPolicies() {
		var out []string
		collect(p.GetPrincipals(), &out)
		if len(out) != principals {
			b.Fatalf("%d principals", len(out))
		}
		return p, out
	}
	return nil, nil
}

func collect(list []*rbacconfigv3.Principal, out *[]string) {
	for _, p := range list {
		if name := p.GetAuthenticated().GetPrincipalName().GetExact(); name != "" {
			*out = append(*out, name)
		}
		collect(p.GetAndIds().GetIds(), out)
		collect(p.GetOrIds().GetIds(), out)
	}
}

func authenticatedAs(m *matcherv3.StringMatcher) *rbacconfigv3.Principal {
	return &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_Authenticated_{Authenticated: &rbacconfigv3.Principal_Authenticated{PrincipalName: m}}}
}

func exactly(name string) *rbacconfigv3.Principal {
	return authenticatedAs(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}})
}

// asRegex has one expression for all.
func asRegex(b *testing.B, f *rbacv3.RBAC) {
	b.Helper()
	policy, names := exactNames(b, f)
	for i, n := range names {
		names[i] = regexp.QuoteMeta(n)
	}
	policy.Principals = []*rbacconfigv3.Principal{authenticatedAs(&matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: strings.Join(names, "|")}},
	})}
}

func anyOf(list []*rbacconfigv3.Principal) *rbacconfigv3.Principal {
	return &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_OrIds{OrIds: &rbacconfigv3.Principal_Set{Ids: list}}}
}

// grouped has a prefix before the names that begin with it.
func grouped(names []string, prefixOf func(string) string, inside func([]string) *rbacconfigv3.Principal) []*rbacconfigv3.Principal {
	by := map[string][]string{}
	for _, n := range names {
		by[prefixOf(n)] = append(by[prefixOf(n)], n)
	}
	var out []*rbacconfigv3.Principal
	for _, n := range names {
		prefix := prefixOf(n)
		if by[prefix] == nil {
			continue
		}
		out = append(out, &rbacconfigv3.Principal{Identifier: &rbacconfigv3.Principal_AndIds{AndIds: &rbacconfigv3.Principal_Set{Ids: []*rbacconfigv3.Principal{
			authenticatedAs(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}}), inside(by[prefix]),
		}}}})
		by[prefix] = nil
	}
	return out
}

func listed(names []string) *rbacconfigv3.Principal {
	var list []*rbacconfigv3.Principal
	for _, n := range names {
		list = append(list, exactly(n))
	}
	return anyOf(list)
}

func byPrefix(prefixOf func(string) string) func(*testing.B, *rbacv3.RBAC) {
	return func(b *testing.B, f *rbacv3.RBAC) {
		b.Helper()
		policy, names := exactNames(b, f)
		policy.Principals = grouped(names, prefixOf, listed)
	}
}

// byTwoPrefixes has the namespace, and within it names without their last character.
func byTwoPrefixes(b *testing.B, f *rbacv3.RBAC) {
	b.Helper()
	policy, names := exactNames(b, f)
	policy.Principals = grouped(names, func(n string) string { return n[:strings.LastIndex(n, "/")+1] }, func(some []string) *rbacconfigv3.Principal {
		return anyOf(grouped(some, func(n string) string { return n[:len(n)-2] }, listed))
	})
}

// asMap looks the identity up, with Envoy's matchers.
func asMap(b *testing.B, f *rbacv3.RBAC) {
	b.Helper()
	_, names := exactNames(b, f)
	const types = "type.googleapis.com/envoy."
	action := func(name, does string) object {
		return object{"action": object{"name": "action", "typed_config": object{"@type": types + "config.rbac.v3.Action", "name": name, "action": does}}}
	}
	table := object{}
	for _, n := range names {
		table[n] = action("rule", "ALLOW")
	}
	body, err := json.Marshal(object{"matcher": object{
		"matcher_tree": object{
			"input":           object{"name": "uri", "typed_config": object{"@type": types + "extensions.matching.common_inputs.ssl.v3.UriSanInput"}},
			"exact_match_map": object{"map": table},
		},
		"on_no_match": action("none", "DENY"),
	}})
	fatalIf(b, err, "writing a matcher")
	f.Rules = nil
	fatalIf(b, (protojson.UnmarshalOptions{}).Unmarshal(body, f), "reading a matcher")
}

// object is a part of a message in JSON.
type object = map[string]any

const principalMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: db, namespace: shop}
spec:
  ingress: [{port: {number: PORT, name: http, protocol: HTTP}, bind: 127.0.0.1, defaultEndpoint: "127.0.0.1:APP"}]
  egress: [{hosts: ["~/*"]}]
`

// principalCaller is an Envoy with a form of the rule, and a client of it.
type principalCaller struct {
	envoy *envoytest.Envoy
	conn  net.Conn
	r     *bufio.Reader
}

func newPrincipalCaller(b *testing.B, version string, form principalForm) *principalCaller {
	b.Helper()
	ca := newAuthority(b)
	app := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	b.Cleanup(app.Close)
	port := envoytest.FreePorts(b, 1)[0]
	m := strings.NewReplacer("PORT", strconv.Itoa(port), "APP", strconv.Itoa(portOf(b, app.Listener))).Replace(principalMesh)
	if form.of != nil {
		var names []string
		for i := range principals {
			names = append(names, principal(i))
		}
		m += "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: many, namespace: shop}\n" +
			"spec: {rules: [{from: [{source: {principals: [" + strings.Join(names, ", ") + "]}}]}]}\n"
	}
	who := proxyFile{Namespace: "shop", ServiceAccount: "db", IP: "127.0.0.1", Interception: "NONE"}
	resources := buildAll(view.Build(snapshotOf(b, m, ""), who.proxy()))
	for i, r := range resources {
		if form.of != nil && r.TypeURL == envoy.ExtensionType && r.Name == "envoy.filters.http.rbac.allow" {
			resources[i].Body = changedFilter(b, r.Body, form)
		}
	}
	var node map[string]any
	fatalIf(b, json.Unmarshal(bootstrap(b, resources), &node), "reading own JSON")
	withoutSDS(node)
	withSecrets(b, node, ca, who)
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	// As the product's bootstrap has it.
	node["layeredRuntime"] = map[string]any{"layers": []any{map[string]any{"name": "static", "staticLayer": map[string]any{"re2.max_program_size.error_level": 32768}}}}
	boot, err := json.Marshal(node)
	fatalIf(b, err, "marshaling bootstrap")
	c := &principalCaller{envoy: envoytest.Start(b, envoytest.Config{Bootstrap: boot, Version: version})}
	pair := ca.pair(b, "spiffe://"+principal(form.caller))
	envoytest.Eventually(b, envoytest.Patience, func() error {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"istio"}, Certificates: []tls.Certificate{pair}}}).
			DialContext(b.Context(), "tcp", at("127.0.0.1", port))
		if err == nil {
			c.conn, c.r = conn, bufio.NewReader(conn)
		}
		return err
	})
	b.Cleanup(func() { _ = c.conn.Close() })
	return c
}

func changedFilter(b *testing.B, body []byte, form principalForm) []byte {
	b.Helper()
	x, filter := &corev3.TypedExtensionConfig{}, &rbacv3.RBAC{}
	fatalIf(b, proto.Unmarshal(body, x), "reading an extension")
	fatalIf(b, x.GetTypedConfig().UnmarshalTo(filter), "reading a filter")
	form.of(b, filter)
	packed, err := anypb.New(filter)
	fatalIf(b, err, "packing")
	x.TypedConfig = packed
	out, err := proto.Marshal(x)
	fatalIf(b, err, "writing an extension")
	return out
}

// ask sends requests on the connection, one after the other, and returns the CPU time of the Envoy
// for one.
func (c *principalCaller) ask(b *testing.B, n int) float64 {
	b.Helper()
	before := scheduled(b, c.envoy.PID())
	for range n {
		_, err := io.WriteString(c.conn, "GET / HTTP/1.1\r\nhost: db.mesh\r\n\r\n")
		fatalIf(b, err, "asking")
		res, err := http.ReadResponse(c.r, nil)
		fatalIf(b, err, "reading an answer")
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			b.Fatalf("answered with %d", res.StatusCode)
		}
	}
	return float64((scheduled(b, c.envoy.PID()) - before).Nanoseconds()) / 1e3 / float64(n)
}

// scheduled is the CPU time of a process, in nanoseconds of its threads.
func scheduled(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	fatalIf(tb, err, "listing threads")
	var sum time.Duration
	for _, task := range tasks {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		fatalIf(tb, err, "reading what Envoy has used")
		sum += time.Duration(ns)
	}
	return sum
}

// BenchmarkPrincipals is the CPU that an Envoy takes for a request with mTLS on a connection that is
// kept, where an ALLOW rule names 1,000 principals, beside an Envoy without a policy: as
// it is generated, and in other forms of the same rule. The Envoys take turns, several times; the
// log has medians, the spread, and the ratio to the one without. "without-again" is another Envoy
// without a policy: its ratio is what the measurement can tell.
func BenchmarkPrincipals(b *testing.B) {
	for _, version := range envoytest.Ends() {
		b.Run(version, func(b *testing.B) {
			const rounds, requests = 9, 1000
			forms := principalForms()
			var callers []*principalCaller
			for _, form := range forms {
				c := newPrincipalCaller(b, version, form)
				c.ask(b, requests)
				callers = append(callers, c)
			}
			costs := make([][]float64, len(forms))
			for b.Loop() {
				for range rounds {
					for i, c := range callers {
						costs[i] = append(costs[i], c.ask(b, requests))
					}
				}
			}
			median := func(i int) float64 {
				list := slices.Sorted(slices.Values(costs[i]))
				return (list[len(list)/2] + list[(len(list)-1)/2]) / 2
			}
			for i, form := range forms {
				// Each round by itself: what else runs disturbs neighbors alike.
				var ratios []float64
				for n, cost := range costs[i] {
					ratios = append(ratios, cost/costs[0][n])
				}
				slices.Sort(ratios)
				b.Logf("%-16s %6.1f µs (%.1f to %.1f), ratio %.3f (%.3f to %.3f), n=%d", form.name, median(i), slices.Min(costs[i]), slices.Max(costs[i]),
					ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1], len(ratios))
				b.ReportMetric(ratios[len(ratios)/2], form.name)
			}
		})
	}
}
