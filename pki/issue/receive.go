package issue

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	securityapi "istio.io/api/security/v1alpha1"
)

// How requests of hosts are received. A gRPC server has one limit of the size of
// messages, and streams need a large one: until a message is here nobody knows how
// large it is. So only a few are received at a time, and not for long: a request
// of 2 KiB, as it is to be, comes with its headers and takes some 50 µs.
const (
	maxReceiving        = 4 // of all hosts: 16 MiB each, and twice that to decode it
	maxReceivingPerHost = 2
	receiveTime         = 3 * time.Second
	receiveWait         = 5 * time.Second // for a place
	maxRequest          = 64 << 10
	// A host that takes all of its time, or sends too much, is charged as if it had
	// made so many requests.
	slowCost = 200
)

var (
	errSlow     = status.Error(codes.DeadlineExceeded, "the request did not come in time")
	errTooLarge = errors.New("the request is larger than a certificate request may be")
)

// receiving is the sender of a request.
type receiving struct {
	places chan struct{}

	mu sync.Mutex // guards by
	by map[string]int
}

func newReceiving() *receiving {
	return &receiving{places: make(chan struct{}, maxReceiving), by: map[string]int{}}
}

// enter waits for a place for a host. What it gives must be called.
func (r *receiving) enter(ctx context.Context, host string) (leave func(), ok bool) {
	r.mu.Lock()
	if r.by[host] >= maxReceivingPerHost {
		r.mu.Unlock()
		return nil, false
	}
	r.by[host]++
	r.mu.Unlock()
	forget := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.by[host]--; r.by[host] == 0 {
			delete(r.by, host)
		}
	}
	timer := time.NewTimer(receiveWait)
	defer timer.Stop()
	select {
	case r.places <- struct{}{}:
		return func() { <-r.places; forget() }, true
	case <-ctx.Done():
	case <-timer.C:
	}
	forget()
	return nil, false
}

// Register puts the service on a gRPC server whose TLS settings are
// pki.ServerTLS's, and whose messages may be large. Requests share a budget of
// what is received at a time.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.register(r, s.receiving) }

// RegisterUnauthenticated puts it on one that bounds, for all of its connections,
// their number, their messages and how long they live.
func (s *Service) RegisterUnauthenticated(r grpc.ServiceRegistrar) { s.register(r, nil) }

// register makes a stream of each method, which is the same on the wire: its
// handler is called when the headers are here, and decides when the body is read.
func (s *Service) register(r grpc.ServiceRegistrar, budget *receiving) {
	desc := securityapi.IstioCertificateService_ServiceDesc
	for _, m := range desc.Methods {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: m.MethodName, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream, budget, m) },
		})
	}
	desc.Methods = nil
	r.RegisterService(&desc, s)
}

// serve answers one call.
func (s *Service) serve(stream grpc.ServerStream, budget *receiving, m grpc.MethodDesc) error {
	ctx, now := stream.Context(), time.Now()
	s.metrics.csr.Inc()
	call := callOf(ctx)
	call.token = s.pendingToken(bearerOf(ctx))
	if !s.allow(call, now) {
		return s.refuse(call, now, errors.New("more requests than the rate allows"), errRate())
	}
	leave := func() {}
	if budget != nil {
		var ok bool
		if leave, ok = budget.enter(ctx, call.budget()); !ok {
			return s.refuse(call, now, errors.New("too many requests are being received"), errRate())
		}
	}
	answered := func() {}
	answer, err := m.Handler(s, ctx, func(in any) error {
		defer leave()
		err := s.receive(stream, call, in)
		if err == nil {
			answered = s.answering(call.addr)
		}
		return err
	}, nil)
	answered()
	if err != nil {
		return err
	}
	return stream.SendMsg(answer) //nolint:wrapcheck // it is gRPC's
}

// receive reads the request, for a while.
func (s *Service) receive(stream grpc.ServerStream, c call, in any) error {
	done := make(chan error, 1)
	// It ends with the handler, whose return ends the stream.
	go func() { done <- stream.RecvMsg(in) }()
	timer := time.NewTimer(receiveTime)
	defer timer.Stop()
	var err error
	select {
	case err = <-done:
		if m, ok := in.(proto.Message); ok && err == nil && proto.Size(m) > maxRequest {
			err = errTooLarge
		}
	case <-timer.C:
		err = errSlow
	}
	switch {
	case errors.Is(err, io.EOF):
		return errRequest()
	case errors.Is(err, errTooLarge):
		s.charge(c)
		return s.refuse(c, time.Now(), err, errRequest())
	case errors.Is(err, errSlow):
		s.charge(c)
		return s.refuse(c, time.Now(), err, err)
	}
	return err
}

// budget is whose places a call takes.
func (c call) budget() string {
	if len(c.chain) > 0 {
		return c.id
	}
	return c.addr
}
