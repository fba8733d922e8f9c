package server

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pki/svid"
)

// refusedAt lists who is refused at a time.
func (r *running) refusedAt(after time.Duration) string {
	var out []string
	for _, x := range RefusedRows(r.refused(time.Now().Add(after))) {
		out = append(out, x.Who())
	}
	return strings.Join(out, ", ")
}

// strange is a client without a certificate that asks for configuration.
func (r *running) strange() {
	r.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+r.listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, // it is the server that is tested
	})))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r.eventually(func() error {
		s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(r.t.Context())
		if err == nil {
			_, err = s.Recv()
		}
		if grpcstatus.Code(err) != codes.PermissionDenied {
			return fmt.Errorf("an unauthenticated peer gets %w", err)
		}
		return nil
	})
}

// TestRefusalsEnd: a refusal counts while it happens again. It ends when the host is let in, as
// any node, and is quiet; with time; and when a person says so.
func TestRefusalsEnd(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("")}))
	cfg.ClaimLease = time.Millisecond
	r := start(t, cfg)
	r.strange()
	a, b := r.joined("a", "127.0.9.1", nil), r.joined("b", "127.0.0.1", nil)
	_, leave, err := a.claim("one")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.claim("two"); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Fatalf("b is let in as a's workload: %v", err)
	}
	both := "host b, unknown peer 127.0.0.1:"
	for after, want := range map[time.Duration]string{0: both, refusedQuiet + time.Second: both, refusedFor - time.Minute: both, refusedFor + time.Second: ""} {
		if got := r.refusedAt(after); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%s later: %q is refused, want %q", after, got, want)
		}
	}
	leave()
	r.eventually(func() error { _, _, err := b.claim("one"); return err })
	// It is another node for the server, and the same host for a person. The unknown peer had the address
	// of b, and of no other host.
	if got := r.refusedAt(0); got != "" {
		t.Errorf("b was let in, and %q is refused", got)
	}
}

// TestAdmitted: a refusal is over when the host was let in, but not if it was also let in between refusals.
func TestAdmitted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for name, c := range map[string]struct {
		hosts      map[string]*present
		host, peer string
		want       readmission
	}{
		"never":             {nil, "web", "10.0.0.1:1", notAdmitted},
		"before":            {map[string]*present{"web": {opened: ago(time.Hour)}}, "web", "", notAdmitted},
		"since":             {map[string]*present{"web": {opened: ago(time.Second)}}, "web", "", admittedSince},
		"before_and_since":  {map[string]*present{"web": {opened: ago(time.Second), before: ago(time.Hour)}}, "web", "", admittedSince},
		"between_and_since": {map[string]*present{"web": {opened: ago(time.Second), before: ago(90 * time.Second)}}, "web", "", admittedBetween},
		"twice_since":       {map[string]*present{"web": {opened: ago(time.Second), before: ago(2 * time.Second)}}, "web", "", admittedSince},
		"another":           {map[string]*present{"db": {opened: ago(time.Second), source: one}}, "web", "10.0.0.1:1", notAdmitted},
		"by_address":        {map[string]*present{"web": {opened: ago(time.Second), source: one}}, "", "10.0.0.1:1", admittedSince},
		"another_address":   {map[string]*present{"web": {opened: ago(time.Second), source: other}}, "", "10.0.0.1:1", notAdmitted},
		"several_there":     {map[string]*present{"web": {opened: ago(time.Second), source: one}, "db": {opened: ago(time.Hour), source: one}}, "", "10.0.0.1:1", admittedBetween},
	} {
		p := &presence{hosts: c.hosts}
		if got := p.admitted(c.host, c.peer, ago(2*time.Minute), ago(time.Minute)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestForgetRefusals: a person ends a refusal by the host's name, by the address, or all.
func TestForgetRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry("")})))
	forget := func(query string) (Forgotten, error) {
		var out Forgotten
		err := r.client.Do(t.Context(), http.MethodDelete, "/v1/refusals"+query, nil, &out)
		return out, err
	}
	liar := r.joined("liar", "127.0.0.1", func(in *TokenRequest) { in.Workloads = []string{"shop/other"} })
	refuse := func() {
		r.strange()
		if _, _, err := liar.claim("one"); err == nil {
			t.Fatal("not refused")
		}
	}
	refuse()
	for _, query := range []string{"", "?peer=", "?peer=nobody", "?peer=10.0.0.9"} {
		if _, err := forget(query); err == nil {
			t.Errorf("%q forgets something", query)
		}
	}
	if out, err := forget("?peer=liar"); err != nil || out.Forgotten != 1 || !strings.HasPrefix(r.refusedAt(0), "unknown peer") {
		t.Errorf("%+v, %v: %q is refused", out, err, r.refusedAt(0))
	}
	if out, err := forget("?peer=127.0.0.1"); err != nil || out.Forgotten != 1 || r.refusedAt(0) != "" {
		t.Errorf("%+v, %v: %q is refused", out, err, r.refusedAt(0))
	}
	refuse()
	if out, err := forget("?all=true"); err != nil || out.Forgotten != 2 || r.refusedAt(0) != "" {
		t.Errorf("%+v, %v: %q is refused", out, err, r.refusedAt(0))
	}
}

