package xds

import (
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
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

// pieceKind says what of a part is built.
type pieceKind uint8

const (
	wholePart pieceKind = iota
	tableShell
	tableHost
	tableCatchAll
)

// partKey is everything that a builder looks at.
type partKey struct {
	kind  pieceKind
	hash  mesh.Hash     // of the part or virtual host; zero of other pieces
	table string        // of pieces of a table
	catch view.CatchAll // of tableCatchAll
}

// builder builds the parts of one layer.
type builder struct {
	classes *classes
	arena   *stream.Arena // nil where few are new
}

// partOf finds or builds a part.
func (b *builder) partOf(k partKey, build func() ([]envoy.Resource, []envoy.Diagnostic), describe func(*stream.Resource)) *part {
	p := b.classes.parts.get(k)
	p.once.Do(func() {
		var list []envoy.Resource
		list, p.diagnostics = build()
		p.resources = make([]made, 0, len(list))
		for _, r := range list {
			res := stream.Resource{Name: r.Name, Version: r.Version, Body: r.Body}
			if describe != nil {
				describe(&res)
			}
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

// plain builds what is no route table.
func (b *builder) plain(vp view.Part) *part {
	return b.partOf(partKey{kind: wholePart, hash: vp.Hash()}, func() ([]envoy.Resource, []envoy.Diagnostic) { return envoy.Build(vp) },
		func(r *stream.Resource) { r.Refs = routesOf(vp) })
}

// shell builds the route configuration of a table whose hosts travel by
// themselves.
func (b *builder) shell(t *view.RouteTable) *part {
	return b.partOf(partKey{kind: tableShell, table: t.Name}, func() ([]envoy.Resource, []envoy.Diagnostic) {
		return []envoy.Resource{envoy.BuildShell(t)}, nil
	}, func(r *stream.Resource) { r.Hosts = true })
}

// host builds one virtual host, as it travels by itself.
func (b *builder) host(table string, h *view.VirtualHost) *part {
	return b.partOf(partKey{kind: tableHost, table: table, hash: h.Hash()}, func() ([]envoy.Resource, []envoy.Diagnostic) {
		r, d := envoy.BuildHost(table, h)
		return []envoy.Resource{r}, d
	}, nil)
}

// catchAll builds the virtual host for everything else.
func (b *builder) catchAll(t *view.RouteTable) *part {
	return b.partOf(partKey{kind: tableCatchAll, table: t.Name, catch: *t.CatchAll}, func() ([]envoy.Resource, []envoy.Diagnostic) {
		return []envoy.Resource{envoy.BuildCatchAll(t)}, nil
	}, nil)
}

// whole builds a table in one piece from its pieces.
func (b *builder) whole(t *view.RouteTable, pieces []*part) *part {
	return b.partOf(partKey{kind: wholePart, hash: t.Hash()}, func() ([]envoy.Resource, []envoy.Diagnostic) {
		shell := b.shell(t).resources[0]
		out := envoy.Table{Shell: envoy.Resource{Name: shell.Name, Body: shell.Body}}
		for _, p := range pieces {
			for _, r := range p.resources {
				out.Hosts = append(out.Hosts, envoy.Resource{Name: r.Name, Body: r.Body})
			}
		}
		return []envoy.Resource{out.Whole()}, nil
	}, nil)
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
