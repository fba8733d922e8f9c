package issue_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// shown opens a stream that shows certificates of workloads besides.
func (s *server) shown(t *testing.T, id *svid.Identity, held ...*svid.Identity) error {
	t.Helper()
	pairs := []string{svid.HeldCertificate, "not a certificate", svid.HeldCertificate, strings.Repeat("x", 20_000)}
	for _, h := range held {
		pairs = append(pairs, svid.HeldCertificate, string(h.Leaf().Raw))
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), pairs...)
	conn := dial(t, s.addr, svid.ClientTLS(func() *svid.Identity { return id }))
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

// A host whose record is lost comes back with what this authority has certified
// for it, and nothing else: not by another host's workload, not by a certificate
// of another authority, not by one that has ended, and with no workload that it
// does not show.
func TestRecordsLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, settings{dir: dir})
	web, other := s.join(t, host(t, "web-1", "shop/web", "shop/orders")), s.join(t, host(t, "other", "shop/secret"))
	work := func(h *svid.Identity, name string) *svid.Identity {
		t.Helper()
		id, err := s.client(t).Workload(t.Context(), h, pair(t, name))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	mine, theirs := work(web, "shop/web"), work(other, "shop/secret")
	subject, err := profile.Check(web.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	ended := s.forge(t, subject, time.Now().Add(-48*time.Hour))
	workSubject, err := profile.Check(mine.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	workSubject.ID, err = profile.WorkloadID(s.authority.TrustDomain(), pair(t, "shop/orders"))
	if err != nil {
		t.Fatal(err)
	}
	workSubject.Pair = pair(t, "shop/orders")
	endedWork := s.forge(t, workSubject, time.Now().Add(-48*time.Hour))
	foreign := start(t, settings{})
	foreignWeb := foreign.join(t, host(t, "web-1", "shop/web", "shop/secret"))
	foreignWork, err := foreign.client(t).Workload(t.Context(), foreignWeb, pair(t, "shop/secret"))
	if err != nil {
		t.Fatal(err)
	}

	if err := os.RemoveAll(filepath.Join(dir, "hosts")); err != nil {
		t.Fatal(err)
	}
	if err := s.authority.Close(); err != nil {
		t.Fatal(err)
	}
	closed := start(t, settings{dir: dir})
	if err := closed.shown(t, web, mine); err == nil {
		t.Error("admitted without the setting")
	}
	if err := closed.authority.Close(); err != nil {
		t.Fatal(err)
	}

	s = start(t, settings{dir: dir, readopt: attest.Readopt{Until: time.Now().Add(time.Hour)}})
	for name, err := range map[string]error{
		"nothing shown":                       s.shown(t, web),
		"another host's workload":             s.shown(t, web, theirs),
		"a workload of another authority":     s.shown(t, web, foreignWork),
		"its own certificate as a workload's": s.shown(t, web, web),
		"a workload's that has ended":         s.shown(t, web, endedWork),
		"a host's that has ended":             s.shown(t, ended, mine),
		"a workload's as a host's":            s.shown(t, mine, mine),
	} {
		if err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
	if n := len(s.hosts.List()); n != 0 {
		t.Fatalf("%d hosts on record", n)
	}
	if err := s.shown(t, web, theirs, mine, endedWork, foreignWork); err != nil {
		t.Fatalf("with its own: %v\n%s", err, s.log)
	}
	if got := s.hosts.List(); len(got) != 1 || !slices.Equal(got[0].Pairs, []profile.Pair{pair(t, "shop/web")}) || got[0].Type != "sidecar" {
		t.Errorf("recorded as %+v", got)
	}
	if !strings.Contains(s.log.String(), "host readmitted by its certificates") {
		t.Error("the log does not have it")
	}
	if _, err := s.client(t).Renew(t.Context(), web); err != nil {
		t.Errorf("its renewal: %v", err)
	}
	if _, err := s.client(t).Workload(t.Context(), web, pair(t, "shop/orders")); err == nil {
		t.Error("it got a workload that it had not shown")
	}
}
