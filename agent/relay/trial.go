package relay

import (
	"maps"
	"slices"

	"github.com/fairlead/fairlead/xds/stream"
)

// trial is a change of a route table that Envoy has to answer. Envoy takes or
// refuses a table with all its virtual hosts, so what it refuses it for is found
// by halving.
type trial struct {
	// changes are those that are not known to be refused: the route configuration
	// first, removals of virtual hosts, then other virtual hosts.
	changes []change
	// With the first good of them Envoy took the table, with the first bad it did
	// not; bad is negative while that is not known. tried is how many it is being
	// offered.
	good, bad, tried int
	// now is the table with those, and generation the first that has them.
	now        contents
	generation uint64
	reason     string // why it was refused with the first bad
}

// change is what shall become of a name; a nil resource is a removal.
type change struct {
	url  stream.TypeURL
	name string
	to   *stream.Resource
}

// try begins the trial of what is offered of a table, if that can be shown.
func (c *core) try(t *table) {
	if t.waits() {
		return
	}
	tr := &trial{bad: -1, generation: c.number + 1}
	if a, b := t.accepted.shell, t.offered.shell; a != b {
		tr.changes = append(tr.changes, change{stream.RouteType, t.name, b})
	}
	gone, set := differ(t.accepted.hosts, t.offered.hosts)
	tr.changes = append(append(tr.changes, gone...), set...)
	if len(tr.changes) == 0 {
		t.offered = t.accepted // the same again
		return
	}
	tr.tried, tr.now = len(tr.changes), t.offered
	t.trial = tr
	c.stale = true
}

