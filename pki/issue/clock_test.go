package issue_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// TestHostCertifiedWhileTheClockWasAhead is a host that was given a certificate
// while the server's clock was a day ahead. Right again, the server lets it stream
// and renew, or it would be out until the day has passed.
func TestHostCertifiedWhileTheClockWasAhead(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	subject, err := profile.Check(h.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	chain, err := s.authority.Sign(profile.Leaf{Subject: subject, PublicKey: h.PrivateKey.Public()}, time.Now().Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	ahead := &svid.Identity{SVID: x509svid.SVID{ID: h.ID, PrivateKey: h.PrivateKey, Certificates: chain}, Bundle: h.Bundle}
	if _, err := s.stream(t, ahead); err != nil {
		t.Errorf("stream: %v\n%s", err, s.log)
	}
	next, err := s.client(t).Renew(t.Context(), ahead)
	if err != nil {
		t.Fatalf("renewal: %v\n%s", err, s.log)
	}
	if !next.Leaf().NotBefore.Before(time.Now()) {
		t.Errorf("renewed certificate begins at %s", next.Leaf().NotBefore)
	}
	if _, err := s.client(t).Workload(t.Context(), ahead, pair(t, "shop/web")); err != nil {
		t.Errorf("workload: %v", err)
	}
}

// TestHostAcceptsAnEarlyServerAndNoEndedOne has hosts with wrong clocks, 1970
// included, judge a server's certificate.
func TestHostAcceptsAnEarlyServerAndNoEndedOne(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	for _, c := range []struct {
		clock time.Time
		ok    bool
	}{
		{time.Now(), true},
		{time.Now().Add(-24 * time.Hour), true},
		{time.Unix(0, 0), true},
		{time.Now().Add(25 * time.Hour), false},
	} {
		conn := dial(t, s.addr, svid.ClientTLSAt(func() *svid.Identity { return h }, func() time.Time { return c.clock }))
		_, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		if (err == nil) != c.ok {
			t.Errorf("a host whose clock shows %s: %v", c.clock.UTC(), err)
		}
	}
}

// TestExpiredStaysExpired: to accept what has not begun accepts nothing that has ended.
func TestExpiredStaysExpired(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	_, err := profile.Verification{
		Bundle: h.Bundle.X509Authorities(), TrustDomain: h.ID.TrustDomain(), Now: h.NotAfter().Add(time.Second), AcceptEarly: true,
	}.Verify(h.Certificates)
	if !errors.Is(err, profile.ErrExpired) {
		t.Errorf("a certificate past its end: %v", err)
	}
}

// TestHeldSigning signs nothing for anybody, spends no token, and says so in a way
// that has callers ask again.
func TestHeldSigning(t *testing.T) {
	t.Parallel()
	var held atomic.Bool
	s := start(t, settings{hold: func() error {
		if held.Load() {
			return errors.New("signing is on hold: the clocks differ")
		}
		return nil
	}})
	h := s.join(t, host(t, "web-1", "shop/web"))
	token, key := s.token(t, host(t, "web-2", "shop/web")), newKey(t)
	held.Store(true)
	c := s.client(t)
	for what, ask := range map[string]func() error{
		"join":     func() error { _, err := c.Join(t.Context(), token, key); return err },
		"renewal":  func() error { _, err := c.Renew(t.Context(), h); return err },
		"workload": func() error { _, err := c.Workload(t.Context(), h, pair(t, "shop/web")); return err },
	} {
		if err := ask(); err == nil || errors.Is(err, svid.ErrRefused) || !strings.Contains(err.Error(), "on hold") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.stream(t, h); err != nil {
		t.Errorf("a stream needs no signature: %v", err)
	}
	held.Store(false)
	if _, err := c.Join(t.Context(), token, newKey(t)); err != nil {
		t.Errorf("the token was spent while signing was on hold: %v", err)
	}
	if _, err := c.Renew(t.Context(), h); err != nil {
		t.Error(err)
	}
}
