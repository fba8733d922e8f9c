package cache

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// Delivery is how route tables travel. A table that cannot be split has its virtual
// hosts inline in any.
type Delivery uint8

// The kinds of Delivery.
const (
	// Inline route tables have their virtual hosts in them, for Envoys that cannot do
	// otherwise.
	Inline Delivery = iota
	// VHDS has the virtual hosts of all tables travel by themselves, for clients that
	// put them together again.
	VHDS
	// Auto is a proxy's, and no layer's: the one or the other, as [fold.Split] says of
	// each table.
	Auto
)

// Routes is how the route tables of a proxy travel. The zero value is all inline.
type Routes struct {
	Delivery Delivery
	// Inline are the layers of tables that are inline all the same, after a refusal:
	// their names, each with a line break behind it ([Routes.WithInline]). Kept are
	// those of tables that stay as the proxy has them, where another one would be
	// given the other.
	Inline, Kept string
}

// WithInline has the table of a layer travel inline, whatever else is said.
func (r Routes) WithInline(layer string) Routes {
	if !lists(r.Inline, layer) {
		r.Inline += layer + "\n"
	}
	return r
}

// lists reports whether a name is among some, each with a line break behind it.
func lists(names, name string) bool {
	return names != "" && strings.Contains("\n"+names, "\n"+name+"\n")
}

// of is how a layer travels. Those that have no route table are the same in all
// ways, and shared by proxies of all kinds.
func (r Routes) of(l *view.Layer) Delivery {
	t := tableOf(l)
	switch {
	case t == nil || lists(r.Inline, l.Name):
		return Inline
	case r.Delivery != Auto:
		return r.Delivery
	case fold.Split(len(t.VirtualHosts), fold.Unknown) != lists(r.Kept, l.Name):
		return VHDS
	default:
		return Inline
	}
}

// keeping is what a proxy is given that keeps of its tables what it has.
func (r Routes) keeping(v *view.View, had Configuration) Routes {
	r.Kept = ""
	if r.Delivery != Auto || had.Resources == nil && had.Listed == nil {
		return r
	}
	for i, l := range v.Layers {
		t := tableOf(l)
		if t == nil {
			continue
		}
		n := len(t.VirtualHosts)
		if fold.Split(n, had.has(i, l.Name)) != fold.Split(n, fold.Unknown) {
			r.Kept += l.Name + "\n"
		}
	}
	return r
}

// tableOf is the route table that a layer consists of, or nil.
func tableOf(l *view.Layer) *view.RouteConfiguration {
	if !isRoutes(l.Name) || len(l.Parts) != 1 {
		return nil
	}
	t, _ := l.Parts[0].(*view.RouteConfiguration)
	return t
}

// isRoutes reports whether a layer is a route table.
func isRoutes(layer string) bool { return strings.HasPrefix(layer, view.RoutesLayer) }

// has is how the proxy had the table of a layer, which most likely stood at i.
func (c Configuration) has(i int, name string) fold.Form {
	if is, ok := c.Listed[name]; ok {
		return is
	}
	if c.Resources == nil {
		return fold.Unknown
	}
	layers := c.Resources.layers
	if i >= len(layers) || layers[i].Layer.Name != name {
		i = slices.IndexFunc(layers, func(l *layer) bool { return l.Layer.Name == name })
	}
	switch {
	case i < 0:
		return fold.Unknown
	case layers[i].Delivery == VHDS:
		return fold.InPieces
	default:
		return fold.Whole
	}
}

// Reported is how a proxy has its route tables by the versions that it names, by the
// names of their layers; nil if that makes no difference to what it shall have.
func (c Configuration) Reported(r Routes, versions []stream.Version) map[string]fold.Form {
	if r.Delivery != Auto || c.Resources == nil {
		return nil
	}
	named := map[string]string{} // of the tables that there are, and there are few
	for _, l := range c.View.Layers {
		if t := tableOf(l); t != nil {
			named[t.Name] = ""
		}
	}
	for _, v := range versions {
		if _, ours := named[v.Name]; ours {
			named[v.Name] = v.Version
		}
	}
	had := c
	had.Listed = map[string]fold.Form{}
	for _, l := range c.View.Layers {
		t := tableOf(l)
		if t == nil || named[t.Name] == "" {
			continue
		}
		had.Listed[l.Name] = fold.Whole
		if envoy.Splittable(t) && named[t.Name] == envoy.BuildShell(t.Name).Version {
			had.Listed[l.Name] = fold.InPieces
		}
	}
	if r.keeping(c.View, had) == c.from.Routes {
		return nil
	}
	return had.Listed
}

// Routes is how the route tables travel.
func (c Configuration) Routes() Routes { return c.from.Routes }
