package view

import "slices"

// serviceLayer makes a layer of the parts of all services. Usually another scopeState has
// an equal layer: to find it costs less than to hash all parts.
func (x *Index) serviceLayer(name string, services []*serviceParts, of func(*serviceParts) []Part) *Layer {
	n := 0
	for _, p := range services {
		n += len(of(p))
	}
	for _, l := range x.recentLayers.named(name) {
		if len(l.Parts) == n && consistsOf(l.Parts, services, of) {
			return l
		}
	}
	parts := make([]Part, 0, n)
	for _, p := range services {
		parts = append(parts, of(p)...)
	}
	l := x.layer(name, parts)
	x.recentLayers.add(l)
	return l
}

func consistsOf(parts []Part, services []*serviceParts, of func(*serviceParts) []Part) bool {
	for _, p := range services {
		list := of(p)
		if len(list) > 0 && (len(list) > len(parts) || !slices.Equal(parts[:len(list)], list)) {
			return false
		}
		parts = parts[len(list):]
	}
	return len(parts) == 0
}
