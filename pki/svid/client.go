package svid

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/pki/profile"
)

// ImpersonatedIdentity is the key in a request's metadata by which a host asks
// for a workload's identity. It is Istio's.
const ImpersonatedIdentity = "ImpersonatedIdentity"

// HeldCertificate is the key in a stream's metadata of a certificate, in DER, of a
// workload that the host holds: a server that has lost its records may know the
// host again by it. There may be several.
const HeldCertificate = "fairlead-workload-certificate-bin"

// defaultTimeout is how long one server may take to answer.
const defaultTimeout = 10 * time.Second

// morePatience is how much longer than that a server may take at most, after it
// was late: one that has many hosts to serve serves them in the order in which
// they came, and who comes again is the last.
const morePatience = 6

// ErrRefused says that the control plane answered, and the answer is no: asking
// again soon will not help. The reason is in the server's log.
var ErrRefused = errors.New("refused by the control plane")

// ClientConfig is what a Client needs.
type ClientConfig struct {
	// Servers are host:port of the control plane, tried in turn.
	Servers []string
	// TTL is the life to ask for; zero leaves it to the server.
	TTL time.Duration
	// Timeout bounds the answer of one server; zero means 10 s. After an answer that
	// did not come in time it is twice as long for the next request, up to six times.
	Timeout time.Duration
}

// Client asks the control plane for identities. Each call makes a connection of
// its own and closes it: calls are hours apart, and the identity shown changes.
type Client struct {
	servers []string
	ttl     time.Duration
	timeout time.Duration

	patience atomic.Int64 // how long a server may take now, in nanoseconds
}

// NewClient checks cfg. Nothing is dialled.
func NewClient(cfg ClientConfig) (*Client, error) {
	if len(cfg.Servers) == 0 {
		return nil, errors.New("no server to ask for identities")
	}
	if cfg.TTL < 0 || cfg.Timeout < 0 {
		return nil, errors.New("life and timeout may not be negative")
	}
	c := &Client{servers: cfg.Servers, ttl: cfg.TTL, timeout: cfg.Timeout}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	c.patience.Store(int64(c.timeout))
	return c, nil
}

// Join redeems a token for key's identity: the host's or, with a direct token,
// the workload's. The token is sent only to a server that proves to be the
// control plane under the token's pin. Within 10 minutes the call may be made
// again with the same key.
func (c *Client) Join(ctx context.Context, token JoinToken, key crypto.Signer) (*Identity, error) {
	if err := token.check(); err != nil {
		return nil, err
	}
	want, err := profile.HostID(token.TrustDomain, token.Host)
	if token.Direct {
		want, err = profile.WorkloadID(token.TrustDomain, token.Pairs[0])
	}
	if err != nil {
		return nil, err
	}
	id, err := c.ask(ctx, request{
		tls: joinTLS(token.Pin, token.TrustDomain), bearer: token.Secret.Bearer(), key: key, want: want,
	})
	if err != nil {
		return nil, fmt.Errorf("joining as %s: %w", want, err)
	}
	if withKeyHash(id.Bundle.X509Authorities(), token.Pin) == nil {
		return nil, fmt.Errorf("joining as %s: %w: the bundle it gave lacks the token's authority", want, ErrNotControlPlane)
	}
	return id, nil
}

// Renew gives a new certificate for a host's or a direct client's identity, with
// the same key.
func (c *Client) Renew(ctx context.Context, id *Identity) (*Identity, error) {
	next, err := c.ask(ctx, request{tls: ClientTLS(func() *Identity { return id }), key: id.PrivateKey, want: id.ID})
	if err != nil {
		return nil, fmt.Errorf("renewing %s: %w", id.ID, err)
	}
	return next, nil
}

// Workload asks with the host's identity for a workload's, for a new key.
func (c *Client) Workload(ctx context.Context, host *Identity, pair Pair) (*Identity, error) {
	want, err := profile.WorkloadID(host.ID.TrustDomain(), pair)
	if err != nil {
		return nil, err
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	id, err := c.ask(ctx, request{
		tls: ClientTLS(func() *Identity { return host }), key: key, want: want, impersonate: true,
	})
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", want, err)
	}
	return id, nil
}

// request is one question, to whichever server answers.
type request struct {
	tls         *tls.Config
	bearer      string
	key         crypto.Signer
	want        spiffeid.ID
	impersonate bool
}

func (c *Client) ask(ctx context.Context, r request) (*Identity, error) {
	csr, err := CSR(r.key)
	if err != nil {
		return nil, err
	}
	msg := &securityapi.IstioCertificateRequest{Csr: string(csr), ValidityDuration: int64(c.ttl / time.Second)}
	if r.impersonate {
		msg.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
			ImpersonatedIdentity: structpb.NewStringValue(r.want.String()),
		}}
	}
	var faults []error
	late, patience := false, time.Duration(c.patience.Load())
	for _, server := range c.servers {
		began := time.Now()
		chain, err := c.askServer(ctx, server, patience, r, msg)
		if err == nil {
			c.wait(2 * time.Since(began))
			return r.identity(chain)
		}
		late = late || status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil
		faults = append(faults, fmt.Errorf("server %s: %w", server, err))
		if ctx.Err() != nil {
			break
		}
	}
	if late {
		c.wait(2 * patience)
	}
	return nil, errors.Join(faults...)
}

// wait says how long a server may take for the next request.
func (c *Client) wait(d time.Duration) {
	c.patience.Store(int64(min(max(d, c.timeout), morePatience*c.timeout)))
}

func (c *Client) askServer(
	ctx context.Context, server string, patience time.Duration, r request, msg *securityapi.IstioCertificateRequest,
) (chain []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// The handshake's own fault is kept: grpc buries it in a text.
	handshake := make(chan error, 1)
	cfg := r.tls.Clone()
	verify := cfg.VerifyConnection
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		err := verify(state)
		select {
		case handshake <- err:
		default:
		}
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+server,
		grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxIdentityFile)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: patience}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry())
	if err != nil {
		return nil, fmt.Errorf("dialling: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if r.bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.bearer)
	}
	resp, err := securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, msg)
	if err == nil {
		return resp.GetCertChain(), nil
	}
	select {
	case fault := <-handshake:
		if fault != nil {
			return nil, fault
		}
	default:
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument:
		return nil, fmt.Errorf("%w: its log has the reason: %w", ErrRefused, err)
	default:
		return nil, err
	}
}

// identity makes an identity of the answer, leaf first and roots last, after
// checking that it is the one that was asked for.
func (r request) identity(answer []string) (*Identity, error) {
	if len(answer) < 2 {
		return nil, fmt.Errorf("an answer of %d certificates: want a leaf and a root at least", len(answer))
	}
	last := len(answer) - 1
	bundle, err := x509bundle.Parse(r.want.TrustDomain(), []byte(answer[last]))
	if err != nil {
		return nil, err
	}
	for _, root := range bundle.X509Authorities() {
		td, err := profile.CheckRoot(root)
		if err != nil {
			return nil, err
		}
		if td != r.want.TrustDomain() {
			return nil, fmt.Errorf("an authority of trust domain %q: want %q", td.Name(), r.want.TrustDomain().Name())
		}
	}
	key, err := encodeKey(r.key)
	if err != nil {
		return nil, err
	}
	svid, err := x509svid.Parse([]byte(strings.Join(answer[:last], "\n")), key)
	if err != nil {
		return nil, err
	}
	if svid.ID != r.want {
		return nil, fmt.Errorf("certificate names %s: want %s", svid.ID, r.want)
	}
	id := &Identity{SVID: *svid, Bundle: bundle}
	return id, id.check()
}
