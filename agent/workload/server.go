package workload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/pki/svid"
)

// Names of the secrets, as in Istio and SPIRE.
const (
	OwnSecret  = "default"
	RootSecret = "ROOTCA"
)

// secretType is the type of a secret in SDS.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// Bounds on what a caller can make grow.
const (
	maxStreams = 2048 // an Envoy has one for each secret
	maxNames   = 64
	maxMessage = 1 << 20
)

// bundleWait is how long a new certificate waits until Envoy has acknowledged the new roots
// that came with it.
const bundleWait = 2 * time.Second

// Config is what a Server needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Socket is the path of the unix socket.
	Socket string
	// UID is the only user that gets the key.
	UID uint32
	// Guard requires the token of every caller; it must be non-nil.
	Guard *peercred.Guard
	// SystemRootFiles are where the public roots of this host may be; see [SystemRootFiles].
	SystemRootFiles []string
	// CredentialsDir has a folder for each credential that Gateways and DestinationRules name.
	CredentialsDir string
	// Private are directories whose files are never served.
	Private []string
}

// Server serves one workload's secrets.
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	c   Config
	log *slog.Logger

	mu      sync.Mutex // guards all following fields
	own     *secret    // or nil before the first identity
	root    *secret    // or nil
	next    *secret    // the new own secret, while it waits for the roots; or nil
	waitEnd time.Time  // until when next waits
	streams map[*session]struct{}
	files   map[string]*fileSecret // by the name of the secret

	wanted chan struct{} // signals that streams want another credential
}

// secret is one secret as it is sent. Immutable.
type secret struct {
	name    string
	version string
	body    *anypb.Any // nil if there is no such secret
}

// absentVersion is the version of a secret that does not exist. Others are hashes.
const absentVersion = "absent"

// New checks the configuration; it starts nothing.
func New(c Config) (*Server, error) {
	if c.Logger == nil || c.Socket == "" || c.Guard == nil {
		return nil, errors.New("configuring SDS: Logger, Socket and Guard are needed")
	}
	return &Server{c: c, log: c.Logger.With("component", "agent/workload"), streams: map[*session]struct{}{}, files: map[string]*fileSecret{}, wanted: make(chan struct{}, 1)}, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	l, err := peercred.Listen(ctx, peercred.Config{Logger: s.log, Path: s.c.Socket, UID: s.c.UID, Guard: s.c.Guard})
	if err != nil {
		return err
	}
	// The listener checks the user; the guard checks the token of each call.
	//nolint:contextcheck // each call has its own context
	g := grpc.NewServer(append(s.c.Guard.ServerOptions(), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxRecvMsgSize(maxMessage))...)
	secretv3.RegisterSecretDiscoveryServiceServer(g, s)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving SDS on %q: %w", s.c.Socket, err)
		}
		return nil
	})
	group.Go(func() error {
		s.refresh(ctx)
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		g.Stop()
		return nil
	})
	return group.Wait()
}

// Set publishes an identity. New roots are sent first: the new certificate follows when every
// stream has acknowledged them, or after 2 s.
func (s *Server) Set(now time.Time, id *svid.Identity) error {
	own, root, err := secrets(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	newRoots := s.root != nil && s.root.version != root.version
	s.root = root
	if newRoots && len(s.streams) > 0 {
		s.next, s.waitEnd = own, now.Add(bundleWait)
	} else {
		s.own, s.next = own, nil
	}
	s.promote(now)
	s.wakeStreams()
	return nil
}

// promote publishes the new own secret once it need not wait any more. s.mu is held.
func (s *Server) promote(now time.Time) {
	if s.next == nil {
		return
	}
	if now.Before(s.waitEnd) {
		for stream := range s.streams {
			if stream.rootVersion != "" && stream.rootVersion != s.root.version {
				return
			}
		}
	}
	s.own, s.next = s.next, nil
	s.wakeStreams()
}

// wakeStreams wakes every stream. s.mu is held.
func (s *Server) wakeStreams() {
	for stream := range s.streams {
		select {
		case stream.wake <- struct{}{}:
		default:
		}
	}
}

// current are the secrets for a stream, and when to check again without a notification; zero
// means never.
func (s *Server) current(now time.Time) (map[string]*secret, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.promote(now)
	m := map[string]*secret{}
	for _, v := range []*secret{s.own, s.root} {
		if v != nil {
			m[v.name] = v
		}
	}
	for name, f := range s.files {
		switch {
		case f.now != nil:
			m[name] = f.now
		case f.looked: // Envoy need not wait for it
			m[name] = &secret{name: name, version: absentVersion}
		}
	}
	if s.next != nil {
		return m, s.waitEnd
	}
	return m, time.Time{}
}

func (s *Server) addStream(stream *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[stream] = struct{}{}
}

func (s *Server) removeStream(now time.Time, stream *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, stream)
	s.promote(now)
}

// tookRoots records which roots the Envoy of a stream has.
func (s *Server) tookRoots(now time.Time, stream *session, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream.rootVersion = version
	s.promote(now)
}

// secrets makes both secrets of an identity. A version is a hash of certificates; a key
// belongs to its certificate.
func secrets(id *svid.Identity) (own, root *secret, err error) {
	chain, key, err := id.Marshal()
	if err != nil {
		return nil, nil, fmt.Errorf("publishing the identity %s: %w", id.ID, err)
	}
	bundle, err := id.Bundle.Marshal()
	if err != nil {
		return nil, nil, fmt.Errorf("publishing the roots of %s: %w", id.ID, err)
	}
	own, err = newSecret(OwnSecret, chain, &tlsv3.Secret{Name: OwnSecret, Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(chain), PrivateKey: inline(key)},
	}})
	if err != nil {
		return nil, nil, err
	}
	root, err = newSecret(RootSecret, bundle, &tlsv3.Secret{Name: RootSecret, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: inline(bundle)},
	}})
	return own, root, err
}

func newSecret(name string, content []byte, m *tlsv3.Secret) (*secret, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshalling the secret %s: %w", name, err)
	}
	sum := sha256.Sum256(content)
	return &secret{
		name: name, version: hex.EncodeToString(sum[:8]), body: &anypb.Any{TypeUrl: secretType, Value: b},
	}, nil
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: bytes.Clone(b)}}
}
