package xds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
)

// A few is what one stream says of its peer's refusals: so much in a while.
const (
	fewTimes = 5
	fewWhile = 10 * time.Second
	// maxSaid bounds, in bytes, what a line of the log has of a peer's words. Its
	// status has more of them.
	maxSaid = 256
)

// few lets something happen a few times a while.
type few struct {
	begin         time.Time
	done, skipped int
}

// ok reports whether it may happen now, and how often it might not since it last
// did.
func (f *few) ok(now time.Time) (skipped int, ok bool) {
	if now.Sub(f.begin) >= fewWhile {
		f.begin, f.done = now, 0
	}
	if f.done == fewTimes {
		f.skipped++
		return 0, false
	}
	skipped = f.skipped
	f.done, f.skipped = f.done+1, 0
	return skipped, true
}

// logRefusal tells of an EventNacked or an EventRejected. However often a peer
// refuses, and whatever it says, it fills no log: what is left out is logged on
// debug, counted in the next line, and stands in the proxy's status.
func (c *conn) logRefusal(ctx context.Context, e stream.Event) {
	f := &c.nacks
	if e.Kind == stream.EventRejected {
		f = &c.rejections
	}
	level := slog.LevelWarn
	skipped, ok := f.ok(time.Now())
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
	c.tell(level, "resource rejected by a proxy; it keeps the last one that it took", skipped,
		append(attrs, "name", clip(e.Name, maxSaid), "version", e.Version, "origins", c.firstOrigins(e.Type, []string{e.Name})[e.Name])...)
}

// maxOrigins bounds what is told of where one resource comes from: a route table
// comes from all services that are in it.
const maxOrigins = 4

// firstOrigins are where a few resources of a type come from, by name, for
// people.
func (c *conn) firstOrigins(t stream.TypeURL, names []string) map[string][]string {
	if c.class == nil {
		return nil
	}
	out := c.class.origins(t, func(name string) bool { return slices.Contains(names, name) })
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
