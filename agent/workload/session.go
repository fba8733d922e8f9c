package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// session is one stream, in either variant of SDS.
type session struct {
	s *Server
	// doorbell rings when there may be something to send.
	doorbell chan struct{}

	// Owned by the stream's goroutine.
	names map[string]struct{} // asked for
	sent  map[string]string   // name to version: what Envoy has or is getting
	nonce uint64

	// Guarded by s.mu.
	rootVersion string // of the roots that Envoy was sent last and has answered, or empty
}

// request is what a request of either variant says.
type request struct {
	add, remove []string
	whole       bool              // add is all that is asked for
	has         map[string]string // versions that Envoy says it has
	nonce       string
	fault       *rpcstatus.Status
}

// DeltaSecrets implements SDS in its incremental variant.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return serve(s, stream, variant[*discoveryv3.DeltaDiscoveryRequest]{
		parse: func(r *discoveryv3.DeltaDiscoveryRequest) request {
			return request{
				add: r.GetResourceNamesSubscribe(), remove: r.GetResourceNamesUnsubscribe(),
				has: r.GetInitialResourceVersions(), nonce: r.GetResponseNonce(), fault: r.GetErrorDetail(),
			}
		},
		send: func(changed, _ []*secret, nonce string) error {
			out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: secretType, Nonce: nonce}
			for _, v := range changed {
				out.Resources = append(out.Resources, &discoveryv3.Resource{Name: v.name, Version: v.version, Resource: v.body})
			}
			return stream.Send(out)
		},
	})
}

// StreamSecrets implements SDS in its state-of-the-world variant.
func (s *Server) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	return serve(s, stream, variant[*discoveryv3.DiscoveryRequest]{
		parse: func(r *discoveryv3.DiscoveryRequest) request {
			return request{add: r.GetResourceNames(), whole: true, nonce: r.GetResponseNonce(), fault: r.GetErrorDetail()}
		},
		send: func(_, all []*secret, nonce string) error {
			out := &discoveryv3.DiscoveryResponse{TypeUrl: secretType, Nonce: nonce}
			var versions []string
			for _, v := range all {
				versions = append(versions, v.version)
				out.Resources = append(out.Resources, v.body)
			}
			out.VersionInfo = strings.Join(versions, "-")
			return stream.Send(out)
		},
	})
}

// variant is how a variant of SDS reads and writes.
type variant[Req any] struct {
	parse func(Req) request
	// send writes what changed, or all that is asked for, as the variant does.
	send func(changed, all []*secret, nonce string) error
}

func serve[Req any](s *Server, stream interface {
	grpc.ServerStream
	Recv() (Req, error)
}, v variant[Req],
) error {
	ctx := stream.Context()
	x := &session{s: s, doorbell: make(chan struct{}, 1), names: map[string]struct{}{}, sent: map[string]string{}}
	s.enter(x)
	defer func() { s.leave(time.Now(), x) }()
	requests := make(chan request)
	ended := make(chan error, 1)
	// Ends with the stream, which ends when this function returns.
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- v.parse(r):
			case <-ctx.Done():
				return
			}
		}
	}()
	return x.loop(ctx, requests, ended, v.send)
}

func (x *session) loop(
	ctx context.Context, requests <-chan request, ended <-chan error, send func(changed, all []*secret, nonce string) error,
) error {
	for {
		have, again := x.s.current(time.Now())
		if changed, all := x.due(have); len(changed) > 0 {
			x.nonce++
			if err := send(changed, all, strconv.FormatUint(x.nonce, 10)); err != nil {
				return err
			}
		}
		var alarm <-chan time.Time
		if !again.IsZero() {
			alarm = time.After(time.Until(again))
		}
		select {
		case r := <-requests:
			if err := x.take(r); err != nil {
				return err
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-x.doorbell:
		case <-alarm:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// due is what changed for this stream, and all that it asks for, by name.
func (x *session) due(have map[string]*secret) (changed, all []*secret) {
	for _, name := range slices.Sorted(maps.Keys(x.names)) {
		v, ok := have[name]
		if !ok {
			continue
		}
		all = append(all, v)
		if x.sent[name] != v.version {
			changed = append(changed, v)
			x.sent[name] = v.version
		}
	}
	return changed, all
}

func (x *session) take(r request) error {
	if r.fault != nil {
		x.s.log.Error("Envoy rejected a secret (NACK)", "names", slices.Sorted(maps.Keys(x.names)), "err", r.fault.GetMessage())
	}
	if len(r.add) > maxNames {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("more than %d secrets", maxNames))
	}
	if r.whole && len(r.add) > 0 {
		clear(x.names)
	}
	for _, name := range r.remove {
		delete(x.names, name)
		delete(x.sent, name)
	}
	for _, name := range r.add {
		if name != OwnSecret && name != RootSecret {
			x.s.log.Warn("Envoy requested an unknown secret", "name", name)
		}
		if _, again := x.names[name]; again && !r.whole {
			// Asked for again: Envoy wants it again.
			delete(x.sent, name)
		}
		x.names[name] = struct{}{}
		if version := r.has[name]; version != "" {
			x.sent[name] = version
		}
	}
	if len(x.names) > maxNames {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("more than %d secrets", maxNames))
	}
	_, roots := x.names[RootSecret]
	switch {
	case !roots:
		x.s.tookRoots(time.Now(), x, "")
	case r.nonce == "" || r.nonce == strconv.FormatUint(x.nonce, 10):
		// An answer to the newest response: what was sent was looked at.
		x.s.tookRoots(time.Now(), x, x.sent[RootSecret])
	}
	return nil
}
