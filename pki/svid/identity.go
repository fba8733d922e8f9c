package svid

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
)

// Identity is a key, the certificates that name its owner, and the roots to
// believe. It is read-only once made.
type Identity struct {
	ID  spiffeid.ID
	Key crypto.Signer
	// Chain is the leaf and, where there are any, intermediates; no root.
	Chain []*x509.Certificate
	// Bundle are the roots of the trust domain, the issuing one first.
	Bundle []*x509.Certificate
}

// Leaf is the certificate that names the identity.
func (i *Identity) Leaf() *x509.Certificate { return i.Chain[0] }

// NotAfter is when the identity ends.
func (i *Identity) NotAfter() time.Time { return i.Leaf().NotAfter }

// Kind says what the identity is: a host's, a direct client's or one that a host
// asked for.
func (i *Identity) Kind() profile.Kind {
	s, err := profile.Check(i.Leaf())
	if err != nil {
		return profile.NoKind
	}
	return s.Kind
}

// RenewAt is when to renew the identity; jitter is random in [0,1).
func (i *Identity) RenewAt(jitter float64) time.Time {
	return RenewAt(i.Leaf().NotBefore, i.Leaf().NotAfter, jitter)
}

// TLSCertificate is the identity as crypto/tls takes it.
func (i *Identity) TLSCertificate() tls.Certificate {
	c := tls.Certificate{PrivateKey: i.Key, Leaf: i.Leaf()}
	for _, cert := range i.Chain {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// KeyPEM is the private key, PKCS #8 in PEM: for Envoy, and for nothing that is
// written to a disk.
func (i *Identity) KeyPEM() ([]byte, error) { return encodeKey(i.Key) }

// ChainPEM is the leaf and the intermediates.
func (i *Identity) ChainPEM() []byte { return encodeCerts(i.Chain) }

// BundlePEM is the roots.
func (i *Identity) BundlePEM() []byte { return encodeCerts(i.Bundle) }

// LogValue is the identity without its key.
func (i *Identity) LogValue() slog.Value {
	if len(i.Chain) == 0 {
		return slog.StringValue(i.ID.String())
	}
	return slog.GroupValue(
		slog.String("spiffe_id", i.ID.String()),
		slog.String("serial", i.Leaf().SerialNumber.Text(16)),
		slog.Time("not_after", i.NotAfter()),
	)
}

// RenewAt is when to renew a certificate: half of its life after its issue, give
// or take a twentieth of its life, so that hosts that joined together do not
// renew together. jitter is random in [0,1).
func RenewAt(notBefore, notAfter time.Time, jitter float64) time.Time {
	issued := profile.IssuedAt(notBefore, notAfter)
	life := notAfter.Sub(issued)
	return issued.Add(life/2 + time.Duration((jitter-0.5)*0.1*float64(life)))
}

// NewKey makes a key for an identity: ECDSA P-256, which every TLS stack takes.
func NewKey() (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

// CSR is a certificate request that carries the key and nothing else.
func CSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// check holds an identity against the profile, its time apart: certificates that
// have ended are still somebody's.
func (i *Identity) check() error {
	if len(i.Chain) == 0 || len(i.Bundle) == 0 || i.Key == nil {
		return errors.New("identity is not complete")
	}
	s, err := profile.Verification{
		Bundle: i.Bundle, TrustDomain: i.ID.TrustDomain(), Now: i.Leaf().NotBefore,
	}.Verify(i.Chain)
	if err != nil {
		return err
	}
	if s.ID != i.ID {
		return fmt.Errorf("certificate names %s: want %s", s.ID, i.ID)
	}
	return i.checkKey()
}

func (i *Identity) checkKey() error {
	have, err := profile.HashKey(i.Key.Public())
	if err != nil {
		return err
	}
	want, err := profile.HashKey(i.Leaf().PublicKey)
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("certificate of %s is for another key", i.ID)
	}
	return nil
}

// identityFile is an identity in a file of this package; see HostStore and
// SealedStore. One value holds all, so that one rename replaces all.
type identityFile struct {
	Version int    `json:"version"`
	ID      string `json:"id,omitempty"`
	Key     string `json:"key"`
	Chain   string `json:"chain,omitempty"`
	Bundle  string `json:"bundle,omitempty"`
}

const identityFileVersion = 1

func encodeIdentity(i *Identity) ([]byte, error) {
	key, err := i.KeyPEM()
	if err != nil {
		return nil, err
	}
	f := identityFile{Version: identityFileVersion, Key: string(key)}
	if len(i.Chain) > 0 {
		f.ID, f.Chain, f.Bundle = i.ID.String(), string(i.ChainPEM()), string(i.BundlePEM())
	}
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding an identity: %w", err)
	}
	return append(data, '\n'), nil
}

// decodeIdentity reads what encodeIdentity wrote. A file with a key alone gives
// an Identity with a Key alone.
func decodeIdentity(data []byte) (*Identity, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var f identityFile
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("decoding an identity: %w", err)
	}
	if f.Version != identityFileVersion {
		return nil, fmt.Errorf("decoding an identity: version %d, this program knows %d", f.Version, identityFileVersion)
	}
	key, err := parseKey([]byte(f.Key))
	if err != nil {
		return nil, err
	}
	if f.ID == "" && f.Chain == "" {
		return &Identity{Key: key}, nil
	}
	id, err := spiffeid.FromString(f.ID)
	if err != nil {
		return nil, fmt.Errorf("decoding an identity: %w", err)
	}
	chain, err := parseCerts([]byte(f.Chain))
	if err != nil {
		return nil, err
	}
	bundle, err := parseCerts([]byte(f.Bundle))
	if err != nil {
		return nil, err
	}
	i := &Identity{ID: id, Key: key, Chain: chain, Bundle: bundle}
	return i, i.check()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("no private key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("parsing a private key: not PKCS #8")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key of type %T cannot sign", key)
	}
	return signer, profile.CheckKey(signer.Public())
}

func encodeCerts(certs []*x509.Certificate) []byte {
	var out []byte
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

func parseCerts(data []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(bytes.TrimSpace(data)) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("something that is no certificate among certificates")
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing a certificate: %w", err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate where some are wanted")
	}
	return certs, nil
}
