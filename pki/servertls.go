package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/profile"
)

// retryAfter is how soon a renewal that went wrong is tried again.
const retryAfter = 10 * time.Second

const maxServerNames = 32

// ServerTLSConfig is what a ServerTLS needs.
type ServerTLSConfig struct {
	Authority *Authority
	Logger    *slog.Logger
	// Names are DNS names and IP addresses of the server besides istiod's, for
	// clients that check names; agents check the SPIFFE ID.
	Names []string
	// TTL is the life of the server's certificate; zero means the authority's
	// default.
	TTL time.Duration
	// Refused is told of each client whose certificate is refused at the
	// handshake; nil means that only the log is.
	Refused func(peer string, chain []*x509.Certificate, err error)
}

// ServerTLS is the control plane's own identity, and the settings for port 15012
// that come with it. The key lives in memory only: a restarted server makes
// another.
type ServerTLS struct {
	cfg ServerTLSConfig

	mu      sync.Mutex // guards all following fields
	cert    *tls.Certificate
	renewAt time.Time
}

// NewServerTLS makes the first certificate.
func NewServerTLS(cfg ServerTLSConfig, now time.Time) (*ServerTLS, error) {
	if cfg.Authority == nil || cfg.Logger == nil {
		return nil, errors.New("server TLS without an authority or a logger")
	}
	if len(cfg.Names) > maxServerNames {
		return nil, fmt.Errorf("%d names of the server: at most %d", len(cfg.Names), maxServerNames)
	}
	cfg.Logger = cfg.Logger.With("component", "pki")
	names := []string{profile.IstiodName}
	for _, n := range cfg.Names {
		if n = strings.TrimSuffix(n, "."); n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	cfg.Names = names
	s := &ServerTLS{cfg: cfg}
	return s, s.renew(now)
}

// Config are the settings of the listener. A client may show a certificate; one
// that is shown must be a leaf of this mesh. It may have ended: such a host may
// renew, and pki/issue refuses it everything else.
func (s *ServerTLS) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return s.forClient(hello.Conn.RemoteAddr()), nil
		},
	}
}

func (s *ServerTLS) forClient(remote net.Addr) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		ClientAuth: tls.RequestClientCert,
		// A resumed session would outlive the certificate it began with.
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return s.certificate(time.Now()), nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			err := s.checkClient(state, time.Now())
			switch {
			case err == nil:
			case s.cfg.Refused != nil:
				s.cfg.Refused(remote.String(), state.PeerCertificates, err)
			default:
				s.cfg.Logger.Warn("client certificate refused", "peer", remote.String(), "err", err)
			}
			return err
		},
	}
}

func (s *ServerTLS) checkClient(state tls.ConnectionState, now time.Time) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	a := s.cfg.Authority
	_, err := profile.Verification{Bundle: a.bundle, TrustDomain: a.cfg.TrustDomain, Now: now}.Verify(state.PeerCertificates)
	if errors.Is(err, profile.ErrExpired) {
		return nil
	}
	return err
}

// certificate gives the certificate, renewed when half of its life is over. When
// that goes wrong the old one serves as long as it lives.
func (s *ServerTLS) certificate(now time.Time) *tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.renewAt) {
		return s.cert
	}
	if err := s.renewLocked(now); err != nil {
		s.renewAt = now.Add(retryAfter)
		s.cfg.Logger.Error("renewing the server's own certificate went wrong", "err", err, "not_after", s.cert.Leaf.NotAfter)
	}
	return s.cert
}

func (s *ServerTLS) renew(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewLocked(now)
}

func (s *ServerTLS) renewLocked(now time.Time) error {
	a := s.cfg.Authority
	id, err := profile.ControlPlaneID(a.cfg.TrustDomain)
	if err != nil {
		return err
	}
	subject, err := profile.ParseID(id)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		return fmt.Errorf("making the server's key: %w", err)
	}
	chain, err := a.Sign(profile.Leaf{Subject: subject, PublicKey: key.Public(), ServerNames: s.cfg.Names, TTL: s.cfg.TTL}, now)
	if err != nil {
		return err
	}
	cert := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	// The root goes along: a host that joins knows no more than its key's hash.
	for _, c := range append(slices.Clip(chain), a.current.cert) {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	life := chain[0].NotAfter.Sub(now)
	s.cert = cert
	s.renewAt = now.Add(life/2 - time.Duration(rand.Float64()*0.05*float64(life))) //nolint:gosec // jitter
	return nil
}

// NotAfter is when the server's own certificate ends, as it stands.
func (s *ServerTLS) NotAfter() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cert.Leaf.NotAfter
}
