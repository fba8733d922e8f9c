package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/issuertest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/registry/mesh"
)

// users is a RequestAuthentication with one rule.
func users(rule string) string {
	return "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: users, namespace: shop}\nspec: {jwtRules: [{" + rule + "}]}\n"
}

// keysOf are the keys of the one rule in a server's snapshot.
func (r *running) keysOf(want string) {
	r.t.Helper()
	r.eventually(func() error {
		s := r.registry.Snapshot()
		if s == nil || len(s.RequestAuthentications) != 1 {
			return errors.New("there is no rule yet")
		}
		if got := s.RequestAuthentications[0].Keys; len(got) != 1 || got[0] != want {
			return fmt.Errorf("the keys are %q, want %q", got, want)
		}
		return nil
	})
}

// TestKeysFromFiles: the snapshots of a server have the keys from its directory, from the first
// one on; what cannot be read is a condition; and a restarted server has the last good ones.
func TestKeysFromFiles(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	a, b := issuertest.New(t, "a", "1"), issuertest.New(t, "a", "2")
	canonical := func(i *issuertest.Issuer) string {
		set, _, err := jwks.Parse([]byte(issuertest.KeySet(i)))
		if err != nil {
			t.Fatal(err)
		}
		return set.JSON
	}
	keys := treeOf(t, map[string]string{"login.example/keys.json": issuertest.KeySet(a)})
	cfg := config(t, treeOf(t, map[string]string{"users.yaml": users("issuer: a, jwksUri: https://login.example/keys")}))
	cfg.Keys.Dir = keys
	r := start(t, cfg)
	r.eventually(func() error {
		if r.registry.Snapshot() == nil {
			return errors.New("there is no snapshot yet")
		}
		return nil
	})
	if s := r.registry.Snapshot(); s.Generation == 1 && (len(s.RequestAuthentications) != 1 || s.RequestAuthentications[0].Keys[0] != canonical(a)) {
		t.Errorf("the first snapshot has %+v", s.RequestAuthentications)
	}
	r.keysOf(canonical(a))
	put(t, filepath.Join(keys, "login.example/keys.json"), issuertest.KeySet(b))
	r.keysOf(canonical(b))
	if got := r.sources().Keys.Sets; len(got) != 1 || got[0].State != jwks.StateCurrent || got[0].URI != "https://login.example/keys" || !slices.Equal(got[0].Owners, []string{filesSource}) || !got[0].Private {
		t.Errorf("the key sets are %+v", got)
	}
	if err := os.RemoveAll(filepath.Join(keys, "login.example")); err != nil {
		t.Fatal(err)
	}
	r.stop()
	again := start(t, cfg)
	again.keysOf(canonical(b))
	put(t, filepath.Join(cfg.Roots[0].Path, "users.yaml"), users("issuer: a, jwksUri: https://nobody.example/keys"))
	again.keysOf("")
	again.eventually(func() error {
		list := again.conditionsNow()
		if !slices.ContainsFunc(list, func(c Condition) bool {
			return c.Reason == "issuer-keys" && strings.Contains(c.Text, "https://nobody.example/keys (tokens of a)") && strings.Contains(c.Text, "no such file")
		}) {
			return fmt.Errorf("the conditions are %+v", list)
		}
		return nil
	})
}

// TestKeysOfBoundSources are not wanted from private addresses, unless the setting allows it.
func TestKeysOfBoundSources(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		cfg := config(t, treeOf(t, map[string]string{"users.yaml": users("issuer: a, jwksUri: http://10.255.255.1/keys")}))
		cfg.Roots[0].Namespaces = []string{"shop"}
		cfg.Keys.BoundPrivate = allowed
		cfg.Keys.Proxy = "http://127.0.0.1:1" // nothing leaves this machine
		r := start(t, cfg)
		r.eventually(func() error {
			if sets := r.sources().Keys.Sets; len(sets) != 1 || sets[0].Private != allowed {
				return fmt.Errorf("allowed %v: the key sets are %+v", allowed, sets)
			}
			return nil
		})
	}
}

func TestKeyFlags(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want, k := range map[string]Keys{
		"--jwks-ca-file and --jwks-proxy": {Dir: dir, Proxy: "http://proxy.example:3128"},
		"--jwks-bound-private":            {Dir: dir, BoundPrivate: true},
		"is not a directory":              {Dir: filepath.Join(dir, "nothing")},
	} {
		if err := k.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", k, err, want)
		}
	}
	if err := (&Keys{Dir: dir}).check(); err != nil {
		t.Error(err)
	}
}

func TestIssuerKeyConditions(t *testing.T) {
	t.Parallel()
	s := &Sources{Keys: KeySets{Over: 2, Sets: []jwks.Status{
		{URI: "https://none", State: jwks.StateNone, Err: "gone"},
		{URI: "https://stale", State: jwks.StateStale, Age: 2 * time.Hour, Err: "away"},
		{URI: "https://late", State: jwks.StateStale, Age: time.Minute, Err: "away"},
		{URI: "https://current", State: jwks.StateCurrent},
		{URI: "https://pending", State: jwks.StatePending, Waiting: time.Second},
		{URI: "https://waiting", State: jwks.StatePending, Waiting: jwks.MaxTimeout},
		{URI: "https://file", State: jwks.StateStale, File: true, Age: 5 * time.Second, Err: "no such file"},
	}}}
	var got []string
	for _, c := range issuerKeys(nil, s, time.Time{}) {
		got = append(got, c.Subject)
		if c.Text == "" || c.Action == "" {
			t.Errorf("%+v", c)
		}
	}
	if want := []string{"https://none", "https://stale", "https://waiting", "https://file", "server"}; !slices.Equal(got, want) {
		t.Errorf("conditions are about %v, want %v", got, want)
	}
}

// TestSourceOfKeys: a request of the mesh is the same for the store.
func TestSourceOfKeys(t *testing.T) {
	t.Parallel()
	at := sourceOfKeys(mesh.KeyRequest{Location: mesh.KeyLocation{URI: "https://a", Private: true}, Issuer: "i", Timeout: time.Second, Owner: "o"})
	if want := (jwks.Source{Issuer: "i", URI: "https://a", Timeout: time.Second, Private: true, Owner: "o"}); at != want {
		t.Errorf("%+v, want %+v", at, want)
	}
	discovered := sourceOfKeys(mesh.KeyRequest{Location: mesh.KeyLocation{URI: "https://i", Discovery: true}, Issuer: "i"})
	if want := (jwks.Source{Issuer: "https://i"}); discovered != want {
		t.Errorf("%+v, want %+v", discovered, want)
	}
}
