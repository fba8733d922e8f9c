package issue_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityapi "istio.io/api/security/v1alpha1"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestHostJoinsRenewsAndGetsItsWorkloads(t *testing.T) {
	t.Parallel()
	s := start(t, settings{ttl: 20 * time.Second})
	h := s.join(t, host(t, "web-1", "shop/web", "shop/admin"))
	if h.ID.String() != "spiffe://mesh.test/fairlead/host/web-1" || h.Kind() != profile.Host {
		t.Errorf("joined as %s, %s", h.ID, h.Kind())
	}
	if left := time.Until(h.NotAfter()); left > 20*time.Second || left < 15*time.Second {
		t.Errorf("certificate lives for %s", left)
	}
	p, err := s.stream(t, h)
	if err != nil || p.Host != "web-1" || len(p.Pairs) != 2 || p.Types[0] != "sidecar" || p.Direct || !p.NotAfter.Equal(h.NotAfter()) {
		t.Errorf("streams as %+v, %v", p, err)
	}
	c := s.client(t)
	next, err := c.Renew(t.Context(), h)
	if err != nil || next.Leaf().SerialNumber.Cmp(h.Leaf().SerialNumber) == 0 {
		t.Fatalf("renewing: %v", err)
	}
	for _, text := range []string{"shop/web", "shop/admin"} {
		w, err := c.Workload(t.Context(), next, pair(t, text))
		if err != nil || w.Kind() != profile.Impersonated {
			t.Fatalf("workload %s: %v\n%s", text, err, s.log)
		}
	}
	for _, text := range []string{"shop/db", "istio-system/other"} {
		if _, err := c.Workload(t.Context(), next, pair(t, text)); !errors.Is(err, svid.ErrRefused) {
			t.Errorf("workload %s: %v, want ErrRefused", text, err)
		}
	}
	log := s.log.String()
	for _, want := range []string{"certificate issued", "spiffe_id=spiffe://mesh.test/ns/shop/sa/web", "host=web-1", "to which the host is not entitled"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q", want)
		}
	}
	if strings.Contains(log, "flsecret1_") || strings.Contains(log, "PRIVATE") {
		t.Error("the log holds a secret")
	}
}

func TestImpersonatedNeitherRenewsNorStreams(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	w, err := s.client(t).Workload(t.Context(), h, pair(t, "shop/web"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client(t).Renew(t.Context(), w); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("renewing: %v, want ErrRefused", err)
	}
	if _, err := s.client(t).Workload(t.Context(), w, pair(t, "shop/web")); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("asking for itself: %v, want ErrRefused", err)
	}
	if _, err := s.stream(t, w); status.Code(err) != codes.PermissionDenied {
		t.Errorf("streaming: %v", err)
	}
	if !strings.Contains(s.log.String(), "is of kind impersonated") {
		t.Errorf("the log does not say why:\n%s", s.log)
	}
}

func TestDirectClientRenewsAndStreamsAsItself(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	d := s.join(t, jointoken.Grant{Direct: true, Type: "router", Pairs: []profile.Pair{pair(t, "shop/web")}})
	if d.ID.String() != "spiffe://mesh.test/ns/shop/sa/web" || d.Kind() != profile.Direct {
		t.Errorf("joined as %s, %s", d.ID, d.Kind())
	}
	d, err := s.client(t).Renew(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.stream(t, d)
	if err != nil || !p.Direct || p.ID != d.ID || p.Types[0] != "router" {
		t.Errorf("streams as %+v, %v", p, err)
	}
	if _, err := s.client(t).Workload(t.Context(), d, pair(t, "shop/web")); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("asking for a workload: %v, want ErrRefused", err)
	}
}

