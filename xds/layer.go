package xds

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

// form is how route tables travel. A table that cannot be split is whole in any.
type form uint8

const (
	// inOne: whole, for Envoys that cannot do otherwise.
	inOne form = iota
	// allByHost: virtual hosts by themselves (VHDS) in all tables, for who folds
	// them.
	allByHost
	// byHost is a proxy's, and no layer's: the one or the other, as [fold.Split]
	// says of each table.
	byHost
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

// layer is the resources of one layer of a view, in one form. It holds the parts
// that they are made of, and so keeps their bytes while a class uses it.
type layer struct {
	once   sync.Once
	source *view.Layer
	form   form
	stream *stream.Layer // nil where a builder met a fault

	// parts are those of source, in order; of a table whose virtual hosts travel
	// by themselves, or that is put together from them, they are pieces.
	parts       []*part
	pieces      map[int][]*part // of each of parts that is a table, its hosts in order
	diagnostics []envoy.Diagnostic
	encryption  Encryption
	// doubled means that two parts make a resource of one name.
	doubled bool
}

type layerKey struct {
	name string // by which it is compared with the one before; empty layers have one hash
	hash mesh.Hash
	form form
}

// layerOf finds or makes a layer; from the one before, if there is one, it takes
// what is the same in both.
func (c *classes) layerOf(source *view.Layer, f form, prev *layer) *layer {
	l := c.layers.get(layerKey{source.Name, source.Hash(), f})
	l.once.Do(func() {
		l.source, l.form = source, f
		c.fillLayer(l, prev)
	})
	if l.stream == nil {
		panic("a part of it met a fault when another proxy's view was built")
	}
	return l
}

func (c *classes) fillLayer(l, prev *layer) {
	if prev == nil || prev.form != l.form || prev.stream == nil {
		prev = &layer{source: &view.Layer{}}
	}
	l.parts = make([]*part, len(l.source.Parts))
	was := newWalk(prev.source.Parts)
	var fresh []int // parts that are not in prev
	for i, vp := range l.source.Parts {
		if j := was.find(vp); j >= 0 {
			l.parts[i] = prev.parts[j]
			l.setPieces(i, prev.pieces[j])
		} else {
			fresh = append(fresh, i)
		}
	}
	b := &builder{classes: c}
	if len(fresh) >= fewParts {
		// In the order in which they are sent, so that they lie in it.
		b.arena = new(stream.Arena)
		slices.SortStableFunc(fresh, func(i, j int) int { return compareNames(l.source.Parts[i], l.source.Parts[j]) })
	}
	var resources []made
	for _, i := range fresh {
		if t, ok := l.source.Parts[i].(*view.RouteTable); ok {
			resources = append(resources, b.fillTable(l, i, t, prev)...)
		} else {
			l.parts[i] = b.part(plainInput{l.source.Parts[i]})
			resources = append(resources, l.parts[i].resources...)
		}
	}
	for i, p := range l.parts {
		l.note(p, l.pieces[i])
	}
	l.encryption = encryptionOf(l.source)
	l.stream = l.assemble(prev, was, resources)
}

func (l *layer) setPieces(i int, pieces []*part) {
	if pieces == nil {
		return
	}
	if l.pieces == nil {
		l.pieces = map[int][]*part{}
	}
	l.pieces[i] = pieces
}

// note takes over what a part says for people.
func (l *layer) note(p *part, pieces []*part) {
	l.diagnostics = append(l.diagnostics, p.diagnostics...)
	for _, x := range pieces {
		l.diagnostics = append(l.diagnostics, x.diagnostics...)
	}
}

// split reports whether the virtual hosts of a table travel by themselves.
func (f form) split(t *view.RouteTable) bool {
	return f == allByHost && envoy.Splittable(t)
}

// fillTable makes the parts of a table, and gives the resources that prev lacks.
func (b *builder) fillTable(l *layer, i int, t *view.RouteTable, prev *layer) []made {
	if !envoy.Splittable(t) {
		l.parts[i] = b.part(plainInput{t})
		return l.parts[i].resources
	}
	// The table before, if it stood in the same place.
	var old *view.RouteTable
	var oldPieces []*part
	if i < len(prev.source.Parts) {
		if o, ok := prev.source.Parts[i].(*view.RouteTable); ok && o.Name == t.Name && l.form.split(o) == l.form.split(t) {
			old, oldPieces = o, prev.pieces[i]
		}
	}
	var hosts []*view.VirtualHost
	if old != nil && len(oldPieces) >= len(old.Hosts) {
		hosts = old.Hosts
	}
	was := newWalk(hosts)
	var fresh []made
	if b.arena == nil && len(t.Hosts)-len(hosts) >= fewParts {
		b.arena = new(stream.Arena)
	}
	pieces := make([]*part, 0, len(t.Hosts)+1)
	for _, h := range t.Hosts {
		if j := was.find(h); j >= 0 {
			pieces = append(pieces, oldPieces[j])
			continue
		}
		p := b.part(hostInput{Table: t.Name, Host: h})
		pieces, fresh = append(pieces, p), append(fresh, p.resources...)
	}
	if t.CatchAll != nil {
		p := b.part(catchAllInput{Table: t.Name, CatchAll: *t.CatchAll})
		pieces, fresh = append(pieces, p), append(fresh, p.resources...)
	}
	l.setPieces(i, pieces)
	if l.form.split(t) {
		l.parts[i] = b.part(shellInput{t.Name})
		return append(fresh, l.parts[i].resources...)
	}
	l.parts[i] = b.part(wholeInput{Table: t, from: b, pieces: pieces})
	return l.parts[i].resources
}

// each calls f for all resources of the i-th part.
func (l *layer) each(i int, f func(made)) {
	for _, r := range l.parts[i].resources {
		f(r)
	}
	if t, ok := l.source.Parts[i].(*view.RouteTable); ok && l.form.split(t) {
		for _, p := range l.pieces[i] {
			for _, r := range p.resources {
				f(r)
			}
		}
	}
}

// assemble makes the sets of a layer: from those of the layer before and what is
// new, where that is little, else anew.
func (l *layer) assemble(prev *layer, was *walk[view.Part], fresh []made) *stream.Layer {
	out := &stream.Layer{Name: l.source.Name, Types: map[stream.TypeURL]*stream.Set{}}
	if prev.stream != nil && !prev.doubled && l.patch(prev, was, fresh, out) {
		return out
	}
	lists := map[stream.TypeURL][]*stream.Resource{}
	total := map[stream.TypeURL]int{}
	for i := range l.parts {
		l.each(i, func(r made) {
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
		l.doubled = true
		seen := map[string]bool{}
		for _, r := range list {
			if seen[r.Name] {
				l.diagnostics = append(l.diagnostics, doubleName(url, r.Name))
			}
			seen[r.Name] = true
		}
	}
	return out
}

func doubleName(url stream.TypeURL, name string) envoy.Diagnostic {
	return envoy.Diagnostic{Message: fmt.Sprintf("two parts make the %s %q; the first one counts", url.Short(), name)}
}

// patch makes the sets by changing those of prev. It gives up, with false, where
// a new resource has the name of one that stays.
func (l *layer) patch(prev *layer, was *walk[view.Part], fresh []made, out *stream.Layer) bool {
	now := map[stream.TypeURL]map[string]*stream.Resource{}
	size := map[stream.TypeURL]int{}
	for i := range l.parts {
		l.each(i, func(r made) { size[r.url]++ })
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
// pieces that it has kept are not among them.
func (l *layer) gone(j int, next *layer) map[stream.TypeURL][]string {
	kept := map[*part]bool{}
	for _, p := range next.pieces[j] {
		kept[p] = true
	}
	out := map[stream.TypeURL][]string{}
	add := func(p *part) {
		for _, r := range p.resources {
			out[r.url] = append(out[r.url], r.Name)
		}
	}
	if j >= len(next.parts) || next.parts[j] != l.parts[j] {
		add(l.parts[j])
	}
	if t, ok := l.source.Parts[j].(*view.RouteTable); ok && l.form.split(t) {
		for _, p := range l.pieces[j] {
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
