package svid_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// issueAt makes a workload's identity as a server whose clock shows at would.
func (a ca) issueAt(t *testing.T, at time.Time) *svid.Identity {
	t.Helper()
	id := a.issue(t, newKey(t), "shop/web")
	s, err := profile.Check(id.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	template, err := profile.Leaf{Subject: s, PublicKey: id.PrivateKey.Public(), TTL: 24 * time.Hour}.Template(at)
	if err != nil {
		t.Fatal(err)
	}
	id.Certificates[0] = signed(t, template, a.cert, id.PrivateKey.Public(), a.key)
	return id
}

// TestVersionsServeWhatIsValid steps clocks in every order: what is served is valid
// whenever one of the last two certificates is.
func TestVersionsServeWhatIsValid(t *testing.T) {
	t.Parallel()
	a, now := newCA(t), time.Now()
	steps := []time.Duration{-48 * time.Hour, -24 * time.Hour, -30 * time.Second, 0, time.Hour, 24 * time.Hour, 48 * time.Hour}
	ids := map[time.Duration]*svid.Identity{}
	for _, s := range steps {
		ids[s] = a.issueAt(t, now.Add(s))
	}
	is := func(id *svid.Identity, at time.Time) bool {
		return id != nil && !at.Before(id.Leaf().NotBefore) && at.Before(id.NotAfter())
	}
	for _, first := range steps {
		for _, second := range steps {
			for _, third := range steps {
				v := svid.Versions{}
				for _, s := range []time.Duration{first, second, third} {
					before := v
					v = v.Add(ids[s], now)
					if v.New != ids[s] {
						t.Fatal("the newest is not first")
					}
					if had := is(before.New, now) || is(before.Old, now); had && !is(v.At(now), now) {
						t.Errorf("%s, %s, %s: a certificate that is valid was given up", first, second, third)
					}
				}
				want := v.New
				if !now.Before(v.New.NotAfter()) && v.Old.NotAfter().After(want.NotAfter()) {
					want = v.Old
				}
				if !is(v.New, now) && !is(v.Old, now) && v.At(now) != want {
					t.Errorf("%s, %s, %s: none is valid, and what is served ends at %s", first, second, third, v.At(now).NotAfter())
				}
				if shown := v.Shown(now).NotAfter(); !now.Before(v.New.NotAfter()) && shown.Before(want.NotAfter()) {
					t.Errorf("%s, %s, %s: what is shown ends at %s, and another one later", first, second, third, shown)
				}
			}
		}
	}
}

// TestNoneIsValidByAClockThatIsAhead has a server behind sign the newest certificate,
// and then the host's clock far ahead: the one that is valid for all others serves.
func TestNoneIsValidByAClockThatIsAhead(t *testing.T) {
	t.Parallel()
	a, now := newCA(t), time.Now()
	right, ended := a.issueAt(t, now), a.issueAt(t, now.Add(-48*time.Hour))
	v := svid.Versions{New: right}.Add(ended, now)
	for _, own := range []time.Time{now, now.Add(48 * time.Hour)} {
		if v.At(own) != right || v.Shown(own) != right {
			t.Errorf("at %s: served until %s, shown until %s", own, v.At(own).NotAfter(), v.Shown(own).NotAfter())
		}
	}
}

func TestClockLearnsFromCertificatesAlone(t *testing.T) {
	t.Parallel()
	dir, a, now := t.TempDir(), newCA(t), time.Now()
	c, err := svid.OpenClock(dir, "boot-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	epoch := time.Unix(0, 0)
	if c.Renewed() || c.Behind(epoch) || !c.Now(epoch).Equal(epoch) {
		t.Error("it knows something of nothing")
	}
	// A clock that is far ahead leaves no trace.
	if far := now.AddDate(100, 0, 0); !c.Now(far).Equal(far) || !c.Now(now).Equal(now) {
		t.Error("it learned from the own clock")
	}
	c.Certified(a.issueAt(t, now.Add(24*time.Hour)))
	if !c.Behind(now) || c.Now(now).Before(now.Add(23*time.Hour)) {
		t.Error("proof of a later time was ignored")
	}
	c.Certified(a.issueAt(t, now))
	if c.Behind(now) || !c.Now(now).Equal(now) {
		t.Error("newer evidence did not lower the bound")
	}
	if c.Behind(now.Add(-45 * time.Second)) {
		t.Error("a skew inside the backdating counts")
	}
	if err := c.Save(); err != nil {
		t.Fatal(err)
	}
	for boot, renewed := range map[string]bool{"boot-1": true, "boot-2": false, "": false} {
		again, err := svid.OpenClock(dir, boot, nil)
		if err != nil {
			t.Fatal(err)
		}
		if again.Renewed() != renewed {
			t.Errorf("boot %q: renewed is %v", boot, again.Renewed())
		}
		if got := again.Now(epoch); got.Before(now.Add(-2*time.Minute)) || got.After(now.Add(2*time.Minute)) {
			t.Errorf("boot %q: in 1970 the time is taken for %s", boot, got)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "clock.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := svid.OpenClock(dir, "", nil); err == nil || c == nil || c.Behind(epoch) {
		t.Errorf("a broken file: %v", err)
	}
}

func TestPreviousIdentitiesAreKeptBesideTheNewest(t *testing.T) {
	t.Parallel()
	dir, a, key := t.TempDir(), newCA(t), newKey(t)
	hosts := hostStore(t, dir)
	old, next := a.issue(t, key, ""), a.issue(t, key, "")
	for _, err := range []error{hosts.SavePrevious(old), hosts.Save(next)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := hostStore(t, dir).Versions()
	if err != nil || !got.New.Leaf().Equal(next.Leaf()) || got.Old == nil || !got.Old.Leaf().Equal(old.Leaf()) {
		t.Errorf("host: %v, %v", got, err)
	}
	if info, err := os.Stat(hosts.PreviousPath()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info, err)
	}
	// Another host's in its place, or another key's, is left aside.
	if err := hosts.SavePrevious(a.issue(t, newKey(t), "")); err != nil {
		t.Fatal(err)
	}
	if got, err := hosts.Versions(); err != nil || got.Old != nil {
		t.Errorf("host with another key before: %v, %v", got.Old, err)
	}
	web, db := pair(t, "shop/web"), pair(t, "shop/db")
	s := sealed(t, filepath.Join(dir, "workloads"), key)
	first, second := a.issue(t, newKey(t), "shop/web"), a.issue(t, newKey(t), "shop/web")
	for _, err := range []error{s.SavePrevious(web, first), s.Save(web, second), s.Save(db, a.issue(t, newKey(t), "shop/db"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if v, err := s.Versions(web); err != nil || !v.New.Leaf().Equal(second.Leaf()) || v.Old == nil || !v.Old.Leaf().Equal(first.Leaf()) {
		t.Errorf("workload: %v, %v", v, err)
	}
	if v, err := s.Versions(db); err != nil || v.Old != nil {
		t.Errorf("workload without one before: %v, %v", v, err)
	}
	if err := s.Remove(web); err != nil {
		t.Fatal(err)
	}
	if path, _ := s.PreviousPath(web); path != "" {
		if _, err := os.Stat(path); err == nil {
			t.Error("the previous one survives its removal")
		}
	}
}
