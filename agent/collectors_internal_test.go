package agent

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/agent/collectors"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestCollectorThatHangsIsReported: the control plane is told of a collector that hangs, in words that stay
// the same, and until nothing was dropped for a minute.
func TestCollectorThatHangsIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dropped atomic.Int64
		hangs := true
		log := slog.New(slog.DiscardHandler)
		watch, err := collectors.New(collectors.Config{
			Logger: log, Configured: func() bool { return true }, Process: func() (string, bool) { return "one", false },
			Open: func(context.Context, string) (io.ReadCloser, error) {
				n := strconv.FormatInt(dropped.Load(), 10)
				return io.NopCloser(strings.NewReader("cluster.outbound|4317|telemetry_grpc|collector.watch;.upstream_rq_active_overflow: " + n + "\n")), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := &Agent{log: log, saver: newSaver(log), reports: watch}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = watch.Run(ctx) }()
		var last atomic.Pointer[bootstrap.Credentials]
		last.Store(&bootstrap.Credentials{})
		go a.reportHost(ctx, func() []workload.Credential { return nil }, func(c bootstrap.Credentials) { last.Store(&c) })
		const minute = 60
		named := func(seconds int) (n int) {
			t.Helper()
			for range seconds {
				time.Sleep(time.Second) //nolint:forbidigo // the bubble's clock
				if hangs {
					dropped.Add(7)
				}
				synctest.Wait()
				for _, p := range last.Load().Problems {
					if strings.HasPrefix(p, "the collector collector.watch:4317 does not answer, or too late: ") {
						n++
					}
				}
			}
			return n
		}
		if n := named(3 * minute / 2); n < minute/3 { // after two readings
			t.Errorf("named in %d of %d seconds: %q", n, 3*minute/2, last.Load().Problems)
		}
		if n := named(2 * minute); n != 2*minute {
			t.Errorf("named in %d of %d seconds: %q", n, 2*minute, last.Load().Problems)
		}
		hangs = false
		if n := named(minute / 2); n != minute/2 {
			t.Errorf("it ended %d s after the last loss", n)
		}
		named(minute + 5) // readings begin at any second
		if n := named(minute); n > 0 {
			t.Errorf("named for %d s too long: %q", n, last.Load().Problems)
		}
	})
}