func TestTokenIsBoundToOneKey(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	token, key := s.token(t, host(t, "web-1", "shop/web")), newKey(t)
	for i := range 2 {
		if _, err := s.client(t).Join(t.Context(), token, key); err != nil {
			t.Fatalf("time %d: %v", i, err)
		}
	}
	if _, err := s.client(t).Join(t.Context(), token, newKey(t)); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("with another key: %v, want ErrRefused", err)
	}
	token.Secret[0]++
	if _, err := s.client(t).Join(t.Context(), token, key); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("with another secret: %v, want ErrRefused", err)
	}
	if r := s.service.Refusals(); len(r) != 2 || r[0].Host != "web-1" || !strings.Contains(r[0].Reason, "another key") {
		t.Errorf("refusals %+v", r)
	}
}

func TestTokenSurvivesRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, settings{dir: dir})
	h := first.join(t, host(t, "web-1", "shop/web"))
	if err := first.authority.Close(); err != nil {
		t.Fatal(err)
	}
	second := start(t, settings{dir: dir})
	if _, err := second.client(t).Renew(t.Context(), h); err != nil {
		t.Errorf("renewing at the restarted server: %v\n%s", err, second.log)
	}
}

func TestRemovedHostIsOut(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	p, err := s.stream(t, h)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.hosts.Remove("web-1"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Revoked:
	default:
		t.Error("the stream did not end")
	}
	if _, err := s.client(t).Renew(t.Context(), h); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("renewing: %v, want ErrRefused", err)
	}
	if _, err := s.client(t).Workload(t.Context(), h, pair(t, "shop/web")); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("asking for a workload: %v, want ErrRefused", err)
	}
	if _, err := s.stream(t, h); status.Code(err) != codes.PermissionDenied {
		t.Errorf("streaming: %v", err)
	}
}

func TestHostThatWasAwayComesBack(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := start(t, settings{born: now.Add(-400 * 24 * time.Hour)})
	h := s.join(t, host(t, "web-1", "shop/web"))
	subject, err := profile.Check(h.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	month := s.forge(t, subject, now.Add(-30*24*time.Hour))
	c := s.client(t)
	if _, err := c.Renew(t.Context(), month); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("ended, with a key that is not the host's: %v, want ErrRefused", err)
	}
	hash, err := profile.HashKey(month.PrivateKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.hosts.Issued(subject.Binding, hash, month.NotAfter(), now); err != nil {
		t.Fatal(err)
	}
	if _, err := s.stream(t, month); status.Code(err) != codes.PermissionDenied {
		t.Errorf("streaming with an ended certificate: %v", err)
	}
	if _, err := c.Workload(t.Context(), month, pair(t, "shop/web")); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("a workload with an ended certificate: %v", err)
	}
	back, err := c.Renew(t.Context(), month)
	if err != nil {
		t.Fatalf("renewing after a month: %v\n%s", err, s.log)
	}
	if _, err := s.stream(t, back); err != nil {
		t.Errorf("streaming after that: %v", err)
	}
	year := &svid.Identity{SVID: x509svid.SVID{ID: month.ID, PrivateKey: month.PrivateKey}, Bundle: month.Bundle}
	year.Certificates, err = s.authority.Sign(profile.Leaf{Subject: subject, PublicKey: month.PrivateKey.Public()}, now.Add(-300*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Renew(t.Context(), year); !errors.Is(err, svid.ErrRefused) {
		t.Errorf("renewing after most of a year: %v, want ErrRefused", err)
	}
}

func request(t testing.TB, key crypto.Signer, impersonate string) *securityapi.IstioCertificateRequest {
	t.Helper()
	csr, err := svid.CSR(key)
	if err != nil {
		t.Fatal(err)
	}
	req := &securityapi.IstioCertificateRequest{Csr: string(csr)}
	if impersonate != "" {
		req.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
			svid.ImpersonatedIdentity: structpb.NewStringValue(impersonate),
		}}
	}
	return req
}

