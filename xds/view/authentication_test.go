package view

import (
	"fmt"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// tokensOf are the rules that a proxy has, in its slot for tokens, as ISSUER=KEYS; "?" before it
// says that a token proves nothing.
func tokensOf(tb testing.TB, v *View) string {
	tb.Helper()
	e := findPart(tb, v, func(e *Extension) bool { return e.Slot == JWTSlot })
	if e.Authentication == nil {
		return ""
	}
	var out []string
	for _, r := range e.Authentication.Rules {
		text := r.Spec.GetIssuer() + "=" + r.Keys
		if r.CheckOnly {
			text = "?" + text
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestIssuersOfRequestPrincipals: policies that compare issuers and subjects know the issuers of the workload, in
// each slot for policies; others do not change with them.
func TestIssuersOfRequestPrincipals(t *testing.T) {
	t.Parallel()
	for rules, want := range map[string]string{
		`[{"from":[{"source":{"requestPrincipals":["a/b"]}}]}]`:                    "[first second]",
		`[{"from":[{"source":{"notRequestPrincipals":["a/b"]}}]}]`:                 "[first second]",
		`[{"when":[{"key":"request.auth.principal","values":["a/b"]}]}]`:           "[first second]",
		`[{"when":[{"key":"request.auth.audiences","values":["a/b"]}],"from":[]}]`: "[]",
	} {
		for action, slot := range map[string]Slot{"ALLOW": AllowSlot, "DENY": DenySlot} {
			w := newMeshFixture(t)
			w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
			w.authorize("shop", "a", `{"action":"`+action+`","rules":`+rules+`}`)
			w.authenticate("shop", "a", `{"jwtRules":[{"issuer":"second"},{"issuer":"first"},{"jwksUri":"https://x"}]}`, "1", "2", "3")
			w.authenticate("other", "a", `{"jwtRules":[{"issuer":"theirs"}]}`, "4")
			e := findPart(t, Build(w.snapshot(), proxyIn("shop", nil)), func(e *Extension) bool { return e.Slot == slot })
			if e.Authorization == nil || fmt.Sprint(e.Authorization.Issuers) != want {
				t.Errorf("%s %s: the issuers are %+v, want %s", action, rules, e.Authorization, want)
			}
		}
	}
}

// TestTokenRulesOfAProxy: all objects that select the workload count, those of the root namespace
// last, and older ones first. Where keys come from is not a part of what a proxy gets.
func TestTokenRulesOfAProxy(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
	if got := tokensOf(t, Build(w.snapshot(), proxyIn("shop", nil))); got != "" {
		t.Errorf("without rules there is %q", got)
	}
	w.authenticate("shop", "z", `{"jwtRules":[{"issuer":"older","jwks":"x","jwksUri":"https://x","timeout":"3s"},{"issuer":"second"}]}`, "1", "2")
	w.authenticate("shop", "a", `{"selector":{"matchLabels":{"app":"web"}},"jwtRules":[{"issuer":"selected"}]}`, "3")
	w.authenticate("shop", "b", `{"selector":{"matchLabels":{"app":"other"}},"jwtRules":[{"issuer":"not selected"}]}`, "4")
	w.authenticate("other", "c", `{"jwtRules":[{"issuer":"theirs"}]}`, "5")
	w.authenticate("istio-system", "d", `{"jwtRules":[{"issuer":"everybody"}]}`, "6")
	w.authenticate("shop", "e", `{}`)
	v := Build(w.snapshot(), proxyIn("shop", map[string]string{"app": "web"}))
	if got, want := tokensOf(t, v), "older=1 second=2 selected=3 everybody=6"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	e := findPart(t, v, func(e *Extension) bool { return e.Slot == JWTSlot })
	for i, want := range []string{"z", "z", "a", "d"} {
		if r, origin := e.Authentication.Rules[i], e.Authentication.Origin(i); r.Name != want || origin.Path != want+".yaml" {
			t.Errorf("rule %d is of %s/%s at %s, want %s", i, r.Namespace, r.Name, origin, want)
		}
	}
	if r := e.Authentication.Rules[1].Spec; r.GetJwks() != "" || r.GetJwksUri() != "" || r.GetTimeout() != nil {
		t.Errorf("a proxy gets %v", r)
	}
	paths := map[string]bool{}
	for _, o := range e.Origins() {
		paths[o.Path] = true
	}
	if len(paths) != 3 || !paths["d.yaml"] || !paths["z.yaml"] || !paths["a.yaml"] {
		t.Errorf("origins are %v", paths)
	}
}

// TestTokensAreCheckedBeforeRules: rules ask for claims that the slot for tokens writes.
func TestTokensAreCheckedBeforeRules(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.authorize("shop", "audits", `{"action":"AUDIT","rules":[{}]}`)
	chains := 0
	for part := range Build(w.snapshot(), proxyIn("shop", nil)).Parts() {
		l, ok := part.(*Listener)
		if !ok || !l.Inbound {
			continue
		}
		for _, c := range l.Chains {
			if c.HTTP == nil {
				continue
			}
			chains++
			seen := map[Slot]int{}
			for i, slot := range c.HTTP.Slots {
				seen[slot] = i + 1
			}
			for _, later := range []Slot{AuditSlot, DenySlot, AllowSlot} {
				if seen[JWTSlot] == 0 || seen[JWTSlot] > seen[later] {
					t.Errorf("%s has %v", c.Name, c.HTTP.Slots)
				}
			}
		}
	}
	if chains == 0 {
		t.Error("there is no chain with HTTP")
	}
}

// TestRegistrationsProveNothing shows that labels which an instance of the catalog gets from its
// registration add no issuer whose tokens prove something, where any policy applies without
// them: who registers could have tokens of another issuer accepted.
func TestRegistrationsProveNothing(t *testing.T) {
	t.Parallel()
	registered := map[string]string{mesh.LabelConsulService: "api", "app": "public"}
	const byLabel, byService = `"selector":{"matchLabels":{"app":"public"}}`, `"selector":{"matchLabels":{"` + mesh.LabelConsulService + `":"api"}}`
	for name, x := range map[string]struct {
		tokens, policies []string // specifications without their rules; policies are as they are
		labels           map[string]string
		want             string
	}{
		"alone":                          {[]string{byLabel}, nil, registered, "0="},
		"beside_one_for_all":             {[]string{`"selector":null`, byLabel}, nil, registered, "0= ?1="},
		"beside_one_for_the_service":     {[]string{byService, byLabel}, nil, registered, "0= ?1="},
		"two_by_label":                   {[]string{byLabel, byLabel}, nil, registered, "0= 1="},
		"declared_labels":                {[]string{`"selector":null`, byLabel}, nil, map[string]string{"app": "public"}, "0= 1="},
		"beside_an_allow_policy":         {[]string{byLabel}, []string{`{}`}, registered, "?0="},
		"beside_a_deny_policy":           {[]string{byLabel}, []string{`{"action":"DENY","rules":[{"from":[{"source":{"notRequestPrincipals":["*"]}}]}]}`}, registered, "?0="},
		"beside_a_policy_by_label":       {[]string{byLabel}, []string{`{` + byLabel + `}`}, registered, "0="},
		"by_the_service_beside_a_policy": {[]string{byService}, []string{`{}`}, registered, "0="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
			for i, selector := range x.tokens {
				w.authenticate("shop", fmt.Sprint("t", i), fmt.Sprintf(`{%s,"jwtRules":[{"issuer":"%d"}]}`, selector, i))
			}
			for i, spec := range x.policies {
				w.authorize("shop", fmt.Sprint("p", i), spec)
			}
			if got := tokensOf(t, Build(w.snapshot(), proxyIn("shop", x.labels))); got != x.want {
				t.Errorf("%s, want %s", got, x.want)
			}
		})
	}
}

// TestOtherKeysAreAnotherView: the keys are input, so that a proxy gets other ones, and that all
// that is not about them stays.
func TestOtherKeysAreAnotherView(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.authenticate("shop", "t", `{"jwtRules":[{"issuer":"a","jwksUri":"https://a"}]}`, "")
	in := mesh.Input{Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}}, Fragments: []*mesh.Fragment{&w.f}}
	at := mesh.KeyLocation{URI: "https://a", Private: true}
	proxies := []Proxy{proxyIn("shop", nil), proxyIn("other", nil)}
	var x *Index
	var had []*View
	for i, keys := range []string{"", "one", "one", "two", ""} {
		in.KeySets = mesh.NewKeySets(map[mesh.KeyLocation]string{at: keys})
		in.Prev = mesh.Merge(in)
		prev := x
		if x = prev.Next(in.Prev); prev == nil {
			had = []*View{x.Build(proxies[0]), x.Build(proxies[1])}
			continue
		}
		for p, proxy := range proxies {
			v := x.Rebuild(had[p], proxy)
			if want := tokensOf(t, Build(in.Prev, proxy)); tokensOf(t, v) != want || p == 0 && want != "a="+keys {
				t.Errorf("step %d: %s has %q, want %q", i, proxy.ServiceAccount, tokensOf(t, v), want)
			}
			if (v == had[p]) != (p == 1 || keys == "one" && i == 2) {
				t.Errorf("step %d: the view of %s is the same: %v", i, proxy.ServiceAccount, v == had[p])
			}
			had[p] = v
		}
	}
}

// A rule that proves nothing must not be equal to one that does.
func TestTokenRulesAreCompared(t *testing.T) {
	t.Parallel()
	hash := func(r TokenRule) mesh.Hash { return ContentHash(Authentication{Rules: []TokenRule{r}}) }
	rule := TokenRule{Spec: &security.JWTRule{Issuer: "a"}, Keys: "k"}
	seen := map[mesh.Hash]bool{hash(rule): true}
	for _, edit := range []func(*TokenRule){
		func(r *TokenRule) { r.CheckOnly = true }, func(r *TokenRule) { r.Name = "n" }, func(r *TokenRule) { r.Keys = "l" }, func(r *TokenRule) { r.Spec = &security.JWTRule{Issuer: "b"} },
	} {
		other := rule
		if edit(&other); seen[hash(other)] {
			t.Errorf("%+v is equal to another rule", other)
		}
		seen[hash(other)] = true
	}
}
