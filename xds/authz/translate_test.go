package authz_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/xds/authz"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestTranslation compares what is made of policies with golden files. Their section
// policies.yaml is the input, options.yaml what the mesh says.
func TestTranslation(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/translate/*.txtar")
	fatalIf(t, err, "listing")
	if len(paths) == 0 {
		t.Fatal("there are no golden files")
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(path)
			fatalIf(t, err, "reading")
			in := map[string]string{}
			for _, f := range a.Files {
				in[f.Name] = string(f.Data)
			}
			policies, o := readPolicies(t, in["policies.yaml"]), readOptions(t, in["options.yaml"])
			slices.Reverse(policies)
			for name, got := range map[string]string{
				"http.yaml": describe(t, authz.HTTP(policies, o), false),
				"tcp.yaml":  describe(t, authz.TCP(policies, o), true),
			} {
				if *update {
					replace(a, name, got)
				} else if diff := cmp.Diff(in[name], got); diff != "" {
					t.Errorf("%s (-golden +got):\n%s", name, diff)
				}
			}
			if *update {
				fatalIf(t, os.WriteFile(path, txtar.Format(a), 0o600), "writing")
			}
		})
	}
}

func replace(a *txtar.Archive, name, text string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
	slices.SortStableFunc(a.Files, func(a, b txtar.File) int { return rank(a.Name) - rank(b.Name) })
}

func rank(name string) int {
	return slices.Index([]string{"options.yaml", "policies.yaml", "http.yaml", "tcp.yaml"}, name)
}

func readOptions(tb testing.TB, text string) authz.Options {
	tb.Helper()
	o := authz.Options{TrustDomains: []string{"cluster.local"}}
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	var in struct {
		TrustDomains []string `yaml:"trustDomains"`
		Providers    []string `yaml:"providers"`
		Issuers      []string `yaml:"issuers"`
	}
	if text != "" {
		fatalIf(tb, d.Decode(&in), "decoding options")
	}
	if in.TrustDomains != nil {
		o.TrustDomains = in.TrustDomains
	}
	o.Issuers = in.Issuers
	o.Providers = map[string]error{}
	for _, name := range in.Providers {
		o.Providers[name] = nil
	}
	return o
}

// describe is rules as YAML.
func describe(tb testing.TB, r authz.Rules, tcp bool) string {
	tb.Helper()
	out := map[string]any{}
	show := func(name string, s authz.Set) {
		if s.Empty() {
			return
		}
		var m proto.Message = s.HTTPFilter()
		if tcp {
			m = s.NetworkFilter()
		}
		body, err := protojson.Marshal(m)
		fatalIf(tb, err, "encoding")
		var node any
		fatalIf(tb, json.Unmarshal(body, &node), "decoding")
		out[name] = node
	}
	for _, c := range r.Custom {
		show("custom "+c.Provider, c.Set)
		show("denied "+c.Provider, authz.Set{Enforced: c.Denied})
	}
	show("audit", r.Audit)
	show("deny", r.Deny)
	show("allow", r.Allow)
	var faults []string
	for _, f := range r.Faults {
		faults = append(faults, f.Error())
	}
	if faults != nil {
		out["faults"] = faults
	}
	var text bytes.Buffer
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	fatalIf(tb, e.Encode(out), "encoding")
	return text.String()
}

// TestAliasesOfPrincipals has the trust domains of principals, as Istio's
// pilot/pkg/security/trustdomain reads them: seen in what is matched.
func TestAliasesOfPrincipals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, principal string
		domains         []string
		want            []string
	}{
		{"own", "a/ns/n/sa/s", []string{"a"}, []string{"a/ns/n/sa/s"}},
		{"own_and_alias", "a/ns/n/sa/s", []string{"a", "b"}, []string{"a/ns/n/sa/s", "b/ns/n/sa/s"}},
		{"alias", "b/ns/n/sa/s", []string{"a", "b"}, []string{"a/ns/n/sa/s", "b/ns/n/sa/s"}},
		{"local_is_own", "cluster.local/ns/n/sa/s", []string{"a"}, []string{"a/ns/n/sa/s"}},
		{"foreign", "c/ns/n/sa/s", []string{"a", "b"}, []string{"c/ns/n/sa/s"}},
		{"any_domain", "*/ns/n/sa/s", []string{"a", "b"}, []string{"*/ns/n/sa/s"}},
		{"suffix_of_one", "*-a/ns/n/sa/s", []string{"x", "new-a"}, []string{"x/ns/n/sa/s", "*-a/ns/n/sa/s"}},
		{"suffix_of_both", "*-a/ns/n/sa/s", []string{"old-a", "new-a"}, []string{"*-a/ns/n/sa/s"}},
		{"prefix", "x*/ns/n/sa/s", []string{"xy", "b"}, []string{"xy/ns/n/sa/s", "b/ns/n/sa/s"}},
		{"empty_domain", "/ns/n/sa/s", []string{"a"}, []string{"/ns/n/sa/s"}},
		{"not_a_principal", "cluster.local/ns/n/*", []string{"a", "b"}, []string{"cluster.local/ns/n/*"}},
		{"prefix_of_accounts", "a/ns/n/sa/*", []string{"a", "b"}, []string{"a/ns/n/sa/*", "b/ns/n/sa/*"}},
		{"nothing_known", "cluster.local/ns/n/sa/s", nil, []string{"cluster.local/ns/n/sa/s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			list := []string{c.principal}
			got := authz.HTTP([]authz.Policy{{Namespace: "n", Name: "p", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{{
				From: []*security.Rule_From{{Source: &security.Source{Principals: list, NotPrincipals: list}}},
			}}}}}, authz.Options{TrustDomains: c.domains})
			var terms []*rbacv3.Principal
			for _, p := range got.Allow.Enforced.GetPolicies()["ns[n]-policy[p]-rule[0]"].GetPrincipals() {
				terms = append(terms, p.GetAndIds().GetIds()...)
			}
			if len(terms) != 2 {
				t.Fatalf("principals became %v (%v): want two terms", terms, got.Faults)
			}
			for _, ids := range [][]*rbacv3.Principal{terms[0].GetOrIds().GetIds(), terms[1].GetNotId().GetOrIds().GetIds()} {
				var names []string
				for _, id := range ids {
					names = append(names, principalOf(id))
				}
				if diff := cmp.Diff(c.want, names); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// principalOf is what a policy says to get the principal.
func principalOf(p *rbacv3.Principal) string {
	m := p.GetAuthenticated().GetPrincipalName()
	name := m.GetExact()
	if m.GetPrefix() != "" {
		name = m.GetPrefix() + "*"
	}
	if m.GetSafeRegex() != nil {
		name = strings.Replace(m.GetSafeRegex().GetRegex(), ".*", "*", 1)
	}
	return strings.TrimPrefix(name, "spiffe://")
}

// TestFaultsDeny has rules that cannot be translated: with ALLOW nothing is allowed by them,
// and with DENY the faulty list matches all.
func TestFaultsDeny(t *testing.T) {
	t.Parallel()
	when := func(key string, values ...string) *security.Rule {
		return &security.Rule{When: []*security.Condition{{Key: key, Values: values}}}
	}
	to := func(o *security.Operation) *security.Rule {
		return &security.Rule{To: []*security.Rule_To{{Operation: o}}}
	}
	from := func(s *security.Source) *security.Rule {
		return &security.Rule{From: []*security.Rule_From{{Source: s}}}
	}
	for name, r := range map[string]*security.Rule{
		"null":                nil,
		"unknown_key":         when("source.colour", "red"),
		"empty_key":           when("", "red"),
		"no_values":           when("source.ip"),
		"header_without_name": when("request.headers[]", "x"),
		"header_unclosed":     when("request.headers[x", "x"),
		"header_newline":      when("request.headers[a\nb]", "x"),
		"claim_without_name":  when("request.auth.claims", "x"),
		"empty_claim":         when("request.auth.claims[a][]", "x"),
		"metadata":            when("experimental.envoy.filters.a", "x"),
		"metadata_unclosed":   when("experimental.envoy.filters.a[b", "x"),
		"address":             when("source.ip", "10.0.0.0/8", "10.0.0.256"),
		"address_of_zone":     when("remote.ip", "fe80::1%eth0"),
		"prefix_too_long":     when("destination.ip", "10.0.0.0/33"),
		"port":                when("destination.port", "65536"),
		"port_name":           to(&security.Operation{Ports: []string{"80", "http"}}),
		"no_operation":        to(nil),
		"empty_operation":     to(&security.Operation{}),
		"no_source":           from(nil),
		"empty_source":        from(&security.Source{}),
		"not_address":         from(&security.Source{NotIpBlocks: []string{"10.0.0.1", "x"}}),
		"template_unrooted":   to(&security.Operation{Paths: []string{"a/{*}"}}),
		"template_after_rest": to(&security.Operation{Paths: []string{"/{**}/{*}"}}),
		"template_brace":      to(&security.Operation{Paths: []string{"/{*}/{x}"}}),
		"template_star":       to(&security.Operation{Paths: []string{"/{*}/x*"}}),
		"template_mixed":      to(&security.Operation{NotPaths: []string{"/x{*}"}}),
		"template_gap":        to(&security.Operation{Paths: []string{"/a//{*}"}}),
		"template_empty":      to(&security.Operation{Paths: []string{"//{*}"}}),
		"template_long":       to(&security.Operation{Paths: []string{"/{*}/" + strings.Repeat("x", 256)}}),
		"account_long":        from(&security.Source{ServiceAccounts: []string{"n/" + strings.Repeat("x", 2048)}}),
		"namespace_long":      from(&security.Source{Namespaces: []string{"*" + strings.Repeat("x", 2048)}}),
		"principal_long":      from(&security.Source{Principals: []string{"*" + strings.Repeat("x", 2048)}}),
		"domain_long":         from(&security.Source{TrustDomains: []string{"*" + strings.Repeat("x", 2048)}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := func(a security.AuthorizationPolicy_Action) authz.Policy {
				return authz.Policy{Namespace: "n", Name: a.String(), Spec: &security.AuthorizationPolicy{Action: a, Rules: []*security.Rule{r}}}
			}
			got := authz.HTTP([]authz.Policy{spec(security.AuthorizationPolicy_ALLOW), spec(security.AuthorizationPolicy_DENY)}, authz.Options{})
			if len(got.Faults) != 2 || got.Faults[0].Name != "ALLOW" || got.Faults[1].Name != "DENY" {
				t.Errorf("faults %v: want one for each policy", got.Faults)
			}
			if got.Allow.Enforced == nil || len(got.Allow.Enforced.GetPolicies()) != 0 {
				t.Errorf("ALLOW became %v: want rules that allow nothing", got.Allow.Enforced)
			}
			all := authz.HTTP([]authz.Policy{{Namespace: "n", Name: "DENY", Spec: &security.AuthorizationPolicy{
				Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{{}},
			}}}, authz.Options{})
			if r == nil {
				all.Deny.Enforced = got.Deny.Enforced
				if !strings.Contains(fmt.Sprint(got.Deny.Enforced), "any:true") {
					t.Errorf("DENY became %v: want a rule that denies all", got.Deny.Enforced)
				}
			}
			if !proto.Equal(got.Deny.Enforced, all.Deny.Enforced) && name != "header_newline" && name != "empty_claim" {
				t.Errorf("DENY became %v: want a rule that denies all", got.Deny.Enforced)
			}
		})
	}
}

// TestRuleNames has the names of rules read back, in all the forms that they have.
func TestRuleNames(t *testing.T) {
	t.Parallel()
	policies := []authz.Policy{
		{Namespace: "foo", Name: "allow", Spec: &security.AuthorizationPolicy{Rules: []*security.Rule{{}}}},
		{Namespace: "foo", Name: "custom", Spec: &security.AuthorizationPolicy{
			Action: security.AuthorizationPolicy_CUSTOM, Rules: []*security.Rule{{}},
			ActionDetail: &security.AuthorizationPolicy_Provider{Provider: &security.AuthorizationPolicy_ExtensionProvider{Name: "ns[x"}},
		}},
	}
	known, unknown := authz.HTTP(policies, authz.Options{Providers: map[string]error{"ns[x": nil}}), authz.HTTP(policies, authz.Options{})
	for want, rules := range map[string]map[string]*rbacv3.Policy{
		"allow": known.Allow.Enforced.GetPolicies(), "custom": known.Custom[0].Shadow.GetPolicies(), "custom/denied": unknown.Custom[0].Denied.GetPolicies(),
	} {
		for text := range rules {
			namespace, name, rule, ok := authz.ParseRuleName(text)
			if namespace != "foo" || name != strings.TrimSuffix(want, "/denied") || rule != 0 || !ok {
				t.Errorf("%q is read as %s/%s, rule %d (%v)", text, namespace, name, rule, ok)
			}
		}
		if len(rules) != 1 {
			t.Errorf("%s: %d rules, want 1", want, len(rules))
		}
	}
	for _, text := range []string{"", "ns[a]-policy[b]", "ns[a]-policy[b]-rule[x]", "ns[a]-policy[b]-rule[0", "istio-ext-authz-p"} {
		if _, _, _, ok := authz.ParseRuleName(text); ok {
			t.Errorf("%q is read as a name", text)
		}
	}
}

// TestReadingsOfRequestPrincipalsAreBounded: a value that many issuers begin is a fault, and what it stands for denies.
func TestReadingsOfRequestPrincipalsAreBounded(t *testing.T) {
	t.Parallel()
	var issuers []string
	for i := range 40 {
		issuers = append(issuers, "https://a"+strings.Repeat("/x", i))
	}
	for value, wrong := range map[string]bool{
		"https://a" + strings.Repeat("/x", 12):       false,
		"https://a" + strings.Repeat("/x", 30):       true,
		"https://b" + strings.Repeat("/x", 4000):     false,
		"*" + strings.Repeat("/x", 12):               false,
		"*" + strings.Repeat("/x", 30):               true,
		"https://a" + strings.Repeat("/x", 30) + "*": true,
	} {
		for _, action := range []security.AuthorizationPolicy_Action{security.AuthorizationPolicy_ALLOW, security.AuthorizationPolicy_DENY} {
			spec := &security.AuthorizationPolicy{Action: action, Rules: []*security.Rule{{From: []*security.Rule_From{{Source: &security.Source{RequestPrincipals: []string{value}}}}}}}
			got := authz.HTTP([]authz.Policy{{Namespace: "n", Name: "p", Spec: spec}}, authz.Options{Issuers: issuers})
			if (len(got.Faults) > 0) != wrong {
				t.Errorf("%v %.30s…: faults %v, want some: %v", action, value, got.Faults, wrong)
			}
			if n := len(got.Allow.Enforced.GetPolicies()); action == security.AuthorizationPolicy_ALLOW && wrong && n > 0 {
				t.Errorf("%.30s…: %d rules allow", value, n)
			}
			if n := len(got.Deny.Enforced.GetPolicies()); action == security.AuthorizationPolicy_DENY && n == 0 {
				t.Errorf("%.30s…: nothing is denied", value)
			}
		}
	}
}
