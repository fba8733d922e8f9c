package xds

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// An authenticated host tries to flood the log. Each case has the host and the node's
// workload, and whether the stream is admitted.
func TestLogLinesOfHostAreLimited(t *testing.T) {
	t.Parallel()
	const streams = 200
	for _, w := range []struct {
		name string
		host func(i int) string
		// admitted means that its streams are admitted, and nack that it rejects what it is
		// sent.
		admitted, nack bool
		most           func(took time.Duration) int // how many lines there may be
	}{
		{
			"rejected, each time as another node", func(int) string { return "liar" }, false, false,
			func(took time.Duration) int { return 5 + int(took/(30*time.Second)) },
		},
		{
			"rejected, each time another host", func(i int) string { return fmt.Sprint("liar-", i) }, false, false,
			func(took time.Duration) int { return 100 + int(took/time.Second) },
		},
		{
			"admitted, repeatedly", func(int) string { return "restless" }, true, false,
			func(took time.Duration) int { return hostLogBurst + int(took/hostLogInterval) },
		},
		{
			"admitted, NACKs everything", func(int) string { return "restless" }, true, true,
			func(took time.Duration) int { return hostLogBurst + int(took/hostLogInterval) },
		},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			o := smallmesh.Shop()
			r := newRigWith(t, o, func(c *Config) { (&admissionByHost{}).install(t, o, c) })
			began := time.Now()
			for i := range streams {
				workload := "nobody"
				if w.admitted {
					workload = "web"
				}
				r.openAndClose(t, w.host(i), fmt.Sprint("n", i), workload, w.nack)
			}
			eventually(t, "all have gone", func() bool { return r.server.streams.Load() == 0 })
			took := time.Since(began)
			if lines, most := len(r.lines()), w.most(took); lines > most || lines == 0 {
				t.Errorf("%d lines of %d streams within %s, want %d at most", lines, streams, took, most)
			}
			if !w.admitted {
				return
			}
			r.openAndClose(t, "quiet", "n", "web", false)
			eventually(t, "another host has its lines", func() bool {
				n := 0
				for _, line := range r.lines() {
					if strings.Contains(line, "host=quiet") && !strings.Contains(line, "left_out") {
						n++
					}
				}
				return n == 2
			})
		})
	}
}

// TestSuppressedLogLinesAreCounted also counts those of a host that has disconnected.
func TestSuppressedLogLinesAreCounted(t *testing.T) {
	t.Parallel()
	log := &syncLog{}
	s := &Server{log: slog.New(slog.NewTextHandler(log, nil)), quotas: map[string]*hostQuota{}}
	now := time.Now()
	q := newHostQuota("vm1", quotaLimits{})
	s.quotas["vm1"] = q
	c := &conn{server: s, quota: q, peer: Peer{Host: "vm1"}}
	const said = hostLogBurst + 10
	for range said {
		c.log(slog.LevelInfo, "proxy connected", 0)
	}
	c.log(slog.LevelInfo, "proxy disconnected", 5)
	if n := strings.Count(log.String(), "proxy "); n != hostLogBurst {
		t.Errorf("%d lines, want %d", n, hostLogBurst)
	}
	s.forgetIdle(now)
	if strings.Contains(log.String(), "left_out") || len(s.quotas) != 1 {
		t.Errorf("logged or forgotten before the limit allows a line: %s", log.String())
	}
	s.forgetIdle(time.Now().Add(hostLogInterval + time.Second))
	if !strings.Contains(log.String(), `host=vm1 left_out=16`) {
		t.Errorf("the suppressed lines are not logged: %s", log.String())
	}
	s.forgetIdle(time.Now().Add(2 * hostLogBurst * hostLogInterval))
	if len(s.quotas) != 0 || strings.Count(log.String(), "left_out") != 1 {
		t.Error("the host is kept, or logged twice")
	}
}

// lines are the log lines about proxies, without debug lines.
func (r *rig) lines() (out []string) {
	for line := range strings.Lines(r.log.String()) {
		if (strings.Contains(line, "proxy ") || strings.Contains(line, "msg=nack") || strings.Contains(line, "resource rejected")) && !strings.Contains(line, "level=DEBUG") {
			out = append(out, line)
		}
	}
	return out
}

// openAndClose opens a stream as a host, waits for an answer, and closes it.
func (r *rig) openAndClose(t *testing.T, host, name, workload string, nack bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "who", host))
	defer cancel()
	n := node(workload, "127.0.0.11")
	n.Name = name
	p, err := n.Proto()
	if err != nil {
		t.Fatal(err)
	}
	g, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Send(&discovery.DeltaDiscoveryRequest{Node: p, TypeUrl: string(stream.ClusterType)}); err != nil {
		t.Fatal(err)
	}
	answer, err := g.Recv()
	if err != nil || !nack {
		return
	}
	words := &rpcstatus.Status{Code: 13, Message: "no"}
	if err := g.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: answer.GetTypeUrl(), ResponseNonce: answer.GetNonce(), ErrorDetail: words}); err != nil {
		t.Fatal(err)
	}
	_, _ = g.Recv() // what it sends then: the nack was taken
}
