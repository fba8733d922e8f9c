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
	// refusalLines are logged at once of what one stream's peer refuses, and one
	// more every refusalEvery.
	refusalLines = 5
	refusalEvery = 2 * time.Second
	// maxSaid bounds, in bytes, what a line of the log has of a peer's words. Its
	// status has more of them.
	maxSaid = 256
)

// lineLimits bound what is logged of one stream, by what it is about.
type lineLimits struct{ nacks, rejections, states loglimit.Limiter }

func newLineLimits() *lineLimits {
	l := &lineLimits{}
	for _, of := range []*loglimit.Limiter{&l.nacks, &l.rejections, &l.states} {
		of.Burst, of.Every = refusalLines, refusalEvery
	}
	return l
}

// omitted are the lines left out of which no later line tells.
func (l *lineLimits) omitted() int {
	return l.nacks.Omitted() + l.rejections.Omitted() + l.states.Omitted()
}

// logRefusal tells of an EventNacked or an EventRejected. However often a peer
// refuses, and whatever it says, it fills no log: what is left out is logged on
// debug, counted in the next line, and stands in the proxy's status.
func (c *conn) logRefusal(ctx context.Context, e stream.Event) {
	limit := &c.lines.nacks
	if e.Kind == stream.EventRejected {
		limit = &c.lines.rejections
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
		c.tell(level, "nack", skipped, append(attrs, "names", e.Names)...)
		return
	}
	c.tell(level, "resource rejected (NACK) by a proxy; it keeps the last accepted version", skipped,
		append(attrs, "name", clip(e.Name, maxSaid), "version", e.Version, "origins", c.firstOrigins(e.Type, []string{e.Name})[e.Name])...)
}

// maxOrigins bounds what is told of where one resource comes from: a route table
// comes from all services that are in it.
const maxOrigins = 4

// firstOrigins are where a few resources of a type come from, by name, for
// people.
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

// maxTraced bounds the refused resources of a type of which a status says where
// they come from.
const maxTraced = 10

// trace says where what the proxy refuses comes from.
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
