package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/pki/timecheck"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// hostsAhead is how far the clocks of the test's hosts are ahead.
const hostsAhead = 24 * time.Hour

// votes opens a stream of the machine, whose own address is address and whose clock is
// ahead; leave ends it.
func (m *machine) votes(address string) (leave func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	m.t.Cleanup(cancel)
	node, err := (&bootstrap.Node{
		Type: bootstrap.TypeSidecar, Name: m.name, Namespace: "shop", Domain: "cluster.local",
		Address: netip.MustParseAddr(address), ServiceAccount: "cart",
	}).Proto()
	if err != nil {
		m.t.Fatal(err)
	}
	bootstrap.SetTime(node, time.Now().Add(hostsAhead))
	s, err := discovery.NewAggregatedDiscoveryServiceClient(m.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := s.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: string(stream.ClusterType)}); err != nil {
		m.t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		m.t.Fatal(err)
	}
	return cancel
}

// TestHostsHoldSigning has three hosts say that the server's clock is a day behind:
// nothing is signed, everybody is told, and it ends by a person's word or with the
// hosts'.
func TestHostsHoldSigning(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	var entries []string
	address := func(i int) string { return fmt.Sprintf("127.0.7.%d", i+1) }
	for i := range 3 {
		entries = append(entries, fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w%d, namespace: shop}\n"+
			"spec: {address: %s, serviceAccount: cart}\n", i, address(i)))
	}
	r := start(t, config(t, treeOf(t, map[string]string{"mesh.yaml": strings.Join(entries, "---\n")})))
	r.eventually(func() error {
		if why := r.NotReady(); len(why) > 0 {
			return errors.New(why[0])
		}
		return nil
	})
	var hosts []*machine
	for i := range 3 {
		hosts = append(hosts, r.joined(fmt.Sprint("host-", i), address(i), nil))
	}
	var made Token
	if err := r.client.Do(t.Context(), http.MethodPost, "/v1/tokens", TokenRequest{Host: "late", Workloads: []string{"shop/cart"}}, &made); err != nil {
		t.Fatal(err)
	}
	token, err := svid.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	join := func() error {
		client, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
		if err != nil {
			return err
		}
		key, err := svid.NewKey()
		if err != nil {
			return err
		}
		_, err = client.Join(t.Context(), token, key)
		return err
	}
	clock := func(method, path string) (st timecheck.Status) {
		var in any
		if method == http.MethodPost {
			in = struct{}{}
		}
		if err := r.client.Do(t.Context(), method, path, in, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	hosts[0].votes(address(0))
	hosts[1].votes(address(1))
	if st := clock(http.MethodGet, "/v1/clock"); st.Held != "" || st.Voters != 2 {
		t.Errorf("two votes: %+v", st)
	}
	leave := hosts[2].votes(address(2))
	if err := join(); err == nil || !strings.Contains(err.Error(), "on hold") {
		t.Errorf("join while three hosts disagree: %v", err)
	}
	if st := clock(http.MethodGet, "/v1/clock"); st.Held == "" || (st.Off-hostsAhead).Abs() > time.Minute {
		t.Errorf("three votes: %+v", st)
	}
	if s := r.sources(); len(s.Clock) != 2 || !strings.Contains(s.Clock[0], "fairlead clock accept") || !strings.Contains(s.Clock[1], "host-1 at 127.0.7.2 (") || len(r.remarks()) != 2 || strings.Contains(fmt.Sprint(r.remarks()), "host-1") || !strings.Contains(r.remarks()[1], "unwell: clock 1") || !s.Ready {
		t.Errorf("status: ready %v, %q, %q", s.Ready, s.Clock, r.remarks())
	}
	r.eventually(func() error {
		if !strings.Contains(r.out.String(), "signing is on hold: the server") {
			return errors.New("the log says nothing")
		}
		return nil
	})
	leave()
	r.eventually(func() error {
		if held := clock(http.MethodGet, "/v1/clock").Held; held != "" {
			return errors.New(held)
		}
		return nil
	})
	hosts[2].votes(address(2))
	if st := clock(http.MethodPost, "/v1/clock/accept"); st.Held != "" || st.Accepted == nil {
		t.Errorf("accepted: %+v", st)
	}
	if err := join(); err != nil {
		t.Errorf("accepted, and the token was spent or nothing is signed: %v", err)
	}
}

// TestDirectClientsHaveNoVote: whoever has a workload's certificate and no agent says
// nothing of the server's clock.
func TestDirectClientsHaveNoVote(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry("")})))
	for _, direct := range []bool{true, false} {
		m := r.joined(fmt.Sprint("client-", direct), victim, func(in *TokenRequest) { in.Direct = direct })
		leave := m.votes(victim)
		voters := 1
		if direct {
			voters = 0
		}
		var st timecheck.Status
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/clock", nil, &st); err != nil || st.Voters != voters {
			t.Errorf("direct %v: %d votes, want %d (%v)", direct, st.Voters, voters, err)
		}
		leave()
	}
}
