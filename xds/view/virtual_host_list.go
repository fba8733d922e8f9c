package view

import (
	"cmp"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// hostListID identifies a list of virtual hosts, from which route configurations are made.
type hostListID struct {
	egress int    // index of the egress listener
	port   uint32 // 0 for all
}

// virtualHostList is the virtual hosts of one port, sorted by name.
type virtualHostList struct {
	hosts []*VirtualHost
	// byVirtualService has the names of the virtual hosts that come from a VirtualService.
	byVirtualService map[mesh.Key][]string
	// hasWildcard is set if one of them is for any host.
	hasWildcard bool
	// hasConflict is set if one of them lacks a domain because another one has it.
	hasConflict bool
}

// find returns the virtual host of a name; or nil.
func (l *virtualHostList) find(name string) *VirtualHost {
	if l == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(l.hosts, name, compareNames)
	if !ok {
		return nil
	}
	return l.hosts[i]
}

// routesOf are the routes that come from a VirtualService.
func (l *virtualHostList) routesOf(key mesh.Key) []*Route {
	if l == nil || len(l.byVirtualService[key]) == 0 {
		return nil
	}
	return l.find(l.byVirtualService[key][0]).Routes
}

func (l *virtualHostList) byDomain() map[string]*VirtualHost {
	out := map[string]*VirtualHost{}
	for _, vh := range l.hosts {
		for _, d := range vh.Domains {
			out[d] = vh
		}
	}
	return out
}

// virtualHostBuilder makes the virtual hosts of one port.
type virtualHostBuilder struct {
	sc     *sidecarScope
	egress *egressListener
	// port is the port whose services are included; 0 for all, as for an HTTP proxy or a
	// Unix socket.
	port uint32
	// gateway is the server of a Gateway whose routes are made, for a VirtualService of a
	// namespace; nil for sidecars.
	gateway   *mesh.GatewayServer
	namespace string
	http3     bool // the server has HTTP/3, too
	// prev is the previous list, or nil. Unchanged virtual hosts stay the same pointer.
	prev *virtualHostList

	*builderScratch
	sorted            []mesh.Hostname
	virtualServiceFor func(mesh.Hostname) *virtualService
	hosts             []builtHost
	// hasConflict is set as in virtualHostList.
	hasConflict bool
}

// builderScratch is memory that a virtualHostBuilder needs only while it works.
type builderScratch struct {
	byHost         map[mesh.Hostname]*service
	routedServices map[mesh.Hostname]bool
	names          map[string]bool
	domains        map[string]bool
	serviceHosts   map[string]bool
}

func newBuilderScratch() *builderScratch {
	return &builderScratch{
		byHost: map[mesh.Hostname]*service{}, routedServices: map[mesh.Hostname]bool{},
		names: map[string]bool{}, domains: map[string]bool{}, serviceHosts: map[string]bool{},
	}
}

func (t *builderScratch) clear() {
	clear(t.byHost)
	clear(t.routedServices)
	clear(t.names)
	clear(t.domains)
	clear(t.serviceHosts)
}

// builtHost is a virtual host, and the VirtualService that it comes from; zero if there is
// none.
type builtHost struct {
	*VirtualHost
	source mesh.Key
}

// hostRoutes is a list of routes, and the hosts and services that have them on one port.
type hostRoutes struct {
	port     uint32
	services []*service
	hosts    []string
	routes   []*Route
	origins  []*mesh.Origin
	source   mesh.Key
}

func newVirtualHostBuilder(sc *sidecarScope, id hostListID) *virtualHostBuilder {
	return &virtualHostBuilder{sc: sc, egress: sc.egress[id.egress], port: id.port}
}

// begin gives the builder its scratch memory, until end is called.
func (b *virtualHostBuilder) begin() (end func()) {
	scratch, _ := b.sc.scratch.Get().(*builderScratch)
	if scratch == nil {
		scratch = newBuilderScratch()
	}
	b.builderScratch = scratch
	return func() {
		scratch.clear()
		b.sc.scratch.Put(scratch)
		b.builderScratch = nil
	}
}

// list makes all virtual hosts.
func (b *virtualHostBuilder) list(prev *virtualHostList) *virtualHostList {
	b.prev = prev
	defer b.begin()()
	b.build()
	slices.SortStableFunc(b.hosts, func(x, y builtHost) int { return cmp.Compare(x.Name, y.Name) })
	out := &virtualHostList{hosts: make([]*VirtualHost, len(b.hosts)), byVirtualService: map[mesh.Key][]string{}, hasWildcard: b.domains["*"], hasConflict: b.hasConflict}
	for i, h := range b.hosts {
		out.hosts[i] = h.VirtualHost
		if h.source != (mesh.Key{}) {
			out.byVirtualService[h.source] = append(out.byVirtualService[h.source], h.Name)
		}
	}
	if prev != nil && slices.Equal(prev.hosts, out.hosts) {
		out.hosts = prev.hosts
	}
	return out
}

// manyEdits is the number of edits from which it is worth indexing the services.
const manyEdits = 8

// withRouteChanges returns a list with the new routes of VirtualServices; the list itself
// if they make no difference.
func (b *virtualHostBuilder) withRouteChanges(list *virtualHostList, edits []mesh.Delta[*virtualService]) *virtualHostList {
	if len(edits) >= manyEdits {
		defer b.begin()()
		b.indexServices()
	}
	out := &virtualHostList{byVirtualService: list.byVirtualService, hasWildcard: list.hasWildcard, hasConflict: list.hasConflict} // hosts is copied when one differs
	for _, c := range edits {
		made := list.byVirtualService[c.New.Key]
		before, after := list.routesOf(c.New.Key), b.routesOf(c.New)
		switch {
		case len(made) == 0 && (len(after) == 0 || len(b.routesOf(c.Old)) > 0):
			continue
		case len(made) == 0, len(after) == 0: // the number of virtual hosts may change
			return newVirtualHostBuilder(b.sc, b.id()).list(list)
		case slices.Equal(before, after):
			continue
		}
		if out.hosts == nil {
			out.hosts = slices.Clone(list.hosts)
		}
		for _, name := range made {
			i, _ := slices.BinarySearchFunc(list.hosts, name, compareNames)
			out.hosts[i] = b.withRoutes(list.hosts[i], after, c)
		}
	}
	if out.hosts == nil {
		return list
	}
	return out
}

// withRoutes is a virtual host with the new routes of its VirtualService.
func (b *virtualHostBuilder) withRoutes(h *VirtualHost, routes []*Route, c mesh.Delta[*virtualService]) *VirtualHost {
	vh := &VirtualHost{Name: h.Name, Domains: h.Domains, Routes: routes, NoAttemptCount: h.NoAttemptCount}
	vh.origins = slices.Clone(h.origins)
	for j, o := range vh.origins {
		if o == c.Old.Origin {
			vh.origins[j] = c.New.Origin
		}
	}
	vh.origins = originsOf(vh.origins...)
	return b.sc.virtualHosts.intern(vh)
}

func (b *virtualHostBuilder) id() hostListID {
	return hostListID{slices.Index(b.sc.egress, b.egress), b.port}
}
