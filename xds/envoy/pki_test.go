package envoy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// authority signs identities for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(tb, err, "making a key")
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	fatalIf(tb, err, "signing a root")
	cert, err := x509.ParseCertificate(der)
	fatalIf(tb, err, "reading a root")
	return &authority{cert: cert, key: key}
}

func (a *authority) rootPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// identity is a certificate for a SPIFFE ID, with its key, as PEM.
func (a *authority) identity(tb testing.TB, id string) (cert, key string) {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(tb, err, "making a key")
	u, err := url.Parse(id)
	fatalIf(tb, err, "reading %q", id)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), URIs: []*url.URL{u},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	fatalIf(tb, err, "signing %q", id)
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	fatalIf(tb, err, "writing a key")
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func (a *authority) pair(tb testing.TB, id string) tls.Certificate {
	tb.Helper()
	cert, key := a.identity(tb, id)
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	fatalIf(tb, err, "reading a pair")
	return pair
}
