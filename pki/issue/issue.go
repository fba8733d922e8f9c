package issue

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/internal/safetext"
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

// Entitlements has the identities that a host may have; *attest.Entitlements is one.
type Entitlements interface {
	Redeem(secret svid.Secret, key profile.KeyHash, now time.Time) (attest.Host, error)
	// Pending reports whether some key may redeem a secret.
	Pending(secret svid.Secret, now time.Time) bool
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
	// Workload says who the workload of a host is that asks for a certificate of an identity; the
	// zero value if it is not known, or may be one of several. It must not wait. nil means that
	// nobody knows.
	Workload func(h attest.Host, identity profile.Pair) profile.WorkloadName
	// Hold says why nothing may be signed now, or nil; nil means that there is never a
	// reason.
	Hold func() error
	// Rate and Burst bound the requests of one peer, in requests a second; zero
	// means the defaults (see limiter). Peers without a certificate are counted
	// by their join token, or by address if it is none.
	Rate  float64
	Burst int
	// UnauthenticatedBurst is how many requests without a certificate or a join token are
	// taken of one address at once, and a fifth of it each second; zero means Rate and Burst.
	UnauthenticatedBurst int
	// Answering, if it is not nil, is told of each request that has been received,
	// by the address of its connection, and gives what is called when its answer is
	// there: what is between is the server's time, not the peer's.
	Answering func(peer string) (done func())
}

// Service is the signing API.
type Service struct {
	securityapi.UnimplementedIstioCertificateServiceServer

	authority    Authority
	entitlements Entitlements
	logger       *slog.Logger
	renewExpired time.Duration
	serials      *serials.Book // or nil
	workload     func(h attest.Host, identity profile.Pair) profile.WorkloadName
	hold         func() error
	// Unauthenticated peers are counted apart: they cannot take the places of hosts.
	unauthenticated *limiter
	known           *limiter
	metrics         *metrics
	refusals        refusals.List[Refusal, *Refusal]
	lines           *loglimit.Peers
	receiving       *receiving
	answering       func(peer string) (done func())
}

// New makes the service. It serves nobody before Register.
func New(cfg Config) (*Service, error) {
	if cfg.Authority == nil || cfg.Entitlements == nil || cfg.Logger == nil {
		return nil, errors.New("signing API without an authority, entitlements or a logger")
	}
	unauthenticatedRate := cfg.Rate
	if cfg.UnauthenticatedBurst > 0 {
		unauthenticatedRate = float64(cfg.UnauthenticatedBurst) / 5
	}
	if cfg.RenewExpired == 0 {
		cfg.RenewExpired = DefaultRenewExpired
	}
	if cfg.Hold == nil {
		cfg.Hold = func() error { return nil }
	}
	if cfg.Workload == nil {
		cfg.Workload = func(attest.Host, profile.Pair) profile.WorkloadName { return profile.WorkloadName{} }
	}
	if cfg.Answering == nil {
		cfg.Answering = func(string) func() { return func() {} }
	}
	m, err := newMetrics(cfg.Registerer, cfg.Authority)
	if err != nil {
		return nil, err
	}
	return &Service{
		authority: cfg.Authority, entitlements: cfg.Entitlements, logger: cfg.Logger.With("component", "issue"),
		renewExpired: cfg.RenewExpired, serials: cfg.Serials, workload: cfg.Workload, hold: cfg.Hold, metrics: m, lines: loglimit.NewPeers(), receiving: newReceiving(), answering: cfg.Answering,
		unauthenticated: newLimiter(unauthenticatedRate, cmp.Or(cfg.UnauthenticatedBurst, cfg.Burst)), known: newLimiter(cfg.Rate, cfg.Burst),
	}, nil
}

// The only error texts that a caller gets.
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

// CreateCertificate implements Istio's signing API, for a request that has been
// received.
func (s *Service) CreateCertificate(
	ctx context.Context, req *securityapi.IstioCertificateRequest,
) (*securityapi.IstioCertificateResponse, error) {
	// Requests are counted by a clock that nobody sets; certificates are judged by
	// the one that they are written in.
	now, wall := time.Now(), wallclock.Now()
	call := callOf(ctx)
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
	leaf := profile.Leaf{Subject: subject, PublicKey: key, TTL: ttl(req.GetValidityDuration())}
	if subject.Kind != profile.Host {
		leaf.Workload = s.workload(caller.host, subject.Pair)
	}
	chain, err := s.sign(caller, leaf, wall)
	if errors.Is(err, attest.ErrNotFound) {
		return nil, s.refuse(call, now, errors.New("host was removed meanwhile"), errAuthentication())
	}
	if err != nil {
		s.metrics.signing.WithLabelValues("CSR_ERROR").Inc()
		s.logger.ErrorContext(ctx, "signing failed", "spiffe_id", subject.ID.String(), "host", call.host, "peer", call.addr, "err", err)
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

// clip makes outside text fit to be shown.
func clip(s string) string { return safetext.Sanitize(s, 200) }
