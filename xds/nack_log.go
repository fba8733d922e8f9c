package xds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/xds/stream"
)

const (
	// streamLogBurst lines are logged at once about the NACKs of one stream, and then one
	// every streamLogInterval.
	streamLogBurst    = 5
	streamLogInterval = 2 * time.Second
	// maxLoggedText bounds, in bytes, a peer's error message in a log line. The status has
	// more of it.
	maxLoggedText = 256
)

// streamLogLimits limit the log lines about one stream, by subject.
type streamLogLimits struct{ nacks, rejections, states loglimit.Limiter }

func newStreamLogLimits() *streamLogLimits {
	l := &streamLogLimits{}
	for _, of := range []*loglimit.Limiter{&l.nacks, &l.rejections, &l.states} {
		of.Burst, of.Every = streamLogBurst, streamLogInterval
	}
	return l
}

// omitted is the number of suppressed lines that no later line counts.
func (l *streamLogLimits) omitted() int {
	return l.nacks.Omitted() + l.rejections.Omitted() + l.states.Omitted()
}

// logRejection logs an EventNacked or EventRejected. A peer cannot flood the log:
// suppressed lines are logged on debug level, counted in the next line, and shown in the
// proxy's status.
func (c *conn) logRejection(ctx context.Context, e stream.Event) {
	limit := &c.logLimits.nacks
	if e.Kind == stream.EventRejected {
		limit = &c.logLimits.rejections
	}
	level := slog.LevelWarn
	skipped, ok := limit.Allow(time.Now())
	if !ok {
		level = slog.LevelDebug
	}
	if !c.server.log.Enabled(ctx, level) {
		return
	}
	attrs := []any{"proxy", c.nodeID, "type_url", e.Type.Short(), "generation", e.Generation, "err", e.Reason}
	if e.Kind == stream.EventNacked {
		c.log(level, "nack", skipped, append(attrs, "names", e.Names)...)
		return
	}
	c.log(level, "resource rejected (NACK) by a proxy; it keeps the last accepted version", skipped,
		append(attrs, "name", sanitize(e.Name, maxLoggedText), "version", e.Version, "origins", c.firstOrigins(e.Type, []string{e.Name})[e.Name])...)
}

// maxOrigins bounds the origins that are listed for one resource: a route configuration is
// made from all services in it.
const maxOrigins = 4

// firstOrigins are the first origins of a few resources of a type, by name, for people.
func (c *conn) firstOrigins(t stream.TypeURL, names []string) map[string][]string {
	if c.resources == nil {
		return nil
	}
	out := c.resources.Origins(t, func(name string) bool { return slices.Contains(names, name) })
	for name, list := range out {
		if len(list) > maxOrigins {
			out[name] = append(slices.Clip(list[:maxOrigins]), fmt.Sprintf("… and %d more", len(list)-maxOrigins))
		}
	}
	return out
}

// maxTraced bounds the rejected resources of a type of which a status lists the origins.
const maxTraced = 10

// trace finds the origins of what the proxy rejects.
func (c *conn) trace(types []stream.TypeStatus) map[stream.TypeURL]map[string][]string {
	var out map[stream.TypeURL]map[string][]string
	for _, t := range types {
		var names []string
		for _, r := range t.Rejected[:min(len(t.Rejected), maxTraced)] {
			names = append(names, r.Name)
		}
		if found := c.firstOrigins(t.Type, names); len(names) > 0 && len(found) > 0 {
			if out == nil {
				out = map[stream.TypeURL]map[string][]string{}
			}
			out[t.Type] = found
		}
	}
	return out
}
