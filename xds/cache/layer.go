package cache

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// fewParts are so few that it does not matter where they lie.
const fewParts = 32

// compareNames orders parts as their resources are ordered by name, as far as
// that is worth anything: it decides where they lie in memory.
func compareNames(a, b view.Part) int {
	x, y := refOf(a), refOf(b)
	if x.Port != y.Port {
		var s, t [20]byte
		return bytes.Compare(strconv.AppendUint(s[:0], uint64(x.Port), 10), strconv.AppendUint(t[:0], uint64(y.Port), 10))
	}
	return cmp.Or(cmp.Compare(x.Subset, y.Subset), cmp.Compare(x.Host, y.Host))
}

func refOf(p view.Part) view.ClusterRef {
	switch p := p.(type) {
	case *view.Cluster:
		return p.Ref
	case *view.Endpoints:
		return p.Ref
	default:
		return view.ClusterRef{}
	}
}

// layer is the resources of one layer of a view, as its route table travels. It holds
// the encoded parts, and so keeps their bytes while somebody uses it.
type layer struct {
	once     sync.Once
	source   *view.Layer
	delivery Delivery
	stream   *stream.Layer // nil where a builder met a fault

	// parts are those of source, in order, and hosts, of each of parts that is a table,
	// its virtual hosts in order: they travel by themselves, or the table is made of them.
	parts       []*encoded
	hosts       map[int][]*encoded
	diagnostics []envoy.Diagnostic
	encryption  Encryption
	// duplicates means that two parts make a resource of one name.
	duplicates bool
}

type layerKey struct {
	name string // by which it is compared with the one before; empty layers have one hash
	hash mesh.Hash
	as   Delivery
}

// layerOf finds or makes a layer; from the one before, if there is one, it takes
// what is the same in both.
func (c *Cache) layerOf(source *view.Layer, as Delivery, prev *layer) *layer {
	l := c.layers.get(layerKey{source.Name, source.Hash(), as})
	l.once.Do(func() {
		l.source, l.delivery = source, as
		c.fillLayer(l, prev)
	})
	if l.stream == nil {
		panic("a part of it met a fault when another proxy's view was built")
	}
	return l
}

func (c *Cache) fillLayer(l, prev *layer) {
	if prev == nil || prev.delivery != l.delivery || prev.stream == nil {
		prev = &layer{source: &view.Layer{}}
	}
	l.parts = make([]*encoded, len(l.source.Parts))
	was := newWalk(prev.source.Parts)
	var fresh []int // parts that are not in prev
	for i, vp := range l.source.Parts {
		if j := was.find(vp); j >= 0 {
			l.parts[i] = prev.parts[j]
			l.setHosts(i, prev.hosts[j])
		} else {
			fresh = append(fresh, i)
		}
	}
	b := &builder{cache: c}
	if len(fresh) >= fewParts {
		// In the order in which they are sent, so that they lie in it.
		b.arena = new(stream.Arena)
		slices.SortStableFunc(fresh, func(i, j int) int { return compareNames(l.source.Parts[i], l.source.Parts[j]) })
	}
	var resources []resource
	for _, i := range fresh {
		if t, ok := l.source.Parts[i].(*view.RouteTable); ok {
			resources = append(resources, b.fillTable(l, i, t, prev)...)
		} else {
			l.parts[i] = b.encode(plainInput{l.source.Parts[i]})
			resources = append(resources, l.parts[i].resources...)
		}
	}
	for i, p := range l.parts {
		l.note(p, l.hosts[i])
	}
	l.encryption = encryptionOf(l.source)
	l.stream = l.assemble(prev, was, resources)
}

func (l *layer) setHosts(i int, hosts []*encoded) {
	if hosts == nil {
		return
	}
	if l.hosts == nil {
		l.hosts = map[int][]*encoded{}
	}
	l.hosts[i] = hosts
}

// note takes over what a part says for people.
func (l *layer) note(p *encoded, hosts []*encoded) {
	l.diagnostics = append(l.diagnostics, p.diagnostics...)
	for _, x := range hosts {
		l.diagnostics = append(l.diagnostics, x.diagnostics...)
	}
}

// fillTable makes the parts of a table, and gives the resources that prev lacks.
func (b *builder) fillTable(l *layer, i int, t *view.RouteTable, prev *layer) []resource {
	if !envoy.Splittable(t) {
		l.parts[i] = b.encode(plainInput{t})
		return l.parts[i].resources
	}
	// The table before, if it stood in the same place.
	var old *view.RouteTable
	var oldHosts []*encoded
	if i < len(prev.source.Parts) {
		if o, ok := prev.source.Parts[i].(*view.RouteTable); ok && o.Name == t.Name && l.delivery.splits(o) == l.delivery.splits(t) {
			old, oldHosts = o, prev.hosts[i]
		}
	}
	var before []*view.VirtualHost
	if old != nil && len(oldHosts) >= len(old.Hosts) {
		before = old.Hosts
	}
	was := newWalk(before)
	var fresh []resource
	if b.arena == nil && len(t.Hosts)-len(before) >= fewParts {
		b.arena = new(stream.Arena)
	}
	hosts := make([]*encoded, 0, len(t.Hosts)+1)
	for _, h := range t.Hosts {
		if j := was.find(h); j >= 0 {
			hosts = append(hosts, oldHosts[j])
			continue
		}
		p := b.encode(hostInput{Table: t.Name, Host: h})
		hosts, fresh = append(hosts, p), append(fresh, p.resources...)
	}
	if t.CatchAll != nil {
		p := b.encode(catchAllInput{Table: t.Name, CatchAll: *t.CatchAll})
		hosts, fresh = append(hosts, p), append(fresh, p.resources...)
	}
	l.setHosts(i, hosts)
	if l.delivery.splits(t) {
		l.parts[i] = b.encode(baseInput{t.Name})
		return append(fresh, l.parts[i].resources...)
	}
	l.parts[i] = b.encode(inlineInput{Table: t, from: b, hosts: hosts})
	return l.parts[i].resources
}

