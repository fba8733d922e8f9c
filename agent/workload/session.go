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

// session is one stream, of either variant of SDS.
type session struct {
	s *Server
	// wake signals that there may be something to send.
	wake chan struct{}

	// Owned by the stream's goroutine.
	names map[string]struct{} // subscribed to
	sent  map[string]string   // version by name: what Envoy has or is being sent
	// absence means that the stream can say that there is no such secret.
	absence bool
	nonce   uint64

	// Guarded by s.mu.
	rootVersion string // of the last roots that Envoy has answered, or empty
}

// request is a request of either variant.
type request struct {
	add, remove []string
	sotw        bool              // state of the world: add replaces all names
	versions    map[string]string // versions that Envoy reports
	nonce       string
	fault       *rpcstatus.Status
}

// DeltaSecrets implements SDS in its incremental variant.
func (s *Server) DeltaSecrets(stream secretv3.SecretDiscoveryService_DeltaSecretsServer) error {
	return serve(s, stream, variant[*discoveryv3.DeltaDiscoveryRequest]{
		absence: true,
		parse: func(r *discoveryv3.DeltaDiscoveryRequest) request {
			return request{
				add: r.GetResourceNamesSubscribe(), remove: r.GetResourceNamesUnsubscribe(),
				versions: r.GetInitialResourceVersions(), nonce: r.GetResponseNonce(), fault: r.GetErrorDetail(),
			}
		},
		send: func(changed, _ []*secret, nonce string) error {
			out := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: secretType, Nonce: nonce}
			for _, v := range changed {
				if v.body == nil {
					// Envoy keeps what it has, and waits no longer if it has nothing.
					out.RemovedResources = append(out.RemovedResources, v.name)
					continue
				}
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
			return request{add: r.GetResourceNames(), sotw: true, nonce: r.GetResponseNonce(), fault: r.GetErrorDetail()}
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

// variant reads and writes one variant of SDS.
type variant[Req any] struct {
	// absence means that it can say that there is no such secret.
	absence bool
	parse   func(Req) request
	// send writes the changed secrets (delta), or all subscribed ones (state of the world).
	send func(changed, all []*secret, nonce string) error
}

func serve[Req any](s *Server, stream interface {
	grpc.ServerStream
	Recv() (Req, error)
}, v variant[Req],
) error {
	ctx := stream.Context()
	x := &session{s: s, wake: make(chan struct{}, 1), names: map[string]struct{}{}, sent: map[string]string{}, absence: v.absence}
	s.addStream(x)
	defer func() {
		s.removeStream(time.Now(), x)
		for name := range x.names {
			x.forget(name)
		}
	}()
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
			if err := x.handle(r); err != nil {
				return err
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-x.wake:
		case <-alarm:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// due returns the secrets that changed for this stream, and all that it subscribes to, by
// name.
func (x *session) due(have map[string]*secret) (changed, all []*secret) {
	for _, name := range slices.Sorted(maps.Keys(x.names)) {
		v, ok := have[name]
		if !ok && name != OwnSecret && name != RootSecret && !isHostSecret(name) {
			v, ok = &secret{name: name, version: absentVersion}, true // nobody has it
		}
		if !ok || v.body == nil && !x.absence {
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

// forget ends the subscription to a secret.
func (x *session) forget(name string) {
	if _, ok := x.names[name]; ok && isHostSecret(name) {
		x.s.leaveFile(name)
	}
	delete(x.names, name)
}

func (x *session) handle(r request) error {
	if r.fault != nil {
		x.s.log.Error("Envoy rejected a secret (NACK)", "names", slices.Sorted(maps.Keys(x.names)), "err", r.fault.GetMessage())
		if len(x.names) == 1 { // else the answer does not say which; an Envoy has a stream for each
			for name := range x.names {
				x.s.reject(name, x.sent[name], r.fault.GetMessage())
			}
		}
	}
	if len(r.add) > maxNames {
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("more than %d secrets", maxNames))
	}
	if r.sotw && len(r.add) > 0 {
		for name := range x.names {
			if !slices.Contains(r.add, name) {
				x.forget(name)
			}
		}
	}
	for _, name := range r.remove {
		x.forget(name)
		delete(x.sent, name)
	}
	for _, name := range r.add {
		_, known := x.names[name]
		switch {
		case name == OwnSecret, name == RootSecret, known:
		case isHostSecret(name):
			if err := x.s.useFile(name); err != nil {
				return status.Error(codes.ResourceExhausted, err.Error())
			}
		default:
			x.s.log.Warn("Envoy requested an unknown secret", "name", name)
		}
		if _, again := x.names[name]; again && !r.sotw {
			// Subscribed again: send it again.
			delete(x.sent, name)
		}
		x.names[name] = struct{}{}
		if version := r.versions[name]; version != "" {
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
		// An answer to the newest response: Envoy has processed it.
		x.s.tookRoots(time.Now(), x, x.sent[RootSecret])
	}
	return nil
}