func TestImpersonationStaysWithinNames(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	h := s.join(t, host(t, "web-1", "shop/web"))
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return h }))
	c := securityapi.NewIstioCertificateServiceClient(conn)
	for _, id := range []string{
		"spiffe://mesh.test/ns/istio-system/sa/fairlead",
		"spiffe://mesh.test/fairlead/host/web-2",
		"spiffe://mesh.test/fairlead/host/web-1",
		"spiffe://mesh.test/fairlead/x",
		"spiffe://other.test/ns/shop/sa/web",
		"spiffe://mesh.test/ns/shop/sa/web/../admin",
		"spiffe://mesh.test/ns/shop/sa/web/",
		"spiffe://mesh.test/ns/shop/sa/Web",
		"shop/web", " ", strings.Repeat("x", 5000),
	} {
		_, err := c.CreateCertificate(t.Context(), request(t, newKey(t), id))
		if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "identity not permitted" {
			t.Errorf("%.60q: %v", id, err)
		}
	}
	if _, err := c.CreateCertificate(t.Context(), request(t, newKey(t), "spiffe://mesh.test/ns/shop/sa/web")); err != nil {
		t.Error(err)
	}
}

// A request may say what it likes: only its key counts.
func TestRequestCarriesAKeyAndNothingElse(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	token, key := s.token(t, host(t, "web-1", "shop/web")), newKey(t)
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "spiffe://mesh.test/fairlead/host/web-2"},
		DNSNames: []string{profile.IstiodName},
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "mesh.test", Path: "/ns/istio-system/sa/fairlead"}},
		ExtraExtensions: []pkix.Extension{
			{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}},
		},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	// As Istio's agent does: the token file's content is the bearer.
	text, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.authority.Bundle()[0])
	conn := dial(t, s.addr, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: profile.IstiodName})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+text)
	resp, err := securityapi.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx,
		&securityapi.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 30})
	if err != nil {
		t.Fatalf("%v\n%s", err, s.log)
	}
	if len(resp.GetCertChain()) != 2 {
		t.Fatalf("%d certificates", len(resp.GetCertChain()))
	}
	leaf, root := parse(t, resp.GetCertChain()[0]), parse(t, resp.GetCertChain()[1])
	if !root.Equal(s.authority.Bundle()[0]) {
		t.Error("the last one is not the root")
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://mesh.test/fairlead/host/web-1" || len(leaf.DNSNames) > 0 ||
		leaf.IsCA || leaf.Subject.CommonName != "" {
		t.Errorf("the leaf has names of the request: %v %v %v %q", leaf.URIs, leaf.DNSNames, leaf.IsCA, leaf.Subject)
	}
	if left := time.Until(leaf.NotAfter); left > 30*time.Second || left < 20*time.Second {
		t.Errorf("asked for 30 s, got %s", left)
	}
}

