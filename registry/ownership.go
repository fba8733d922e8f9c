package registry

import "github.com/fairlead/fairlead/registry/mesh"

// bindings are those of the sources, in their order; nil if there are none.
func (c *Config) bindings() []*mesh.Binding {
	if len(c.Bindings) == 0 {
		return nil
	}
	out := make([]*mesh.Binding, len(c.Sources))
	for i, s := range c.Sources {
		out[i] = c.Bindings[s.Name()]
	}
	return out
}
