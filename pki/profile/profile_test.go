package profile_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
)

func td() spiffeid.TrustDomain { return spiffeid.RequireTrustDomainFromString("mesh.test") }

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestNames(t *testing.T) {
	t.Parallel()
	for pair, ok := range map[string]bool{
		"shop/web": true, "shop/web.v1": true, "a/b": true, "istio-system/other": true,
		"istio-system/fairlead": false, "shop": false, "shop/": false, "/web": false, "shop/web/x": false,
		"Shop/web": false, "shop/../x": false, "shop/..": false, "shop.x/web": false, "-a/b": false, "a/b-": false,
		"shop/we b": false, "shop/web\n": false, "shop/w%2fb": false, "shop/" + strings.Repeat("a", 254): false,
	} {
		p, err := profile.ParsePair(pair)
		if (err == nil) != ok {
			t.Errorf("pair %q: %v, want ok %v", pair, err, ok)
		}
		if ok && p.String() != pair {
			t.Errorf("pair %q reads back as %q", pair, p)
		}
	}
	if _, err := profile.ParsePair("istio-system/fairlead"); !errors.Is(err, profile.ErrReserved) {
		t.Errorf("the control plane's pair: %v, want ErrReserved", err)
	}
	for name, ok := range map[string]bool{
		"web-1": true, "web-1.example.com": true, "": false, ".": false, "..": false, "a..b": false,
		"a/b": false, "../x": false, "WEB": false, "web_1": false, strings.Repeat("a", 129): false,
	} {
		if _, err := profile.HostID(td(), name); (err == nil) != ok {
			t.Errorf("host %q: %v, want ok %v", name, err, ok)
		}
	}
}

func TestParseID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]profile.Kind{
		"spiffe://mesh.test/fairlead/host/web-1":           profile.Host,
		"spiffe://mesh.test/ns/shop/sa/web":                profile.Impersonated,
		"spiffe://mesh.test/ns/istio-system/sa/fairlead":   profile.ControlPlane,
		"spiffe://mesh.test/fairlead/host":                 profile.NoKind,
		"spiffe://mesh.test/fairlead/host/a/b":             profile.NoKind,
		"spiffe://mesh.test/fairlead/server":               profile.NoKind,
		"spiffe://mesh.test/ns/shop/sa/web/x":              profile.NoKind,
		"spiffe://mesh.test/ns/shop":                       profile.NoKind,
		"spiffe://mesh.test/host/web-1":                    profile.NoKind,
		"spiffe://mesh.test/ns/shop/user/web":              profile.NoKind,
		"spiffe://mesh.test/fairlead/ns/shop/sa/web":       profile.NoKind,
		"spiffe://mesh.test/x/ns/istio-system/sa/fairlead": profile.NoKind,
		"spiffe://mesh.test":                               profile.NoKind,
	} {
		got, err := profile.ParseID(spiffeid.RequireFromString(id))
		if got.Kind != want || (err != nil) != (want == profile.NoKind) {
			t.Errorf("%s: %s, %v; want %s", id, got.Kind, err, want)
		}
	}
}

type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key := newKey(t)
	template, err := profile.Root(td(), time.Now().Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return authority{key, sign(t, template, template, key.Public(), key)}
}

