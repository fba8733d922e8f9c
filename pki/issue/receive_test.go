package issue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/pki/svid"
)

// Calls that never send a request end, and so do those that send too much. Who
// makes many of them keeps no other host from renewing.
func TestRequestsAreReceivedInTime(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	bad, good := s.join(t, host(t, "bad", "shop/web")), s.join(t, host(t, "good", "shop/web"))
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return bad }))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	end := func(err error) {
		if c := status.Code(err); c != codes.DeadlineExceeded && c != codes.ResourceExhausted && c != codes.InvalidArgument || ctx.Err() != nil {
			t.Errorf("the call ends with %v", err)
		}
	}
	for range 20 {
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, securityapi.IstioCertificateService_CreateCertificate_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { end(stream.RecvMsg(&securityapi.IstioCertificateResponse{})) })
	}
	large := &securityapi.IstioCertificateRequest{Csr: strings.Repeat("x", 1<<20)}
	for range 20 {
		wg.Go(func() {
			_, err := securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, large)
			end(err)
		})
	}
	for range 5 {
		if _, err := s.client(t).Renew(ctx, good); err != nil {
			t.Errorf("another host renews: %v", err)
		}
	}
	wg.Wait()
	if _, err := s.client(t).Renew(ctx, good); err != nil {
		t.Errorf("another host renews afterwards: %v", err)
	}
}

// A request is the server's to answer from when it is here until its answer is
// there, and nobody's who does not send it.
func TestAnsweringIsTold(t *testing.T) {
	t.Parallel()
	var now, all atomic.Int64
	var during []int64
	s := start(t, settings{
		answering: func(peer string) func() {
			if _, err := netip.ParseAddrPort(peer); err != nil {
				t.Error(err)
			}
			now.Add(1)
			all.Add(1)
			return func() { now.Add(-1) }
		},
		hold: func() error {
			during = append(during, now.Load())
			if len(during) == 2 {
				return errors.New("on hold")
			}
			return nil
		},
	})
	id := s.join(t, host(t, "web-1", "shop/web"))
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return id }))
	if _, err := securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), request(t, newKey(t), "")); status.Code(err) != codes.Unavailable {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	silent, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, securityapi.IstioCertificateService_CreateCertificate_FullMethodName)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t).Renew(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := silent.RecvMsg(&securityapi.IstioCertificateResponse{}); err == nil {
		t.Error("a call without a request is answered")
	}
	if want := []int64{1, 1, 1}; !slices.Equal(during, want) || now.Load() != 0 || all.Load() != 3 {
		t.Errorf("while calls were answered %v were counted, want %v; %d at the end, %d in all", during, want, now.Load(), all.Load())
	}
}

// One request a call, as before: a client that sends nothing and closes, and one
// that sends two, are answered.
func TestOneRequestACall(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	id := s.join(t, host(t, "web-1", "shop/web"))
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return id }))
	for sent, want := range []codes.Code{codes.InvalidArgument, codes.OK, codes.OK} {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, securityapi.IstioCertificateService_CreateCertificate_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		for range sent {
			if err := stream.SendMsg(request(t, newKey(t), "")); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&securityapi.IstioCertificateResponse{}); status.Code(err) != want {
			t.Errorf("%d requests in a call: %v, want %s", sent, err, want)
		}
	}
}

// From however many addresses peers come that have proved nothing, and whatever
// they do, the log has a bounded number of lines of them; a host has its own.
func TestLogOfUnauthenticatedPeersIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	for i := range 300 {
		at := &net.TCPAddr{IP: net.IPv4(10, 0, byte(i/100), byte(i%100)), Port: 1000 + i}
		ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: at})
		for _, csr := range []string{"", "nonsense", request(t, newKey(t), "").GetCsr()} {
			if _, err := s.service.CreateCertificate(ctx, &securityapi.IstioCertificateRequest{Csr: csr}); err == nil {
				t.Fatal("an unauthenticated peer has a certificate")
			}
		}
		s.service.HandshakeRefused(at.String(), nil, fmt.Errorf("reason %d", i))
	}
	if n := strings.Count(s.log.String(), "level=WARN"); n == 0 || n > 30 {
		t.Errorf("%d lines of 1200 refusals, want some and at most 30", n)
	}
	h := s.join(t, host(t, "web-1", "shop/web"))
	if err := s.hosts.Remove("web-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t).Renew(t.Context(), h); !errors.Is(err, svid.ErrRefused) {
		t.Fatal(err)
	}
	if !strings.Contains(s.log.String(), `level=WARN msg="certificate request rejected" component=issue host=web-1`) {
		t.Error("the log does not name the host that was removed")
	}
}
