package issue

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// How a caller proved itself.
const (
	byToken       = "join_token"
	byCertificate = "certificate"
)

// maxAuthorization is as much of an authorization header as is read.
const maxAuthorization = 20 << 10

// Peer is the authenticated client of a stream.
type Peer struct {
	// ID is the host's identity, or the workload's of a direct client.
	ID spiffeid.ID
	// Host is the name that the entitlement is recorded under.
	Host string
	// Binding distinguishes the machine that has the name from the one before.
	Binding profile.Binding
	// Pairs are the workload identities that the peer may stream as.
	Pairs []profile.Pair
	// Addresses are those that its token names as its own.
	Addresses []attest.Address
	// Types are the types of proxy that it may be: sidecar or router.
	Types []string
	// Direct is a client that streams as itself.
	Direct bool
	// NotAfter is when its certificate ends, and with it the stream.
	NotAfter time.Time
	// Revoked is closed when the entitlement is taken back.
	Revoked <-chan struct{}
	// Address is where it calls from.
	Address string
}

// Authenticate says who opened the connection of a gRPC call, for streams: a
// host, or a direct client, with a certificate in force and an entitlement that
// stands. The error is for the log; tell the caller nothing of it. With an error
// the Peer has at most Host and Address, as far as they are known, for the log;
// who asked lists the refusal, which is not in [Service.Refusals].
func (s *Service) Authenticate(ctx context.Context) (Peer, error) {
	now := wallclock.Now()
	c := callOf(ctx)
	got, revoked, err := s.byCertificate(c, now)
	if err == nil && got.expired {
		err = fmt.Errorf("certificate of %s: %w", c.id, profile.ErrExpired)
	}
	if err != nil {
		return Peer{Host: got.host.Name, Address: c.addr}, err
	}
	id, err := spiffeid.FromString(c.id)
	if err != nil {
		return Peer{Address: c.addr}, err
	}
	return Peer{
		ID: id, Host: got.host.Name, Binding: got.host.Binding, Addresses: got.host.Addresses, Pairs: got.host.Pairs, Types: []string{got.host.Type}, Direct: got.host.Direct,
		NotAfter: c.chain[0].NotAfter, Revoked: revoked, Address: c.addr,
	}, nil
}

// Connected is told of each connection whose handshake is over, with what the
// client has proven by it, and gives what is to be called when the connection is
// closed. began is when the handshake did. hangup breaks the connection. A session
// that was resumed proves nothing new, and is not to be told of.
func (s *Service) Connected(chain []*x509.Certificate, peer string, began time.Time, hangup func()) (closed func()) {
	if s.serials == nil || len(chain) == 0 {
		return func() {}
	}
	got, _, err := s.byCertificate(call{addr: peer, chain: chain}, wallclock.Now())
	if err != nil || got.kind != profile.Host {
		return func() {} // whatever it asks for is refused, or it is no host
	}
	return s.serials.Connected(got.host.Name, got.host.Binding, chain[0], peer, began, hangup)
}

// caller is the client of a certificate request.
type caller struct {
	by   string
	kind profile.Kind
	host attest.Host
	// shown is the certificate that proves it; nil where a token does.
	shown *x509.Certificate
	// expired: the certificate that proves it has ended.
	expired bool
}

// self is the caller's own subject.
func (c caller) self(td spiffeid.TrustDomain) (profile.Subject, error) {
	id, err := profile.HostID(td, c.host.Name)
	if c.host.Direct {
		id, err = profile.WorkloadID(td, c.host.Pairs[0])
	}
	if err != nil {
		return profile.Subject{}, err
	}
	got, err := profile.ParseID(id)
	if err != nil {
		return profile.Subject{}, err
	}
	got.Kind, got.Binding = c.kind, c.host.Binding
	return got, nil
}

// authenticate takes the certificate first, because a token is spent by use. An
// empty bearer is none.
func (s *Service) authenticate(c call, bearer string, key crypto.PublicKey, now time.Time) (caller, error) {
	if len(c.chain) > 0 {
		got, _, err := s.byCertificate(c, now)
		if err == nil || bearer == "" {
			return got, err
		}
	}
	if bearer == "" {
		return caller{}, errors.New("neither a certificate nor a join token that could allow it")
	}
	secret, err := svid.ParseBearer(bearer)
	if err != nil {
		return caller{}, err
	}
	hash, err := profile.HashKey(key)
	if err != nil {
		return caller{}, err
	}
	host, err := s.entitlements.Redeem(secret, hash, now)
	return caller{by: byToken, kind: kindOf(host), host: host}, err
}

