package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
)

// slot is a signing key with its certificate, in a position of the rotation.
type slot struct {
	name string // current; later also next and old
	key  crypto.Signer
	cert *x509.Certificate
}

// newSlot makes a self-signed authority.
func newSlot(name string, td spiffeid.TrustDomain, now time.Time) (*slot, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	template, err := profile.Root(td, now)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing the authority's certificate: %w", err)
	}
	s := &slot{name: name, key: key, cert: cert}
	return s, s.check(td)
}

// check holds the slot's key and certificate against one another and the profile.
func (s *slot) check(td spiffeid.TrustDomain) error {
	got, err := profile.CheckRoot(s.cert)
	if err != nil {
		return err
	}
	if got != td {
		return fmt.Errorf("the authority is of trust domain %q, the settings say %q: put the setting back, or begin a new mesh with an empty state directory", got.Name(), td.Name())
	}
	have, err := profile.HashKey(s.key.Public())
	if err != nil {
		return err
	}
	want, err := profile.HashKey(s.cert.PublicKey)
	if err != nil {
		return err
	}
	if have != want {
		return errors.New("key and certificate do not belong together: restore the file from a backup")
	}
	if err := s.cert.CheckSignatureFrom(s.cert); err != nil {
		return fmt.Errorf("the authority's certificate is not signed by its own key: %w", err)
	}
	return nil
}

// encode is the slot as its file has it: the certificate first, so that openssl
// shows it, then the key.
func (s *slot) encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return nil, fmt.Errorf("encoding the authority's key: %w", err)
	}
	out := encodeCert(s.cert)
	return append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})...), nil
}

func decodeSlot(name string, data []byte) (*slot, error) {
	s := &slot{name: name}
	for len(bytes.TrimSpace(data)) > 0 {
		var block *pem.Block
		block, data = pem.Decode(data)
		if block == nil {
			return nil, errors.New("not PEM: restore the file from a backup")
		}
		switch {
		case block.Type == "CERTIFICATE" && s.cert == nil:
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, fmt.Errorf("parsing the certificate: %w", err)
			}
			s.cert = cert
		case block.Type == "PRIVATE KEY" && s.key == nil:
			key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, errors.New("parsing the key: not PKCS #8")
			}
			signer, ok := key.(crypto.Signer)
			if !ok {
				return nil, fmt.Errorf("key of type %T cannot sign", key)
			}
			s.key = signer
		default:
			return nil, fmt.Errorf("PEM block %q too many: want one CERTIFICATE and one PRIVATE KEY", block.Type)
		}
	}
	switch {
	case s.cert == nil && s.key == nil:
		return nil, errors.New("empty: restore the file from a backup")
	case s.cert == nil:
		return nil, errors.New("has the key but not its certificate: restore the file from a backup, or append the certificate from bundle.pem")
	case s.key == nil:
		return nil, errors.New("has the certificate but not its key: restore the file from a backup")
	}
	return s, nil
}

// LogValue is the slot without its key.
func (s *slot) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("slot", s.name),
		slog.String("serial", s.cert.SerialNumber.Text(16)),
		slog.Time("not_after", s.cert.NotAfter),
	)
}

func encodeCert(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
