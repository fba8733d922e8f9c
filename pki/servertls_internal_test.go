package pki

import (
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