// TestWaitingHosts: a host that has only a token is listed as waiting, until the token is used or
// ends; so is a host with a token that replaces it.
func TestWaitingHosts(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry("")})))
	hosts := func() string {
		var list []Host
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/hosts", nil, &list); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, h := range list {
			out = append(out, fmt.Sprint(h.Name, " ", h.Waiting, " ", !h.Joined.IsZero()))
		}
		return strings.Join(out, ", ")
	}
	token := func(in TokenRequest) (out Token) {
		in.Workloads = []string{"shop/cart"}
		if err := r.client.Do(t.Context(), http.MethodPost, "/v1/tokens", in, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	_, kept := r.join("b", "shop/cart")
	made := token(TokenRequest{Host: "a"})
	if got := hosts(); kept == nil || got != "a true false, b false true" {
		t.Errorf("hosts: %s", got)
	}
	token(TokenRequest{Host: "b", Replace: true})
	parsed, err := svid.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	client, err := svid.NewClient(svid.ClientConfig{Servers: parsed.Servers})
	if err != nil {
		t.Fatal(err)
	}
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Join(t.Context(), parsed, key); err != nil {
		t.Fatal(err)
	}
	if got := hosts(); got != "a false true, b true true" {
		t.Errorf("hosts: %s", got)
	}
	later := time.Now().Add(time.Hour)
	if got := r.absent(later); len(got) != 2 {
		t.Errorf("a waiting host cannot be absent, and those on record are: %+v", got)
	}
	if p := r.proxiesNow(later).Proxies; len(p) != 2 || p[0].Host != "a" || !p[0].Absent || p[1].Host != "b" {
		t.Errorf("hosts of which no workload is known have rows: %+v", p)
	}
}

// TestAbsentHostIsUnwell: a host that left, and one that has not come back after a restart, are
// rows and conditions; removing the host ends both.
func TestAbsentHostIsUnwell(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("")}))
	cfg.AbsentAfter = time.Nanosecond
	r := start(t, cfg)
	if _, _, err := r.joined("a", "", nil).claim("one"); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() error {
		if saved, err := (claims{r.cfg.StateDir + "/claims.json"}).LoadClaims(); err != nil || len(saved.Claims) != 1 {
			return fmt.Errorf("%+v, %w", saved, err)
		}
		return nil
	})
	r.stop()
	r = start(t, cfg)
	var p Proxies
	all := func() (out AllConditions) {
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/conditions", nil, &out); err != nil {
			t.Fatal(err)
		}
		p = Proxies{}
		if err := r.client.Do(t.Context(), http.MethodGet, "/v1/proxies", nil, &p); err != nil {
			t.Fatal(err)
		}
		return out
	}
	r.eventually(func() error {
		if got := all(); got.Well || len(got.Unwell) != 1 || got.Unwell[0].Reason != "host-absent" || got.Unwell[0].Host != "a" || !strings.Contains(got.Unwell[0].Text, "shop/one at "+victim) {
			return fmt.Errorf("conditions: %+v", got)
		}
		return nil
	})
	if len(p.Proxies) != 1 || !p.Proxies[0].Absent || p.Proxies[0].Name != "one.shop" || p.Proxies[0].Host != "a" || p.Proxies[0].Connected {
		t.Errorf("rows: %+v", p.Proxies)
	}
	if err := r.client.Do(t.Context(), http.MethodDelete, "/v1/hosts/a", nil, nil); err != nil {
		t.Fatal(err)
	}
	if got := all(); !got.Well || len(p.Proxies) != 0 {
		t.Errorf("the host was removed: %+v, %+v", got, p.Proxies)
	}
}

