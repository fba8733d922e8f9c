package svid_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ca is an authority of a test.
type ca struct {
	key  crypto.Signer
	cert *x509.Certificate
}

func newCA(t *testing.T) ca {
	t.Helper()
	template, err := profile.Root(spiffeid.RequireTrustDomainFromString("mesh.test"), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	return ca{key, signed(t, template, template, key.Public(), key)}
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signed(t *testing.T, template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue makes an identity for the key: a host's, or with a pair a workload's.
func (a ca) issue(t *testing.T, key crypto.Signer, text string) *svid.Identity {
	t.Helper()
	id, err := profile.HostID(spiffeid.RequireTrustDomainFromString("mesh.test"), "web-1")
	if text != "" {
		id, err = profile.WorkloadID(spiffeid.RequireTrustDomainFromString("mesh.test"), pair(t, text))
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := profile.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	s.Binding = profile.Binding{1}
	template, err := profile.Leaf{Subject: s, PublicKey: key.Public(), TTL: time.Hour}.Template(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert := signed(t, template, a.cert, key.Public(), a.key)
	return &svid.Identity{SVID: x509svid.SVID{ID: id, PrivateKey: key, Certificates: []*x509.Certificate{cert}}, Bundle: x509bundle.FromX509Authorities(id.TrustDomain(), []*x509.Certificate{a.cert})}
}

func pair(t *testing.T, text string) svid.Pair {
	t.Helper()
	p, err := svid.ParsePair(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func hostStore(t *testing.T, dir string) *svid.HostStore {
	t.Helper()
	s, err := svid.NewHostStore(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestHostStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := hostStore(t, dir)
	if _, err := s.Load(); !errors.Is(err, svid.ErrNoIdentity) {
		t.Errorf("empty: %v", err)
	}
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	again, err := hostStore(t, dir).Key()
	if err != nil || !equal(key, again) {
		t.Fatalf("a restarted agent has another key, %v", err)
	}
	if _, err := s.Load(); !errors.Is(err, svid.ErrNoIdentity) {
		t.Errorf("before joining: %v", err)
	}
	want := newCA(t).issue(t, key, "")
	if err := s.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := hostStore(t, dir).Load()
	if err != nil || !got.Leaf().Equal(want.Leaf()) || !got.Bundle.Equal(want.Bundle) || !equal(got.PrivateKey, key) {
		t.Errorf("reads back as %v, %v", got, err)
	}
	info, err := os.Stat(filepath.Join(dir, "host.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if k, err := s.Key(); err != nil || !equal(k, key) {
		t.Errorf("the key after joining: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "host.json"), 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(); !errors.Is(err, durable.ErrExposed) {
		t.Errorf("a key that every user can read: %v", err)
	}
	if _, err := s.Key(); !errors.Is(err, durable.ErrExposed) {
		t.Errorf("a key that every user can read: %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "host.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	mixed := &svid.Identity{SVID: x509svid.SVID{ID: want.ID, PrivateKey: newKey(t), Certificates: want.Certificates}, Bundle: want.Bundle}
	if err := s.Save(mixed); err == nil {
		t.Error("a certificate for another key was saved")
	}
}

func TestHostStoreSaysWhatIsBroken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := hostStore(t, dir)
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Save(newCA(t).issue(t, key, "")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "host.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"cut": whole[:len(whole)/2], "empty": nil, "version": bytes.Replace(whole, []byte(`"version": 1`), []byte(`"version": 9`), 1),
		"unknown": bytes.Replace(whole, []byte(`"version": 1`), []byte(`"version": 1, "x": 2`), 1),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := s.Load()
		if err == nil || errors.Is(err, svid.ErrNoIdentity) || !strings.Contains(err.Error(), "--replace") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Key(); err == nil {
			t.Errorf("%s: a broken identity gave way to a new key", name)
		}
		if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error shows the file", name)
		}
	}
}

func equal(a, b crypto.Signer) bool {
	x, ok := a.(interface{ Equal(crypto.PrivateKey) bool })
	return ok && x.Equal(b)
}

func TestDeathWhileSaving(t *testing.T) {
	t.Parallel()
	a := newCA(t)
	for steps := 0; ; steps++ {
		dir := t.TempDir()
		s := hostStore(t, dir)
		key, err := s.Key()
		if err != nil {
			t.Fatal(err)
		}
		old, next := a.issue(t, key, ""), a.issue(t, key, "")
		if err := s.Save(old); err != nil {
			t.Fatal(err)
		}
		fsys := &durabletest.FS{Steps: steps}
		dying, err := svid.NewHostStore(dir, fsys)
		if err != nil {
			t.Fatal(err)
		}
		err = dying.Save(next)
		got, lerr := hostStore(t, dir).Load()
		if lerr != nil {
			t.Fatalf("step %d: %v", steps, lerr)
		}
		if !got.Leaf().Equal(next.Leaf()) && (err == nil || !got.Leaf().Equal(old.Leaf())) {
			t.Fatalf("step %d: neither the old identity nor the new", steps)
		}
		if err == nil {
			return
		}
	}
}

func sealed(t *testing.T, dir string, key crypto.Signer) *svid.SealedStore {
	t.Helper()
	secret, err := svid.SealingSecret(key)
	if err != nil {
		t.Fatal(err)
	}
	s, err := svid.NewSealedStore(dir, secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealedStore(t *testing.T) {
	t.Parallel()
	dir, hostKey, a := t.TempDir(), newKey(t), newCA(t)
	s := sealed(t, dir, hostKey)
	web, db := pair(t, "shop/web"), pair(t, "shop/db")
	if _, err := s.Load(web); !errors.Is(err, svid.ErrNoIdentity) {
		t.Errorf("empty: %v", err)
	}
	want := a.issue(t, newKey(t), "shop/web")
	if err := s.Save(web, want); err != nil {
		t.Fatal(err)
	}
	got, err := sealed(t, dir, hostKey).Load(web)
	if err != nil || !got.Leaf().Equal(want.Leaf()) || !equal(got.PrivateKey, want.PrivateKey) {
		t.Fatalf("reads back as %v, %v", got, err)
	}
	path := filepath.Join(dir, "shop_web.sealed")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, keyPEM, err := want.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(data, []byte("PRIVATE")) || bytes.Contains(data, keyPEM[30:60]) {
		t.Error("the key lies open on the disk")
	}
	if _, err := sealed(t, dir, newKey(t)).Load(web); !errors.Is(err, svid.ErrSealBroken) {
		t.Errorf("with another host's key: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "shop_db.sealed"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(db); !errors.Is(err, svid.ErrSealBroken) {
		t.Errorf("in the place of another workload: %v", err)
	}
	for i := range data {
		harmed := bytes.Clone(data)
		harmed[i] ^= 1
		if err := os.WriteFile(path, harmed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(web); err == nil {
			t.Fatalf("byte %d was changed, and nobody noticed", i)
		}
		if i > 80 && i < len(data)-20 {
			continue
		}
		if err := os.WriteFile(path, data[:i], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(web); err == nil {
			t.Fatalf("cut to %d bytes, and nobody noticed", i)
		}
	}
	if err := s.Remove(web); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(web); !errors.Is(err, svid.ErrNoIdentity) {
		t.Errorf("removed: %v", err)
	}
}

func TestSealedStoreTakesTheLongestNames(t *testing.T) {
	t.Parallel()
	key, a := newKey(t), newCA(t)
	s := sealed(t, t.TempDir(), key)
	label := strings.Repeat("a", 63)
	text := label + "/" + strings.Repeat(label+".", 3) + strings.Repeat("b", 61)
	want := a.issue(t, newKey(t), text)
	if err := s.Save(pair(t, text), want); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Load(pair(t, text)); err != nil || !got.Leaf().Equal(want.Leaf()) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestRenewAt(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	for _, ttl := range []time.Duration{20 * time.Second, time.Hour, 24 * time.Hour} {
		from, to := now.Add(-profile.Backdate(ttl)), now.Add(ttl)
		for jitter, want := range map[float64]float64{0: 0.45, 0.5: 0.5, 0.999: 0.55} {
			got := svid.RenewAt(from, to, jitter).Sub(now).Seconds() / ttl.Seconds()
			if got < want-0.01 || got > want+0.01 {
				t.Errorf("life %s, jitter %v: renewed at %.3f of it, want %.2f", ttl, jitter, got, want)
			}
		}
	}
}