// each calls f for all resources of the i-th part.
func (l *layer) each(i int, f func(resource)) {
	for _, r := range l.parts[i].resources {
		f(r)
	}
	if t, ok := l.source.Parts[i].(*view.RouteTable); ok && l.delivery.splits(t) {
		for _, p := range l.hosts[i] {
			for _, r := range p.resources {
				f(r)
			}
		}
	}
}

// assemble makes the sets of a layer: from those of the layer before and what is
// new, where that is little, else anew.
func (l *layer) assemble(prev *layer, was *walk[view.Part], fresh []resource) *stream.Layer {
	out := &stream.Layer{Name: l.source.Name, Types: map[stream.TypeURL]*stream.Set{}}
	if prev.stream != nil && !prev.duplicates && l.patch(prev, was, fresh, out) {
		return out
	}
	lists := map[stream.TypeURL][]*stream.Resource{}
	total := map[stream.TypeURL]int{}
	for i := range l.parts {
		l.each(i, func(r resource) {
			lists[r.url] = append(lists[r.url], r.Resource)
			total[r.url]++
		})
	}
	for url, list := range lists {
		set := stream.NewSet(list)
		out.Types[url] = set
		if set.Len() == total[url] {
			continue
		}
		l.duplicates = true
		seen := map[string]bool{}
		for _, r := range list {
			if seen[r.Name] {
				l.diagnostics = append(l.diagnostics, duplicate(url, r.Name))
			}
			seen[r.Name] = true
		}
	}
	return out
}

func duplicate(url stream.TypeURL, name string) envoy.Diagnostic {
	return envoy.Diagnostic{Message: fmt.Sprintf("two parts make the %s %q; the first one counts", url.Short(), name)}
}

// patch makes the sets by changing those of prev. It gives up, with false, where
// a new resource has the name of one that stays.
func (l *layer) patch(prev *layer, was *walk[view.Part], fresh []resource, out *stream.Layer) bool {
	now := map[stream.TypeURL]map[string]*stream.Resource{}
	size := map[stream.TypeURL]int{}
	for i := range l.parts {
		l.each(i, func(r resource) { size[r.url]++ })
	}
	changed := map[stream.TypeURL][]*stream.Resource{}
	for _, r := range fresh {
		if now[r.url] == nil {
			now[r.url] = map[string]*stream.Resource{}
		}
		now[r.url][r.Name] = r.Resource
		if prev.stream.Types[r.url].Get(r.Name) != r.Resource {
			changed[r.url] = append(changed[r.url], r.Resource)
		}
	}
	removed := map[stream.TypeURL][]string{}
	for j := range prev.parts {
		if was.taken(j) {
			continue
		}
		for url, names := range prev.gone(j, l) {
			for _, name := range names {
				if now[url][name] == nil {
					removed[url] = append(removed[url], name)
				}
			}
		}
	}
	for url, n := range size {
		set := prev.stream.Types[url]
		if len(changed[url])+len(removed[url]) > 0 {
			set = set.With(changed[url], removed[url])
		}
		if set.Len() != n {
			return false
		}
		out.Types[url] = set
	}
	return true
}

// gone are the names of the j-th part that next may not have any more: those of
// virtual hosts that it has kept are not among them.
func (l *layer) gone(j int, next *layer) map[stream.TypeURL][]string {
	kept := map[*encoded]bool{}
	for _, p := range next.hosts[j] {
		kept[p] = true
	}
	out := map[stream.TypeURL][]string{}
	add := func(p *encoded) {
		for _, r := range p.resources {
			out[r.url] = append(out[r.url], r.Name)
		}
	}
	if j >= len(next.parts) || next.parts[j] != l.parts[j] {
		add(l.parts[j])
	}
	if t, ok := l.source.Parts[j].(*view.RouteTable); ok && l.delivery.splits(t) {
		for _, p := range l.hosts[j] {
			if !kept[p] {
				add(p)
			}
		}
	}
	return out
}

// walk finds the elements of one list in another, both in the same order but for
// some that were added, removed or replaced: a step each. An element that it
// does not find may be there all the same.
type walk[T comparable] struct {
	list   []T
	at     int // elements before are found, or passed
	misses int // since the last one that was found
	used   []bool
}

func newWalk[T comparable](list []T) *walk[T] {
	return &walk[T]{list: list, used: make([]bool, len(list))}
}

// find gives the index of an element, or -1.
func (w *walk[T]) find(x T) int {
	const ahead, most = 4, 64
	for j := w.at; j < len(w.list) && j < w.at+ahead+w.misses; j++ {
		if w.list[j] == x {
			w.at, w.misses, w.used[j] = j+1, 0, true
			return j
		}
	}
	if w.misses++; w.misses > most { // replaced one for one, as a rule
		w.misses, w.at = most, w.at+1
	}
	return -1
}

// taken reports whether an element was found.
func (w *walk[T]) taken(j int) bool { return w.used[j] }
