package cache

import (
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// encoded is the encoded resources of one part of a view, or of one virtual host. Origins
// are those of the view's part.
type encoded struct {
	resources   []resource
	diagnostics []envoy.Diagnostic
}

// resource is an encoded resource, and its type.
type resource struct {
	url stream.TypeURL
	*stream.Resource
}

// builder builds the parts of one layer.
type builder struct {
	*Cache
	arena *stream.Arena // nil if few parts are new
	layer *layer
}

// partInput is a part of a view.
type partInput struct{ Part view.Part }

func (in partInput) build(b *builder) encoded {
	list, diagnostics := envoy.Build(in.Part)
	e := b.encode(list...)
	for _, r := range e.resources {
		r.Refs = routeNamesOf(in.Part)
	}
	e.diagnostics = diagnostics
	return e
}

// virtualHostInput is one virtual host of a route configuration, as it is sent by VHDS.
type virtualHostInput struct {
	RouteConfiguration string
	Host               *view.VirtualHost
}

func (in virtualHostInput) build(b *builder) encoded {
	r, diagnostics := envoy.BuildVirtualHost(in.RouteConfiguration, in.Host)
	e := b.encode(r)
	e.diagnostics = diagnostics
	return e
}

// vhdsBaseInput is a route configuration without its virtual hosts, which are sent by VHDS,
// and the virtual host for unknown hosts.
type vhdsBaseInput struct {
	RouteConfiguration string
	AllPorts           bool
	CatchAll           *view.CatchAll
}

func (in vhdsBaseInput) build(b *builder) encoded {
	list := []envoy.Resource{envoy.BuildVHDSBase(in.RouteConfiguration, in.AllPorts)}
	if in.CatchAll != nil {
		list = append(list, envoy.BuildCatchAll(in.RouteConfiguration, *in.CatchAll))
	}
	e := b.encode(list...)
	e.resources[0].Hosts = true
	return e
}

// inlineInput is a route configuration that contains its virtual hosts. They and the base
// are parts of the layer that is built.
type inlineInput struct{ RouteConfiguration *view.RouteConfiguration }

func (in inlineInput) build(b *builder) encoded {
	var out envoy.VHDSRoutes
	for i := range len(in.RouteConfiguration.VirtualHosts) + 1 {
		for _, r := range b.layer.parts[i].resources {
			if e := (envoy.Resource{Name: r.Name, Body: r.Body}); r.Hosts {
				out.Base = e
			} else {
				out.VirtualHosts = append(out.VirtualHosts, e)
			}
		}
	}
	return b.encode(out.Inline())
}

// encode turns resources of package envoy into resources of streams.
func (b *builder) encode(list ...envoy.Resource) encoded {
	e := encoded{resources: make([]resource, 0, len(list))}
	for _, r := range list {
		url := stream.TypeURL(r.TypeURL)
		e.resources = append(e.resources, resource{url, b.arena.NewResource(url, stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body})})
		b.Work.Encoded.Of(url).Add(1, len(r.Body))
	}
	return e
}

// routeNamesOf are the route configurations that a listener requests.
func routeNamesOf(p view.Part) []string {
	l, ok := p.(*view.Listener)
	if !ok {
		return nil
	}
	refs := []string{}
	for _, c := range l.Chains {
		refs = addRoute(refs, c)
	}
	return addRoute(refs, l.Default)
}

func addRoute(refs []string, c *view.FilterChain) []string {
	if c == nil || c.HTTP == nil || c.HTTP.RouteName == "" {
		return refs
	}
	return append(refs, c.HTTP.RouteName)
}
