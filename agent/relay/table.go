package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
)

// table is a route configuration whose virtual hosts come by themselves. What is
// offered and accepted of it is its own; of both, shell is the route
// configuration.
type table struct {
	name              string
	offered, accepted contents
	// known means that the server has said which virtual hosts there are. Until it
	// has, Envoys keep what they have: they never see a table that lacks some.
	known bool
	// trial is the change that Envoy has not answered, or nil.
	trial *trial
	// folded and shell are what was made of the table last.
	folded, shell made
}

// contents are a route configuration and its virtual hosts.
type contents struct {
	shell *stream.Resource // or nil
	hosts *stream.Set
}

// whole reports whether there are no virtual hosts to come.
func (c contents) whole() bool { return c.shell == nil || !fold.Expects(c.shell.Body) }

// made is a resource that was made of contents.
type made struct {
	of contents
	r  *stream.Resource
}

// waits reports whether virtual hosts have still to come.
func (t *table) waits() bool { return !t.known && !t.offered.whole() }

// shown is what Envoys shall have now.
func (t *table) shown() contents {
	switch {
	case t.waits():
		return t.accepted
	case t.trial != nil:
		return t.trial.now
	default:
		return t.accepted
	}
}

// fold gives the table as one resource, nil if there is none now. Its version is
// made of those of its parts.
func (t *table) fold(c contents) (*stream.Resource, error) {
	if c.whole() {
		return c.shell, nil
	}
	if t.folded.of == c {
		return t.folded.r, nil
	}
	sum := sha256.New()
	note := func(r *stream.Resource) {
		_, _ = io.WriteString(sum, r.Name+"\x00"+r.Version+"\x00") // a hash takes everything
	}
	note(c.shell)
	hosts := make([][]byte, 0, c.hosts.Len())
	for h := range c.hosts.All() {
		note(h)
		hosts = append(hosts, h.Body)
	}
	body, err := fold.Fold(c.shell.Body, hosts)
	if err != nil {
		return nil, err
	}
	t.folded = made{c, stream.NewResource(stream.RouteType, stream.Resource{
		Name: t.name, Version: hex.EncodeToString(sum.Sum(nil)[:16]), Body: body,
	})}
	return t.folded.r, nil
}

// travelling gives the route configuration for an Envoy that gets the virtual
// hosts by themselves.
func (t *table) travelling(c contents) *stream.Resource {
	if t.shell.of.shell != c.shell {
		t.shell = made{contents{shell: c.shell}, stream.NewResource(stream.RouteType, stream.Resource{
			Name: t.name, Version: c.shell.Version, Body: c.shell.Body, Hosts: true,
		})}
	}
	return t.shell.r
}

// offerTable offers a part that is about a route table; false means that there
// is none by that name, the part is about a resource like others.
func (c *core) offerTable(p *part) bool {
	t := c.tables[p.table]
	if p.url == stream.VirtualHostType {
		p.trial = true
		if t == nil {
			// Hosts of what is not there: the server is not kept waiting, and they do not
			// count as accepted should the table come again.
			c.forget[p.table] = struct{}{}
			return true
		}
		c.offerHosts(t, p)
		return true
	}
	travels := len(p.changed) > 0 && fold.Expects(p.changed[0].Body)
	if t == nil {
		if !travels {
			return false
		}
		t = &table{name: p.table, accepted: contents{shell: c.accepted[stream.RouteType].Get(p.table)}}
		t.offered = t.accepted
		c.tables[p.table] = t
		if t.accepted.shell != nil { // Envoys have had it whole until now
			for _, q := range c.peers {
				q.split[t.name] = false
			}
		}
		c.offered[stream.RouteType] = c.offered[stream.RouteType].With(nil, []string{p.table})
		c.accepted[stream.RouteType] = c.accepted[stream.RouteType].With(nil, []string{p.table})
	}
	p.trial = true
	if travels {
		c.client.SubscribeAll(stream.VirtualHostType)
	}
	for _, r := range p.changed {
		delete(c.missing[p.url], r.Name)
		if c.skip(p, r) {
			return true
		}
		t.offered.shell = r
	}
	for _, name := range p.removed {
		delete(c.missing[p.url], name)
		delete(c.rejected, key{p.url, name})
		t.offered.shell = nil
	}
	if t.offered.whole() {
		t.known = false
		t.offered.hosts = t.accepted.hosts // they go with the old one, not before
	}
	c.try(t)
	return true
}

func (c *core) offerHosts(t *table, p *part) {
	var changed []*stream.Resource
	for _, r := range p.changed {
		if !c.skip(p, r) {
			changed = append(changed, r)
		}
	}
	for _, name := range p.removed {
		delete(c.rejected, key{p.url, name})
	}
	t.offered.hosts = t.offered.hosts.With(changed, p.removed)
	if !t.offered.whole() {
		t.known = true
	}
	c.try(t)
}

// settleTrial notes, of a part whose table's trial is over, what else did not
// become accepted: a stream that broke off may have brought it and the next one
// something else.
func (c *core) settleTrial(p *part) {
	var now contents
	if t := c.tables[p.table]; t != nil {
		now = t.accepted
	} else {
		now.shell = c.accepted[stream.RouteType].Get(p.table)
	}
	for _, r := range p.changed {
		is := now.shell
		if p.url == stream.VirtualHostType {
			is = now.hosts.Get(r.Name)
		}
		said := slices.ContainsFunc(p.of.refusals, func(f stream.Refusal) bool { return f.Name == r.Name })
		if !said && (is == nil || is.Version != r.Version) {
			p.of.refusals = append(p.of.refusals, stream.Refusal{Name: r.Name, Reason: "another version took its place"})
		}
	}
}

// dropTable forgets a table with its virtual hosts.
func (c *core) dropTable(name string) {
	t := c.tables[name]
	if t == nil {
		return
	}
	for k := range c.rejected {
		if k.url == stream.VirtualHostType && strings.HasPrefix(k.name, name+fold.Separator) {
			delete(c.rejected, k)
		}
	}
	delete(c.tables, name)
	for _, p := range c.peers {
		delete(p.split, name)
		delete(p.whole, name)
	}
	c.forget[name] = struct{}{}
}

// splits says how a peer gets a table. It stays as it is, unless Envoy refuses
// something: then the table is whole for the rest of the stream.
func (p *peer) splits(t *table, c contents) bool {
	if c.whole() || !fold.Takes(p.version.Major, p.version.Minor) || p.whole[t.name] {
		return false
	}
	p.split[t.name] = fold.Split(c.hosts.Len(), p.has(t.name))
	return p.split[t.name]
}

// has is how a peer has a table.
func (p *peer) has(table string) fold.Form {
	switch is, ok := p.split[table]; {
	case ok && is:
		return fold.InPieces
	case ok:
		return fold.Whole
	default:
		return fold.Unknown
	}
}

// heed has an Envoy that comes back keep the form in which it says that it has
// tables, by their versions.
func (c *core) heed(p *peer, versions map[string]string) {
	heeded := false
	for name, version := range versions {
		t := c.tables[name]
		if t == nil || t.shown().shell == nil {
			continue
		}
		pieces := version == t.shown().shell.Version
		if is, ok := p.split[name]; !ok || is != pieces {
			p.split[name], heeded = pieces, true
		}
	}
	if heeded && c.number > 0 {
		p.half.SetGeneration(c.generation(p))
	}
}