func sign(t testing.TB, template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func leaf(t testing.TB, key crypto.PublicKey) profile.Leaf {
	t.Helper()
	id, err := profile.HostID(td(), "web-1")
	if err != nil {
		t.Fatal(err)
	}
	s := profile.Subject{Kind: profile.Host, ID: id, Host: "web-1", Binding: profile.Binding{7}}
	return profile.Leaf{Subject: s, PublicKey: key, TTL: time.Hour}
}

func TestTemplateAndCheckAgree(t *testing.T) {
	t.Parallel()
	a, key, now := newAuthority(t), newKey(t), time.Now()
	l := leaf(t, key.Public())
	template, err := l.Template(now)
	if err != nil {
		t.Fatal(err)
	}
	cert := sign(t, template, a.cert, key.Public(), a.key)
	v := profile.Verification{Bundle: []*x509.Certificate{a.cert}, TrustDomain: td(), Now: now}
	got, err := v.Verify([]*x509.Certificate{cert})
	if err != nil || got != l.Subject {
		t.Fatalf("%+v, %v: want %+v", got, err, l.Subject)
	}
	v.Now = now.Add(2 * time.Hour)
	if got, err := v.Verify([]*x509.Certificate{cert}); !errors.Is(err, profile.ErrExpired) || got != l.Subject {
		t.Errorf("after its end: %v, %v", got, err)
	}
	v.Now = now.Add(-2 * time.Minute)
	if _, err := v.Verify([]*x509.Certificate{cert}); err == nil || errors.Is(err, profile.ErrExpired) {
		t.Errorf("before its beginning: %v", err)
	}
	v.Now, v.Bundle = now.Add(2*time.Hour), []*x509.Certificate{newAuthority(t).cert}
	if _, err := v.Verify([]*x509.Certificate{cert}); err == nil || errors.Is(err, profile.ErrExpired) {
		t.Errorf("ended, and of another authority: %v", err)
	}
	v.Now, v.Bundle, v.TrustDomain = now, []*x509.Certificate{a.cert}, spiffeid.RequireTrustDomainFromString("other.test")
	if _, err := v.Verify([]*x509.Certificate{cert}); err == nil {
		t.Error("accepted in another trust domain")
	}
}

// Each harm is a certificate that the right authority signed all the same.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	a, key, now := newAuthority(t), newKey(t), time.Now()
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	for name, harm := range map[string]func(*x509.Certificate){
		"two_uris":       func(c *x509.Certificate) { c.URIs = append(c.URIs, uri("spiffe://mesh.test/ns/a/sa/b")) },
		"no_uri":         func(c *x509.Certificate) { c.URIs = nil },
		"not_spiffe":     func(c *x509.Certificate) { c.URIs = []*url.URL{uri("https://mesh.test/ns/a/sa/b")} },
		"is_authority":   func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign },
		"signs_certs":    func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign },
		"no_signature":   func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyEncipherment },
		"server_only":    func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] },
		"no_usage":       func(c *x509.Certificate) { c.ExtKeyUsage = nil },
		"dns_name":       func(c *x509.Certificate) { c.DNSNames = []string{profile.IstiodName} },
		"email":          func(c *x509.Certificate) { c.EmailAddresses = []string{"a@b.c"} },
		"no_extension":   func(c *x509.Certificate) { c.ExtraExtensions = nil },
		"bad_extension":  func(c *x509.Certificate) { c.ExtraExtensions[0].Value = []byte{4, 2, 1, 1} },
		"kind_of_other":  func(c *x509.Certificate) { c.ExtraExtensions[0].Value[3] = byte(profile.Direct) },
		"kind_unknown":   func(c *x509.Certificate) { c.ExtraExtensions[0].Value[3] = 77 },
		"version":        func(c *x509.Certificate) { c.ExtraExtensions[0].Value[2] = 2 },
		"reserved_path":  func(c *x509.Certificate) { c.URIs = []*url.URL{uri("spiffe://mesh.test/fairlead/ca")} },
		"posing":         func(c *x509.Certificate) { c.URIs = []*url.URL{uri("spiffe://mesh.test/ns/istio-system/sa/fairlead")} },
		"unknown_critic": func(c *x509.Certificate) { c.ExtraExtensions[0].Critical = true },
	} {
		template, err := leaf(t, key.Public()).Template(now)
		if err != nil {
			t.Fatal(err)
		}
		harm(template)
		cert := sign(t, template, a.cert, key.Public(), a.key)
		v := profile.Verification{Bundle: []*x509.Certificate{a.cert}, TrustDomain: td(), Now: now}
		if s, err := v.Verify([]*x509.Certificate{cert}); err == nil {
			t.Errorf("%s: accepted as %+v", name, s)
		}
	}
}

func TestIssuedAtUndoesBackdate(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, ttl := range []time.Duration{profile.MinTTL, 20 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, profile.MaxTTL} {
		got := profile.IssuedAt(now.Add(-profile.Backdate(ttl)), now.Add(ttl))
		if d := got.Sub(now).Abs(); d > time.Second {
			t.Errorf("life %s: off by %s", ttl, d)
		}
	}
}

func csr(t testing.TB, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestParseCSRKeys(t *testing.T) {
	t.Parallel()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec := func(c elliptic.Curve) crypto.Signer {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	rsa2048, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		key  crypto.Signer
		ok   bool
	}{
		{"p256", ec(elliptic.P256()), true},
		{"p384", ec(elliptic.P384()), true},
		{"p521", ec(elliptic.P521()), false},
		{"p224", ec(elliptic.P224()), false},
		{"ed25519", ed, true},
		{"rsa2048", rsa2048, true},
	} {
		got, err := profile.ParseCSR(csr(t, c.key, &x509.CertificateRequest{}))
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !c.ok {
			continue
		}
		a, err1 := profile.HashKey(got)
		b, err2 := profile.HashKey(c.key.Public())
		if err1 != nil || err2 != nil || a != b {
			t.Errorf("%s: another key came out", c.name)
		}
	}
	weak := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537}
	huge := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 16000), E: 65537}
	for _, k := range []*rsa.PublicKey{weak, huge} {
		if profile.CheckKey(k) == nil {
			t.Errorf("RSA key of %d bits accepted", k.N.BitLen())
		}
	}
}

func TestParseCSRRefuses(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	good := csr(t, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"istiod.istio-system.svc"}})
	if _, err := profile.ParseCSR(good); err != nil {
		t.Fatalf("names in a request are not looked at: %v", err)
	}
	block, _ := pem.Decode(good)
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	for name, data := range map[string][]byte{
		"empty":           nil,
		"not_pem":         []byte("hello"),
		"wrong_signature": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: forged}),
		"certificate":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}),
		"two":             append(bytes.Clone(good), good...),
		"huge":            append(bytes.Repeat([]byte("\n"), profile.MaxCSR), good...),
		"der_garbage":     pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte{0x30, 0x80}}),
	} {
		if _, err := profile.ParseCSR(data); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseCSR(f *testing.F) {
	f.Add(csr(f, newKey(f), &x509.CertificateRequest{DNSNames: []string{"a"}}))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := profile.ParseCSR(data)
		if err == nil && profile.CheckKey(key) != nil {
			t.Errorf("a key came out that is not accepted: %T", key)
		}
	})
}
