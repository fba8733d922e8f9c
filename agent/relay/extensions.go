package relay

import (
	"slices"

	"github.com/fairlead/fairlead/xds/ecds"
	"github.com/fairlead/fairlead/xds/stream"
)

// An Envoy does not serve a listener before it has the extensions that the listener names,
// and has no other way to them than this relay while no server is reachable. So a listener
// and its extensions are stored in one write, and an extension is kept as long as an accepted
// listener names it.

// noteExtensions records which extensions accepted listeners name.
func (c *core) noteExtensions(listeners []*stream.Resource, removed []string) {
	for _, name := range removed {
		delete(c.extensions, name)
	}
	for _, l := range listeners {
		if names := ecds.Names(l.Body); len(names) > 0 {
			c.extensions[l.Name] = names
		} else {
			delete(c.extensions, l.Name)
		}
	}
}

// whole reports whether the accepted state has all extensions that its listeners name. Envoy
// accepts a listener before it asks for them: until they have come, what is stored stays. One
// that Envoy rejects, and of which there is no other version, is not waited for.
func (c *core) whole() bool {
	for _, names := range c.extensions {
		for _, name := range names {
			_, rejected := c.rejected[key{stream.ExtensionType, name}]
			if c.accepted[stream.ExtensionType].Get(name) == nil && !rejected {
				return false
			}
		}
	}
	return true
}

// unused returns those extensions that no accepted listener names, and no Envoy subscribes to.
func (c *core) unused(names []string) []string {
	var out []string
	for _, name := range names {
		named := c.subscribedTo(key{stream.ExtensionType, name})
		for _, of := range c.extensions {
			named = named || slices.Contains(of, name)
		}
		if !named {
			out = append(out, name)
		}
	}
	return out
}

// subscribedTo reports whether an Envoy subscribes to a name.
func (c *core) subscribedTo(k key) bool {
	return slices.ContainsFunc(c.peers, func(p *peer) bool { return p.names[k] })
}
