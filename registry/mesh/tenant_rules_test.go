package mesh

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
)

// ruleOfTenant is a DestinationRule of a source that is bound to "shop".
func ruleOfTenant(t *testing.T, name, spec string, exports ...string) *DestinationRule {
	t.Helper()
	r := &DestinationRule{
		Meta:     Meta{Key: Key{KindDestinationRule, "shop", name}, Hash: Hash{1}, Origin: &Origin{Source: "shop", Path: name + ".yaml", Line: 1}},
		Spec:     &networking.DestinationRule{},
		ExportTo: exports,
	}
	if err := protojson.Unmarshal([]byte(spec), r.Spec); err != nil {
		t.Fatalf("reading %s: %v", spec, err)
	}
	return r
}

// TestCredentialsNeedToBeGiven: in each place of a rule that can name a credential, one that was not given to a
// source is refused elsewhere, reported at its path, and as it is in the rule's own namespace.
func TestCredentialsNeedToBeGiven(t *testing.T) {
	t.Parallel()
	const policy = `{"tls": {"mode": "SIMPLE", "credentialName": "a"}, "portLevelSettings": [{"port": {"number": 1}}, {"port": {"number": 2}, "tls": {"mode": "MUTUAL", "credentialName": "b"}}]}`
	rule := ruleOfTenant(t, "r", fmt.Sprintf(`{"host": "a.example", "trafficPolicy": %s, "subsets": [{"name": "x"}, {"name": "y", "trafficPolicy": %s}]}`, policy, policy))
	all := map[string]string{
		"spec.trafficPolicy.tls.credentialName": "a", "spec.trafficPolicy.portLevelSettings[1].tls.credentialName": "b",
		"spec.subsets[1].trafficPolicy.tls.credentialName": "a", "spec.subsets[1].trafficPolicy.portLevelSettings[1].tls.credentialName": "b",
	}
	for _, given := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"A", "kubernetes://a"}} {
		s := Merge(Input{
			Fallback: testMeshConfig(), Fragments: []*Fragment{{Source: "shop", DestinationRules: []*DestinationRule{rule}}},
			Bindings: []*Binding{{Namespaces: []string{"shop"}, Credentials: given}},
		})
		want := map[string]bool{}
		for field, name := range all {
			if !slices.Contains(given, name) {
				want[field] = true
			}
		}
		got := s.DestinationRules[0]
		for field, tls := range clientTLS(got.SpecElsewhere()) {
			if refused := tls.GetCredentialName() == RefusedCredential; refused != want[field+".credentialName"] {
				t.Errorf("with %v, %s: refused %t", given, field, refused)
			}
		}
		if got.Spec != rule.Spec || (got.Hash == rule.Hash) != (len(want) == 0) {
			t.Errorf("with %v, the rule differs in its own namespace, or its hash does not", given)
		}
		for _, c := range s.Conflicts {
			if c.Kind != ConflictCredential || !want[c.Field] {
				t.Errorf("with %v: %+v", given, c)
			}
			delete(want, c.Field)
		}
		if len(want) > 0 {
			t.Errorf("with %v, not reported: %v", given, want)
		}
	}
}

// TestCredentialsOfNobodyElse: what no gateway of another namespace sees, or uses no credential, is not
// reported, and an unbound source has no such rule.
func TestCredentialsOfNobodyElse(t *testing.T) {
	t.Parallel()
	const mutual = `{"host": "a.example", "trafficPolicy": {"tls": {"mode": "MUTUAL", "credentialName": "a"}}}`
	for name, c := range map[string]struct {
		rule  *DestinationRule
		bound *Binding
	}{
		"private": {ruleOfTenant(t, "r", mutual, "shop"), &Binding{Namespaces: []string{"shop"}}},
		"mode":    {ruleOfTenant(t, "r", `{"host": "a.example", "trafficPolicy": {"tls": {"mode": "ISTIO_MUTUAL", "credentialName": "a"}}}`), &Binding{Namespaces: []string{"shop"}}},
		"unbound": {ruleOfTenant(t, "r", mutual), nil},
	} {
		s := Merge(Input{
			Fallback: testMeshConfig(), Fragments: []*Fragment{{Source: "shop", DestinationRules: []*DestinationRule{c.rule}}, {Source: "other"}},
			Bindings: []*Binding{c.bound, {Namespaces: []string{"other"}}},
		})
		if len(s.Conflicts) > 0 {
			t.Errorf("%s: %+v", name, s.Conflicts)
		}
		if c.bound == nil && s.DestinationRules[0].Elsewhere != nil {
			t.Errorf("%s: the rule is another one elsewhere", name)
		}
	}
}
