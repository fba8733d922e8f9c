package issue

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/internal/plain"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// DefaultRenewExpired is how long after its end a host's certificate is good for
// renewing it.
const DefaultRenewExpired = 180 * 24 * time.Hour

// Authority signs; *pki.Authority is one.
type Authority interface {
	// Sign gives the leaf and any intermediates, without the root.
	Sign(leaf profile.Leaf, now time.Time) ([]*x509.Certificate, error)
	// Bundle is the roots, the one that signs first.
	Bundle() []*x509.Certificate
	TrustDomain() spiffeid.TrustDomain
}

// Entitlements says who may have which identity; *attest.Entitlements is one.
type Entitlements interface {
	Redeem(secret svid.Secret, key profile.KeyHash, now time.Time) (attest.Host, error)
	Find(b profile.Binding) (attest.Host, <-chan struct{}, bool)
	Readopt(p attest.Proven, now time.Time) (attest.Host, error)
	Issued(b profile.Binding, key profile.KeyHash, notAfter, now time.Time) error
}

// Config is what a Service needs.
type Config struct {
	Authority    Authority
	Entitlements Entitlements
	Logger       *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// Serials notes which certificates of hosts are in use; nil means nobody does.
	Serials *serials.Book
	// RenewExpired is how long after its end a host's certificate is good for
	// renewing it; zero means DefaultRenewExpired, negative never.
	RenewExpired time.Duration
	// Hold says why nothing may be signed now, or nil; nil means that there is never a
	// reason.
	Hold func() error
	// Rate and Burst bound the requests of one peer, in requests a second; zero
	// means the defaults (see limiter). Peers without a certificate are counted
	// by address.
	Rate  float64
	Burst int
}

// Service is the signing API.
type Service struct {
	securityapi.UnimplementedIstioCertificateServiceServer

	authority    Authority
	entitlements Entitlements
	logger       *slog.Logger
	renewExpired time.Duration
	serials      *serials.Book // or nil
	hold         func() error
	// Strangers are counted apart: they cannot take the places of hosts.
	strangers *limiter
	known     *limiter
	metrics   *metrics
	refusals  refusals
}

// New makes the service. It serves nobody before Register.
func New(cfg Config) (*Service, error) {
	if cfg.Authority == nil || cfg.Entitlements == nil || cfg.Logger == nil {
		return nil, errors.New("signing API without an authority, entitlements or a logger")
	}
	if cfg.RenewExpired == 0 {
		cfg.RenewExpired = DefaultRenewExpired
	}
	if cfg.Hold == nil {
		cfg.Hold = func() error { return nil }
	}
	m, err := newMetrics(cfg.Registerer, cfg.Authority)
	if err != nil {
		return nil, err
	}
	return &Service{
		authority: cfg.Authority, entitlements: cfg.Entitlements, logger: cfg.Logger.With("component", "issue"),
		renewExpired: cfg.RenewExpired, serials: cfg.Serials, hold: cfg.Hold, metrics: m,
		strangers: newLimiter(cfg.Rate, cfg.Burst), known: newLimiter(cfg.Rate, cfg.Burst),
	}, nil
}

// Register puts the service on a gRPC server whose TLS settings are
// pki.ServerTLS's.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	securityapi.RegisterIstioCertificateServiceServer(r, s)
}

// The only texts that a caller is ever told.
func errAuthentication() error {
	return status.Error(codes.Unauthenticated, "request authentication failure")
}

func errPermission() error {
	return status.Error(codes.PermissionDenied, "identity not permitted")
}

func errRequest() error {
	return status.Error(codes.InvalidArgument, "certificate request not acceptable")
}

func errSigning() error { return status.Error(codes.Internal, "signing failure") }

func errHeld() error {
	return status.Error(codes.Unavailable, "signing is on hold: the control plane's log and `fairlead clock` say why")
}

func errSaving() error { return status.Error(codes.Unavailable, "state cannot be saved now") }

func errRate() error { return status.Error(codes.ResourceExhausted, "too many requests") }

// CreateCertificate implements Istio's signing API.
func (s *Service) CreateCertificate(
	ctx context.Context, req *securityapi.IstioCertificateRequest,
) (*securityapi.IstioCertificateResponse, error) {
	// Requests are counted by a clock that nobody sets; certificates are judged by
	// the one that they are written in.
	now, wall := time.Now(), wallclock.Now()
	s.metrics.csr.Inc()
	call := callOf(ctx)
	if !s.allow(call, now) {
		return nil, s.refuse(call, now, errors.New("more requests than the rate allows"), errRate())
	}
	// Before a token is spent on it.
	if err := s.hold(); err != nil {
		s.metrics.signing.WithLabelValues("ON_HOLD").Inc()
		return nil, s.refuse(call, now, err, errHeld())
	}
	key, err := profile.ParseCSR([]byte(req.GetCsr()))
	if err != nil {
		s.metrics.csrParsing.Inc()
		return nil, s.refuse(call, now, err, errRequest())
	}
	bearer := bearerOf(ctx)
	if impersonated(req) != "" {
		bearer = "" // a token is not for that, and must not be spent on trying
	}
	caller, err := s.authenticate(call, bearer, key, wall)
	call.host = caller.host.Name
	if errors.Is(err, attest.ErrNotSaved) {
		// Not a refusal, which would end an agent that joins.
		s.metrics.signing.WithLabelValues("CSR_ERROR").Inc()
		return nil, s.refuse(call, now, fmt.Errorf("admitting the host: %w: the disk of the server needs space; the host tries again", err), errSaving())
	}
	if err != nil {
		s.metrics.authentication.Inc()
		return nil, s.refuse(call, now, err, errAuthentication())
	}
	subject, err := s.subject(caller, req)
	if err != nil {
		s.metrics.idExtraction.Inc()
		return nil, s.refuse(call, now, err, errPermission())
	}
	chain, err := s.sign(caller, profile.Leaf{Subject: subject, PublicKey: key, TTL: ttl(req.GetValidityDuration())}, wall)
	if errors.Is(err, attest.ErrNotFound) {
		return nil, s.refuse(call, now, errors.New("host was removed meanwhile"), errAuthentication())
	}
	if err != nil {
		s.metrics.signing.WithLabelValues("CSR_ERROR").Inc()
		s.logger.ErrorContext(ctx, "signing went wrong", "spiffe_id", subject.ID.String(), "host", call.host, "peer", call.addr, "err", err)
		return nil, errSigning()
	}
	s.metrics.success.Inc()
	s.logger.InfoContext(ctx, "certificate issued",
		"serial", chain[0].SerialNumber.Text(16), "spiffe_id", subject.ID.String(), "kind", subject.Kind.String(),
		"not_after", chain[0].NotAfter, "host", call.host, "peer", call.addr, "by", caller.by)
	return s.response(chain), nil
}

