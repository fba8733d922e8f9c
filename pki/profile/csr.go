package profile

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// MaxCSR is the longest certificate request that is looked at, in bytes of PEM.
const MaxCSR = 16 << 10

// RSA keys below the lower bound are weak, above the upper one they cost the
// server more than they cost the sender.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

// KeyHash is the SHA-256 of a public key's SubjectPublicKeyInfo.
type KeyHash = [sha256.Size]byte

// ParseCSR takes the public key out of a PEM certificate request, and nothing
// else: names, usages and extensions in it are not looked at. Its signature must
// be right, which proves that the sender has the private key.
func ParseCSR(data []byte) (crypto.PublicKey, error) {
	if len(data) > MaxCSR {
		return nil, fmt.Errorf("certificate request of %d bytes: at most %d are read", len(data), MaxCSR)
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return nil, errors.New("certificate request is not PEM")
	}
	if block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, fmt.Errorf("PEM block %q where a certificate request is wanted", clip(block.Type))
	}
	if len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("something follows the certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate request: %w", err)
	}
	// The key first: a signature by a huge key is not worth checking.
	if err := CheckKey(csr.PublicKey); err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("checking the certificate request's signature: %w", err)
	}
	return csr.PublicKey, nil
}

// CheckKey says whether a public key is one that we certify.
func CheckKey(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return fmt.Errorf("key on curve %s: want P-256 or P-384", k.Curve.Params().Name)
		}
		return nil
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < minRSABits || n > maxRSABits {
			return fmt.Errorf("RSA key of %d bits: want %d to %d", n, minRSABits, maxRSABits)
		}
		return nil
	case nil:
		return errors.New("no public key")
	default:
		return fmt.Errorf("key of type %T: want ECDSA, Ed25519 or RSA", key)
	}
}

// HashKey is the hash by which a public key is pinned and remembered.
func HashKey(key crypto.PublicKey) (KeyHash, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return KeyHash{}, fmt.Errorf("marshalling a public key: %w", err)
	}
	return sha256.Sum256(der), nil
}
