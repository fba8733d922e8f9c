package analysis

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// words are what random rules and requests are made of, so that they often meet.
type words struct{ *rand.Rand }

func (d words) one(list ...string) string { return list[d.IntN(len(list))] }

// some are up to three of the values, or none.
func (d words) some(values ...string) []string {
	var out []string
	for range max(0, d.IntN(6)-2) {
		out = append(out, d.one(values...))
	}
	return out
}

func (d words) rule() *security.Rule {
	paths := []string{"/a", "/a/b", "/a/*", "*/b", "*", "/a*", "/{*}/b", "/*"}
	peers := []string{"td/ns/a/sa/x", "cluster.local/ns/a/sa/x", "cluster.local/ns/b/sa/y", "old/ns/a/sa/x", "*", "cluster.local/*", "*/sa/x", "*/ns/a/sa/x", "td/ns/*", "*.local/ns/b/sa/y"}
	r := &security.Rule{}
	for range d.IntN(3) {
		r.To = append(r.To, &security.Rule_To{Operation: &security.Operation{
			Paths: d.some(paths...), NotPaths: d.some(paths...), Methods: d.some("GET", "PUT", "*", "P*"), Hosts: d.some("A.b", "a.b", "*.b", "a*"), Ports: d.some("80", "81", "080"),
		}})
	}
	for range d.IntN(3) {
		s := &security.Source{
			Namespaces: d.some("a", "b", "a*", "*", "*b", "a*b"), NotNamespaces: d.some("a", "b", "*"), TrustDomains: d.some("td", "*"),
			IpBlocks: d.some("10.0.0.1", "10.0.0.0/24", "10.0.0.0/8", "::/0", "0.0.0.0/0"), RequestPrincipals: d.some("*", "i/s", "i", "i/*"),
		}
		if d.IntN(2) == 0 {
			s.Principals, s.NotPrincipals = d.some(peers...), d.some(peers...)
		} else {
			s.ServiceAccounts = d.some("x", "a/x", "b/y", "y")
		}
		r.From = append(r.From, &security.Rule_From{Source: s})
	}
	for range max(0, d.IntN(4)-2) {
		switch d.IntN(4) {
		case 0:
			r.When = append(r.When, &security.Condition{Key: "request.headers[x]", Values: d.some("v", "w", "*", "v*"), NotValues: d.some("v", "w", "*w")})
		case 1:
			r.When = append(r.When, &security.Condition{Key: "source.principal", Values: d.some(peers...)})
		case 2:
			r.When = append(r.When, &security.Condition{Key: "destination.port", Values: d.some("80", "81")})
		default:
			r.When = append(r.When, &security.Condition{Key: "remote.ip", NotValues: d.some("10.0.0.1", "10.0.0.0/8")})
		}
	}
	return r
}

func (d words) request() judge.Request {
	r := judge.Request{
		Method: d.one("GET", "PUT", "POST"), Path: d.one("/a", "/a/b", "/c", "/a/b/c", "/c/b"), Authority: d.one("a.b", "A.B", "a.c", "x.b"),
		Headers: map[string][]string{}, JoinsHeaders: d.IntN(2) == 0,
		Source:      netip.MustParseAddr(d.one("10.0.0.1", "10.0.0.9", "10.1.0.1", "fd00::1", "192.0.2.1")),
		Destination: netip.MustParseAddrPort(d.one("10.0.0.1:80", "10.0.0.1:81", "10.0.0.1:82")),
	}
	for range d.IntN(3) {
		r.Headers["x"] = append(r.Headers["x"], d.one("v", "w", "vw"))
	}
	if d.IntN(5) > 0 {
		r.Peer = &judge.Peer{URIs: []string{"spiffe://" + d.one("td", "cluster.local", "old", "other") + "/ns/" + d.one("a", "b", "ab", "acb") + "/sa/" + d.one("x", "y")}}
	}
	return r
}

