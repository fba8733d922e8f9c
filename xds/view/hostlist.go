package view

import (
	"cmp"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// listID tells the lists of hosts apart that tables are made of.
type listID struct {
	egress int
	port   uint32 // 0 for all
}

// hostList is the virtual hosts of a port, sorted by name.
type hostList struct {
	hosts []*VirtualHost
	// made are the names of those that a VirtualService made.
	made map[mesh.Key][]string
	// any is set if one of them takes unknown hosts.
	any bool
	// crowded is set if one of them lacks a name that another one has.
	crowded bool
}

// find is the host of a name; or nil.
func (l *hostList) find(name string) *VirtualHost {
	if l == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(l.hosts, name, compareNames)
	if !ok {
		return nil
	}
	return l.hosts[i]
}

// routesOf are those that a VirtualService made.
func (l *hostList) routesOf(key mesh.Key) []*Route {
	if l == nil || len(l.made[key]) == 0 {
		return nil
	}
	return l.find(l.made[key][0]).Routes
}

func (l *hostList) byDomain() map[string]*VirtualHost {
	out := map[string]*VirtualHost{}
	for _, vh := range l.hosts {
		for _, d := range vh.Domains {
			out[d] = vh
		}
	}
	return out
}

// tableBuilder makes the virtual hosts of one port.
type tableBuilder struct {
	sc *scope
	e  *egress
	// port is the port whose services are in the table; 0 for all, as in a
	// table for an HTTP proxy or a unix socket.
	port uint32
	// prev is the list of before, or nil: what is in it stays the same pointer.
	prev *hostList

	*tableScratch
	sorted []mesh.Hostname
	owner  func(mesh.Hostname) *virtualService
	hosts  []hostBy
	// crowded is that of the list.
	crowded bool
}

// tableScratch is what a tableBuilder needs only while it works.
type tableScratch struct {
	byHost  map[mesh.Hostname]*service
	taken   map[mesh.Hostname]bool
	names   map[string]bool
	domains map[string]bool
	known   map[string]bool
}

func newTableScratch() *tableScratch {
	return &tableScratch{
		byHost: map[mesh.Hostname]*service{}, taken: map[mesh.Hostname]bool{},
		names: map[string]bool{}, domains: map[string]bool{}, known: map[string]bool{},
	}
}

func (t *tableScratch) clear() {
	clear(t.byHost)
	clear(t.taken)
	clear(t.names)
	clear(t.domains)
	clear(t.known)
}

// hostBy is a virtual host and whose it is; zero if it is the service's own.
type hostBy struct {
	*VirtualHost
	by mesh.Key
}

// routed is a list of routes with who gets them on one port.
type routed struct {
	port     uint32
	services []*service
	hosts    []string
	routes   []*Route
	origins  []*mesh.Origin
	by       mesh.Key
}

func newTableBuilder(sc *scope, id listID) *tableBuilder {
	return &tableBuilder{sc: sc, e: sc.egress[id.egress], port: id.port}
}

// begin gives the builder its scratch, until end is called.
func (b *tableBuilder) begin() (end func()) {
	scratch, _ := b.sc.scratch.Get().(*tableScratch)
	if scratch == nil {
		scratch = newTableScratch()
	}
	b.tableScratch = scratch
	return func() {
		scratch.clear()
		b.sc.scratch.Put(scratch)
		b.tableScratch = nil
	}
}

// list makes all virtual hosts.
func (b *tableBuilder) list(prev *hostList) *hostList {
	b.prev = prev
	defer b.begin()()
	b.build()
	slices.SortStableFunc(b.hosts, func(x, y hostBy) int { return cmp.Compare(x.Name, y.Name) })
	out := &hostList{hosts: make([]*VirtualHost, len(b.hosts)), made: map[mesh.Key][]string{}, any: b.domains["*"], crowded: b.crowded}
	for i, h := range b.hosts {
		out.hosts[i] = h.VirtualHost
		if h.by != (mesh.Key{}) {
			out.made[h.by] = append(out.made[h.by], h.Name)
		}
	}
	if prev != nil && slices.Equal(prev.hosts, out.hosts) {
		out.hosts = prev.hosts
	}
	return out
}

// manyEdits is from how many on it pays to index the services.
const manyEdits = 8

// edited is a list with the routes of VirtualServices as they are now; the list
// itself if that makes no difference.
func (b *tableBuilder) edited(list *hostList, edits []mesh.Delta[*virtualService]) *hostList {
	if len(edits) >= manyEdits {
		defer b.begin()()
		b.index()
	}
	out := &hostList{made: list.made, any: list.any, crowded: list.crowded} // hosts follow when some differ
	for _, c := range edits {
		made := list.made[c.New.Key]
		before, after := list.routesOf(c.New.Key), b.routesOf(c.New)
		switch {
		case len(made) == 0 && (len(after) == 0 || len(b.routesOf(c.Old)) > 0):
			continue
		case len(made) == 0, len(after) == 0: // it may have hosts now, or has none any more
			return newTableBuilder(b.sc, b.id()).list(list)
		case slices.Equal(before, after):
			continue
		}
		if out.hosts == nil {
			out.hosts = slices.Clone(list.hosts)
		}
		for _, name := range made {
			i, _ := slices.BinarySearchFunc(list.hosts, name, compareNames)
			out.hosts[i] = b.rerouted(list.hosts[i], after, c)
		}
	}
	if out.hosts == nil {
		return list
	}
	return out
}

// rerouted is a virtual host with what its VirtualService makes of it now.
func (b *tableBuilder) rerouted(h *VirtualHost, routes []*Route, c mesh.Delta[*virtualService]) *VirtualHost {
	vh := &VirtualHost{Name: h.Name, Domains: h.Domains, Routes: routes}
	vh.origins = slices.Clone(h.origins)
	for j, o := range vh.origins {
		if o == c.Old.Origin {
			vh.origins[j] = c.New.Origin
		}
	}
	vh.origins = originsOf(vh.origins...)
	return b.sc.hosts.of(vh)
}

func (b *tableBuilder) id() listID {
	return listID{slices.Index(b.sc.egress, b.e), b.port}
}
