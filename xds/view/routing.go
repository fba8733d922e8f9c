package view

import (
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// routingKey is everything that the routing of a proxy depends on in a realm.
type routingKey struct {
	interception Interception
	domain       string
	// taken are the addresses that its outbound listeners must leave free; or nil.
	taken *addressSet
}

func (k routingKey) build(*realm) *routing { return &routing{key: k} }

// addressSet is some addresses of listeners.
type addressSet struct{ Addresses []listenerKey }

func (s *addressSet) all() []listenerKey {
	if s == nil {
		return nil
	}
	return s.Addresses
}

// routing is the part of a realm by which the proxies' own requests find their
// clusters. Endpoints have no part in it. Guarded by the realm's mu.
type routing struct {
	key   routingKey
	names []string // of the tables, sorted; in step with view.tables
	lists map[listID]*hostList
	view  *routingView
}

// routingView is what came of it. Immutable.
type routingView struct {
	listeners *Layer
	tables    []*Layer
	warnings  []Warning
}

// scopeOf is the scope as the proxies of this routing have it.
func (r *routing) scopeOf(sc *scope) *scope {
	st, out := *sc.site, *sc
	st.proxy.Interception, st.domain = r.key.interception, r.key.domain
	out.site = &st
	return &out
}

// build works all of it out.
func (r *routing) build(sc *scope) {
	sc = r.scopeOf(sc)
	v := &routingView{}
	o := &outbound{sc: sc, taken: r.key.taken.all(), prev: r.view.byName()}
	listeners, names := o.listeners()
	v.warnings = o.warnings
	v.listeners = sc.layer(ListenersLayer, listeners)
	lists := map[listID]*hostList{}
	var tables []string
	byDomain := map[listID]map[string]*VirtualHost{}
	for _, name := range names {
		id, sniffed, ok := sc.listOf(name)
		if !ok {
			continue
		}
		if lists[id] == nil {
			lists[id] = newTableBuilder(sc, id).list(r.lists[id])
		}
		if have := r.table(name); have != nil && r.lists[id] != nil && sameList(lists[id].hosts, r.lists[id].hosts) {
			tables = append(tables, name)
			v.tables = append(v.tables, have)
			continue
		}
		if sniffed != "" && byDomain[id] == nil {
			byDomain[id] = lists[id].byDomain()
		}
		tables = append(tables, name)
		v.tables = append(v.tables, sc.tableLayer(name, lists[id], byDomain[id]))
	}
	r.lists, r.names, r.view = lists, tables, r.view.or(v)
}

// table is the one of a name that there is; or nil.
func (r *routing) table(name string) *Layer {
	if i, ok := slices.BinarySearch(r.names, name); ok {
		return r.view.tables[i]
	}
	return nil
}

// byName are the listeners of a view, which may be nil.
func (v *routingView) byName() map[string]*Listener {
	out := map[string]*Listener{}
	if v == nil {
		return out
	}
	for _, p := range v.listeners.Parts {
		if l, ok := p.(*Listener); ok {
			out[l.Name] = l
		}
	}
	return out
}

// or is the old view if the new one is the same.
func (v *routingView) or(o *routingView) *routingView {
	if v != nil && same(v, o) {
		return v
	}
	return o
}

// edit makes the changes of VirtualServices that change nothing but what becomes
// of requests.
func (r *routing) edit(sc *scope, edits []mesh.Delta[*virtualService]) {
	sc = r.scopeOf(sc)
	touched := map[listID]bool{}
	for id, list := range r.lists {
		if next := newTableBuilder(sc, id).edited(list, edits); next != list {
			r.lists[id], touched[id] = next, true
		}
	}
	if len(touched) > 0 {
		r.relist(sc, touched, &routingView{listeners: r.view.listeners, warnings: r.view.warnings})
	}
}

// relist makes the tables anew whose lists were touched, for a view that has all
// else.
func (r *routing) relist(sc *scope, touched map[listID]bool, v *routingView) {
	v.tables = slices.Clone(r.view.tables)
	byDomain := map[listID]map[string]*VirtualHost{}
	for i, name := range r.names {
		id, sniffed, _ := sc.listOf(name)
		if !touched[id] {
			continue
		}
		if sniffed != "" && byDomain[id] == nil {
			byDomain[id] = r.lists[id].byDomain()
		}
		v.tables[i] = sc.tableLayer(name, r.lists[id], byDomain[id])
	}
	r.view = r.view.or(v)
}

// listOf is the list of hosts that a table is made of, and the one host that it
// is for; empty if it is for all.
func (sc *scope) listOf(table string) (id listID, sniffed string, ok bool) {
	sniffed, port := splitRouteName(table)
	i := sc.egressFor(port, table)
	if i < 0 {
		return listID{}, "", false
	}
	if e := sc.egress[i]; e.hasPort() && parseProtocol(e.listener.GetPort().GetProtocol()) == mesh.HTTPProxy {
		port = 0
	}
	return listID{i, port}, sniffed, true
}

// tableLayer makes the table of a name from its hosts.
func (sc *scope) tableLayer(name string, list *hostList, byDomain map[string]*VirtualHost) *Layer {
	t := &RouteTable{Name: name, Hosts: list.hosts}
	if sniffed, _ := splitRouteName(name); sniffed != "" {
		t.Hosts = nil
		if vh := byDomain[sniffed]; vh != nil {
			only := &VirtualHost{Name: vh.Name, Domains: []string{"*"}, Routes: vh.Routes}
			only.origins = vh.origins
			t.Hosts = []*VirtualHost{sc.hosts.of(only)}
		}
	} else if !list.any { // Envoy takes one of that name
		t.CatchAll = sc.catchAll()
	}
	return sc.layer(RoutesLayer+name, []Part{sc.tables.of(t)})
}
