package mesh

import (
	"testing"

	security "istio.io/api/security/v1beta1"
	apitype "istio.io/api/type/v1beta1"
)

// TestPoliciesSelect: a policy is for the workloads of its namespace, or of all if that is the
// root namespace, that have all labels of its selector.
func TestPoliciesSelect(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"app": "web", "tier": "front"}
	for name, c := range map[string]struct {
		of       string
		selector map[string]string
		want     bool
	}{
		"own":            {"shop", nil, true},
		"own_labels":     {"shop", map[string]string{"app": "web"}, true},
		"own_others":     {"shop", map[string]string{"app": "web", "tier": "back"}, false},
		"root":           {"istio-system", nil, true},
		"root_labels":    {"istio-system", labels, true},
		"root_others":    {"istio-system", map[string]string{"app": "api"}, false},
		"another":        {"billing", nil, false},
		"another_labels": {"billing", labels, false},
	} {
		meta := Meta{Key: Key{Namespace: c.of, Name: "p"}}
		var selector *apitype.WorkloadSelector
		if c.selector != nil {
			selector = &apitype.WorkloadSelector{MatchLabels: c.selector}
		}
		for kind, p := range map[string]interface {
			Selects(namespace string, labels map[string]string, root string) bool
		}{
			"Unenforced":            &Unenforced{Meta: meta, Selector: c.selector},
			"RequestAuthentication": &RequestAuthentication{Meta: meta, Spec: &security.RequestAuthentication{Selector: selector}},
			"AuthorizationPolicy":   &AuthorizationPolicy{Meta: meta, Spec: &security.AuthorizationPolicy{Selector: selector}},
		} {
			if got := p.Selects("shop", labels, "istio-system"); got != c.want {
				t.Errorf("%s %s selects: %v", kind, name, got)
			}
		}
	}
}
