package relay

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

// routeConfig is a route configuration whose virtual hosts come by VHDS. It is kept here and
// not in core.offered and core.accepted.
type routeConfig struct {
	name              string
	offered, accepted contents
	// hostsKnown means that the server has sent the list of virtual hosts. Until then Envoys
	// keep what they have: they never get a route configuration that lacks some.
	hostsKnown bool
	// bisection is the change that Envoy has not answered, or nil.
	bisection *bisection
	// merged and baseOnly are the resources that were built last.
	merged, baseOnly built
}

// contents are a route configuration and its virtual hosts.
type contents struct {
	base  *stream.Resource // or nil
	hosts *stream.Set
}

// inline reports whether the route configuration has its virtual hosts inside.
func (c contents) inline() bool { return c.base == nil || !vhds.IsBase(c.base.Body) }

// built is a resource that was built from contents.
type built struct {
	from     contents
	resource *stream.Resource
}

// awaitsHosts reports whether the virtual hosts have not come yet.
func (t *routeConfig) awaitsHosts() bool { return !t.hostsKnown && !t.offered.inline() }

// served is what Envoys get now.
func (t *routeConfig) served() contents {
	switch {
	case t.awaitsHosts():
		return t.accepted
	case t.bisection != nil:
		return t.bisection.current
	default:
		return t.accepted
	}
}

// merge returns the route configuration with its virtual hosts inside, nil if there is none
// now. Its version is a hash of the versions of its parts.
func (t *routeConfig) merge(c contents) (*stream.Resource, error) {
	if c.inline() {
		return c.base, nil
	}
	if t.merged.from == c {
		return t.merged.resource, nil
	}
	sum := sha256.New()
	note := func(r *stream.Resource) {
		_, _ = io.WriteString(sum, r.Name+"\x00"+r.Version+"\x00") // a hash takes everything
	}
	note(c.base)
	hosts := make([][]byte, 0, c.hosts.Len())
	for h := range c.hosts.All() {
		note(h)
		hosts = append(hosts, h.Body)
	}
	body, err := vhds.Merge(c.base.Body, hosts)
	if err != nil {
		return nil, err
	}
	t.merged = built{c, stream.NewResource(stream.RouteType, stream.Resource{
		Name: t.name, Version: hex.EncodeToString(sum.Sum(nil)[:16]), Body: body,
	})}
	return t.merged.resource, nil
}

// baseResource is the route configuration for an Envoy that gets the virtual hosts by VHDS.
func (t *routeConfig) baseResource(c contents) *stream.Resource {
	if t.baseOnly.from.base != c.base {
		t.baseOnly = built{contents{base: c.base}, stream.NewResource(stream.RouteType, stream.Resource{
			Name: t.name, Version: c.base.Version, Body: c.base.Body, Hosts: true,
		})}
	}
	return t.baseOnly.resource
}

// offerRoutes offers a batch of a route configuration with VHDS; false means that the batch is
// an ordinary resource.
func (c *core) offerRoutes(p *batch) bool {
	t := c.routeConfigs[p.routeConfig]
	if p.url == stream.VirtualHostType {
		p.bisected = true
		if t == nil {
			// Virtual hosts of an unknown route configuration are acknowledged at once, and
			// do not count as accepted if it comes again.
			c.forgotten[p.routeConfig] = struct{}{}
			return true
		}
		c.offerHosts(t, p)
		return true
	}
	byVHDS := len(p.changed) > 0 && vhds.IsBase(p.changed[0].Body)
	if t == nil {
		if !byVHDS {
			return false
		}
		t = &routeConfig{name: p.routeConfig, accepted: contents{base: c.accepted[stream.RouteType].Get(p.routeConfig)}}
		t.offered = t.accepted
		c.routeConfigs[p.routeConfig] = t
		if t.accepted.base != nil { // Envoys had it inline until now
			for _, q := range c.peers {
				q.vhds[t.name] = false
			}
		}
		c.offered[stream.RouteType] = c.offered[stream.RouteType].With(nil, []string{p.routeConfig})
		c.accepted[stream.RouteType] = c.accepted[stream.RouteType].With(nil, []string{p.routeConfig})
	}
	p.bisected = true
	if byVHDS {
		c.client.SubscribeAll(stream.VirtualHostType)
	}
	for _, r := range p.changed {
		delete(c.missing[p.url], r.Name)
		if c.skip(p, r) {
			return true
		}
		t.offered.base = r
	}
	for _, name := range p.removed {
		delete(c.missing[p.url], name)
		delete(c.rejected, key{p.url, name})
		t.offered.base = nil
	}
	if t.offered.inline() {
		t.hostsKnown = false
		t.offered.hosts = t.accepted.hosts // they are removed with the old route configuration, not before
	}
	c.startBisection(t)
	return true
}

