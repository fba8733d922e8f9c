package relay

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
)

// held is an update that the server waits for an answer to.
type held struct {
	update   *stream.Update
	left     int // parts that are not settled
	refusals []stream.Refusal
}

// part is what of an update Envoy answers together: what concerns one route
// table, or all that concerns none.
type part struct {
	of  *held
	url stream.TypeURL
	// table is the route configuration that it is about, of the types that make
	// route tables; else it is empty.
	table   string
	changed []*stream.Resource
	removed []string

	// generation is the first that has it.
	generation uint64
	// trial means that Envoy's verdict comes by the table's trial.
	trial bool
	// skipped are resources that Envoy has refused in this very version before, so
	// that they are not tried on it again.
	skipped map[string]struct{}
}

// take offers an update, part by part, or queues what touches a name whose last
// change Envoy has not answered: every verdict is about one version.
func (c *core) take(u *stream.Update) {
	h := &held{update: u}
	for _, p := range parts(h) {
		h.left++
		if c.touches(p) {
			c.queue = append(c.queue, p)
		} else {
			c.offer(p)
		}
	}
}

// parts divides an update.
func parts(h *held) []*part {
	u := h.update
	if u.Type != stream.RouteType && u.Type != stream.VirtualHostType {
		return []*part{{of: h, url: u.Type, changed: u.Changed, removed: u.Removed}}
	}
	var out []*part
	by := map[string]*part{}
	of := func(name string) *part {
		table := name
		if u.Type == stream.VirtualHostType {
			table, _, _ = strings.Cut(name, fold.Separator)
		}
		p := by[table]
		if p == nil {
			p = &part{of: h, url: u.Type, table: table}
			by[table] = p
			out = append(out, p)
		}
		return p
	}
	for _, r := range u.Changed {
		p := of(r.Name)
		p.changed = append(p.changed, r)
	}
	for _, name := range u.Removed {
		p := of(name)
		p.removed = append(p.removed, name)
	}
	if len(out) == 0 { // says only that there is nothing
		out = []*part{{of: h, url: u.Type}}
	}
	return out
}

// keys are what a part is about: a table is one thing.
func (p *part) keys() iter.Seq[key] {
	return func(yield func(key) bool) {
		if p.table != "" {
			yield(key{stream.RouteType, p.table})
			return
		}
		for _, r := range p.changed {
			if !yield(key{p.url, r.Name}) {
				return
			}
		}
		for _, name := range p.removed {
			if !yield(key{p.url, name}) {
				return
			}
		}
	}
}