func parse(t *testing.T, text string) *x509.Certificate {
	t.Helper()
	block, rest := pem.Decode([]byte(text))
	if block == nil || len(rest) > 0 {
		t.Fatalf("not one certificate: %q", text)
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRefusalsAreOpaque(t *testing.T) {
	t.Parallel()
	s := start(t, settings{})
	pool := x509.NewCertPool()
	pool.AddCert(s.authority.Bundle()[0])
	conn := dial(t, s.addr, &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: profile.IstiodName})
	c := securityapi.NewIstioCertificateServiceClient(conn)
	good := request(t, newKey(t), "")
	token := s.token(t, host(t, "web-1", "shop/web"))
	with := func(auth string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", auth)
	}
	const authentication = "request authentication failure"
	for name, x := range map[string]struct {
		ctx  context.Context
		req  *securityapi.IstioCertificateRequest
		code codes.Code
		text string
	}{
		"nothing":     {t.Context(), good, codes.Unauthenticated, authentication},
		"basic":       {with("Basic " + token.Secret.Bearer()), good, codes.Unauthenticated, authentication},
		"jwt":         {with("Bearer eyJhbGciOi.e30.x"), good, codes.Unauthenticated, authentication},
		"other":       {with("Bearer " + svid.Secret{5}.Bearer()), good, codes.Unauthenticated, authentication},
		"no_csr":      {with("Bearer " + token.Secret.Bearer()), &securityapi.IstioCertificateRequest{}, codes.InvalidArgument, "certificate request not acceptable"},
		"huge_csr":    {with("Bearer " + token.Secret.Bearer()), &securityapi.IstioCertificateRequest{Csr: strings.Repeat("A", 1<<20)}, codes.InvalidArgument, "certificate request not acceptable"},
		"impersonate": {with("Bearer " + token.Secret.Bearer()), request(t, newKey(t), "spiffe://mesh.test/ns/shop/sa/web"), codes.Unauthenticated, authentication},
	} {
		_, err := c.CreateCertificate(x.ctx, x.req)
		if status.Code(err) != x.code || status.Convert(err).Message() != x.text {
			t.Errorf("%s: %v, want %s %q", name, err, x.code, x.text)
		}
	}
	// None of it has spent the token.
	if _, err := c.CreateCertificate(with("bearer "+token.Secret.Bearer()), good); err != nil {
		t.Errorf("the token was spent: %v", err)
	}
}

func TestRateAndMetrics(t *testing.T) {
	t.Parallel()
	s := start(t, settings{burst: 3})
	token := s.token(t, host(t, "web-1", "shop/web"))
	key := newKey(t)
	var last error
	for range 4 {
		_, last = s.client(t).Join(t.Context(), token, key)
	}
	if status.Code(unwrap(last)) != codes.ResourceExhausted {
		t.Errorf("the fourth of three: %v", last)
	}
	families, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if got["citadel_server_csr_count"] != 4 || got["citadel_server_success_cert_issuance_count"] != 3 {
		t.Errorf("metrics %v", got)
	}
	if got["citadel_server_root_cert_expiry_timestamp"] != float64(s.authority.Bundle()[0].NotAfter.Unix()) {
		t.Errorf("metrics %v", got)
	}
}

// TestNeighboursLeaveAJoinItsRate: requests without anything good, from the address of a
// host that joins, do not keep it out. Its own have a limit.
func TestNeighboursLeaveAJoinItsRate(t *testing.T) {
	t.Parallel()
	s := start(t, settings{burst: 3})
	token, another := s.token(t, host(t, "web-1", "shop/web")), s.token(t, host(t, "web-2", "shop/web"))
	bad := token
	bad.Secret[0]++
	for i := range 5 {
		_, err := s.client(t).Join(t.Context(), bad, newKey(t))
		if got, want := status.Code(unwrap(err)), i >= 3; (got == codes.ResourceExhausted) != want {
			t.Errorf("request %d without a token: %v", i, err)
		}
	}
	key := newKey(t)
	for i := range 4 {
		_, err := s.client(t).Join(t.Context(), token, key)
		if got := status.Code(unwrap(err)); i < 3 && err != nil || i == 3 && got != codes.ResourceExhausted {
			t.Errorf("request %d with a token: %v", i, err)
		}
	}
	if _, err := s.client(t).Join(t.Context(), another, newKey(t)); err != nil {
		t.Errorf("another token: %v", err)
	}
}

// Whoever goes on asking, faster than is allowed too, fills neither the log nor
// the list that people look at.
func TestRepeatedRefusalsAreOne(t *testing.T) {
	t.Parallel()
	s := start(t, settings{burst: 3})
	token, key := s.token(t, host(t, "web-1", "shop/web")), newKey(t)
	token.Secret[0]++
	for range 8 {
		if _, err := s.client(t).Join(t.Context(), token, key); err == nil {
			t.Fatal("a token that was never made was taken")
		}
	}
	var counts []int
	for _, r := range s.service.Refusals() {
		counts = append(counts, r.Count)
	}
	if !slices.Equal(counts, []int{3, 5}) {
		t.Errorf("refusals %v, want 3 for the token and 5 for the rate: %+v", counts, s.service.Refusals())
	}
	if n := strings.Count(s.log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings, want 2:\n%s", n, s.log)
	}
}

// unwrap finds the gRPC status in a joined error.
func unwrap(err error) error {
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) {
		return st.GRPCStatus().Err()
	}
	return err
}
