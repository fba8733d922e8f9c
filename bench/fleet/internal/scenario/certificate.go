package scenario

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pair are the files of a certificate of loopback, which is its own authority,
// and of its key.
type pair struct{ cert, key string }

// newPair makes one in a directory.
func newPair(dir string) (pair, error) {
	p := pair{filepath.Join(dir, "consul.pem"), filepath.Join(dir, "consul-key.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return p, fmt.Errorf("making a certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "consul"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return p, fmt.Errorf("making a certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return p, fmt.Errorf("making a certificate: %w", err)
	}
	err = errors.Join(
		os.WriteFile(p.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		os.WriteFile(p.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600),
	)
	return p, err
}

// client trusts the pair and nothing else.
func (p pair) client() (*tls.Config, error) {
	content, err := os.ReadFile(p.cert)
	if err != nil {
		return nil, fmt.Errorf("reading a certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(content)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}