// subject decides whom the certificate names, from the caller and the one thing
// that the request may say.
func (s *Service) subject(c caller, req *securityapi.IstioCertificateRequest) (profile.Subject, error) {
	td := s.authority.TrustDomain()
	wanted := impersonated(req)
	if wanted == "" {
		return c.self(td)
	}
	if c.by != byCertificate || c.kind != profile.Host || c.expired {
		return profile.Subject{}, fmt.Errorf("asked for %q without a host's certificate that is in force", clip(wanted))
	}
	id, err := spiffeid.FromString(wanted)
	if err != nil {
		return profile.Subject{}, fmt.Errorf("asked for %q: %w", clip(wanted), err)
	}
	got, err := profile.ParseID(id)
	if err != nil {
		return profile.Subject{}, err
	}
	if got.Kind != profile.Impersonated || !id.MemberOf(td) || !c.host.Allows(got.Pair) {
		return profile.Subject{}, fmt.Errorf("asked for %q, to which the host is not entitled", clip(wanted))
	}
	got.Binding = c.host.Binding
	return got, nil
}

// impersonated is the identity that the request asks for by name; empty is the
// caller's own.
func impersonated(req *securityapi.IstioCertificateRequest) string {
	return req.GetMetadata().GetFields()[svid.ImpersonatedIdentity].GetStringValue()
}

// sign makes the certificate and remembers the key of a host or a direct client,
// before anybody has the certificate.
func (s *Service) sign(c caller, leaf profile.Leaf, now time.Time) ([]*x509.Certificate, error) {
	chain, err := s.authority.Sign(leaf, now)
	if err != nil {
		return nil, err
	}
	if leaf.Subject.Kind == profile.Impersonated {
		return chain, nil
	}
	hash, err := profile.HashKey(leaf.PublicKey)
	if err != nil {
		return nil, err
	}
	if err := s.entitlements.Issued(c.host.Binding, hash, chain[0].NotAfter, now); err != nil {
		return nil, err
	}
	if s.serials != nil && leaf.Subject.Kind == profile.Host {
		s.serials.Issued(c.host.Name, c.host.Binding, c.shown, chain[0])
	}
	return chain, nil
}

func (s *Service) response(chain []*x509.Certificate) *securityapi.IstioCertificateResponse {
	resp := &securityapi.IstioCertificateResponse{}
	for _, c := range chain {
		resp.CertChain = append(resp.CertChain, string(encode(c)))
	}
	var roots []byte
	for _, c := range s.authority.Bundle() {
		roots = append(roots, encode(c)...)
	}
	resp.CertChain = append(resp.CertChain, string(roots))
	return resp
}

func encode(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// ttl reads a life in seconds. Nothing sensible is the default; what is too long
// for a Duration is as long as there is, and the authority cuts it.
func ttl(seconds int64) time.Duration {
	if seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, int64(profile.MaxTTL/time.Second))) * time.Second
}

// refuse tells the log why, once in a while where it repeats itself, and gives
// back what the caller is told.
func (s *Service) refuse(c call, now time.Time, reason, answer error) error {
	log := s.logger.With("host", c.host, "peer", c.addr, "spiffe_id", c.id, "err", reason)
	if s.refusals.add(Refusal{Time: now, Peer: c.addr, Host: c.host, ID: c.id, Reason: reason.Error()}) {
		log.Warn("certificate refused")
	} else {
		log.Debug("certificate refused again")
	}
	return answer
}

// HandshakeRefused notes a client that did not come past the handshake. What its
// certificate says is worth nothing, so that only the log has it: a client that
// makes up names must not push others off the list.
func (s *Service) HandshakeRefused(peer string, chain []*x509.Certificate, reason error) {
	id := ""
	if len(chain) > 0 && len(chain[0].URIs) == 1 {
		id = clip(chain[0].URIs[0].String())
	}
	log := s.logger.With("peer", peer, "spiffe_id", id, "err", reason)
	if s.refusals.add(Refusal{Time: time.Now(), Peer: peer, Reason: "its certificate is not one of this mesh"}) {
		log.Warn("client certificate refused")
	} else {
		log.Debug("client certificate refused again")
	}
}

// clip makes outside text fit to be shown.
func clip(s string) string { return plain.Words(s, 200) }
