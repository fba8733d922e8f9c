package view

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestPoliciesAreFound compares the index with a search of all policies, for random policies
// and workloads.
func TestPoliciesAreFound(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	labels := func(most int) map[string]string {
		out := map[string]string{}
		for range rnd.IntN(most + 1) {
			out[fmt.Sprintf("k%d", rnd.IntN(3))] = fmt.Sprintf("v%d", rnd.IntN(2))
		}
		return out
	}
	found := 0
	for range 300 {
		w := newMeshFixture(t)
		for i := range rnd.IntN(12) {
			p := w.authorize([]string{"shop", "other", "istio-system"}[rnd.IntN(3)], fmt.Sprint("p", i), `{}`)
			p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: labels(2)}
		}
		s := w.snapshot()
		x := newPolicyIndex(s)
		for range 10 {
			ns, of := []string{"shop", "other", "third", "istio-system"}[rnd.IntN(4)], labels(3)
			var want []string
			for _, p := range s.AuthorizationPolicies {
				if p.Selects(ns, of, "istio-system") {
					want = append(want, p.String())
				}
			}
			slices.Sort(want)
			got := x.selecting(ns, of)
			found += len(got)
			if fmt.Sprint(want) != fmt.Sprint(keysOf(got)) {
				t.Fatalf("%s %v: %v, want %v", ns, of, keysOf(got), want)
			}
		}
	}
	if found < 1000 {
		t.Errorf("only %d were found", found)
	}
}

func keysOf(list []*mesh.AuthorizationPolicy) []string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		out = append(out, p.String())
	}
	return out
}

// TestRegistrationsAllowNothing shows that labels which an instance of the catalog gets from
// its registration add no ALLOW policy to those that apply without them. They do add policies
// that restrict.
func TestRegistrationsAllowNothing(t *testing.T) {
	t.Parallel()
	registered := map[string]string{mesh.LabelConsulService: "api", "app": "public"}
	declared := map[string]string{"app": "public"}
	const byLabel = `"selector":{"matchLabels":{"app":"public"}}`
	for name, x := range map[string]struct {
		policies []string // specifications of p0, p1, ...
		labels   map[string]string
		want     string
	}{
		"allow_added_to_nothing":    {[]string{`{` + byLabel + `}`}, registered, "p0"},
		"allow_added_to_allow":      {[]string{`{}`, `{` + byLabel + `,"rules":[{}]}`}, registered, "p0"},
		"deny_added_to_allow":       {[]string{`{}`, `{` + byLabel + `,"action":"DENY","rules":[{}]}`}, registered, "p0 p1"},
		"allow_added_to_deny":       {[]string{`{"action":"DENY","rules":[{}]}`, `{` + byLabel + `}`}, registered, "p0 p1"},
		"declared_labels":           {[]string{`{}`, `{` + byLabel + `,"rules":[{}]}`}, declared, "p0 p1"},
		"selected_by_the_service":   {[]string{`{}`, `{"selector":{"matchLabels":{"` + mesh.LabelConsulService + `":"api"}}}`}, registered, "p0 p1"},
		"service_and_another_label": {[]string{`{}`, `{"selector":{"matchLabels":{"app":"public","` + mesh.LabelConsulService + `":"api"}}}`}, registered, "p0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			for i, spec := range x.policies {
				w.authorize("shop", fmt.Sprint("p", i), spec)
			}
			var got []string
			for _, p := range authorizing(newPolicyIndex(w.snapshot()), "shop", x.labels) {
				got = append(got, p.Name)
			}
			if strings.Join(got, " ") != x.want {
				t.Errorf("%v apply, want %s", got, x.want)
			}
		})
	}
}

// TestDryRunDoesNotRestrict: an ALLOW policy that is only tried out does not count as one that
// applies.
func TestDryRunDoesNotRestrict(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.authorize("shop", "tried", `{}`).DryRun = true
	w.authorize("shop", "web", `{"selector":{"matchLabels":{"app":"web"}}}`)
	got := authorizing(newPolicyIndex(w.snapshot()), "shop", map[string]string{mesh.LabelConsulService: "api", "app": "web"})
	if len(got) != 2 {
		t.Errorf("%v apply, want both", keysOf(got))
	}
}

