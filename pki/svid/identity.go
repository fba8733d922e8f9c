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

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/fairlead/fairlead/pki/profile"
)

// Identity is an X509-SVID and the roots of its trust domain, the issuing one
// first. It is read-only once made.
type Identity struct {
	x509svid.SVID
	Bundle *x509bundle.Bundle
}

// Leaf is the certificate that names the identity.
func (i *Identity) Leaf() *x509.Certificate { return i.Certificates[0] }

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

// Workload is who the workload is in metrics, as the certificate says; the zero value if it does
// not.
func (i *Identity) Workload() WorkloadName { return profile.WorkloadNameOf(i.Leaf()) }

// RenewAt is when to renew the identity; jitter is random in [0,1).
func (i *Identity) RenewAt(jitter float64) time.Time {
	return RenewAt(i.Leaf().NotBefore, i.Leaf().NotAfter, jitter)
}

// TLSCertificate is the identity as crypto/tls takes it.
func (i *Identity) TLSCertificate() tls.Certificate {
	c := tls.Certificate{PrivateKey: i.PrivateKey, Leaf: i.Leaf()}
	for _, cert := range i.Certificates {
		c.Certificate = append(c.Certificate, cert.Raw)
	}
	return c
}

// LogValue is the identity without its key.
func (i *Identity) LogValue() slog.Value {
	if len(i.Certificates) == 0 {
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
	if len(i.Certificates) == 0 || i.Bundle == nil || i.Bundle.Empty() || i.PrivateKey == nil {
		return errors.New("identity is not complete")
	}
	s, err := profile.Verification{
		Bundle: i.Bundle.X509Authorities(), TrustDomain: i.ID.TrustDomain(), Now: i.Leaf().NotBefore,
	}.Verify(i.Certificates)
	if err != nil {
		return err
	}
	if s.ID != i.ID {
		return fmt.Errorf("certificate names %s: want %s", s.ID, i.ID)
	}
	return i.checkKey(i.PrivateKey)
}

// checkKey is nil if the certificate is for the key.
func (i *Identity) checkKey(key crypto.Signer) error {
	have, err := profile.HashKey(key.Public())
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
	chain, key, err := i.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding an identity: %w", err)
	}
	bundle, err := i.Bundle.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding an identity: %w", err)
	}
	return encodeFile(identityFile{ID: i.ID.String(), Key: string(key), Chain: string(chain), Bundle: string(bundle)})
}

// encodeNewKey is a file of a host that has a key and is not known by it yet.
func encodeNewKey(key crypto.Signer) ([]byte, error) {
	text, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return encodeFile(identityFile{Key: string(text)})
}

func encodeFile(f identityFile) ([]byte, error) {
	f.Version = identityFileVersion
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encoding an identity: %w", err)
	}
	return append(data, '\n'), nil
}

// decodeIdentity reads what encodeIdentity wrote. A file of encodeNewKey gives an
// Identity with a PrivateKey alone.
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
		return &Identity{SVID: x509svid.SVID{PrivateKey: key}}, nil
	}
	svid, err := x509svid.Parse([]byte(f.Chain), []byte(f.Key))
	if err != nil {
		return nil, fmt.Errorf("decoding an identity: %w", err)
	}
	if svid.ID.String() != f.ID {
		return nil, fmt.Errorf("decoding an identity: its certificate names %s: want %s", svid.ID, f.ID)
	}
	bundle, err := x509bundle.Parse(svid.ID.TrustDomain(), []byte(f.Bundle))
	if err != nil {
		return nil, fmt.Errorf("decoding an identity: %w", err)
	}
	i := &Identity{SVID: *svid, Bundle: bundle}
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