// TestShadowedIsCertain: where one rule is said to cover another, no request that the narrow one
// allows passes a DENY policy with the wide one, whatever the trust domain and its aliases.
func TestShadowedIsCertain(t *testing.T) {
	t.Parallel()
	d := words{rand.New(rand.NewPCG(13, 8))}
	pairs, asked := 0, 0
	tries := 60000
	if testing.Short() {
		tries = 6000
	}
	for range tries {
		domains := [][]string{{"cluster.local"}, {"td"}, {"td", "old"}, {"cluster.local", "old"}}[d.IntN(4)]
		c := coverage{plain: slices.Equal(domains, []string{localDomain})}
		narrow, wide := d.rule(), d.rule()
		allowIn, denyIn := d.one("a", "b"), d.one("a", "b")
		if !c.covers(wide, narrow, denyIn, allowIn) {
			continue
		}
		pairs++
		allow := authz.Policy{Namespace: allowIn, Name: "allow", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{narrow}}}
		deny := authz.Policy{Namespace: denyIn, Name: "deny", Spec: &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{wide}}}
		for _, translate := range []func([]authz.Policy, authz.Options) authz.Rules{authz.HTTP, authz.TCP} {
			rules := map[bool]authz.Rules{}
			for _, joins := range []bool{false, true} {
				rules[joins] = translate([]authz.Policy{allow, deny}, authz.Options{TrustDomains: domains, JoinsHeaders: joins})
			}
			for range 20 {
				r := d.request()
				one := rules[r.JoinsHeaders]
				alone, err := judge.Decide([]*rbacv3.RBAC{one.Allow.Enforced}, r)
				if err != nil {
					t.Fatal(err)
				}
				if !alone.Allowed {
					continue
				}
				asked++
				both, err := judge.Decide([]*rbacv3.RBAC{one.Deny.Enforced, one.Allow.Enforced}, r)
				if err != nil {
					t.Fatal(err)
				}
				if both.Allowed {
					t.Fatalf("trust domains %v: the DENY rule in %s\n%v\nis said to cover the ALLOW rule in %s\n%v\nbut lets through\n%+v", domains, denyIn, wide, allowIn, narrow, r)
				}
			}
		}
	}
	t.Logf("%d pairs, %d requests", pairs, asked)
	if least := tries / 60; pairs < least || asked < least {
		t.Errorf("only %d pairs, with %d requests that the narrow rule allows: this shows nothing", pairs, asked)
	}
}

// TestOfHTTPIsWhatTCPLeavesOut: a rule of ALLOW speaks of HTTP if and only if it is left out for
// ports of TCP.
func TestOfHTTPIsWhatTCPLeavesOut(t *testing.T) {
	t.Parallel()
	d := words{rand.New(rand.NewPCG(13, 9))}
	conditions := []string{
		"request.headers[x]", "source.ip", "remote.ip", "source.namespace", "source.serviceAccount", "source.principal", "source.trustDomain", "request.auth.principal",
		"request.auth.audiences", "request.auth.presenter", "request.auth.claims[x]", "destination.ip", "destination.port", "connection.sni", "experimental.envoy.filters.x[y]",
	}
	rules := []*security.Rule{}
	for _, key := range conditions {
		value := "a"
		switch {
		case strings.HasSuffix(key, ".ip"):
			value = "10.0.0.1"
		case key == "destination.port":
			value = "80"
		}
		rules = append(rules, &security.Rule{When: []*security.Condition{{Key: key, Values: []string{value}}}}, &security.Rule{When: []*security.Condition{{Key: key, NotValues: []string{value}}}})
	}
	for range 2000 {
		r := d.rule()
		for _, t := range r.To { // rules that the webhook takes
			t.Operation.Ports = append(t.Operation.Ports, "1")
		}
		for _, f := range r.From {
			f.Source.Namespaces = append(f.Source.Namespaces, "a")
		}
		r.When = slices.DeleteFunc(r.When, func(c *security.Condition) bool { return len(c.Values)+len(c.NotValues) == 0 })
		rules = append(rules, r)
	}
	left := 0
	for _, r := range rules {
		made := authz.TCP([]authz.Policy{{Namespace: "a", Name: "p", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{r}}}}, authz.Options{})
		out := len(made.Allow.Enforced.GetPolicies()) == 0
		if out {
			left++
		}
		if out != (ofHTTP(r) != "") {
			t.Fatalf("%v: left out for TCP: %v; said to speak of HTTP: %q", r, out, ofHTTP(r))
		}
	}
	if left < 100 || left > len(rules)-100 {
		t.Errorf("%d of %d rules are left out: this shows little", left, len(rules))
	}
}