// TestAuthorizationOfAProxy: what applies is in the view, and where it is written in its origins.
func TestAuthorizationOfAProxy(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.mc.TrustDomainAliases = []string{"old.example"}
	w.authorize("shop", "mine", `{"action":"DENY","rules":[{"to":[{"operation":{"paths":["/a"]}}]}]}`)
	w.authorize("other", "theirs", `{}`)
	w.authorize("istio-system", "all", `{}`).DryRun = true
	l := findPart(t, Build(w.snapshot(), proxyIn("shop", nil)), func(l *Listener) bool { return l.Inbound })
	paths := map[string]bool{}
	for _, o := range l.Origins() {
		paths[o.Path] = true
	}
	if !paths["mine.yaml"] || !paths["all.yaml"] || paths["theirs.yaml"] {
		t.Errorf("origins are %v", paths)
	}
	var a *Authorization
	for _, c := range l.Chains { // that of the ports that no service names is of TCP
		a = cmp.Or(a, c.Authorization)
	}
	if a == nil || len(a.Policies) != 2 || !slices.Equal(a.TrustDomains, []string{"cluster.local", "old.example"}) {
		t.Fatalf("authorization is %+v", a)
	}
	all, mine := a.Policies[0], a.Policies[1]
	if all.Namespace != "istio-system" || all.Name != "all" || !all.DryRun || mine.Namespace != "shop" || mine.Name != "mine" || mine.DryRun ||
		mine.Action != security.AuthorizationPolicy_DENY || len(mine.Rules) != 1 || a.Origin(1).Path != "mine.yaml" {
		t.Errorf("policies are %+v", a.Policies)
	}
}

func TestEnvoysThatJoinHeaders(t *testing.T) {
	t.Parallel()
	for version, want := range map[Version]bool{
		{}: true, {1, 30, 9}: true, {1, 36, 2}: true, {1, 36, 4}: true, {1, 36, 5}: false, {1, 36, 6}: false,
		{1, 37, 0}: true, {1, 37, 1}: false, {1, 38, 0}: false, {1, 40, 0}: false, {2, 0, 0}: false,
	} {
		w := newMeshFixture(t)
		w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
		w.authorize("shop", "p", `{}`)
		proxy := proxyIn("shop", nil)
		proxy.EnvoyVersion = version
		l := findPart(t, Build(w.snapshot(), proxy), func(l *Listener) bool { return l.Inbound })
		for _, c := range l.Chains {
			if c.Authorization != nil && c.Authorization.JoinsHeaders != want {
				t.Errorf("%v: %v, want %v", version, c.Authorization.JoinsHeaders, want)
			}
		}
		e := findPart(t, Build(w.snapshot(), proxy), func(e *Extension) bool { return e.Slot == AllowSlot })
		if e.Authorization == nil || e.Authorization.JoinsHeaders != want {
			t.Errorf("%v: the extension has %+v, want %v", version, e.Authorization, want)
		}
	}
}

// TestPoliciesAreInTheirSlots: each policy is in the extension of its action, and in no other.
// An AUDIT policy has a slot of its own, which is there only for it.
func TestPoliciesAreInTheirSlots(t *testing.T) {
	t.Parallel()
	for _, audit := range []bool{false, true} {
		w := newMeshFixture(t)
		w.service("shop", "a.mesh", 80).Inline[0].Address = "10.0.0.1"
		want := map[Slot]string{DenySlot: "shop/denies", AllowSlot: "shop/allows"}
		w.authorize("shop", "denies", `{"action":"DENY","rules":[{}]}`)
		w.authorize("shop", "allows", `{}`)
		if audit {
			want[AuditSlot] = "shop/audits"
			w.authorize("shop", "audits", `{"action":"AUDIT","rules":[{}]}`)
		}
		got := map[Slot]string{}
		v := Build(w.snapshot(), proxyIn("shop", nil))
		for part := range v.Parts() {
			switch x := part.(type) {
			case *Extension:
				if x.Authorization == nil {
					continue
				}
				for i, p := range x.Authorization.Policies {
					got[x.Slot] += p.Namespace + "/" + p.Name
					if x.Authorization.Origin(i).Path != p.Name+".yaml" || len(x.Origins()) != 1 {
						t.Errorf("%s is from %v, %v", p.Name, x.Authorization.Origin(i), x.Origins())
					}
				}
			case *Listener:
				for _, c := range x.Chains {
					if c.HTTP != nil && c.HTTP.Inbound != nil && slices.Contains(c.HTTP.Slots, AuditSlot) != audit {
						t.Errorf("with AUDIT policies %v, %s has the slots %v", audit, c.Name, c.HTTP.Slots)
					}
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}
