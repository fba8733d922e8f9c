package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authorityFiles writes an authority, and the list of what it revoked.
func authorityFiles(tb testing.TB, name, certPath, listPath string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, SubjectKeyId: []byte{1}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign | x509.KeyUsageCertSign,
	}
	cert := sign(tb, tmpl, tmpl, key.Public(), key)
	list, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(1), NextUpdate: time.Now().Add(time.Hour)}, cert, key)
	if err != nil {
		tb.Fatal(err)
	}
	write(tb, certPath, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	write(tb, listPath, string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: list})))
}

// TestListsOfFilesThatAreServed: roots go to Envoy with their list of revoked certificates, or not at all.
// Paths may be relative to Envoy's directory, and have any character.
func TestListsOfFilesThatAreServed(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	authorityFiles(t, "a", in("a.pem"), in("a.crl"))
	authorityFiles(t, "b", in("b.pem"), in("b.crl"))
	if err := os.Mkdir(in("x~y&z=%41"), 0o700); err != nil {
		t.Fatal(err)
	}
	pemFiles(t, 1, in("x~y&z=%41/c.pem"), in("x~y&z=%41/c.key"))
	pemFiles(t, 2, in("state/own.pem"), in("state/own.key"))
	write(t, in("text"), "no list\n")
	s.c.SystemRootFiles = []string{in("b.pem")}
	relative := func(name string) string { return strings.TrimPrefix(in(name), "/") }
	for _, c := range []struct {
		fields  []string
		problem string
	}{
		{[]string{"ca", in("a.pem"), "crl", in("a.crl")}, ""},
		{[]string{"ca", relative("a.pem"), "crl", relative("a.crl")}, ""},
		{[]string{"ca", "system", "crl", in("b.crl")}, ""},
		{[]string{"ca", relative("a.pem")}, ""},
		{[]string{"cert", in("x~y&z=%41/c.pem"), "key", relative("x~y&z=%41/c.key")}, ""},
		{[]string{"ca", in("a.pem"), "crl", in("absent")}, "no such file"},
		{[]string{"ca", in("absent"), "crl", in("a.crl")}, "no such file"},
		{[]string{"ca", in("a.pem"), "crl", in("text")}, "no list of revoked"},
		{[]string{"ca", in("a.pem"), "crl", in("b.crl")}, "none of the authorities"},
		{[]string{"ca", "system", "crl", in("a.crl")}, "none of the authorities"},
		{[]string{"ca", in("text"), "crl", in("a.crl")}, "no certificate"},
		{[]string{"cert", in("state/own.pem"), "key", in("state/own.key")}, "own directory"},
		{[]string{"cert", relative("state/own.pem"), "key", relative("state/own.key")}, "own directory"},
		{[]string{"ca", in("a.pem"), "crl", relative("state/own.pem")}, "own directory"},
		{[]string{"ca", in("a.pem"), "key", in("a.crl")}, "files:ca=ROOTS"},
		{[]string{"ca", ""}, "absolute"},
		{nil, "files:ca=ROOTS"},
	} {
		q := url.Values{}
		for i := 0; i < len(c.fields); i += 2 {
			q.Set(c.fields[i], c.fields[i+1])
		}
		name := filesPrefix + q.Encode()
		if !isHostSecret(name) {
			t.Fatalf("nobody serves %s", name)
		}
		if err := s.useFile(name); err != nil {
			t.Fatal(err)
		}
		switch version, got := s.versionOf(name); {
		case c.problem == "" && (version == "" || got != ""):
			t.Errorf("%s is not served: %s", name, got)
		case c.problem != "" && (version != "" || !strings.Contains(got, c.problem)):
			t.Errorf("%s: version %q, problem %q, want %q", name, version, got, c.problem)
		}
	}
}

// TestListsOfFilesRotate: a new list is served, and the last good one while it is missing.
func TestListsOfFilesRotate(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	ca, list := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.crl")
	authorityFiles(t, "a", ca, list)
	name := filesPrefix + url.Values{"ca": {ca}, "crl": {list}}.Encode()
	if err := s.useFile(name); err != nil {
		t.Fatal(err)
	}
	one, problem := s.versionOf(name)
	if one == "" {
		t.Fatal(problem)
	}
	if err := os.Remove(list); err != nil {
		t.Fatal(err)
	}
	s.refreshFiles()
	if v, problem := s.versionOf(name); v != one || problem == "" {
		t.Errorf("without the list: version %q (before: %q), problem %q", v, one, problem)
	}
	authorityFiles(t, "a", ca, list)
	s.refreshFiles()
	if v, problem := s.versionOf(name); v == one || problem != "" {
		t.Errorf("with a new list: version %q (before: %q), problem %q", v, one, problem)
	}
}
