package svid

import (
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/profile"
)

// ErrNotControlPlane says that a server proved itself, or failed to, as somebody
// who is not the control plane of this mesh.
var ErrNotControlPlane = errors.New("the server is not the control plane")

// ClientTLS are the settings for connections to the control plane: current's
// identity is shown, and the server must prove by current's bundle that it is
// exactly the control plane of the same trust domain. current is asked at each
// handshake, so a renewed identity is used from the next connection on.
//
// A certificate of the server that has not begun is accepted: it is the
// authority's, and one of two clocks is wrong. One that has ended is not.
func ClientTLS(current func() *Identity) *tls.Config {
	return ClientTLSAt(current, wallclock.Now)
}

// ClientTLSAt is ClientTLS for a caller that knows the time better than this
// machine's clock does; see Clock.
func ClientTLSAt(current func() *Identity, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		// The name dialled proves nothing in SPIFFE; VerifyConnection, which
		// runs on every handshake, checks the server's identity instead.
		InsecureSkipVerify: true, //nolint:gosec // checked by VerifyConnection
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert := current().TLSCertificate()
			return &cert, nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			id := current()
			return checkServer(state.PeerCertificates, profile.Verification{
				Bundle: id.Bundle.X509Authorities(), TrustDomain: id.ID.TrustDomain(), Now: now(), AcceptEarly: true,
			})
		},
	}
}

// joinTLS believes one authority, known by the hash of its key: the server sends
// its root along, and everything else is as for ClientTLS.
func joinTLS(pin profile.KeyHash, td spiffeid.TrustDomain) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // checked by VerifyConnection
		VerifyConnection: func(state tls.ConnectionState) error {
			root := withKeyHash(state.PeerCertificates, pin)
			if root == nil {
				return fmt.Errorf("%w that the join token names: its certificates end in another authority", ErrNotControlPlane)
			}
			return checkServer(state.PeerCertificates, profile.Verification{
				Bundle: []*x509.Certificate{root}, TrustDomain: td, Now: wallclock.Now(),
			})
		},
	}
}

// withKeyHash is the authority among certs whose key has that hash, or nil.
func withKeyHash(certs []*x509.Certificate, pin profile.KeyHash) *x509.Certificate {
	for _, c := range certs {
		hash, err := profile.HashKey(c.PublicKey)
		if err != nil || subtle.ConstantTimeCompare(hash[:], pin[:]) != 1 {
			continue
		}
		if _, err := profile.CheckRoot(c); err == nil {
			return c
		}
	}
	return nil
}

func checkServer(chain []*x509.Certificate, against profile.Verification) error {
	s, err := against.Verify(chain)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotControlPlane, err)
	}
	want, err := profile.ControlPlaneID(against.TrustDomain)
	if err != nil {
		return err
	}
	if s.Kind != profile.ControlPlane || s.ID != want {
		return fmt.Errorf("%w: it is %s, want %s", ErrNotControlPlane, s.ID, want)
	}
	return nil
}
