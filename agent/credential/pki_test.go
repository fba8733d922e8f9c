package credential

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// issued is a certificate with its key and its authority.
type issued struct {
	cert   *x509.Certificate
	key    crypto.Signer
	parent *issued // or nil
}

func ecKey(tb testing.TB, curve elliptic.Curve) crypto.Signer {
	tb.Helper()
	k, err := ecdsa.GenerateKey(curve, rand.Reader)
	fatal(tb, err)
	return k
}

func rsaKey(tb testing.TB, bits int) crypto.Signer {
	tb.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	fatal(tb, err)
	return k
}

func edKey(tb testing.TB) crypto.Signer {
	tb.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	fatal(tb, err)
	return k
}

// issue makes a certificate that is valid from one hour before now until the end.
func issue(tb testing.TB, name string, key crypto.Signer, parent *issued, change func(*x509.Certificate)) *issued {
	tb.Helper()
	n, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	fatal(tb, err)
	t := &x509.Certificate{
		SerialNumber: n, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		BasicConstraintsValid: true, IsCA: parent == nil, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if parent == nil {
		t.KeyUsage |= x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	}
	if change != nil {
		change(t)
	}
	from, by := t, key
	if parent != nil {
		from, by = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, from, key.Public(), by)
	fatal(tb, err)
	cert, err := x509.ParseCertificate(der)
	fatal(tb, err)
	return &issued{cert, key, parent}
}

func (i *issued) chainPEM() string { return pemOf(certificateBlock, i.cert.Raw) }

func (i *issued) keyPEM(tb testing.TB) string {
	tb.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(i.key)
	fatal(tb, err)
	return pemOf("PRIVATE KEY", der)
}

// list is a list of revoked certificates.
func (i *issued) list(tb testing.TB, next time.Time, revoked ...*issued) string {
	tb.Helper()
	t := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: next}
	for _, r := range revoked {
		t.RevokedCertificateEntries = append(t.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: r.cert.SerialNumber, RevocationTime: t.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, t, i.cert, i.key)
	fatal(tb, err)
	return pemOf(revokedBlock, der)
}

func pemOf(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// put writes the files of a folder.
func put(tb testing.TB, folder string, files map[string]string) {
	tb.Helper()
	fatal(tb, os.MkdirAll(folder, 0o750))
	for name, text := range files {
		fatal(tb, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
}

func fatal(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
