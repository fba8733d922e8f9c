package server

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestBrokenPolicyDenies: a new policy with an unknown condition closes what it selects, is told,
// also after a restart, and a valid version opens it.
func TestBrokenPolicyDenies(t *testing.T) {
	t.Parallel()
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n" +
		"spec: {action: DENY, selector: {matchLabels: {app: orders}}, rules: [{when: [{key: %s, values: [a]}]}]}\n"
	cfg := config(t, treeOf(t, map[string]string{"p.yaml": fmt.Sprintf(policy, "no.such.key")}))
	r := start(t, cfg)
	denies := func(want bool) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil {
				return errors.New("there is no snapshot yet")
			}
			told := strings.Contains(fmt.Sprint(r.sources().Files[0].Faults), "the workloads with app=orders deny every request")
			if got := len(s.Unenforced) == 1; got != want || told != want || (len(s.AuthorizationPolicies) == 1) == want {
				return fmt.Errorf("denies %v, told %v, %d policies; want %v", got, told, len(s.AuthorizationPolicies), want)
			}
			return nil
		})
	}
	denies(true)
	r.stop()
	r = start(t, cfg)
	denies(true)
	put(t, filepath.Join(cfg.Roots[0].Path, "p.yaml"), fmt.Sprintf(policy, "source.namespace"))
	denies(false)
	put(t, filepath.Join(cfg.Roots[0].Path, "p.yaml"), fmt.Sprintf(policy, "no.such.key"))
	r.eventually(func() error {
		if s := fmt.Sprint(r.sources().Files[0].Faults); !strings.Contains(s, "last good version") || strings.Contains(s, "deny every request") {
			return errors.New(s)
		}
		return nil
	})
	denies(false)
}
