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

	"github.com/fairlead/fairlead/internal/wallclock"
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
	// Clock is what is known of this machine's clock; nil means nothing.
	Clock Clock
	// Refused is told of each client whose certificate is refused at the
	// handshake; nil means that only the log is.
	Refused func(peer string, chain []*x509.Certificate, err error)
}

// Clock is what a server knows of its wall clock.
type Clock interface {
	// Held reports that nothing may be signed now, because the clock may be wrong.
	Held() bool
	// Estimate is the time of the mesh where the wall clock shows wall.
	Estimate(wall time.Time) time.Time
}

// ServerTLS is the control plane's own identity, and the settings for port 15012
// that come with it. The key lives in memory only: a restarted server makes
// another.
type ServerTLS struct {
	cfg ServerTLSConfig

	mu       sync.Mutex       // guards all following fields
	certs    []ownCertificate // the last that were made, the newest at the end
	failedAt time.Time        // by the wall clock, like all times here
}

// keptCertificates is how many of the last certificates are kept: one that was
// made while the clock was wrong must not push out the one before it.
const keptCertificates = 3

// ownCertificate is one of the server's own.
type ownCertificate struct {
	*tls.Certificate
	renewAt time.Time
}

func (c ownCertificate) valid(now time.Time) bool {
	return !now.Before(c.Leaf.NotBefore) && now.Before(c.Leaf.NotAfter)
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
			return s.certificate(wallclock.Now()), nil
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			err := s.checkClient(state, wallclock.Now())
			switch {
			case err == nil:
			case s.cfg.Refused != nil:
				s.cfg.Refused(remote.String(), state.PeerCertificates, err)
			default:
				s.cfg.Logger.Warn("client certificate rejected", "peer", remote.String(), "err", err)
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
	_, err := profile.Verification{Bundle: a.bundle, TrustDomain: a.cfg.TrustDomain, Now: now, AcceptEarly: true}.Verify(state.PeerCertificates)
	if errors.Is(err, profile.ErrExpired) {
		return nil
	}
	return err
}

// certificate gives the certificate to show where the wall clock shows now. One is
// made when none is valid, or the one that is has lived half of its life. When
// that goes wrong, or signing is on hold, the old ones serve.
func (s *ServerTLS) certificate(now time.Time) *tls.Certificate {
	held, estimate := false, now
	if s.cfg.Clock != nil {
		held, estimate = s.cfg.Clock.Held(), s.cfg.Clock.Estimate(now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	current, ok := s.validLocked(now)
	due := !ok || !now.Before(current.renewAt)
	if due && !held && now.Sub(s.failedAt).Abs() >= retryAfter {
		if err := s.renewLocked(now); err != nil {
			s.failedAt = now
			s.cfg.Logger.Error("renewing the server's own certificate failed", "err", err, "not_after", s.lastLocked().Leaf.NotAfter)
		}
	}
	return s.chooseLocked(held, estimate, now)
}

// chooseLocked prefers what is valid by the time of the mesh, then what is valid by
// the wall clock. Where nothing is, it is the one that ends last: hosts accept a
// certificate that has not begun, and none that has ended. So one that has ended by
// the wall clock is shown only while signing is on hold: otherwise a single host
// whose clock is behind would have it shown to all others, who refuse it.
func (s *ServerTLS) chooseLocked(held bool, estimate, now time.Time) *tls.Certificate {
	for _, t := range []time.Time{estimate, now} {
		if c, ok := s.validLocked(t); ok && (held || now.Before(c.Leaf.NotAfter)) {
			return c.Certificate
		}
	}
	return s.lastLocked().Certificate
}

// validLocked is the certificate that is valid then, and ends last.
func (s *ServerTLS) validLocked(now time.Time) (best ownCertificate, ok bool) {
	for _, c := range s.certs {
		if c.valid(now) && (!ok || c.Leaf.NotAfter.After(best.Leaf.NotAfter)) {
			best, ok = c, true
		}
	}
	return best, ok
}

// lastLocked is the certificate that ends last.
func (s *ServerTLS) lastLocked() ownCertificate {
	best := s.certs[0]
	for _, c := range s.certs[1:] {
		if c.Leaf.NotAfter.After(best.Leaf.NotAfter) {
			best = c
		}
	}
	return best
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
	renewAt := now.Add(life/2 - time.Duration(rand.Float64()*0.05*float64(life))) //nolint:gosec // jitter
	s.certs = append(s.certs, ownCertificate{cert, renewAt.Round(0)})
	s.certs = s.certs[max(0, len(s.certs)-keptCertificates):]
	return nil
}

// NotAfter is when the last of the server's own certificates ends.
func (s *ServerTLS) NotAfter() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastLocked().Leaf.NotAfter
}
