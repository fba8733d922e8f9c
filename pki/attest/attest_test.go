package attest_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func open(t *testing.T, dir string, fsys durable.FS) *attest.Entitlements {
	t.Helper()
	e, err := attest.New(attest.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), FS: fsys})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func grant(replace bool) jointoken.Grant {
	return jointoken.Grant{Host: "web-1", Replace: replace, Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "web"}}}
}

func token(t *testing.T, e *attest.Entitlements, g jointoken.Grant, now time.Time) svid.Secret {
	t.Helper()
	secret, _, err := e.CreateToken(g, 0, now)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func join(t *testing.T, e *attest.Entitlements, secret svid.Secret, key byte) attest.Host {
	t.Helper()
	h, err := e.Redeem(secret, profile.KeyHash{key}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestNameInUseNeedsReplace(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	e := open(t, dir, nil)
	first, early := token(t, e, grant(false), now), token(t, e, grant(false), now)
	old := join(t, e, first, 1)
	if _, err := e.Redeem(early, profile.KeyHash{2}, now); !errors.Is(err, attest.ErrInUse) {
		t.Errorf("a second token without --replace: %v, want ErrInUse", err)
	}
	if _, _, err := e.CreateToken(grant(false), 0, now); !errors.Is(err, attest.ErrInUse) {
		t.Errorf("making one for a name in use: %v, want ErrInUse", err)
	}
	_, revoked, ok := e.Find(old.Binding)
	if !ok || closed(revoked) {
		t.Fatal("the host is not in force")
	}
	next := join(t, e, token(t, e, grant(true), now), 3)
	if !closed(revoked) || next.Binding == old.Binding {
		t.Error("replacing did not revoke the one before")
	}
	for i := range 2 {
		if _, _, ok := e.Find(old.Binding); ok {
			t.Error("the old binding is still good")
		}
		if _, err := e.Redeem(first, profile.KeyHash{1}, now); err == nil {
			t.Error("the token of the one before took the name back")
		}
		if got, _, ok := e.Find(next.Binding); !ok || got.Name != "web-1" {
			t.Errorf("round %d: the new one is not in force", i)
		}
		e = open(t, dir, nil) // and the same after a restart
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	e := open(t, dir, nil)
	secret := token(t, e, grant(false), now)
	h := join(t, e, secret, 1)
	_, revoked, _ := e.Find(h.Binding)
	if err := e.Remove("web-1"); err != nil {
		t.Fatal(err)
	}
	if !closed(revoked) {
		t.Error("streams did not end")
	}
	for range 2 {
		if _, err := e.Redeem(secret, profile.KeyHash{1}, now); !errors.Is(err, jointoken.ErrUnknown) {
			t.Errorf("its token brings it back: %v", err)
		}
		if err := e.Issued(h.Binding, profile.KeyHash{1}, now, now); !errors.Is(err, attest.ErrNotFound) {
			t.Errorf("certificate for a removed host: %v", err)
		}
		if err := e.Remove("web-1"); !errors.Is(err, attest.ErrNotFound) {
			t.Errorf("removing it twice: %v", err)
		}
		if len(e.List()) != 0 {
			t.Error("still listed")
		}
		e = open(t, dir, nil)
	}
	join(t, e, token(t, e, grant(false), now), 2)
}

func TestRecordOutlivesRestart(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	e := open(t, dir, nil)
	h := join(t, e, token(t, e, grant(false), now), 1)
	for _, key := range []byte{2, 2, 3} {
		if err := e.Issued(h.Binding, profile.KeyHash{key}, now.Add(time.Hour), now); err != nil {
			t.Fatal(err)
		}
	}
	want := e.List()
	got := open(t, dir, nil).List()
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(attest.Host{}, "Seen", "NotAfter")); d != "" {
		t.Errorf("after a restart (-before +after):\n%s", d)
	}
	if got[0].HasKey(profile.KeyHash{1}) || !got[0].HasKey(profile.KeyHash{2}) || !got[0].HasKey(profile.KeyHash{3}) {
		t.Errorf("keys %v: want the last two", got[0].Keys)
	}
	if !want[0].NotAfter.Equal(now.Add(time.Hour).UTC()) {
		t.Errorf("certificate ends %v", want[0].NotAfter)
	}
}

func TestDirectClientGetsAName(t *testing.T) {
	t.Parallel()
	e := open(t, t.TempDir(), nil)
	g := jointoken.Grant{Direct: true, Pairs: grant(false).Pairs}
	a, b := join(t, e, token(t, e, g, time.Now()), 1), join(t, e, token(t, e, g, time.Now()), 2)
	if !a.Direct || a.Name == b.Name || len(e.List()) != 2 {
		t.Errorf("direct clients %+v and %+v", a, b)
	}
}

// A death at every step of replacing a host: afterwards the name has one owner,
// and the one who joins can finish with the same key.
func TestDeathWhileReplacing(t *testing.T) {
	t.Parallel()
	for steps := 0; ; steps++ {
		dir, now := t.TempDir(), time.Now()
		e := open(t, dir, nil)
		old := join(t, e, token(t, e, grant(false), now), 1)
		secret := token(t, e, grant(true), now)
		fsys := &durabletest.FS{Steps: steps}
		_, err := open(t, dir, fsys).Redeem(secret, profile.KeyHash{2}, now)
		if fsys.Died() != (err != nil) {
			t.Fatalf("step %d: joined without being on the disk: %v", steps, err)
		}
		e = open(t, dir, nil)
		hosts := e.List()
		if len(hosts) != 1 || hosts[0].Fault != "" || err == nil && hosts[0].Binding == old.Binding {
			t.Fatalf("step %d: hosts %+v", steps, hosts)
		}
		next := join(t, e, secret, 2)
		if _, _, ok := e.Find(old.Binding); ok || next.Binding == old.Binding {
			t.Fatalf("step %d: both are in force", steps)
		}
		if err == nil {
			return
		}
	}
}

func TestBrokenRecordKeepsTheName(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	e := open(t, dir, nil)
	h := join(t, e, token(t, e, grant(false), now), 1)
	if err := os.WriteFile(filepath.Join(dir, "hosts", "web-1.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, nil)
	if list := e.List(); len(list) != 1 || list[0].Fault == "" {
		t.Errorf("listed as %+v", list)
	}
	if _, _, ok := e.Find(h.Binding); ok {
		t.Error("a record that cannot be read is in force")
	}
	if _, _, err := e.CreateToken(grant(false), 0, now); !errors.Is(err, attest.ErrInUse) {
		t.Errorf("its name is free: %v", err)
	}
	join(t, e, token(t, e, grant(true), now), 2)
}

// busyFS is a disk that has no time once it is held.
type busyFS struct {
	durable.OS
	held           atomic.Bool
	asked, release chan struct{}
}

func (f *busyFS) CreateTemp(dir, pattern string) (durable.File, error) {
	if f.held.Load() {
		f.asked <- struct{}{}
		<-f.release
	}
	return f.OS.CreateTemp(dir, pattern)
}

// A certificate for the same key writes nothing, and does not wait until hosts that
// join are on the disk.
func TestIssuedDoesNotWaitForJoins(t *testing.T) {
	t.Parallel()
	fsys := &busyFS{asked: make(chan struct{}, 1), release: make(chan struct{})}
	e := open(t, t.TempDir(), fsys)
	now := time.Now()
	known := join(t, e, token(t, e, grant(false), now), 1)
	next := grant(false)
	next.Host = "web-2"
	secret := token(t, e, next, now)
	fsys.held.Store(true)
	joined := make(chan error, 1)
	go func() {
		_, err := e.Redeem(secret, profile.KeyHash{2}, now)
		joined <- err
	}()
	<-fsys.asked
	fsys.held.Store(false)
	issued := make(chan error, 1)
	go func() { issued <- e.Issued(known.Binding, profile.KeyHash{1}, now.Add(time.Hour), now) }()
	select {
	case err := <-issued:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("it waits for a host that joins")
	}
	close(fsys.release)
	if err := <-joined; err != nil {
		t.Error(err)
	}
	h, _, ok := e.Find(known.Binding)
	if !ok || !h.NotAfter.Equal(now.Add(time.Hour)) {
		t.Errorf("%v, and its certificate ends at %s", ok, h.NotAfter)
	}
	if err := e.Remove(known.Name); err != nil {
		t.Fatal(err)
	}
	if err := e.Issued(known.Binding, profile.KeyHash{1}, now, now); !errors.Is(err, attest.ErrNotFound) {
		t.Errorf("issued for a host that was removed: %v", err)
	}
}