// TestNeverIsCertain asks real Envoys what they make of random paths: what they make is never
// said to be impossible, as a whole or as the beginning or the end of a pattern.
func TestNeverIsCertain(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		for name, n := range map[string]normalization{
			"NONE": {}, "BASE": {base: true}, "MERGE_SLASHES": {base: true, merge: true}, "DECODE_AND_MERGE_SLASHES": {base: true, merge: true, decode: true},
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				envoy := startEcho(t, version, n)
				d := words{rand.New(rand.NewPCG(13, 10))}
				seen := 0
				for range 3000 {
					segments := []string{"/"}
					for range 1 + d.IntN(6) {
						segments = append(segments, d.one("a", "b", "/", "/", "//", ".", "..", "/..", "/.", ";", ";x", "%2f", "%2F", "%5c", `\`, "%41", "%2e", "%7e", "%20", "%zz", "é", "%C3%A9", "~", "!", "$&'()*+,=:@", "{", "}", "|", "^", "[", "]", "`", "\"", "<", ">", "\x7f", "*", "?q=//", "-_"))
					}
					path := strings.Join(segments, "")
					got := envoy.ask(t, path)
					if got == "" { // refused
						continue
					}
					seen++
					bare, _, _ := strings.Cut(got, "?")
					for i := range len(bare) + 1 {
						for _, v := range []string{bare, bare[:i] + "*", "*" + bare[i:]} {
							if strings.Count(v, "*") > 1 || isTemplate(v) || v == "" {
								continue
							}
							if why := n.never(v); why != "" {
								t.Fatalf("%q becomes %q, which %q matches; yet it is said that it cannot: %s", path, got, v, why)
							}
						}
					}
				}
				if seen < 1000 {
					t.Errorf("Envoy answered %d requests only: this shows little", seen)
				}
			})
		}
	}
}

// TestNeverIsComplete: each character of a path, and each escape, that these Envoys never let
// rules see is known.
func TestNeverIsComplete(t *testing.T) {
	t.Parallel()
	n := normalization{base: true, merge: true, decode: true}
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoy := startEcho(t, version, n)
			for c := range 256 {
				for _, text := range []string{string([]byte{byte(c)}), fmt.Sprintf("%%%02x", c)} {
					if text == "?" || text == "#" {
						continue
					}
					path := "/x" + text + "y"
					got := envoy.ask(t, path)
					if got != "" && got != path && n.never(path) == "" {
						t.Errorf("%q becomes %q, and is said to be possible", path, got)
					}
				}
			}
		})
	}
}

// echo is an Envoy that answers with the path that its rules see.
type echo struct {
	address string
	conn    net.Conn
	in      *bufio.Reader
}

