package relay

import (
	"maps"
	"slices"

	"github.com/fairlead/fairlead/xds/stream"
)

// bisection is a change of a route configuration that Envoy has to answer. Envoy accepts or
// rejects a route configuration with all its virtual hosts inside, so the change that it
// rejects is found by bisection.
type bisection struct {
	// candidates are the changes that are not known to be rejected: the route configuration
	// first, then removals of virtual hosts, then other virtual hosts.
	candidates []change
	// Envoy accepted the first good candidates, and rejected the first bad; bad is negative
	// while that is not known. attempted is how many it is being offered.
	good, bad, attempted int
	// current has those, and generation is the first that has them.
	current    contents
	generation uint64
	reason     string // why the first bad were rejected
}

// change is the new version of a name; a nil resource is a removal.
type change struct {
	url  stream.TypeURL
	name string
	to   *stream.Resource
}

// startBisection offers the changes of a route configuration, if its virtual hosts have come.
func (c *core) startBisection(t *routeConfig) {
	if t.awaitsHosts() {
		return
	}
	tr := &bisection{bad: -1, generation: c.number + 1}
	if a, b := t.accepted.base, t.offered.base; a != b {
		tr.candidates = append(tr.candidates, change{stream.RouteType, t.name, b})
	}
	gone, set := diffHosts(t.accepted.hosts, t.offered.hosts)
	tr.candidates = append(append(tr.candidates, gone...), set...)
	if len(tr.candidates) == 0 {
		t.offered = t.accepted // no difference
		return
	}
	tr.attempted, tr.current = len(tr.candidates), t.offered
	t.bisection = tr
	c.stale = true
}

// diffHosts returns the virtual hosts that are removed, and those that are new or changed.
func diffHosts(was, now *stream.Set) (gone, set []change) {
	old := slices.Collect(was.All())
	for r := range now.All() {
		for len(old) > 0 && old[0].Name < r.Name {
			gone = append(gone, change{url: stream.VirtualHostType, name: old[0].Name})
			old = old[1:]
		}
		if len(old) > 0 && old[0].Name == r.Name {
			same := old[0] == r || old[0].Version == r.Version
			if old = old[1:]; same {
				continue
			}
		}
		set = append(set, change{stream.VirtualHostType, r.Name, r})
	}
	for _, r := range old {
		gone = append(gone, change{url: stream.VirtualHostType, name: r.Name})
	}
	return gone, set
}

// attempt is c with the candidates that are being offered.
func (tr *bisection) attempt(c contents) contents {
	var set []*stream.Resource
	var gone []string
	for _, ch := range tr.candidates[:tr.attempted] {
		switch {
		case ch.url == stream.RouteType:
			c.base = ch.to
		case ch.to == nil:
			gone = append(gone, ch.name)
		default:
			set = append(set, ch.to)
		}
	}
	if len(set)+len(gone) > 0 {
		c.hosts = c.hosts.With(set, gone)
	}
	return c
}

// step handles Envoy's answer to what is being offered. rejected is the change that turns out
// to be the reason of a NACK, or nil; done means that Envoy has accepted everything that is
// left.
func (tr *bisection) step(nacked bool) (rejected *change, done bool) {
	switch {
	case !nacked && tr.attempted == len(tr.candidates), nacked && tr.attempted == 0:
		// It rejects even what it accepted before: there is nothing to find.
		return nil, true
	case nacked:
		tr.bad = tr.attempted
	default:
		tr.good = tr.attempted
	}
	if tr.bad-tr.good == 1 {
		ch := tr.candidates[tr.good]
		tr.candidates = slices.Delete(slices.Clone(tr.candidates), tr.good, tr.good+1)
		tr.bad, tr.attempted = -1, len(tr.candidates)
		return &ch, tr.attempted == 0
	}
	tr.attempted = (tr.good + tr.bad) / 2
	return nil, false
}

// stepBisections handles the newest Envoy's answers to what is being offered.
func (c *core) stepBisections(p *peer, v ackState) {
	for _, name := range slices.Sorted(maps.Keys(c.routeConfigs)) {
		t := c.routeConfigs[name]
		if t.bisection == nil || !c.answered(t, p, v) {
			continue
		}
		if p.vhds[t.name] && c.checkHosts(t, v) {
			continue
		}
		reason, nacked := p.rejects(t, v)
		if nacked {
			t.bisection.reason = reason
		}
		rejected, done := t.bisection.step(nacked)
		if rejected != nil {
			c.rejectCandidate(t, rejected)
		}
		if rejected != nil || !done {
			t.bisection.current = t.bisection.attempt(t.accepted)
		}
		if done {
			c.endBisection(t)
			continue
		}
		t.bisection.generation = c.number + 1
		c.stale = true
	}
}