// TestAgentGoneWhileServerAway: of two agents of a host one has not come back after a restart. The
// host is there, and the workload of that agent is named.
func TestAgentGoneWhileServerAway(t *testing.T) {
	t.Parallel()
	two := strings.ReplaceAll(entry(""), "name: one", "name: two")
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("") + "---\n" + two}))
	cfg.AbsentAfter = time.Millisecond
	r := start(t, cfg)
	a := r.joined("a", "", nil)
	for _, name := range []string{"one", "two"} {
		if _, _, err := a.claim(name); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually(func() error {
		if saved, err := (claims{r.cfg.StateDir + "/claims.json"}).LoadClaims(); err != nil || len(saved.Claims) != 2 {
			return fmt.Errorf("%+v, %w", saved, err)
		}
		return nil
	})
	r.stop()
	cfg.XDSAddress = r.listener.Addr().String()
	r = start(t, cfg)
	if err := a.reconnect("one"); err != nil {
		t.Fatal(err)
	}
	later := func(after time.Duration) string {
		now := time.Now().Add(after)
		p, s := r.proxiesNow(now), r.sourcesNow()
		var out []string
		for _, c := range Conditions(&p, &s, now) {
			if c.Reason != "not-synced" { // this host answers nothing
				out = append(out, c.Reason+" "+c.Subject)
			}
		}
		return strings.Join(out, ", ")
	}
	r.eventually(func() error {
		if got := later(time.Minute); got != "agent-gone two.shop" {
			return fmt.Errorf("conditions: %s", got)
		}
		return nil
	})
	if got := later(0); got != "" {
		t.Errorf("conditions at once: %s", got)
	}
}

// TestAgentThatIsNotGone: an agent that is back under another name, and one whose host was removed,
// are no conditions, although rows of them are left.
func TestAgentThatIsNotGone(t *testing.T) {
	t.Parallel()
	for name, over := range map[string]func(*running, *machine) error{
		"renamed": func(_ *running, a *machine) error { _, _, err := a.claim("two"); return err },
		"removed": func(r *running, _ *machine) error {
			return r.client.Do(t.Context(), http.MethodDelete, "/v1/hosts/a", nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry("")})))
			a := r.joined("a", "", nil)
			_, leave, err := a.claim("one")
			if err != nil {
				t.Fatal(err)
			}
			now := time.Now().Add(time.Minute)
			connected := func(want bool) {
				t.Helper()
				r.eventually(func() error {
					if p := r.proxiesNow(now); len(p.Proxies) != 1 || p.Proxies[0].Connected != want {
						return fmt.Errorf("rows: %+v, want one, connected: %v", p.Proxies, want)
					}
					return nil
				})
			}
			connected(true) // a row comes before that
			leave()
			connected(false)
			if err := over(r, a); err != nil {
				t.Fatal(err)
			}
			p := r.proxiesNow(now)
			i := slices.IndexFunc(p.Proxies, func(x Proxy) bool { return x.Name == "one.shop" && !x.Connected })
			if i < 0 || p.Proxies[i].AgentGone || p.Proxies[i].Absent || len(p.Absent) > 0 {
				t.Errorf("rows: %+v, absent: %+v", p.Proxies, p.Absent)
			}
		})
	}
}

// TestStrangersAreOneRow: many unknown peers are one row and one condition, after those of hosts, and
// neither they nor a host under invented node names hide another host.
func TestStrangersAreOneRow(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := &Proxies{}
	for i := range 200 {
		p.Refused = append(p.Refused,
			Refused{Peer: fmt.Sprintf("10.0.%d.%d:4000", i/100, i%100), What: "certificate", Reason: fmt.Sprintf("join token %d is unknown", i), Last: now, Count: 2},
			Refused{Host: "liar", Node: fmt.Sprint("sidecar~", i), What: "stream", Reason: "no workload fits", Last: now, Count: 1})
	}
	p.Refused = append(p.Refused, Refused{Host: "web", What: "stream", Reason: "its certificate has ended", Last: now.Add(-time.Minute), Count: 3})
	got := Conditions(p, &Sources{}, now)
	if len(got) != 3 {
		t.Fatalf("%d conditions, want 3: %+v", len(got), got)
	}
	for i, want := range []string{
		"host liar is refused a stream, 200 times, last less than 1s ago: no workload fits",
		"host web is refused a stream, 3 times, last 1m0s ago: its certificate has ended",
		"200 unknown peers are refused a certificate, 400 times, last less than 1s ago from 10.0.0.0, 10.0.0.1, 10.0.0.2 and 197 more: join token 0 is unknown; 199 other reasons in `fairlead proxy-status -o json`",
	} {
		if got[i].Text != want {
			t.Errorf("%q\nwant %q", got[i].Text, want)
		}
	}
	if !strings.Contains(got[2].Action, "`fairlead host forget ADDRESS` or `fairlead host forget --all`") || !strings.Contains(got[1].Action, "`fairlead host forget web`") {
		t.Errorf("%+v", got)
	}
}