// touches reports whether a part has to wait for another one.
func (c *core) touches(p *part) bool {
	if len(c.pending)+len(c.queue) == 0 {
		return false
	}
	busy := map[key]struct{}{}
	for k := range p.keys() {
		busy[k] = struct{}{}
	}
	hits := func(q *part) bool {
		for k := range q.keys() {
			if _, ok := busy[k]; ok {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(c.queue, hits) ||
		slices.ContainsFunc(c.pending, func(q *part) bool { return !c.incomplete(q) && hits(q) })
}

// incomplete reports whether a part waits for virtual hosts to come: they must
// not wait for it.
func (c *core) incomplete(p *part) bool {
	t := c.tables[p.table]
	return p.trial && t != nil && t.waits()
}

// advance offers what was queued and need not wait any more.
func (c *core) advance() bool {
	queue, changed := c.queue, false
	c.queue = nil
	for _, p := range queue {
		if c.touches(p) {
			c.queue = append(c.queue, p)
			continue
		}
		c.offer(p)
		changed = true
	}
	return changed
}

// offer makes a part of what Envoys shall have.
func (c *core) offer(p *part) {
	p.generation = c.number + 1
	c.pending = append(c.pending, p)
	c.known[p.url] = true
	if p.table != "" && c.offerTable(p) {
		return
	}
	c.stale = true
	var changed []*stream.Resource
	for _, r := range p.changed {
		delete(c.missing[p.url], r.Name)
		if !c.skip(p, r) {
			changed = append(changed, r)
		}
	}
	for _, name := range p.removed {
		delete(c.missing[p.url], name)
		delete(c.rejected, key{p.url, name})
	}
	c.offered[p.url] = c.offered[p.url].With(changed, p.removed)
	for _, peer := range c.peers {
		peer.release(c)
	}
}

// skip reports whether Envoy has refused a resource in this version before, on
// this stream or on those before.
func (c *core) skip(p *part, r *stream.Resource) bool {
	k := key{p.url, r.Name}
	was, ok := c.rejected[k]
	if !ok && c.upstream != nil {
		was, ok = c.upstream.refused[k]
	}
	if !ok || was.Version != r.Version {
		delete(c.rejected, k)
		return false
	}
	c.rejected[k] = was
	if p.skipped == nil {
		p.skipped = map[string]struct{}{}
	}
	p.skipped[r.Name] = struct{}{}
	p.of.refusals = append(p.of.refusals, stream.Refusal{Name: r.Name, Reason: was.Reason})
	return true
}

// finish answers the server for every update that Envoy has answered, and offers
// what waited for that. It reports whether anything changed.
func (c *core) finish(now time.Time) bool {
	peer := c.newest()
	if peer == nil || c.stale {
		return false
	}
	view := peer.look()
	if view.calm && c.known[stream.ListenerType] && c.known[stream.ClusterType] {
		peer.live = true
	}
	c.fallBack()
	if !c.stale {
		c.judge(peer, view)
	}
	if c.stale {
		return true
	}
	changed := false
	c.pending = slices.DeleteFunc(c.pending, func(p *part) bool {
		if !c.settled(p, peer, view) {
			return false
		}
		c.settle(now, p, view)
		changed = true
		return true
	})
	return c.advance() || changed || c.stale
}

// settled reports whether the newest Envoy has answered for all of a part.
func (c *core) settled(p *part, peer *peer, v verdict) bool {
	if p.trial {
		t := c.tables[p.table]
		return t == nil || t.trial == nil && !t.waits()
	}
	if len(p.removed) > 0 && c.hold {
		return false
	}
	if v.calm {
		return c.number >= p.generation
	}
	if v.settled[p.url] < p.generation {
		return false
	}
	// A name that Envoy has not asked for yet will be asked for once it has what
	// refers to it; only when it is calm is it clear that it does not want it.
	for k := range p.keys() {
		if !c.all[p.url] && !peer.names[k] {
			return false
		}
	}
	return true
}

// settle takes over what Envoy accepted, takes back what it refused, and answers
// the server once all parts of an update are settled.
func (c *core) settle(now time.Time, p *part, v verdict) {
	if p.trial {
		c.settleTrial(p)
	} else {
		c.settleNames(p, v)
	}
	h := p.of
	u := h.update
	if len(p.changed)+len(p.removed) > 0 {
		c.label, c.acceptedAt = u.Label, now
	}
	c.dirty = true
	if h.left--; h.left > 0 {
		return
	}
	if len(h.refusals) > 0 {
		u.Done(&stream.RejectError{Refused: h.refusals})
	} else {
		u.Done(nil)
	}
	for table := range c.forget {
		c.client.ForgetHosts(table)
	}
	clear(c.forget)
}

func (c *core) settleNames(p *part, v verdict) {
	var taken, good []*stream.Resource
	var back []string
	for _, r := range p.changed {
		if _, ok := p.skipped[r.Name]; ok {
			continue
		}
		reason, refused := v.refused(p.url, r.Name, r.Version)
		if !refused {
			taken = append(taken, r)
			continue
		}
		c.reject(p.of, Rejection{Type: p.url, Name: r.Name, Version: r.Version, Reason: reason})
		back = append(back, r.Name)
		if old := c.accepted[p.url].Get(r.Name); old != nil {
			good = append(good, old)
		}
	}
	c.accepted[p.url] = c.accepted[p.url].With(taken, p.removed)
	if len(back) > 0 {
		c.offered[p.url] = c.offered[p.url].With(nil, back).With(good, nil)
		c.stale = true
	}
}

// reject notes what Envoy finally refused of an update.
func (c *core) reject(h *held, r Rejection) {
	h.refusals = append(h.refusals, stream.Refusal{Name: r.Name, Reason: r.Reason})
	c.rejected[key{r.Type, r.Name}] = r
	c.log.Warn("Envoy rejected a resource (NACK); the last good version stays in force", "type_url", r.Type, "name", r.Name, "version", r.Version, "err", r.Reason)
}

// prune gives up names that no Envoy asks for any more. A starting Envoy has not
// asked for all it needs, and while none is there what the last one asked for
// stands.
// It reports whether anything changed.
func (c *core) prune() bool {
	p := c.newest()
	if p == nil || !p.live || len(c.pending)+len(c.queue) > 0 || !p.asked {
		return false
	}
	for _, q := range c.peers {
		if !q.live {
			return false
		}
		q.asked = false
	}
	changed := false
	for url, names := range c.wants {
		var gone []string
		for name := range names {
			if !slices.ContainsFunc(c.peers, func(q *peer) bool { return q.names[key{url, name}] }) {
				gone = append(gone, name)
			}
		}
		if len(gone) == 0 {
			continue
		}
		c.client.Unsubscribe(url, gone...)
		for _, name := range gone {
			delete(names, name)
			delete(c.missing[url], name)
			delete(c.rejected, key{url, name})
			if url == stream.RouteType {
				c.dropTable(name)
			}
		}
		if !c.all[url] {
			c.offered[url], c.accepted[url] = c.offered[url].With(nil, gone), c.accepted[url].With(nil, gone)
		}
		c.stale, c.dirty, changed = true, true, true
	}
	return changed
}
