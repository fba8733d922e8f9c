package attest_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/profile"
)

// TestRevokedTokenAdmitsNobody: neither now nor after a restart, and the host that joined
// with another one stays.
func TestRevokedTokenAdmitsNobody(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	e := open(t, dir, nil)
	joined := join(t, e, token(t, e, grant(false), now), 1)
	secret, r, err := e.CreateToken(grant(true), 0, now, addressesOf(t, "10.0.0.1")...)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := e.TokenAddresses(r); err != nil || len(got) != 1 || got[0].String() != "10.0.0.1" {
		t.Errorf("addresses of the token: %v, %v", got, err)
	}
	if len(e.Tokens()) != 2 {
		t.Fatalf("%d tokens", len(e.Tokens()))
	}
	for _, id := range []string{"", r.ID()[:jointoken.MinID-1], r.ID() + "z", "../" + r.ID()} {
		if _, err := e.RevokeToken(id); !errors.Is(err, attest.ErrNoToken) {
			t.Errorf("revoking %q: %v, want ErrNoToken", id, err)
		}
	}
	if got, err := e.RevokeToken(r.ID()[:jointoken.MinID]); err != nil || got.ID() != r.ID() {
		t.Fatalf("revoking it: %v", err)
	}
	if _, err := e.RevokeToken(r.ID()); !errors.Is(err, attest.ErrNoToken) {
		t.Errorf("revoking it again: %v", err)
	}
	for range 2 {
		if _, err := e.Redeem(secret, profile.KeyHash{2}, now); !errors.Is(err, jointoken.ErrUnknown) {
			t.Errorf("a revoked token: %v, want ErrUnknown", err)
		}
		if _, _, ok := e.Find(joined.Binding); !ok || len(e.Tokens()) != 1 {
			t.Errorf("the host that joined with another token is gone, or its token: %v", e.Tokens())
		}
		e = open(t, dir, nil)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", "*"+r.Hash.String()+"*")); err != nil || len(left) != 0 {
		t.Errorf("left on the disk: %v, %v", left, err)
	}
}

// TestTokenOfTwoIDs: an id that two tokens share revokes neither.
func TestTokenOfTwoIDs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := open(t, dir, nil)
	_, r, err := e.CreateToken(grant(false), 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	// A second token whose hash begins like that of the first.
	twin := r.Hash
	twin[31] ^= 1
	path := func(h jointoken.Hash) string { return filepath.Join(dir, "tokens", h.String()+".json") }
	content, err := os.ReadFile(path(r.Hash))
	if err != nil {
		t.Fatal(err)
	}
	content = bytes.ReplaceAll(content, []byte(r.Hash.String()), []byte(twin.String()))
	if err := os.WriteFile(path(twin), content, 0o600); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, nil)
	if _, err := e.RevokeToken(r.ID()); !errors.Is(err, attest.ErrAmbiguousToken) || len(e.Tokens()) != 2 {
		t.Errorf("an id of two tokens: %v, %d left", err, len(e.Tokens()))
	}
	if got, err := e.RevokeToken(twin.String()); err != nil || got.Hash != twin || len(e.Tokens()) != 1 {
		t.Errorf("by the whole hash: %v, %d left", err, len(e.Tokens()))
	}
}
