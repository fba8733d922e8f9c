package cache

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// Delivery is how route configurations are sent. One that VHDS cannot name is always
// inline.
type Delivery uint8

// The kinds of Delivery.
const (
	// Inline route configurations contain their virtual hosts, for Envoys without VHDS.
	Inline Delivery = iota
	// VHDS sends the virtual hosts of all route configurations as resources of their own,
	// to clients that support it.
	VHDS
	// Auto is a setting of a proxy, not of a layer: [vhds.Use] decides for each route
	// configuration.
	Auto
)

// Routes is how the route configurations of a proxy are sent. The zero value is inline for
// all.
type Routes struct {
	Delivery Delivery
	// Inline are the layers of route configurations that are sent inline anyway, because
	// the proxy rejected VHDS: their names, each followed by a newline
	// ([Routes.WithInline]). Kept are the layers whose form stays as the proxy has it,
	// although a new proxy would get the other one.
	Inline, Kept string
}

// WithInline has the route configuration of a layer sent inline, whatever the other
// settings are.
func (r Routes) WithInline(layer string) Routes {
	if !containsLine(r.Inline, layer) {
		r.Inline += layer + "\n"
	}
	return r
}

// containsLine reports whether a name is among some, each followed by a newline.
func containsLine(names, name string) bool {
	return names != "" && strings.Contains("\n"+names, "\n"+name+"\n")
}

// of returns how a layer is sent. Layers without a route configuration are the same for all
// kinds of proxies, which share them.
func (r Routes) of(l *view.Layer) Delivery {
	t := routeConfigurationOf(l)
	switch {
	case t == nil || containsLine(r.Inline, l.Name):
		return Inline
	case r.Delivery != Auto:
		return r.Delivery
	case vhds.Use(len(t.VirtualHosts), vhds.Unknown) != containsLine(r.Kept, l.Name):
		return VHDS
	default:
		return Inline
	}
}

// keepForms has the proxy keep the forms of the route configurations that it has.
func (r Routes) keepForms(v *view.View, had Configuration) Routes {
	r.Kept = ""
	if r.Delivery != Auto || had.Resources == nil && had.ReportedForms == nil {
		return r
	}
	for i, l := range v.Layers {
		t := routeConfigurationOf(l)
		if t == nil {
			continue
		}
		n := len(t.VirtualHosts)
		if vhds.Use(n, had.form(i, l.Name)) != vhds.Use(n, vhds.Unknown) {
			r.Kept += l.Name + "\n"
		}
	}
	return r
}

// routeConfigurationOf is the route configuration that a layer consists of, or nil.
func routeConfigurationOf(l *view.Layer) *view.RouteConfiguration {
	if !isRouteLayer(l.Name) || len(l.Parts) != 1 {
		return nil
	}
	t, _ := l.Parts[0].(*view.RouteConfiguration)
	return t
}

// isRouteLayer reports whether a layer is a route configuration.
func isRouteLayer(layer string) bool { return strings.HasPrefix(layer, view.RoutesLayer) }

// form is how the proxy has the route configuration of a layer, which probably was at index
// i.
func (c Configuration) form(i int, name string) vhds.Form {
	if is, ok := c.ReportedForms[name]; ok {
		return is
	}
	if c.Resources == nil {
		return vhds.Unknown
	}
	layers := c.Resources.layers
	if i >= len(layers) || layers[i].Layer.Name != name {
		i = slices.IndexFunc(layers, func(l *layer) bool { return l.Layer.Name == name })
	}
	switch {
	case i < 0:
		return vhds.Unknown
	case layers[i].Delivery == VHDS:
		return vhds.Separate
	default:
		return vhds.Inline
	}
}

// FormsOf returns the forms in which a proxy has its route configurations, by the versions
// that it reports. The keys are the names of their layers. It returns nil if that makes no
// difference.
func (c Configuration) FormsOf(r Routes, versions []stream.Version) map[string]vhds.Form {
	if r.Delivery != Auto || c.Resources == nil {
		return nil
	}
	named := map[string]string{} // the few route configurations
	for _, l := range c.View.Layers {
		if t := routeConfigurationOf(l); t != nil {
			named[t.Name] = ""
		}
	}
	for _, v := range versions {
		if _, ours := named[v.Name]; ours {
			named[v.Name] = v.Version
		}
	}
	had := c
	had.ReportedForms = map[string]vhds.Form{}
	for _, l := range c.View.Layers {
		t := routeConfigurationOf(l)
		if t == nil || named[t.Name] == "" {
			continue
		}
		had.ReportedForms[l.Name] = vhds.Inline
		if envoy.SupportsVHDS(t) && named[t.Name] == envoy.BuildVHDSBase(t.Name, t.AllPorts).Version {
			had.ReportedForms[l.Name] = vhds.Separate
		}
	}
	if r.keepForms(c.View, had) == c.input.Routes {
		return nil
	}
	return had.ReportedForms
}

// Routes is how the route configurations are sent.
func (c Configuration) Routes() Routes { return c.input.Routes }
