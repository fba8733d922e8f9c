package profile

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Kind says what a certificate is for.
type Kind uint8

// The kinds. The numbers are on the wire, in the extension: never reuse one.
const (
	NoKind       Kind = 0
	Host         Kind = 1
	Direct       Kind = 2
	Impersonated Kind = 3
	ControlPlane Kind = 4
)

// String is the kind as logs have it.
func (k Kind) String() string {
	switch k {
	case NoKind:
		return "none"
	case Host:
		return "host"
	case Direct:
		return "direct"
	case Impersonated:
		return "impersonated"
	case ControlPlane:
		return "control_plane"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Binding is the random number of one act of attestation. Every certificate
// that follows from it carries it, so that replacing or removing a host ends
// all of them and none of its successor's.
type Binding [16]byte

// String is the binding in hex.
func (b Binding) String() string { return hex.EncodeToString(b[:]) }

// MarshalText implements encoding.TextMarshaler.
func (b Binding) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Binding) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(b) {
		return errors.New("binding of the wrong length")
	}
	_, err := hex.Decode(b[:], text)
	return err
}

// Subject is the identity in a certificate.
type Subject struct {
	Kind Kind
	ID   spiffeid.ID
	// Host is the host's name; empty but for Host.
	Host string
	// Pair is the workload's; zero for Host.
	Pair Pair
	// Binding is zero for ControlPlane only.
	Binding Binding
}

// extensionVersion is the first byte of the extension's value.
const extensionVersion = 1

// extensionID is an arc of this project's own under 2.25, where nobody
// registers; its number is small enough for every ASN.1 reader.
func extensionID() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{2, 25, 1726394801, 1} }

func (s Subject) extension() (pkix.Extension, error) {
	value, err := asn1.Marshal(append([]byte{extensionVersion, byte(s.Kind)}, s.Binding[:]...))
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("marshalling the kind: %w", err)
	}
	return pkix.Extension{Id: extensionID(), Value: value}, nil
}

func parseExtension(cert *x509.Certificate) (Kind, Binding, error) {
	for _, e := range cert.Extensions {
		if !e.Id.Equal(extensionID()) {
			continue
		}
		var value []byte
		rest, err := asn1.Unmarshal(e.Value, &value)
		if err != nil || len(rest) != 0 || len(value) != 2+len(Binding{}) || value[0] != extensionVersion {
			return NoKind, Binding{}, errors.New("the extension with the certificate's kind is malformed")
		}
		return Kind(value[1]), Binding(value[2:]), nil
	}
	return NoKind, Binding{}, errors.New("no extension with the certificate's kind")
}
