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

// A host that is known does what it can to fill the log. Each way gives the
// identity and the address of its node, and whether it is let in.
func TestLogLinesOfHostAreLimited(t *testing.T) {
	t.Parallel()
	const streams = 200
	for _, w := range []struct {
		name string
		host func(i int) string
		// letIn says that its streams are, and nack that it refuses what it is sent.
		letIn, nack bool
		most        func(took time.Duration) int // how many lines there may be
	}{
		{
			"refused, each time as another node", func(int) string { return "liar" }, false, false,
			func(took time.Duration) int { return 5 + int(took/(30*time.Second)) },
		},
		{
			"refused, each time another host", func(i int) string { return fmt.Sprint("liar-", i) }, false, false,
			func(took time.Duration) int { return 100 + int(took/time.Second) },
		},
		{
			"let in, again and again", func(int) string { return "restless" }, true, false,
			func(took time.Duration) int { return hostLogBurst + int(took/hostLogInterval) },
		},
		{
			"let in, to refuse all", func(int) string { return "restless" }, true, true,
			func(took time.Duration) int { return hostLogBurst + int(took/hostLogInterval) },
		},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			o := smallmesh.Shop()
			r := newRigWith(t, o, func(c *Config) { (&hosts{}).instead(t, o, c) })
			began := time.Now()
			for i := range streams {
				workload := "nobody"
				if w.letIn {
					workload = "web"
				}
				r.comeAndGo(t, w.host(i), fmt.Sprint("n", i), workload, w.nack)
			}
			eventually(t, "all have gone", func() bool { return r.server.streams.Load() == 0 })
			took := time.Since(began)
			if lines, most := len(r.lines()), w.most(took); lines > most || lines == 0 {
				t.Errorf("%d lines of %d streams within %s, want %d at most", lines, streams, took, most)
			}
			if !w.letIn {
				return
			}
			r.comeAndGo(t, "quiet", "n", "web", false)
			eventually(t, "a quiet host has its lines", func() bool {
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

// TestSuppressedLogLinesAreCounted: also those of a host that has gone since.
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
		t.Errorf("told, or forgotten, before a line is free: %s", log.String())
	}
	s.forgetIdle(time.Now().Add(hostLogInterval + time.Second))
	if !strings.Contains(log.String(), `host=vm1 left_out=16`) {
		t.Errorf("nothing tells of the lines that were left out: %s", log.String())
	}
	s.forgetIdle(time.Now().Add(2 * hostLogBurst * hostLogInterval))
	if len(s.quotas) != 0 || strings.Count(log.String(), "left_out") != 1 {
		t.Error("the host is remembered for ever, or told of twice")
	}
}

// lines are those that the log has of proxies, but for debug.
func (r *rig) lines() (out []string) {
	for line := range strings.Lines(r.log.String()) {
		if (strings.Contains(line, "proxy ") || strings.Contains(line, "msg=nack") || strings.Contains(line, "resource rejected")) && !strings.Contains(line, "level=DEBUG") {
			out = append(out, line)
		}
	}
	return out
}

// comeAndGo opens a stream as a host, waits for what it hears, and ends it.
func (r *rig) comeAndGo(t *testing.T, host, name, workload string, nack bool) {
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
