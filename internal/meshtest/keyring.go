package meshtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// KeyRing is an authority that is none of the mesh, and issues certificates into the folders of
// credentials of a host.
type KeyRing struct {
	tb testing.TB
	// Dir is the directory of the folders.
	Dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// NewKeyRing makes an authority.
func NewKeyRing(tb testing.TB, dir string) *KeyRing {
	tb.Helper()
	k := &KeyRing{tb: tb, Dir: dir, serial: 1}
	k.key = k.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ring"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, k.key.Public(), k.key)
	k.must(err)
	k.cert, err = x509.ParseCertificate(der)
	k.must(err)
	return k
}

func (k *KeyRing) must(err error) {
	k.tb.Helper()
	if err != nil {
		k.tb.Fatal(err)
	}
}

func (k *KeyRing) newKey() *ecdsa.PrivateKey {
	k.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	k.must(err)
	return key
}

// Issue makes a certificate for a host name, with its key, in PEM.
func (k *KeyRing) Issue(name string) (serial *big.Int, chain, key string) {
	k.tb.Helper()
	own := k.newKey()
	k.serial++
	serial = big.NewInt(k.serial)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * time.Minute),
	}, k.cert, own.Public(), k.key)
	k.must(err)
	raw, err := x509.MarshalPKCS8PrivateKey(own)
	k.must(err)
	return serial, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
}

// Client makes a certificate for a client.
func (k *KeyRing) Client(name string) (tls.Certificate, *big.Int) {
	k.tb.Helper()
	serial, chain, key := k.Issue(name)
	own, err := tls.X509KeyPair([]byte(chain), []byte(key))
	k.must(err)
	return own, serial
}

// Put writes a new certificate into a folder, one file after the other.
func (k *KeyRing) Put(folder, name string) *big.Int {
	k.tb.Helper()
	serial, chain, key := k.Issue(name)
	k.Write(folder, "tls.crt", chain)
	k.Write(folder, "tls.key", key)
	return serial
}

// Write replaces a file of a folder at once.
func (k *KeyRing) Write(folder, file, text string) {
	k.tb.Helper()
	path := filepath.Join(k.Dir, folder, file)
	k.must(os.MkdirAll(filepath.Dir(path), 0o750))
	k.must(os.WriteFile(path+".new", []byte(text), 0o600))
	k.must(os.Rename(path+".new", path))
}

// RootPEM is the authority's certificate.
func (k *KeyRing) RootPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: k.cert.Raw}))
}

// Revoke is a list that revokes certificates.
func (k *KeyRing) Revoke(serials ...*big.Int) string {
	k.tb.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, n := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: n, RevocationTime: list.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, k.cert, k.key)
	k.must(err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// TLS is the configuration of a client that trusts the authority.
func (k *KeyRing) TLS(server string, own ...tls.Certificate) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(k.cert)
	return &tls.Config{RootCAs: pool, ServerName: server, Certificates: own, MinVersion: tls.VersionTLS12}
}

// HTTPS is a client of a server behind an address, whatever its name resolves to.
func (k *KeyRing) HTTPS(server string, own ...tls.Certificate) *Client {
	k.tb.Helper()
	return NewClientOver(k.tb, server, &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: k.TLS(server, own...)})
}

// HTTP2 is HTTPS with HTTP/2.
func (k *KeyRing) HTTP2(server string, own ...tls.Certificate) *Client {
	k.tb.Helper()
	return NewClientOver(k.tb, server, &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: k.TLS(server, own...)})
}