// byCertificate holds the peer's certificate against the bundle and the record
// of its binding.
func (s *Service) byCertificate(c call, now time.Time) (caller, <-chan struct{}, error) {
	subject, err := profile.Verification{
		Bundle: s.authority.Bundle(), TrustDomain: s.authority.TrustDomain(), Now: now, AcceptEarly: true,
	}.Verify(c.chain)
	expired := errors.Is(err, profile.ErrExpired)
	if err != nil && !expired {
		return caller{}, nil, err
	}
	if subject.Kind != profile.Host && subject.Kind != profile.Direct {
		return caller{}, nil, fmt.Errorf("certificate of %s is of kind %s: it proves nothing to the control plane", subject.ID, subject.Kind)
	}
	host, revoked, ok := s.entitlements.Find(subject.Binding)
	if !ok {
		if _, err := s.readopt(c, subject, expired, now); err != nil {
			return caller{host: attest.Host{Name: subject.Host}}, nil, unknown(subject, err)
		}
		if host, revoked, ok = s.entitlements.Find(subject.Binding); !ok {
			return caller{host: attest.Host{Name: subject.Host}}, nil, unknown(subject, attest.ErrNotFound)
		}
	}
	got := caller{by: byCertificate, kind: subject.Kind, host: host, shown: c.chain[0], expired: expired}
	self, err := got.self(s.authority.TrustDomain())
	if err != nil {
		return got, nil, err
	}
	if kindOf(host) != subject.Kind || self != subject {
		return got, nil, fmt.Errorf("certificate of %s: not what host %q is recorded as", subject.ID, host.Name)
	}
	if s.serials != nil && s.serials.Refused(host.Name, host.Binding) {
		return got, nil, fmt.Errorf("certificate of %s: its key is in use in two places (--refuse-shared-host-keys): %s", subject.ID, serials.Remedy(host.Name))
	}
	if expired {
		if err := s.mayReturn(c.chain[0], host, now); err != nil {
			return got, nil, err
		}
	}
	return got, revoked, nil
}

// mayReturn says whether a certificate that has ended is good for its renewal.
func (s *Service) mayReturn(leaf *x509.Certificate, host attest.Host, now time.Time) error {
	ago := now.Sub(leaf.NotAfter)
	if ago > s.renewExpired {
		return fmt.Errorf("certificate ended %s ago, and may be renewed for %s: make a join token with --replace", ago.Round(time.Second), max(0, s.renewExpired))
	}
	hash, err := profile.HashKey(leaf.PublicKey)
	if err != nil {
		return err
	}
	if !host.HasKey(hash) {
		return errors.New("certificate has ended and is not for one of the host's last keys: make a join token with --replace")
	}
	return nil
}

func kindOf(h attest.Host) profile.Kind {
	if h.Direct {
		return profile.Direct
	}
	return profile.Host
}

// call is what a gRPC call tells of its other end, none of it proven.
type call struct {
	addr  string
	chain []*x509.Certificate
	// held are certificates of workloads, in DER.
	held []string
	// id is the name in the certificate, for logs.
	id   string
	host string
	// token is what its join token is counted by; empty without one that counts.
	token string
}

func callOf(ctx context.Context) call {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return call{}
	}
	c := call{held: heldOf(ctx)}
	if p.Addr != nil {
		c.addr = p.Addr.String()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		c.chain = info.State.PeerCertificates
	}
	if len(c.chain) > 0 && len(c.chain[0].URIs) == 1 {
		c.id = c.chain[0].URIs[0].String()
	}
	return c
}

// account is where a request is counted: by the identity, because many hosts can
// share an address, for those without one by the join token, and for those without
// either by the address. The handshake has checked the certificate, and a token that
// may be redeemed is a secret, so nobody can use up the share of another: not that of
// a host that joins from an address at which somebody asks for nothing good, either.
func (s *Service) account(c call) (l *limiter, key string) {
	switch {
	case len(c.chain) > 0:
		return s.known, c.id
	case c.token != "":
		return s.known, c.token
	}
	return s.unauthenticated, peeraddr.Group(c.addr)
}

// pendingToken is what a join token is counted by, if it may be redeemed; or else
// empty.
func (s *Service) pendingToken(bearer string) string {
	if bearer == "" {
		return ""
	}
	secret, err := svid.ParseBearer(bearer)
	if err != nil || !s.entitlements.Pending(secret, wallclock.Now()) {
		return ""
	}
	hash := secret.Hash()
	return "token " + hex.EncodeToString(hash[:])
}

func (s *Service) allow(c call, now time.Time) bool {
	l, key := s.account(c)
	return l.allow(key, now)
}

// charge makes a host pay for what it held up. Unauthenticated peers are not charged: many may
// share an address, and they hold up none but themselves.
func (s *Service) charge(c call) {
	if len(c.chain) > 0 {
		s.known.charge(c.id, slowCost, time.Now())
	}
}

// proven is what names the caller in the accounts of those who have proved
// something: the host, or the identity in a certificate that the handshake has
// checked; empty is an unauthenticated peer.
func (c call) proven() string {
	if c.host != "" || len(c.chain) == 0 {
		return c.host
	}
	return c.id
}

// bearerOf is the bearer token of a call, or empty.
func bearerOf(ctx context.Context) string {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ""
	}
	for _, v := range md.Get("authorization") {
		scheme, rest, ok := strings.Cut(v, " ")
		if ok && strings.EqualFold(scheme, "bearer") && len(rest) <= maxAuthorization {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
