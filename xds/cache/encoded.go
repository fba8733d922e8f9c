package cache

import (
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// encoded is the resources of one part of a view, or of one virtual host of one,
// encoded once. Origins are those of the view's part.
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
	arena *stream.Arena // nil where few are new
	layer *layer
}

// partInput is a part of a view by itself.
type partInput struct{ Part view.Part }

func (in partInput) build(b *builder) encoded {
	list, diagnostics := envoy.Build(in.Part)
	e := b.encode(list...)
	for _, r := range e.resources {
		r.Refs = routesOf(in.Part)
	}
	e.diagnostics = diagnostics
	return e
}

// hostInput is one virtual host of a table, as it travels by itself.
type hostInput struct {
	Table string
	Host  *view.VirtualHost
}

func (in hostInput) build(b *builder) encoded {
	r, diagnostics := envoy.BuildHost(in.Table, in.Host)
	e := b.encode(r)
	e.diagnostics = diagnostics
	return e
}

// baseInput is the route configuration of a table whose virtual hosts travel by
// themselves (VHDS), and the virtual host for everything else.
type baseInput struct {
	Table    string
	CatchAll *view.CatchAll
}

func (in baseInput) build(b *builder) encoded {
	list := []envoy.Resource{envoy.BuildShell(in.Table)}
	if in.CatchAll != nil {
		list = append(list, envoy.BuildCatchAll(in.Table, *in.CatchAll))
	}
	e := b.encode(list...)
	e.resources[0].Hosts = true
	return e
}

// inlineInput is a table with its virtual hosts in it. They and its base are parts of the
// layer that is built.
type inlineInput struct{ Table *view.RouteConfiguration }

func (in inlineInput) build(b *builder) encoded {
	var out envoy.Table
	for i := range len(in.Table.VirtualHosts) + 1 {
		for _, r := range b.layer.parts[i].resources {
			if e := (envoy.Resource{Name: r.Name, Body: r.Body}); r.Hosts {
				out.Shell = e
			} else {
				out.Hosts = append(out.Hosts, e)
			}
		}
	}
	return b.encode(out.Whole())
}

// encode makes of what package envoy has built what streams send.
func (b *builder) encode(list ...envoy.Resource) encoded {
	e := encoded{resources: make([]resource, 0, len(list))}
	for _, r := range list {
		url := stream.TypeURL(r.TypeURL)
		e.resources = append(e.resources, resource{url, b.arena.NewResource(url, stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body})})
		b.Work.Encoded.Of(url).Add(1, len(r.Body))
	}
	return e
}

// routesOf are the route configurations that a listener asks for.
func routesOf(p view.Part) []string {
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
