package issue_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func TestForgedBindingsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	a := s.join(t, host(t, "web-1", "shop/web"))
	s.join(t, host(t, "web-2", "shop/db"))
	mine, err := profile.Check(a.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	other, err := profile.HostID(s.authority.TrustDomain(), "web-2")
	if err != nil {
		t.Fatal(err)
	}
	// Even a certificate that the authority signed must agree with the record.
	for name, subject := range map[string]profile.Subject{
		"other_host":   {Kind: profile.Host, ID: other, Host: "web-2", Binding: mine.Binding},
		"no_record":    {Kind: profile.Host, ID: a.ID, Host: "web-1", Binding: profile.Binding{1}},
		"direct":       direct(t, s, "shop/web", mine.Binding),
		"control_self": controlPlane(t, s),
	} {
		id := s.forge(t, subject, time.Now())
		if _, err := s.stream(t, id); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s streams: %v", name, err)
		}
		if _, err := s.client(t).Renew(t.Context(), id); !errors.Is(err, svid.ErrRefused) {
			t.Errorf("%s renews: %v", name, err)
		}
	}
}

func direct(t *testing.T, s *server, text string, b profile.Binding) profile.Subject {
	t.Helper()
	id, err := profile.WorkloadID(s.authority.TrustDomain(), pair(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return profile.Subject{Kind: profile.Direct, ID: id, Pair: pair(t, text), Binding: b}
}

func controlPlane(t *testing.T, s *server) profile.Subject {
	t.Helper()
	id, err := profile.ControlPlaneID(s.authority.TrustDomain())
	if err != nil {
		t.Fatal(err)
	}
	subject, err := profile.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	return subject
}

func TestOtherAuthorityIsRefusedByBothEnds(t *testing.T) {
	t.Parallel()
	ours, theirs := start(t, settings{}), start(t, settings{})
	mine := ours.join(t, host(t, "web-1", "shop/web"))
	if _, err := theirs.stream(t, mine); err == nil {
		t.Error("a client accepted the control plane of another authority")
	}
	// A client that does not look at the server must be refused by it.
	blind := svid.ClientTLS(func() *svid.Identity { return mine })
	blind.VerifyConnection = nil
	conn := dial(t, theirs.addr, blind)
	if _, err := securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), request(t, newKey(t), "")); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
	if !strings.Contains(theirs.log.String(), "client certificate rejected") {
		t.Errorf("the log does not say so:\n%s", theirs.log)
	}
	if r := theirs.service.Refusals(); len(r) != 1 || r[0].Reason != "its certificate is not one of this mesh" || r[0].ID != "" {
		t.Errorf("the list has %+v", r)
	}
	// A token goes to nobody but the authority it names.
	token := ours.token(t, host(t, "web-2", "shop/web"))
	token.Servers = []string{theirs.addr}
	if _, err := theirs.client(t).Join(t.Context(), token, newKey(t)); !errors.Is(err, svid.ErrNotControlPlane) {
		t.Errorf("joining at another authority: %v, want ErrNotControlPlane", err)
	}
	if strings.Contains(theirs.log.String(), "certificate refused\" host") {
		t.Error("the token was sent to it")
	}
}

// A workload of the mesh has a certificate of the right authority, and listens
// where the control plane should.
func TestWorkloadThatPosesAsControlPlane(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	w, err := s.client(t).Workload(t.Context(), h, pair(t, "shop/web"))
	if err != nil {
		t.Fatal(err)
	}
	cert := w.TLSCertificate()
	cert.Certificate = append(cert.Certificate, w.Bundle.X509Authorities()[0].Raw)
	poser := &server{authority: s.authority, service: s.service}
	l := startPoser(t, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert}}, poser)
	c, err := svid.NewClient(svid.ClientConfig{Servers: []string{l}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Renew(t.Context(), h); !errors.Is(err, svid.ErrNotControlPlane) {
		t.Errorf("renewing there: %v, want ErrNotControlPlane", err)
	}
	if _, err := c.Join(t.Context(), s.token(t, host(t, "web-2", "shop/web")), newKey(t)); !errors.Is(err, svid.ErrNotControlPlane) {
		t.Errorf("joining there: %v, want ErrNotControlPlane", err)
	}
}
