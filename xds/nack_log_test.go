package xds

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// A host that rejects everything with long error messages fills neither a log nor a
// screen.
func TestNackLogLinesAreLimited(t *testing.T) {
	t.Parallel()
	const clusters = 60
	begin := time.Now()
	o := smallmesh.Shop()
	for i := range clusters {
		o.Service("s"+string(rune('a'+i/26))+string(rune('a'+i%26)), 8080)
	}
	r := newRig(t, o, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := node("web", "127.0.0.11").Proto()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(&discovery.DeltaDiscoveryRequest{Node: p, TypeUrl: string(stream.ClusterType)}); err != nil {
		t.Fatal(err)
	}
	words := &rpcstatus.Status{Code: 13, Message: "\x1b[2J\x1b[H \r\n\nPROXY   e140.shop everything is fine \u202e\u009b" + strings.Repeat("w", 4000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for resp, err := g.Recv(); err == nil; resp, err = g.Recv() {
			_ = g.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce(), ErrorDetail: words})
		}
	}()
	var rejected []stream.Rejection
	eventually(t, "each rejection is in the status", func() bool {
		for _, p := range r.server.Proxies() {
			if len(p.Types) > 0 {
				rejected = p.Types[0].Rejected
			}
		}
		return len(rejected) >= clusters
	})
	for _, x := range rejected {
		if strings.ContainsFunc(x.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Fatalf("not plain: %q", x.Reason)
		}
	}
	cancel()
	<-ended
	eventually(t, "what was left out is counted", func() bool {
		_, last, ok := strings.Cut(r.log.String(), "proxy disconnected")
		return ok && strings.Contains(last, "left_out=")
	})
	warned := 0
	for line := range strings.Lines(r.log.String()) {
		if len(line) > 1000 {
			t.Errorf("a line of %d bytes: %s", len(line), line)
		}
		if strings.Contains(line, "level=WARN") {
			warned++
		}
	}
	// Slow machines give time for more.
	if took := time.Since(begin); warned > 2*(streamLogBurst+int(took/streamLogInterval)+1) {
		t.Errorf("%d warnings within %s", warned, took)
	}
}

// A peer that is not admitted chooses its node id.
func TestNodeIDsAreSanitized(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	n := node("web", "127.0.0.11")
	p, err := n.Proto()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"\x1b[2J\u202e\nPROXY", "sidecar~127.0.0.11~web\u202e\u009b.shop~shop.svc.local"} {
		p.Id = id
		g, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Send(&discovery.DeltaDiscoveryRequest{Node: p, TypeUrl: string(stream.ClusterType)}); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Recv(); err == nil {
			t.Fatalf("%q was let in", id)
		}
	}
	refused := r.server.Refused()
	if len(refused) != 2 {
		t.Fatalf("%+v", refused)
	}
	for _, x := range refused {
		if strings.ContainsFunc(x.Node+x.Reason, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not sanitized: %q %q", x.Node, x.Reason)
		}
	}
}

// The rejections of one change that are kept are bounded.
func TestRejectionsAreBounded(t *testing.T) {
	t.Parallel()
	n := &rollout{finished: make(chan struct{}, 1)}
	var waits []awaited
	const proxies = maxRejections/maxRejectionsEach + 2
	for range proxies {
		waits = append(waits, n.addAffected(nil, nil))
	}
	for i, n := range waits {
		n.answered(make([]ProxyRejection, maxRejections))
		if got := n.copy(); i == 0 && len(got.Rejected) != maxRejectionsEach {
			t.Errorf("%d of the first proxy are kept: it leaves none for others", len(got.Rejected))
		}
	}
	if got := n.copy(); len(got.Rejected) != maxRejections || got.RejectedMore != (proxies-1)*maxRejections {
		t.Errorf("%d and %d more", len(got.Rejected), got.RejectedMore)
	}
}

// TestEnvoyStateChangesAreLogged: a first state of live is expected after a restart, and
// absent before the agent starts its Envoy. Later changes are logged, and so is another
// first state.
func TestEnvoyStateChangesAreLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said   []bootstrap.EnvoyState
		logged []string
	}{
		"live":      {said: []bootstrap.EnvoyState{bootstrap.EnvoyLive}},
		"absent":    {said: []bootstrap.EnvoyState{bootstrap.EnvoyAbsent}},
		"starts":    {said: []bootstrap.EnvoyState{bootstrap.EnvoyAbsent, bootstrap.EnvoyLive}, logged: []string{"from=absent to=live"}},
		"dies":      {said: []bootstrap.EnvoyState{bootstrap.EnvoyLive, bootstrap.EnvoyAbsent}, logged: []string{"from=live to=absent"}},
		"rejecting": {said: []bootstrap.EnvoyState{bootstrap.EnvoyRejecting}, logged: []string{`from="" to=rejecting`}},
		"changes": {
			said:   []bootstrap.EnvoyState{bootstrap.EnvoyLive, bootstrap.EnvoyRejecting, bootstrap.EnvoyLive},
			logged: []string{"from=live to=rejecting", "from=rejecting to=live"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &syncLog{}
			conn := &conn{server: &Server{log: slog.New(slog.NewTextHandler(log, nil))}, peer: Peer{Host: "vm1"}, quota: newHostQuota("vm1", quotaLimits{}), logLimits: newStreamLogLimits()}
			for _, s := range c.said {
				conn.logEnvoyState(s)
				conn.envoy = s
			}
			var logged []string
			for line := range strings.Lines(log.String()) {
				_, words, _ := strings.Cut(line, "host=vm1 ")
				words, _, _ = strings.Cut(words, " left_out")
				logged = append(logged, strings.TrimSpace(words))
			}
			if !slices.Equal(logged, c.logged) {
				t.Errorf("logged %q, want %q", logged, c.logged)
			}
		})
	}
}
