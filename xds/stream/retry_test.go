package stream

import (
	"slices"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

// listenerPeer answers for listeners: rejected says why, or nothing.
type listenerPeer struct {
	t *testing.T
	s *Server
}

func (p listenerPeer) request(now time.Time, req *discovery.DeltaDiscoveryRequest) {
	p.t.Helper()
	req.TypeUrl = string(ListenerType)
	if err := p.s.Request(now, req); err != nil {
		p.t.Fatal(err)
	}
}

// sent is whether the listener is sent at a time, and answers with the reason.
func (p listenerPeer) sent(now time.Time, reason string, relay bool) bool {
	p.t.Helper()
	again := false
	for r := p.s.Next(now); r != nil; r = p.s.Next(now) {
		req := &discovery.DeltaDiscoveryRequest{ResponseNonce: r.Message().GetNonce()}
		if len(r.Message().GetResources()) > 0 {
			again = true
			if reason != "" {
				req.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Error adding/updating listener(s) x: " + reason}
				if relay {
					d, err := anypb.New(&errdetails.ResourceInfo{ResourceType: string(ListenerType), ResourceName: "x", Description: reason})
					if err != nil {
						p.t.Fatal(err)
					}
					req.ErrorDetail.Details = []*anypb.Any{d}
				}
			}
		}
		p.request(now, req)
	}
	return again
}

// TestListenerIsSentAgainWhoseReasonIsOnTheHost: with growing pauses, for ever, until it is
// accepted. Any other rejection is final.
func TestListenerIsSentAgainWhoseReasonIsOnTheHost(t *testing.T) {
	t.Parallel()
	const (
		inUse  = "cannot bind '10.0.0.1:8080': Address already in use"
		noFile = "unable to open file '/var/log/gone/access.log': No such file or directory"
	)
	for _, relay := range []bool{false, true} {
		for _, reason := range []string{inUse, noFile, "Proto constraint validation failed"} {
			s := NewServer(ServerConfig{})
			p := listenerPeer{t, s}
			now := time.Unix(1000, 0)
			p.request(now, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*"}})
			s.SetGeneration(gen(1, "l/x=1"))
			if !p.sent(now, reason, relay) {
				t.Fatal("it is not sent at all")
			}
			if reason != inUse && reason != noFile {
				if d := s.NextDeadline(); !d.IsZero() || p.sent(now.Add(time.Hour), "", relay) {
					t.Errorf("relay %v: sent again although %q is final (deadline %s)", relay, reason, d)
				}
				continue
			}
			for i, want := range []int{5, 10, 20, 40, 80, 160, 300, 300, 300} {
				due := s.NextDeadline()
				if got := due.Sub(now); got != time.Duration(want)*time.Second {
					t.Fatalf("relay %v: attempt %d is after %s, want %d s", relay, i, got, want)
				}
				if p.sent(due.Add(-time.Millisecond), reason, relay) {
					t.Errorf("relay %v: attempt %d is too early", relay, i)
				}
				now = due
				if s.Status()[0].NackedGeneration == 0 || len(s.Status()[0].Rejected) != 1 {
					t.Errorf("relay %v: the rejection is not in the status: %+v", relay, s.Status())
				}
				if !p.sent(now, reason, relay) {
					t.Fatalf("relay %v: attempt %d does not come", relay, i)
				}
			}
			now = s.NextDeadline()
			if !p.sent(now, "", relay) || len(s.Status()[0].Rejected) != 0 {
				t.Errorf("relay %v: not accepted in the end: %+v", relay, s.Status())
			}
			if d := s.NextDeadline(); !d.IsZero() {
				t.Errorf("relay %v: still a deadline at %s", relay, d)
			}
		}
	}
}

// TestReplacedListenerIsNotSentTwice: a new version ends the retries of the old one.
func TestReplacedListenerIsNotSentTwice(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	p := listenerPeer{t, s}
	now := time.Unix(1000, 0)
	p.request(now, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*"}})
	s.SetGeneration(gen(1, "l/x=1"))
	p.sent(now, "cannot bind '10.0.0.1:8080': Address already in use", false)
	s.SetGeneration(gen(2, "l/x=2"))
	if !p.sent(now, "", false) {
		t.Fatal("the new version is not sent")
	}
	if p.sent(now.Add(time.Hour), "", false) {
		t.Error("it is sent again although it was accepted")
	}
}

// TestRetriesAreChosen: a peer that tries by itself is sent nothing again; an Envoy behind a relay
// everything, listeners and clusters, sooner.
func TestRetriesAreChosen(t *testing.T) {
	t.Parallel()
	const inUse = "cannot bind '10.0.0.1:8080': Address already in use"
	now := time.Unix(1000, 0)
	first := func(retry Retry, reason string) time.Duration {
		t.Helper()
		s := NewServer(ServerConfig{Retry: retry})
		p := listenerPeer{t, s}
		p.request(now, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*"}})
		s.SetGeneration(gen(1, "l/x=1"))
		if !p.sent(now, reason, true) || len(s.Status()[0].Rejected) != 1 {
			t.Fatalf("not rejected: %+v", s.Status())
		}
		if s.NextDeadline().IsZero() {
			return 0
		}
		return s.NextDeadline().Sub(now)
	}
	all := Retry{Min: time.Second, Max: time.Minute, All: true}
	for _, c := range []struct {
		retry  Retry
		reason string
		want   time.Duration
	}{
		{Retry{}, inUse, 5 * time.Second},
		{Retry{None: true}, inUse, 0},
		{all, inUse, time.Second},
		{all, "anything", time.Second},
		{DefaultRetry(), "anything", 0},
	} {
		if got := first(c.retry, c.reason); got != c.want {
			t.Errorf("%+v, %q: after %s, want %s", c.retry, c.reason, got, c.want)
		}
	}
	if got := []time.Duration{all.Wait(0), all.Wait(3), all.Wait(6), all.Wait(60)}; !slices.Equal(got, []time.Duration{time.Second, 8 * time.Second, time.Minute, time.Minute}) {
		t.Errorf("waits %s", got)
	}
}
