package xds

import (
	"sync"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// part is the resources of one part of a view, or of a piece of one, encoded
// once. Origins are those of the view's part.
type part struct {
	once        sync.Once
	resources   []made
	diagnostics []envoy.Diagnostic
	built       bool // false where the builder met a fault
}

// made is an encoded resource, and its type.
type made struct {
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

// shellInput is the route configuration of a table whose hosts travel by themselves.
type shellInput struct{ Table string }

func (in shellInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	return []envoy.Resource{envoy.BuildShell(in.Table)}, nil
}
func (in shellInput) describe(r *stream.Resource) { r.Hosts = true }

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

// wholeInput is a table in one piece: its shell and its pieces, which are what from makes
// of its hosts.
type wholeInput struct {
	described
	Table *view.RouteTable

	from   *builder
	pieces []*part
}

func (in wholeInput) build() ([]envoy.Resource, []envoy.Diagnostic) {
	shell := in.from.part(shellInput{in.Table.Name}).resources[0]
	out := envoy.Table{Shell: envoy.Resource{Name: shell.Name, Body: shell.Body}}
	for _, p := range in.pieces {
		for _, r := range p.resources {
			out.Hosts = append(out.Hosts, envoy.Resource{Name: r.Name, Body: r.Body})
		}
	}
	return []envoy.Resource{out.Whole()}, nil
}

// builder builds the parts of one layer.
type builder struct {
	classes *classes
	arena   *stream.Arena // nil where few are new
}

// part finds or builds what is made from an input.
func (b *builder) part(in input) *part {
	p := b.classes.parts.get(view.ContentHash(in))
	p.once.Do(func() {
		var list []envoy.Resource
		list, p.diagnostics = in.build()
		p.resources = make([]made, 0, len(list))
		for _, r := range list {
			res := stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body}
			in.describe(&res)
			url := stream.TypeURL(r.TypeURL)
			p.resources = append(p.resources, made{url, b.arena.NewResource(url, res)})
			b.classes.work.built[typeIndex(url)].add(1, len(r.Body))
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
