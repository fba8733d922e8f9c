package kv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/lastgood"
)

// TestDenied: what a token may not read is not gone.
func TestDenied(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true})
	s := storeOf(t, a, "m")
	s.put("a.yaml", entry("a", "one"))
	s.put("secret.yaml", entry("s", "one"))
	all := []string{"a=one", "s=one"}
	needs := `give it key_prefix "m/" { policy = "read" }`
	may := a.Cluster().CreateToken(Rule("m", "read"))
	part := a.Cluster().CreateToken(`key "m/a.yaml" { policy = "read" }`)
	none := a.Cluster().CreateToken(`node_prefix "" { policy = "read" }`)
	but := a.Cluster().CreateToken(Rule("m", "read") + ` key "m/secret.yaml" { policy = "deny" }`)
	for name, c := range map[string]struct{ secret, reason string }{
		"all_but_one": {but.Secret, "keys are left out of the answer, because the token may not read them; " + needs},
		"nobody":      {"", "the token lacks key:read on \"m/\"; " + needs},
		"unknown":     {"10000000-0000-0000-0000-000000000000", "ACL not found"},
		"none":        {none.Secret, "the token lacks key:read on \"m/\"; " + needs},
		"part":        {part.Secret, "the token lacks key:read on \"m/\"; " + needs},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := at(a, "m")
			cfg.Client.TokenFile = tokenFile(t, c.secret)
			if c.secret == "" {
				cfg.Client.TokenFile = ""
			}
			r := start(t, cfg)
			st := r.awaitStatus("unavailable", unavailable)
			if list, _ := r.History(); len(list) > 0 || !strings.Contains(st.Reason, c.reason) {
				t.Errorf("%d fragments; %q, want %q", len(list), st.Reason, c.reason)
			}
		})
	}
	t.Run("revoked_and_replaced", func(t *testing.T) {
		t.Parallel()
		cfg := at(a, "m")
		cfg.Client.TokenFile = tokenFile(t, may.Secret)
		r := start(t, cfg)
		r.Await(all...)
		a.Cluster().RevokeToken(may)
		r.awaitStatus("unavailable", unavailable)
		check(t, os.WriteFile(cfg.Client.TokenFile, []byte(none.Secret), 0o600))
		r.awaitStatus("denied", func(st *lastgood.Status) bool { return strings.Contains(st.Reason, needs) })
		again := a.Cluster().CreateToken(Rule("m", "read"))
		check(t, os.WriteFile(cfg.Client.TokenFile, []byte(again.Secret), 0o600))
		r.awaitStatus("ok", ok)
		s.put("a.yaml", entry("a", "two"))
		r.Await("a=two", "s=one")
		r.Always("s=one")
	})
}

// tokenFile is a file with a token.
func tokenFile(t *testing.T, secret string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	check(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	return path
}
