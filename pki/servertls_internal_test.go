package pki

import (
	"crypto/tls"
	"log/slog"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
)

func TestServerCertificateIsRenewedAtHalfLife(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	now := time.Now()
	a, err := New(Config{Dir: t.TempDir(), TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: logger, DefaultTTL: 20 * time.Second}, now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	s, err := NewServerTLS(ServerTLSConfig{Authority: a, Logger: logger, Names: []string{"cp.example", "127.0.0.1"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	first := s.certificate(now)
	subject, err := profile.Check(first.Leaf)
	if err != nil || subject.ID.String() != "spiffe://mesh.test/ns/istio-system/sa/fairlead" || subject.Kind != profile.ControlPlane {
		t.Errorf("server is %v, %v", subject, err)
	}
	for _, name := range []string{profile.IstiodName, "cp.example", "127.0.0.1"} {
		if err := first.Leaf.VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	if len(first.Certificate) != 2 {
		t.Errorf("%d certificates are sent: want the leaf and the root", len(first.Certificate))
	}
	if s.certificate(now.Add(8*time.Second)) != first {
		t.Error("renewed long before half of its life")
	}
	second := s.certificate(now.Add(11 * time.Second))
	if second == first || !second.Leaf.NotAfter.After(first.Leaf.NotAfter) {
		t.Error("not renewed after half of its life")
	}
}

// voted is a clock whose offset the hosts report.
type voted struct {
	held bool
	off  time.Duration
}

func (d *voted) Held() bool                        { return d.held }
func (d *voted) Estimate(wall time.Time) time.Time { return wall.Add(d.off) }
func valid(c *tls.Certificate, at time.Time) bool {
	return !at.Before(c.Leaf.NotBefore) && at.Before(c.Leaf.NotAfter)
}
func refusedByHosts(c *tls.Certificate, t time.Time) bool { return !t.Before(c.Leaf.NotAfter) }

// TestServerCertificateSurvivesClockSteps sets the server's clock by all sorts of
// steps. Once it is right again the server must show what is valid now, without a
// restart; and while it is ahead, or voted, nothing that has ended for hosts
// whose clocks are right.
func TestServerCertificateSurvivesClockSteps(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	born := time.Now()
	a, err := New(Config{Dir: t.TempDir(), TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: logger}, born)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	const day = 24 * time.Hour
	for _, clock := range []*voted{nil, {held: true}} {
		for _, first := range []time.Duration{-6 * day, -day, -time.Hour, time.Hour, day, 6 * day} {
			for _, second := range []time.Duration{0, -day, day} {
				cfg := ServerTLSConfig{Authority: a, Logger: logger}
				if clock != nil {
					cfg.Clock = clock
				}
				s, err := NewServerTLS(cfg, born)
				if err != nil {
					t.Fatal(err)
				}
				right := born.Add(time.Hour)
				for _, step := range []time.Duration{first, second} {
					if clock != nil {
						clock.off = -step
					}
					shown := s.certificate(right.Add(step))
					if (clock != nil || step > 0) && refusedByHosts(shown, right) {
						t.Errorf("steps %s, %s, voted %v: hosts are shown a certificate that ended %s ago", first, second, clock != nil, right.Sub(shown.Leaf.NotAfter))
					}
				}
				if clock != nil {
					clock.off = 0
				}
				if shown := s.certificate(right); !valid(shown, right) {
					t.Errorf("steps %s, %s, voted %v: right again, the server shows a certificate of %s to %s at %s",
						first, second, clock != nil, shown.Leaf.NotBefore, shown.Leaf.NotAfter, right.UTC())
				}
			}
		}
	}
}

// TestOneHostDoesNotChooseTheServersCertificate has a single host claim any time, with
// certificates of a day's work to choose from. All others must be able to connect.
func TestOneHostDoesNotChooseTheServersCertificate(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	born := time.Now()
	a, err := New(Config{Dir: t.TempDir(), TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Logger: logger}, born)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}()
	liar := &voted{}
	s, err := NewServerTLS(ServerTLSConfig{Authority: a, Logger: logger, Clock: liar}, born)
	if err != nil {
		t.Fatal(err)
	}
	for at := time.Duration(0); at <= 48*time.Hour; at += 3 * time.Hour {
		for liar.off = -72 * time.Hour; liar.off <= 72*time.Hour; liar.off += time.Hour {
			if shown, now := s.certificate(born.Add(at)), born.Add(at); !valid(shown, now) {
				t.Fatalf("after %s one host that claims to be %s off has all others shown a certificate of %s to %s", at, liar.off, shown.Leaf.NotBefore, shown.Leaf.NotAfter)
			}
		}
	}
}
