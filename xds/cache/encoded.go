package cache

import (
	"sync"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// encoded is the resources of one part of a view, or of one virtual host of one,
// encoded once. Origins are those of the view's part.
type encoded struct {
	once        sync.Once
	resources   []resource
	diagnostics []envoy.Diagnostic
	built       bool // false where the builder met a fault
}

// resource is an encoded resource, and its type.
type resource struct {
	url stream.TypeURL
	*stream.Resource
}

// input is everything that some resources are made from, in exported fields: they are
// found by the hash of all of it, and nothing that was read can be missing in a key.
type input interface {
	build() ([]envoy.Resource, []envoy.Diagnostic)
	// describe adds what the streams have to know of a resource.
	describe(r *stream.Resource)
}

// described is what most resources say of themselves: nothing.
type described struct{}

func (described) describe(*stream.Resource) {}

// plainInput is a part that is no route table.
type plainInput struct{ Part view.Part }

func (in plainInput) build() ([]envoy.Resource, []envoy.Diagnostic) { return envoy.Build(in.Part) }
func (in plainInput) describe(r *stream.Resource)                   { r.Refs = routesOf(in.Part) }

// baseInput is the route configuration of a table whose hosts travel by themselves (VHDS).
type baseInput struct{ Table string }

func (in baseInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	return []envoy.Resource{envoy.BuildShell(in.Table)}, nil
}
func (in baseInput) describe(r *stream.Resource) { r.Hosts = true }

// hostInput is one virtual host, as it travels by itself.
type hostInput struct {
	described
	Table string
	Host  *view.VirtualHost
}

func (in hostInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	r, d := envoy.BuildHost(in.Table, in.Host)
	return []envoy.Resource{r}, d
}

// catchAllInput is the virtual host for everything else.
type catchAllInput struct {
	described
	Table    string
	CatchAll view.CatchAll
}

func (in catchAllInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	return []envoy.Resource{envoy.BuildCatchAll(in.Table, in.CatchAll)}, nil
}

// inlineInput is a table with its virtual hosts in it: its base and hosts, which are
// what from makes of its hosts.
type inlineInput struct {
	described
	Table *view.RouteTable

	from  *builder
	hosts []*encoded
}

func (in inlineInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	base := in.from.encode(baseInput{in.Table.Name}).resources[0]
	out := envoy.Table{Shell: envoy.Resource{Name: base.Name, Body: base.Body}}
	for _, p := range in.hosts {
		for _, r := range p.resources {
			out.Hosts = append(out.Hosts, envoy.Resource{Name: r.Name, Body: r.Body})
		}
	}
	return []envoy.Resource{out.Whole()}, nil
}

// builder builds the parts of one layer.
type builder struct {
	cache *Cache
	arena *stream.Arena // nil where few are new
}

// encode finds or builds what is made from an input.
func (b *builder) encode(in input) *encoded {
	p := b.cache.encoded.get(view.ContentHash(in))
	p.once.Do(func() {
		var list []envoy.Resource
		list, p.diagnostics = in.build()
		p.resources = make([]resource, 0, len(list))
		for _, r := range list {
			res := stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body}
			in.describe(&res)
			url := stream.TypeURL(r.TypeURL)
			p.resources = append(p.resources, resource{url, b.arena.NewResource(url, res)})
			b.cache.Work.Encoded.Of(url).Add(1, len(r.Body))
		}
		p.built = true
	})
	if !p.built { // without the part, what is made from it would be removed
		panic("a part of it met a fault when another proxy's view was built")
	}
	return p
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

func addRoute(refs []string, c *view.Chain) []string {
	if c == nil || c.HTTP == nil || c.HTTP.RouteName == "" {
		return refs
	}
	return append(refs, c.HTTP.RouteName)
}