func startEcho(t *testing.T, version string, n normalization) *echo {
	t.Helper()
	port := envoytest.FreePorts(t, 1)[0]
	action := "KEEP_UNCHANGED"
	if n.decode {
		action = "UNESCAPE_AND_FORWARD"
	}
	const prefix = "type.googleapis.com/envoy.extensions.filters."
	type object = map[string]any
	bootstrap, err := json.Marshal(object{
		"admin": json.RawMessage(envoytest.AdminJSON),
		"static_resources": object{"listeners": []object{{
			"name": "in", "address": object{"socket_address": object{"address": "127.0.0.1", "port_value": port}},
			"filter_chains": []object{{"filters": []object{{
				"name": "envoy.filters.network.http_connection_manager",
				"typed_config": object{
					"@type": prefix + "network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
					"normalize_path": n.base, "merge_slashes": n.merge, "path_with_escaped_slashes_action": action,
					"route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": []object{{
						"match": object{"prefix": ""}, "direct_response": object{"status": 200},
						"response_headers_to_add": []object{{"header": object{"key": "x-path", "value": "%REQ(:PATH)%"}}},
					}}}}},
					"http_filters": []object{{"name": "envoy.filters.http.router", "typed_config": object{"@type": prefix + "http.router.v3.Router"}}},
				},
			}}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	envoytest.Start(t, envoytest.Config{Bootstrap: bootstrap, Version: version})
	e := &echo{address: fmt.Sprintf("127.0.0.1:%d", port)}
	t.Cleanup(func() {
		if e.conn != nil {
			_ = e.conn.Close()
		}
	})
	return e
}

// ask sends a path as it is, and returns what Envoy's filters see of it; empty if Envoy refuses
// the request.
func (e *echo) ask(t *testing.T, path string) string {
	t.Helper()
	if e.conn == nil {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", e.address)
		if err != nil {
			t.Fatal(err)
		}
		e.conn, e.in = conn, bufio.NewReader(conn)
	}
	if err := e.conn.SetDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(e.conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(e.in, nil)
	if err != nil {
		t.Fatalf("%q: %v", path, err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK {
		_ = e.conn.Close()
		e.conn = nil
		return ""
	}
	return strings.TrimSpace(res.Header.Get("X-Path"))
}

// many is a mesh of n workloads and n policies, with all that the checks look for.
func many(tb testing.TB, n int) Input {
	tb.Helper()
	// One text for all of them: reading so many takes longer than all the rest.
	read, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: b}\nspec: {}\n"))
	if manifest.HasErrors(faults) {
		tb.Fatal(faults)
	}
	var objects []*manifest.Object
	add := func(kind mesh.Kind, namespace, name string, labels map[string]string, spec proto.Message) {
		o := *read.Objects[0]
		o.Spec, o.Meta = spec, mesh.Meta{Key: mesh.Key{Kind: kind, Namespace: namespace, Name: name}, Labels: labels, Origin: o.Meta.Origin}
		objects = append(objects, &o)
	}
	for i := range n {
		app := "app-" + strconv.Itoa(i)
		own := map[string]string{"app": app}
		add(mesh.KindWorkloadEntry, "shop", app, map[string]string{"app": app, "env": "prod"}, &networking.WorkloadEntry{
			Address: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String(), ServiceAccount: app,
		})
		add(mesh.KindServiceEntry, "shop", app, nil, &networking.ServiceEntry{
			Hosts: []string{app + ".test"}, WorkloadSelector: &networking.WorkloadSelector{Labels: own},
			Ports: []*networking.ServicePort{{Number: 80, Name: "p", Protocol: []string{"HTTP", "TCP"}[i%2]}},
		})
		policy := &security.AuthorizationPolicy{Rules: []*security.Rule{{
			To:   []*security.Rule_To{{Operation: &security.Operation{Paths: []string{"/a/../b", "x", "/p-" + strconv.Itoa(i)}}}},
			From: []*security.Rule_From{{Source: &security.Source{Principals: []string{"cluster.local/ns/shop/sa/" + app + "-x"}, RequestPrincipals: []string{"*"}}}},
		}}}
		switch i % 5 {
		case 0: // one for each workload
			policy.Selector = &typev1beta1.WorkloadSelector{MatchLabels: own}
		case 1: // for all
		case 2: // for none: all workloads have one of the labels
			policy.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"env": "prod", "app": app + "-x"}}
		case 3: // deny to all
			policy.Action = security.AuthorizationPolicy_DENY
		default: // for all by a label
			policy.Selector = &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"env": "prod"}}
		}
		add(mesh.KindAuthorizationPolicy, []string{"shop", "istio-system"}[i/5%2], app, nil, policy)
	}
	return Input{Objects: objects}
}

// quadratic separates an analysis whose work grows with the number of policies, which takes
// seconds, from one whose work grows with its square, which takes minutes.
const quadratic = 2 * time.Minute

// TestManyPoliciesTakeLinearTime analyzes 30,000 policies for as many workloads, most of them for
// all of these.
func TestManyPoliciesTakeLinearTime(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	n := 30000
	if testing.Short() {
		n = 5000
	}
	in := many(t, n)
	done := make(chan int, 1)
	go func() {
		w, r := newWorld(in), &report{}
		for _, a := range append(policyAnalyzers(), analyzer{CodeDenies, deniers}, analyzer{CodeSelectsNothing, selectors}, analyzer{CodePortNotServed, portsNotServed}) {
			r.code = a.code
			a.run(w, r)
		}
		done <- len(r.found)
	}()
	select {
	case found := <-done:
		if found < n {
			t.Errorf("%d findings: this is not the mesh that was meant", found)
		}
	case <-time.After(quadratic):
		t.Fatalf("%d policies are not analyzed after %v", n, quadratic)
	}
}

// BenchmarkAnalyzePolicies is for the same mesh.
func BenchmarkAnalyzePolicies(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		in := many(b, n)
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Analyze(in)
			}
		})
	}
}
