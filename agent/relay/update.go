package relay

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

// pendingUpdate is an update that the server waits for an answer to.
type pendingUpdate struct {
	update   *stream.Update
	open     int // batches that are not settled
	refusals []stream.RejectedResource
}

// batch is the part of an update that Envoy answers together: one route configuration, or
// everything else.
type batch struct {
	from *pendingUpdate
	url  stream.TypeURL
	// routeConfig is the name of the route configuration that the batch belongs to, for the
	// types that make one; else it is empty.
	routeConfig string
	changed     []*stream.Resource
	removed     []string

	// generation is the first that has the batch.
	generation uint64
	// bisected means that the answer comes from the bisection of the route configuration.
	bisected bool
	// skipped are resources that Envoy rejected in this version before, so that they are not
	// sent to it again.
	skipped map[string]struct{}
}

// receive offers an update, batch by batch. A batch with a name whose last change Envoy has
// not answered is queued, so that every answer is about one version.
func (c *core) receive(u *stream.Update) {
	if u.Type == bootstrap.ProxyConfigType {
		c.receiveProxyConfig(u)
		return
	}
	if u.Type == bootstrap.NameType {
		c.receiveNames(u)
		return
	}
	h := &pendingUpdate{update: u}
	for _, p := range splitUpdate(h) {
		h.open++
		if c.conflicts(p) {
			c.queue = append(c.queue, p)
		} else {
			c.offer(p)
		}
	}
}