// differ finds which virtual hosts go, and which come or are others.
func differ(was, now *stream.Set) (gone, set []change) {
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

// contents are those of a table with the changes that are being tried.
func (tr *trial) contents(c contents) contents {
	var set []*stream.Resource
	var gone []string
	for _, ch := range tr.changes[:tr.tried] {
		switch {
		case ch.url == stream.RouteType:
			c.shell = ch.to
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

// step takes Envoy's verdict on what is being tried. The culprit is the change
// that turns out to be refused, or nil; over means that all that is left has been
// taken.
func (tr *trial) step(refused bool) (culprit *change, over bool) {
	switch {
	case !refused && tr.tried == len(tr.changes), refused && tr.tried == 0:
		// Even what it took before it refuses now: there is nothing to find out.
		return nil, true
	case refused:
		tr.bad = tr.tried
	default:
		tr.good = tr.tried
	}
	if tr.bad-tr.good == 1 {
		ch := tr.changes[tr.good]
		tr.changes = slices.Delete(slices.Clone(tr.changes), tr.good, tr.good+1)
		tr.bad, tr.tried = -1, len(tr.changes)
		return &ch, tr.tried == 0
	}
	tr.tried = (tr.good + tr.bad) / 2
	return nil, false
}

// judge takes what the newest Envoy says of the tables that are being tried.
func (c *core) judge(p *peer, v verdict) {
	for _, name := range slices.Sorted(maps.Keys(c.tables)) {
		t := c.tables[name]
		if t.trial == nil || !c.answered(t, p, v) {
			continue
		}
		if p.split[t.name] && c.judgeHosts(t, v) {
			continue
		}
		reason, refused := p.refuses(t, v)
		if refused {
			t.trial.reason = reason
		}
		culprit, over := t.trial.step(refused)
		if culprit != nil {
			c.blame(t, culprit)
		}
		if culprit != nil || !over {
			t.trial.now = t.trial.contents(t.accepted)
		}
		if over {
			c.conclude(t)
			continue
		}
		t.trial.generation = c.number + 1
		c.stale = true
	}
}

// judgeHosts takes what an Envoy says of a table in pieces, and reports whether it
// refuses something of it. Which that is was found on its stream: the virtual hosts
// beside are in force, and what is refused is as it was. So the table stays in
// pieces.
func (c *core) judgeHosts(t *table, v verdict) bool {
	tr := t.trial
	var bad []change
	var reasons []string
	left := slices.DeleteFunc(slices.Clone(tr.changes), func(ch change) bool {
		if ch.url != stream.VirtualHostType || ch.to == nil {
			return false
		}
		reason, refused := v.refused(ch.url, ch.name, ch.to.Version)
		if refused {
			bad, reasons = append(bad, ch), append(reasons, reason)
		}
		return refused
	})
	if len(bad) == 0 {
		return false
	}
	for i := range bad {
		tr.reason = reasons[i]
		c.blame(t, &bad[i])
	}
	// Without them there is nothing left that Envoy does not take; it says so itself.
	tr.changes, tr.good, tr.bad, tr.tried = left, 0, -1, len(left)
	tr.now = tr.contents(t.accepted)
	tr.generation = c.number + 1
	c.stale = true
	if len(left) == 0 {
		c.conclude(t)
	}
	return true
}

// answered reports whether an Envoy has taken or refused what is being tried.
func (c *core) answered(t *table, p *peer, v verdict) bool {
	if c.number < t.trial.generation || t.shown().shell == nil && c.hold {
		return false
	}
	if _, ok := v.settled[stream.VirtualHostType]; !ok && p.split[t.name] {
		return false // Envoy is going to ask for them
	}
	if v.calm {
		return true
	}
	if !p.names[key{stream.RouteType, t.name}] || v.settled[stream.RouteType] < t.trial.generation {
		return false
	}
	return !p.split[t.name] || v.settled[stream.VirtualHostType] >= t.trial.generation
}

// refuses says whether an Envoy refuses a table as it is shown, and why.
func (p *peer) refuses(t *table, v verdict) (reason string, refused bool) {
	shown := t.shown()
	if shown.shell == nil {
		return "", false
	}
	if p.split[t.name] {
		return "", false // of the route configuration, it makes it whole; see judgeHosts for the others
	}
	r, err := t.fold(shown)
	if err != nil {
		return err.Error(), true
	}
	return v.refused(stream.RouteType, t.name, r.Version)
}

// blame notes what of a table Envoy finally refused: it shall have what it took
// last.
func (c *core) blame(t *table, ch *change) {
	if ch.url == stream.RouteType {
		t.offered.shell = t.accepted.shell
	}
	if ch.to == nil {
		return // a removal that Envoy does not take: its reason lies with something else
	}
	r := Rejection{Type: ch.url, Name: ch.name, Version: ch.to.Version, Reason: t.trial.reason}
	for _, p := range c.pending {
		if p.url == ch.url && slices.Contains(p.changed, ch.to) {
			c.reject(p.of, r)
		}
	}
}

// conclude ends a trial: what is shown is accepted.
func (c *core) conclude(t *table) {
	t.accepted = t.shown()
	t.offered, t.trial = t.accepted, nil
	c.dirty = true
	if !t.accepted.whole() {
		t.known = true
		return
	}
	// It came whole, or went: it is a resource like others again.
	c.dropTable(t.name)
	if t.accepted.shell != nil {
		one := []*stream.Resource{t.accepted.shell}
		c.offered[stream.RouteType], c.accepted[stream.RouteType] = c.offered[stream.RouteType].With(one, nil), c.accepted[stream.RouteType].With(one, nil)
	}
}

// fallBack gives a table whole to every Envoy that refuses its route configuration
// in pieces, or a virtual host that was accepted before, so that nothing is left to
// hold it at. Then it can be said what of it is refused, and Envoy's state is
// certain. A virtual host that has just come is no reason: see judgeHosts.
func (c *core) fallBack() {
	for _, p := range c.peers {
		if !slices.Contains(slices.Collect(maps.Values(p.split)), true) {
			continue
		}
		v := p.look()
		for k, rejections := range v.rejected {
			table, ok := k.table()
			t := c.tables[table]
			if !ok || t == nil || !p.split[table] {
				continue
			}
			for _, r := range rejections {
				if t.shows(k, r.Version) && (k.url == stream.RouteType || t.took(k.name, r.Version)) {
					p.whole[table], p.split[table] = true, false
					c.stale = true
					if t.trial != nil { // what Envoy says of the pieces does not count
						t.trial.generation = c.number + 1
					}
					c.log.Warn("Envoy rejected virtual hosts (VHDS); sending the whole route configuration", "name", table, "type_url", k.url, "err", r.Reason)
					break
				}
			}
		}
	}
}

// shows reports whether a version is what Envoys are being shown of a name.
func (t *table) shows(k key, version string) bool {
	shown := t.shown()
	r := shown.shell
	if k.url == stream.VirtualHostType {
		r = shown.hosts.Get(k.name)
	}
	return r != nil && r.Version == version
}

// took reports whether a version of a virtual host was accepted.
func (t *table) took(name, version string) bool {
	r := t.accepted.hosts.Get(name)
	return r != nil && r.Version == version
}
