package analysis

import (
	"strings"

	security "istio.io/api/security/v1beta1"
)

// claimsWithoutTokens warns of a rule about tokens for a workload that no RequestAuthentication
// selects: nobody checks tokens there, so that no request has claims.
func claimsWithoutTokens(w *meshIndex, r *report) {
	for _, p := range w.policies.all {
		if p.spec.GetAction() == security.AuthorizationPolicy_CUSTOM { // its rules know no claims at all
			continue
		}
		for rule, field := range p.rules {
			for l := range lists(rule, field) {
				if l.name != "requestPrincipals" && !strings.HasPrefix(l.name, "request.auth.") {
					continue
				}
				names := w.withoutTokens(p.selection)
				if names == "" {
					continue
				}
				effect := "never match"
				if l.not {
					effect = "always match"
				}
				r.warn(place{p.object, l.field}, "no RequestAuthentication with jwtRules selects %s, so requests have no claims there, and these values %s; write a RequestAuthentication for the issuer of the tokens",
					names, effect)
			}
		}
	}
}

// withoutTokens names the workloads of a selection that no RequestAuthentication selects.
func (w *meshIndex) withoutTokens(s *selection) string {
	if s.facts.noToken == nil {
		var list []*workload
		for _, x := range s.workloads {
			if !w.checksTokens(x) {
				list = append(list, x)
			}
		}
		text := listed(s.namesOf(list))
		s.facts.noToken = &text
	}
	return *s.facts.noToken
}

func (w *meshIndex) checksTokens(x *workload) bool {
	for _, ns := range []string{w.root, x.object.Meta.Namespace} {
		of := w.policies.authenticated[ns]
		if of != nil && len(of.every) > 0 {
			return true
		}
		for range of.narrower(x.labels) {
			return true
		}
	}
	return false
}