// splitUpdate divides an update into batches.
func splitUpdate(h *pendingUpdate) []*batch {
	u := h.update
	if u.Type != stream.RouteType && u.Type != stream.VirtualHostType {
		return []*batch{{from: h, url: u.Type, changed: u.Changed, removed: u.Removed}}
	}
	var out []*batch
	by := map[string]*batch{}
	of := func(name string) *batch {
		table := name
		if u.Type == stream.VirtualHostType {
			table, _, _ = strings.Cut(name, vhds.Separator)
		}
		p := by[table]
		if p == nil {
			p = &batch{from: h, url: u.Type, routeConfig: table}
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
	if len(out) == 0 { // an empty update: there are no resources
		out = []*batch{{from: h, url: u.Type}}
	}
	return out
}

// keys are the names of a batch; a route configuration counts as one.
func (p *batch) keys() iter.Seq[key] {
	return func(yield func(key) bool) {
		if p.routeConfig != "" {
			yield(key{stream.RouteType, p.routeConfig})
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

// conflicts reports whether a batch has to wait for another one with the same names.
func (c *core) conflicts(p *batch) bool {
	if len(c.pending)+len(c.queue) == 0 {
		return false
	}
	names := map[key]struct{}{}
	for k := range p.keys() {
		names[k] = struct{}{}
	}
	overlaps := func(q *batch) bool {
		for k := range q.keys() {
			if _, ok := names[k]; ok {
				return true
			}
		}
		return false
	}
	return slices.ContainsFunc(c.queue, overlaps) ||
		slices.ContainsFunc(c.pending, func(q *batch) bool { return !c.awaitsHosts(q) && overlaps(q) })
}

// awaitsHosts reports whether a batch waits for virtual hosts, which therefore must not wait
// for it.
func (c *core) awaitsHosts(p *batch) bool {
	t := c.routeConfigs[p.routeConfig]
	return p.bisected && t != nil && t.awaitsHosts()
}

// offerQueued offers the queued batches that need not wait any more.
func (c *core) offerQueued() bool {
	queue, changed := c.queue, false
	c.queue = nil
	for _, p := range queue {
		if c.conflicts(p) {
			c.queue = append(c.queue, p)
			continue
		}
		c.offer(p)
		changed = true
	}
	return changed
}

// offer adds a batch to the configuration for Envoys.
func (c *core) offer(p *batch) {
	p.generation = c.number + 1
	c.pending = append(c.pending, p)
	c.known[p.url] = true
	if p.routeConfig != "" && c.offerRoutes(p) {
		return
	}
	c.stale = true
	var changed []*stream.Resource
	for _, r := range p.changed {
		delete(c.missing[p.url], r.Name)
		c.replacedRetry(p.url, r.Name, r.Version)
		if !c.skip(p, r) {
			changed = append(changed, r)
		}
	}
	for _, name := range p.removed {
		delete(c.missing[p.url], name)
		delete(c.rejected, key{p.url, name})
		delete(c.retries, key{p.url, name})
	}
	if p.url == stream.ExtensionType {
		p.removed = c.unused(p.removed)
	}
	c.offered[p.url] = c.offered[p.url].With(changed, p.removed)
	for _, peer := range c.peers {
		peer.handleWaiting(c)
	}
}

// skip reports whether Envoy rejected a resource in this version before, on this stream or an
// earlier one.
func (c *core) skip(p *batch, r *stream.Resource) bool {
	k := key{p.url, r.Name}
	was, ok := c.rejected[k]
	if !ok && c.upstream != nil {
		was, ok = c.upstream.rejectedBefore[k]
	}
	// A reason on the host may be gone; that is why it is sent again.
	if !ok || was.Version != r.Version || stream.IsHostError(p.url, was.Reason) {
		delete(c.rejected, k)
		return false
	}
	c.rejected[k] = was
	if p.skipped == nil {
		p.skipped = map[string]struct{}{}
	}
	p.skipped[r.Name] = struct{}{}
	p.from.refusals = append(p.from.refusals, stream.RejectedResource{Name: r.Name, Reason: was.Reason})
	return true
}

// settleUpdates answers the server for every update that Envoy has answered, and offers what
// waited for that. It reports whether anything changed.
func (c *core) settleUpdates(now time.Time) bool {
	peer := c.newest()
	if peer == nil || c.stale {
		return false
	}
	view := peer.ackState()
	if view.idle && c.known[stream.ListenerType] && c.known[stream.ClusterType] {
		peer.live = true
	}
	c.fallBackToInline()
	if !c.stale {
		c.replaceRefused(peer, view)
	}
	if !c.stale {
		c.noteRefused(peer, view)
	}
	if !c.stale {
		c.stepBisections(peer, view)
	}
	if c.stale {
		return true
	}
	changed := false
	c.pending = slices.DeleteFunc(c.pending, func(p *batch) bool {
		if !c.settled(p, peer, view) {
			return false
		}
		c.settle(now, p, view)
		changed = true
		return true
	})
	return c.offerQueued() || changed || c.stale
}

// settled reports whether the newest Envoy has answered all of a batch.
func (c *core) settled(p *batch, peer *peer, v ackState) bool {
	if p.bisected {
		t := c.routeConfigs[p.routeConfig]
		return t == nil || t.bisection == nil && !t.awaitsHosts()
	}
	if len(p.removed) > 0 && c.holdRemovals {
		return false
	}
	if v.idle {
		return c.number >= p.generation
	}
	if v.settled[p.url] < p.generation {
		return false
	}
	// Envoy subscribes to a name once it has the resource that refers to it. Only when it
	// is idle is it certain that it will not subscribe.
	for k := range p.keys() {
		if !c.wildcard[p.url] && !peer.names[k] {
			return false
		}
	}
	return true
}

// settle keeps what Envoy accepted, reverts what it rejected, and answers the server once all
// batches of an update are settled.
func (c *core) settle(now time.Time, p *batch, v ackState) {
	if p.bisected {
		c.settleBisected(p)
	} else {
		c.settleNames(now, p, v)
	}
	c.dirty = true
	h := p.from
	u := h.update
	if u == nil {
		return // of retryUpdates
	}
	if len(p.changed)+len(p.removed) > 0 {
		c.label, c.acceptedAt = u.SystemVersion, now
	}
	if h.open--; h.open > 0 {
		return
	}
	if len(h.refusals) > 0 {
		u.Done(&stream.RejectError{Rejected: h.refusals})
	} else {
		u.Done(nil)
	}
	for table := range c.forgotten {
		c.client.ForgetHosts(table)
	}
	clear(c.forgotten)
}

func (c *core) settleNames(now time.Time, p *batch, v ackState) {
	var taken, good []*stream.Resource
	var back []string
	for _, r := range p.changed {
		if _, ok := p.skipped[r.Name]; ok {
			continue
		}
		reason, refused := v.rejection(p.url, r.Name, r.Version)
		if !refused {
			taken = append(taken, r)
			c.endRetry(p, r)
			continue
		}
		c.reject(p.from, Rejection{Type: p.url, Name: r.Name, Version: r.Version, Reason: reason})
		if c.keepRefused(now, p.url, r, reason) {
			taken = append(taken, r)
			continue
		}
		back = append(back, r.Name)
		if old := c.accepted[p.url].Get(r.Name); old != nil {
			good = append(good, old)
		}
	}
	c.accepted[p.url] = c.accepted[p.url].With(taken, p.removed)
	if p.url == stream.ListenerType {
		c.noteExtensions(taken, p.removed)
		for _, r := range taken {
			delete(c.fromStore, r.Name)
			delete(c.fallbacks, r.Name)
		}
		for _, name := range p.removed {
			delete(c.fromStore, name)
			delete(c.fallbacks, name)
		}
	}
	if len(back) > 0 {
		c.offered[p.url] = c.offered[p.url].With(nil, back).With(good, nil)
		c.stale = true
	}
}

// reject records a resource of an update that Envoy rejects.
func (c *core) reject(h *pendingUpdate, r Rejection) {
	h.refusals = append(h.refusals, stream.RejectedResource{Name: r.Name, Reason: r.Reason})
	c.rejected[key{r.Type, r.Name}] = r
	log := c.log.Warn
	if h.update == nil { // said before
		log = c.log.Debug
	}
	log("Envoy rejected a resource (NACK); the last good version stays in force", "type_url", r.Type, "name", r.Name, "version", r.Version, "err", r.Reason)
}

// prune ends subscriptions of names that no Envoy subscribes to any more. It waits for an
// Envoy that is starting, which has not subscribed to everything yet, and while no Envoy is
// connected the subscriptions of the last one stay. It reports whether anything changed.
func (c *core) prune() bool {
	p := c.newest()
	if p == nil || !p.live || len(c.pending)+len(c.queue)+len(c.refused) > 0 || !p.namesChanged {
		return false // what is refused would subscribe, too
	}
	for _, q := range c.peers {
		if !q.live {
			return false
		}
		q.namesChanged = false
	}
	changed := false
	for url, names := range c.subscribed {
		var gone []string
		for name := range names {
			if !c.subscribedTo(key{url, name}) {
				gone = append(gone, name)
			}
		}
		if url == stream.ExtensionType {
			gone = c.unused(gone)
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
				c.dropRouteConfig(name)
			}
		}
		if !c.wildcard[url] {
			c.offered[url], c.accepted[url] = c.offered[url].With(nil, gone), c.accepted[url].With(nil, gone)
		}
		c.stale, c.dirty, changed = true, true, true
	}
	return changed
}