// checkHosts handles an Envoy's answer to virtual hosts that are sent by VHDS, and reports
// whether it rejects some. Its stream says which: the other virtual hosts are in force, and
// the rejected ones stay as they were. So the virtual hosts stay separate.
func (c *core) checkHosts(t *routeConfig, v ackState) bool {
	tr := t.bisection
	var bad []change
	var reasons []string
	left := slices.DeleteFunc(slices.Clone(tr.candidates), func(ch change) bool {
		if ch.url != stream.VirtualHostType || ch.to == nil {
			return false
		}
		reason, nacked := v.rejection(ch.url, ch.name, ch.to.Version)
		if nacked {
			bad, reasons = append(bad, ch), append(reasons, reason)
		}
		return nacked
	})
	if len(bad) == 0 {
		return false
	}
	for i := range bad {
		tr.reason = reasons[i]
		c.rejectCandidate(t, &bad[i])
	}
	// Envoy accepts everything else, and acknowledges it.
	tr.candidates, tr.good, tr.bad, tr.attempted = left, 0, -1, len(left)
	tr.current = tr.attempt(t.accepted)
	tr.generation = c.number + 1
	c.stale = true
	if len(left) == 0 {
		c.endBisection(t)
	}
	return true
}

// answered reports whether an Envoy has accepted or rejected what is being offered.
func (c *core) answered(t *routeConfig, p *peer, v ackState) bool {
	if c.number < t.bisection.generation || t.served().base == nil && c.holdRemovals {
		return false
	}
	if _, ok := v.settled[stream.VirtualHostType]; !ok && p.vhds[t.name] {
		return false // Envoy will subscribe to them
	}
	if v.idle {
		return true
	}
	if !p.names[key{stream.RouteType, t.name}] || v.settled[stream.RouteType] < t.bisection.generation {
		return false
	}
	return !p.vhds[t.name] || v.settled[stream.VirtualHostType] >= t.bisection.generation
}

// rejects reports whether an Envoy rejects a route configuration as it is served, and why.
func (p *peer) rejects(t *routeConfig, v ackState) (reason string, nacked bool) {
	shown := t.served()
	if shown.base == nil {
		return "", false
	}
	if p.vhds[t.name] {
		return "", false // a rejected base makes it inline, see fallBackToInline; for virtual hosts see checkHosts
	}
	r, err := t.merge(shown)
	if err != nil {
		return err.Error(), true
	}
	return v.rejection(stream.RouteType, t.name, r.Version)
}

// rejectCandidate records a change that Envoy rejects: Envoy keeps the version that it
// accepted last.
func (c *core) rejectCandidate(t *routeConfig, ch *change) {
	if ch.url == stream.RouteType {
		t.offered.base = t.accepted.base
	}
	if ch.to == nil {
		return // a rejected removal has its reason in another resource
	}
	r := Rejection{Type: ch.url, Name: ch.name, Version: ch.to.Version, Reason: t.bisection.reason}
	for _, p := range c.pending {
		if p.url == ch.url && slices.Contains(p.changed, ch.to) {
			c.reject(p.from, r)
		}
	}
}

// endBisection ends a bisection: what is served is accepted.
func (c *core) endBisection(t *routeConfig) {
	t.accepted = t.served()
	t.offered, t.bisection = t.accepted, nil
	c.dirty = true
	if !t.accepted.inline() {
		t.hostsKnown = true
		return
	}
	// It came inline, or was removed: it is an ordinary resource again.
	c.dropRouteConfig(t.name)
	if t.accepted.base != nil {
		one := []*stream.Resource{t.accepted.base}
		c.offered[stream.RouteType], c.accepted[stream.RouteType] = c.offered[stream.RouteType].With(one, nil), c.accepted[stream.RouteType].With(one, nil)
	}
}

// fallBackToInline sends a route configuration inline to every Envoy that rejects its base, or
// a virtual host that was accepted before, of which no older version is left to keep. After
// that a rejection can be found by bisection, and the state of Envoy is certain. A new virtual
// host that is rejected is no reason: see checkHosts.
func (c *core) fallBackToInline() {
	for _, p := range c.peers {
		if !slices.Contains(slices.Collect(maps.Values(p.vhds)), true) {
			continue
		}
		v := p.ackState()
		for k, rejections := range v.rejected {
			name, ok := k.routeConfig()
			t := c.routeConfigs[name]
			if !ok || t == nil || !p.vhds[name] {
				continue
			}
			for _, r := range rejections {
				if t.serves(k, r.Version) && (k.url == stream.RouteType || t.hasAccepted(k.name, r.Version)) {
					p.inlineOnly[name], p.vhds[name] = true, false
					c.stale = true
					if t.bisection != nil { // ignore what Envoy answers to the form before
						t.bisection.generation = c.number + 1
					}
					c.log.Warn("Envoy rejected virtual hosts (VHDS); sending the whole route configuration", "name", name, "type_url", k.url, "err", r.Reason)
					break
				}
			}
		}
	}
}

// serves reports whether Envoys are being served a version of a name.
func (t *routeConfig) serves(k key, version string) bool {
	shown := t.served()
	r := shown.base
	if k.url == stream.VirtualHostType {
		r = shown.hosts.Get(k.name)
	}
	return r != nil && r.Version == version
}

// hasAccepted reports whether a version of a virtual host was accepted.
func (t *routeConfig) hasAccepted(name, version string) bool {
	r := t.accepted.hosts.Get(name)
	return r != nil && r.Version == version
}
