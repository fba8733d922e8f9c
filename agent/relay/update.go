package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
)

// pending is an update that Envoys are being offered, until the newest of them
// has answered.
type pending struct {
	update *stream.Update
	// generation is the first that has it.
	generation uint64
	// refused are resources that Envoy has refused in this very version before,
	// so that they are not tried on it again.
	refused []stream.Refusal
}

// take offers an update, or queues it: one that touches a name whose last change
// Envoy has not answered waits for the answer, so that every verdict is about
// one version.
func (c *core) take(u *stream.Update) {
	if len(c.queue) > 0 || c.touches(u) {
		c.queue = append(c.queue, u)
		return
	}
	c.offer(u)
}

func (c *core) touches(u *stream.Update) bool {
	for _, p := range c.pending {
		if p.update.Type != u.Type {
			continue
		}
		names := map[string]struct{}{}
		for name := range namesOf(p.update) {
			names[name] = struct{}{}
		}
		for name := range namesOf(u) {
			if _, ok := names[name]; ok {
				return true
			}
		}
	}
	return false
}

func namesOf(u *stream.Update) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, n := range u.Changed {
			if !yield(n.Name) {
				return
			}
		}
		for _, name := range u.Removed {
			if !yield(name) {
				return
			}
		}
	}
}

func (c *core) offer(u *stream.Update) {
	p := &pending{update: u, generation: c.number + 1}
	of := maps.Clone(c.offered[u.Type])
	if of == nil {
		of = map[string]*stream.Resource{}
	}
	for _, n := range u.Changed {
		delete(c.missing[u.Type], n.Name)
		k := key{u.Type, n.Name}
		if r, ok := c.refusedBefore(k); ok && r.Version == n.Version {
			c.rejected[k] = r
			p.refused = append(p.refused, stream.Refusal{Name: n.Name, Reason: r.Reason})
			continue
		}
		delete(c.rejected, k)
		of[n.Name] = n
	}
	for _, name := range u.Removed {
		delete(c.missing[u.Type], name)
		delete(c.rejected, key{u.Type, name})
		delete(of, name)
	}
	c.offered[u.Type] = of
	c.known[u.Type] = true
	c.stale = true
	c.pending = append(c.pending, p)
	for _, peer := range c.peers {
		peer.release(c)
	}
}

// refusedBefore is what Envoy refused of a name, on this stream or on those
// before.
func (c *core) refusedBefore(k key) (Rejection, bool) {
	r, ok := c.rejected[k]
	if !ok && c.upstream != nil {
		r, ok = c.upstream.refused[k]
	}
	return r, ok
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
	changed := false
	c.pending = slices.DeleteFunc(c.pending, func(p *pending) bool {
		if !c.settled(p, peer, view) {
			return false
		}
		c.settle(now, p, view)
		changed = true
		return true
	})
	for len(c.queue) > 0 && !c.touches(c.queue[0]) {
		u := c.queue[0]
		c.queue = c.queue[1:]
		c.offer(u)
		changed = true
	}
	return changed || c.stale
}

// settled reports whether the newest Envoy has answered for all of an update.
func (c *core) settled(p *pending, peer *peer, v verdict) bool {
	if len(p.update.Removed) > 0 && c.generation.HoldRemovals {
		return false
	}
	if v.calm {
		return c.number >= p.generation
	}
	if v.settled[p.update.Type] < p.generation {
		return false
	}
	// A name that Envoy has not asked for yet will be asked for once it has what
	// refers to it; only when it is calm is it clear that it does not want it.
	for name := range namesOf(p.update) {
		if !c.all[p.update.Type] && !peer.names[key{p.update.Type, name}] {
			return false
		}
	}
	return true
}

// settle takes over what Envoy accepted, takes back what it refused, and answers
// the server.
func (c *core) settle(now time.Time, p *pending, v verdict) {
	u := p.update
	refusals := p.refused
	if c.accepted[u.Type] == nil {
		c.accepted[u.Type] = map[string]*stream.Resource{}
	}
	accepted := c.accepted[u.Type]
	skip := map[string]bool{}
	for _, r := range p.refused {
		skip[r.Name] = true
	}
	var back []string
	for _, n := range u.Changed {
		reason, refused := v.refused(u.Type, n.Name, n.Version)
		switch {
		case skip[n.Name]:
		case refused:
			refusals = append(refusals, stream.Refusal{Name: n.Name, Reason: reason})
			c.rejected[key{u.Type, n.Name}] = Rejection{Type: u.Type, Name: n.Name, Version: n.Version, Reason: reason}
			back = append(back, n.Name)
			c.log.Warn("envoy refuses a resource, the last good one stays",
				"type_url", u.Type, "name", n.Name, "version", n.Version, "err", reason)
		default:
			accepted[n.Name] = n
		}
	}
	for _, name := range u.Removed {
		delete(accepted, name)
	}
	if len(back) > 0 {
		of := maps.Clone(c.offered[u.Type])
		for _, name := range back {
			delete(of, name)
			if good, ok := accepted[name]; ok {
				of[name] = good
			}
		}
		c.offered[u.Type] = of
		c.stale = true
	}
	if len(u.Changed)+len(u.Removed) > 0 {
		c.label, c.acceptedAt = u.Label, now
	}
	c.dirty = true
	if len(refusals) > 0 {
		u.Done(&stream.RejectError{Refused: refusals})
		return
	}
	u.Done(nil)
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
		of := maps.Clone(c.offered[url])
		for _, name := range gone {
			delete(names, name)
			delete(c.missing[url], name)
			delete(c.rejected, key{url, name})
			if !c.all[url] {
				delete(of, name)
				delete(c.accepted[url], name)
			}
		}
		if of != nil {
			c.offered[url] = of
		}
		c.stale, c.dirty, changed = true, true, true
	}
	return changed
}