func (c *core) offerHosts(t *routeConfig, p *batch) {
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
	if !t.offered.inline() {
		t.hostsKnown = true
	}
	c.startBisection(t)
}

// settleBisected rejects the resources of a batch that were replaced before they were
// accepted: a stream that broke off may have brought one version and the next stream another.
func (c *core) settleBisected(p *batch) {
	var now contents
	if t := c.routeConfigs[p.routeConfig]; t != nil {
		now = t.accepted
	} else {
		now.base = c.accepted[stream.RouteType].Get(p.routeConfig)
	}
	for _, r := range p.changed {
		is := now.base
		if p.url == stream.VirtualHostType {
			is = now.hosts.Get(r.Name)
		}
		said := slices.ContainsFunc(p.from.refusals, func(f stream.RejectedResource) bool { return f.Name == r.Name })
		if !said && (is == nil || is.Version != r.Version) {
			p.from.refusals = append(p.from.refusals, stream.RejectedResource{Name: r.Name, Reason: "another version took its place"})
		}
	}
}

// dropRouteConfig removes a route configuration with its virtual hosts.
func (c *core) dropRouteConfig(name string) {
	t := c.routeConfigs[name]
	if t == nil {
		return
	}
	for k := range c.rejected {
		if k.url == stream.VirtualHostType && strings.HasPrefix(k.name, name+vhds.Separator) {
			delete(c.rejected, k)
		}
	}
	delete(c.routeConfigs, name)
	for _, p := range c.peers {
		delete(p.vhds, name)
		delete(p.inlineOnly, name)
	}
	c.forgotten[name] = struct{}{}
}

// usesVHDS reports whether a peer gets the virtual hosts by VHDS. The form stays as it is,
// unless Envoy rejects something: then they are inline for the rest of the stream.
func (p *peer) usesVHDS(t *routeConfig, c contents) bool {
	if c.inline() || !vhds.Supported(p.version.Major, p.version.Minor) || p.inlineOnly[t.name] {
		return false
	}
	p.vhds[t.name] = vhds.Use(c.hosts.Len(), p.form(t.name))
	return p.vhds[t.name]
}

// form is the form in which a peer has a route configuration.
func (p *peer) form(name string) vhds.Form {
	switch is, ok := p.vhds[name]; {
	case ok && is:
		return vhds.Separate
	case ok:
		return vhds.Inline
	default:
		return vhds.Unknown
	}
}

// applyReportedVersions lets an Envoy that reconnects keep each route configuration in the
// form that it reports by its version.
func (c *core) applyReportedVersions(p *peer, versions map[string]string) {
	changed := false
	for name, version := range versions {
		t := c.routeConfigs[name]
		if t == nil || t.served().base == nil {
			continue
		}
		byVHDS := version == t.served().base.Version
		if is, ok := p.vhds[name]; !ok || is != byVHDS {
			p.vhds[name], changed = byVHDS, true
		}
	}
	if changed && c.number > 0 {
		p.protocol.SetGeneration(c.generation(p))
	}
}
