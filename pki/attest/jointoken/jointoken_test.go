package jointoken_test

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func grant() jointoken.Grant {
	return jointoken.Grant{Host: "web-1", Type: "sidecar", Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "web"}}}
}

func open(t *testing.T, dir string) *jointoken.Tokens {
	t.Helper()
	store, err := jointoken.NewFileStore(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := jointoken.New(jointoken.Config{Store: store, Logger: slog.New(slog.DiscardHandler), Max: 3})
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func create(t *testing.T, tokens *jointoken.Tokens, now time.Time) svid.Secret {
	t.Helper()
	secret, _, err := tokens.Create(grant(), 0, now)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func admit(jointoken.Record) error { return nil }

func TestRedeem(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	tokens := open(t, dir)
	secret := create(t, tokens, now)
	mine, other := profile.KeyHash{1}, profile.KeyHash{2}
	step := func(name string, s svid.Secret, key profile.KeyHash, at time.Time, want error) {
		t.Helper()
		if _, err := tokens.Redeem(s, key, at, admit); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if pending := tokens.Pending(s, at); pending != (want == nil || errors.Is(want, jointoken.ErrUsed) && at.Before(now.Add(jointoken.ReplayFor))) {
			t.Errorf("%s: pending %v", name, pending)
		}
	}
	step("unknown", svid.Secret{9}, mine, now, jointoken.ErrUnknown)
	refused := errors.New("refused")
	if _, err := tokens.Redeem(secret, other, now, func(jointoken.Record) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("not admitted: %v", err)
	}
	step("first", secret, mine, now, nil) // what was not admitted did not spend it
	step("again", secret, mine, now.Add(9*time.Minute), nil)
	step("other_key", secret, other, now.Add(time.Minute), jointoken.ErrUsed)
	tokens = open(t, dir) // the server restarts
	step("again_after_restart", secret, mine, now.Add(9*time.Minute), nil)
	step("other_key_after_restart", secret, other, now.Add(time.Minute), jointoken.ErrUsed)
	step("replay", secret, mine, now.Add(11*time.Minute), jointoken.ErrReplay)
	step("other_key_late", secret, other, now.Add(11*time.Minute), jointoken.ErrUsed)

	late := create(t, tokens, now)
	step("expired", late, mine, now.Add(jointoken.DefaultTTL), jointoken.ErrExpired)
}

func TestBindingIsTheSameOnRepeat(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := open(t, t.TempDir())
	secret := create(t, tokens, now)
	first, err1 := tokens.Redeem(secret, profile.KeyHash{1}, now, admit)
	second, err2 := tokens.Redeem(secret, profile.KeyHash{1}, now.Add(time.Minute), admit)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if first.Use.Binding != second.Use.Binding || (first.Use.Binding == profile.Binding{}) {
		t.Errorf("bindings %s and %s", first.Use.Binding, second.Use.Binding)
	}
}

func TestOfTwoKeysOneWins(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := open(t, t.TempDir())
	secret := create(t, tokens, now)
	const n = 16
	var (
		wg   sync.WaitGroup
		errs [n]error
	)
	for i := range n {
		wg.Go(func() { _, errs[i] = tokens.Redeem(secret, profile.KeyHash{byte(i + 1)}, now, admit) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch {
		case err == nil:
			won++
		case !errors.Is(err, jointoken.ErrUsed):
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d keys redeemed one token", won)
	}
}

func TestDeathWhileRedeeming(t *testing.T) {
	t.Parallel()
	for steps := 0; ; steps++ {
		dir, now := t.TempDir(), time.Now()
		secret := create(t, open(t, dir), now)
		fsys := &durabletest.FS{Steps: steps}
		store, err := jointoken.NewFileStore(dir, fsys)
		if err != nil {
			t.Fatal(err)
		}
		dying, err := jointoken.New(jointoken.Config{Store: store, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		_, err = dying.Redeem(secret, profile.KeyHash{1}, now, admit)
		if fsys.Died() != (err != nil) {
			t.Fatalf("step %d: redeemed without being on the disk: %v", steps, err)
		}
		after := open(t, dir)
		if _, err := after.Redeem(secret, profile.KeyHash{1}, now.Add(time.Minute), admit); err != nil {
			t.Errorf("step %d: the same key after a restart: %v", steps, err)
		}
		if _, err := after.Redeem(secret, profile.KeyHash{2}, now.Add(time.Minute), admit); !errors.Is(err, jointoken.ErrUsed) {
			t.Errorf("step %d: another key after a restart: %v", steps, err)
		}
		if err == nil {
			return
		}
	}
}

func TestNothingOnDiskRedeems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := create(t, open(t, dir), time.Now())
	bearer := strings.TrimPrefix(secret.Bearer(), "flsecret1_")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, entries[0].Name()))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{bearer, string(secret[:]), hex.EncodeToString(secret[:])} {
		if strings.Contains(string(data), form) {
			t.Errorf("the record holds the secret: %s", data)
		}
	}
}

func TestBoundsAndSweep(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tokens := open(t, t.TempDir())
	for range 3 {
		create(t, tokens, now)
	}
	if _, _, err := tokens.Create(grant(), 0, now); err == nil {
		t.Error("a fourth of three tokens was made")
	}
	create(t, tokens, now.Add(48*time.Hour))
	if n := len(tokens.List()); n != 1 {
		t.Errorf("%d tokens kept: the ended ones should be gone", n)
	}
	for name, g := range map[string]jointoken.Grant{
		"reserved":  {Host: "a", Type: "sidecar", Pairs: []profile.Pair{{Namespace: "istio-system", ServiceAccount: "fairlead"}}},
		"host_path": {Host: "a/../b", Type: "sidecar", Pairs: grant().Pairs},
		"no_pairs":  {Host: "a", Type: "sidecar"},
		"type":      {Host: "a", Type: "ztunnel", Pairs: grant().Pairs},
		"direct":    {Host: "a", Type: "sidecar", Direct: true, Pairs: append(grant().Pairs, profile.Pair{Namespace: "a", ServiceAccount: "b"})},
	} {
		if _, _, err := tokens.Create(g, 0, now); err == nil {
			t.Errorf("%s: token made", name)
		}
	}
	for _, ttl := range []time.Duration{-1, 1, 31 * 24 * time.Hour} {
		if _, _, err := tokens.Create(grant(), ttl, now); err == nil {
			t.Errorf("life %s: token made", ttl)
		}
	}
}

func TestBrokenRecordHurtsNoOther(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	tokens := open(t, dir)
	good, bad := create(t, tokens, now), create(t, tokens, now)
	path := filepath.Join(dir, jointoken.Hash(bad.Hash()).String()+".json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens = open(t, dir)
	if _, err := tokens.Redeem(bad, profile.KeyHash{1}, now, admit); !errors.Is(err, jointoken.ErrUnknown) {
		t.Errorf("broken: %v", err)
	}
	if _, err := tokens.Redeem(good, profile.KeyHash{1}, now, admit); err != nil {
		t.Errorf("whole: %v", err)
	}
}
