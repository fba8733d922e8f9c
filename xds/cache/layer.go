package cache

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"

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

// layerInput is a layer of a view, and how its route table travels.
type layerInput struct {
	Layer    *view.Layer
	Delivery Delivery
}

// layer is the resources of one layer of a view. It holds the encoded parts, and so
// keeps their bytes while somebody uses it.
type layer struct {
	layerInput
	stream *stream.Layer

	// table is the route table that the layer consists of, if that may be split: its
	// parts are its virtual hosts, then its base, then the table with all of them in it,
	// if that is what is served. Else it is nil, and parts are those of the view's layer.
	table       *view.RouteConfiguration
	parts       []*encoded
	diagnostics []envoy.Diagnostic
	encryption  Encryption
	// duplicates means that two parts make a resource of one name.
	duplicates bool
}

// len is how many parts there are.
func (l *layer) len() int {
	switch {
	case l.table == nil:
		return len(l.Layer.Parts)
	case l.Delivery == Inline:
		return len(l.table.VirtualHosts) + 2
	default:
		return len(l.table.VirtualHosts) + 1
	}
}

// at is what the i-th part is made from.
func (l *layer) at(i int) view.Part {
	switch {
	case l.table == nil:
		return l.Layer.Parts[i]
	case i < len(l.table.VirtualHosts):
		return l.table.VirtualHosts[i]
	default:
		return l.table
	}
}

func (l *layer) input(i int) input[*builder, encoded] {
	switch {
	case l.table == nil:
		return partInput{l.Layer.Parts[i]}
	case i < len(l.table.VirtualHosts):
		return hostInput{Table: l.table.Name, Host: l.table.VirtualHosts[i]}
	case i == len(l.table.VirtualHosts):
		return baseInput{Table: l.table.Name, CatchAll: l.table.CatchAll}
	default:
		return inlineInput{l.table}
	}
}

// served are the resources of the i-th part, unless these are only there to be put
// together.
func (l *layer) served(i int) []resource {
	if l.table != nil && l.Delivery == Inline && i <= len(l.table.VirtualHosts) {
		return nil
	}
	return l.parts[i].resources
}

// takeover is how a layer is made from the one before of that name, or nil.
type takeover struct {
	*Cache
	prev *layer
}

func (in layerInput) build(c takeover) layer {
	l := layer{layerInput: in, encryption: encryptionOf(in.Layer)}
	if t := tableOf(in.Layer); t != nil && envoy.Splittable(t) {
		l.table = t
	}
	prev := c.prev
	if prev == nil || prev.Delivery != l.Delivery || (prev.table == nil) != (l.table == nil) {
		prev = &layer{layerInput: layerInput{Layer: &view.Layer{}}}
	}
	l.parts = make([]*encoded, l.len())
	was := walk{list: prev, used: make([]bool, prev.len())}
	var fresh []int // parts that are not in prev
	for i := range l.parts {
		if j := was.find(l.at(i)); j >= 0 {
			l.parts[i] = prev.parts[j]
		} else {
			fresh = append(fresh, i)
		}
	}
	b := &builder{Cache: c.Cache, layer: &l}
	if len(fresh) >= fewParts { // they shall lie in the order in which they are sent
		b.arena = new(stream.Arena)
		if l.table == nil {
			slices.SortStableFunc(fresh, func(i, j int) int { return compareNames(l.at(i), l.at(j)) })
		}
	}
	for _, i := range fresh {
		l.parts[i] = c.encoded.of(b, l.input(i))
	}
	for _, p := range l.parts {
		l.diagnostics = append(l.diagnostics, p.diagnostics...)
	}
	l.assemble(prev, was.used, fresh)
	return l
}

// assemble makes the sets of a layer: from those of the layer before, of which some
// parts are used, and the fresh ones, where that is little, else anew.
func (l *layer) assemble(prev *layer, used []bool, fresh []int) {
	l.stream = &stream.Layer{Name: l.Layer.Name, Types: map[stream.TypeURL]*stream.Set{}}
	total := map[stream.TypeURL]int{}
	for i := range l.parts {
		for _, r := range l.served(i) {
			total[r.url]++
		}
	}
	if prev.stream != nil && !prev.duplicates && l.patch(prev, used, fresh, total) {
		return
	}
	lists := map[stream.TypeURL][]*stream.Resource{}
	for i := range l.parts {
		for _, r := range l.served(i) {
			lists[r.url] = append(lists[r.url], r.Resource)
		}
	}
	for url, list := range lists {
		set := stream.NewSet(list)
		l.stream.Types[url] = set
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
}

func duplicate(url stream.TypeURL, name string) envoy.Diagnostic {
	return envoy.Diagnostic{Message: fmt.Sprintf("two parts make the %s %q; the first one counts", url.Short(), name)}
}

// patch makes the sets by changing those of prev. It gives up, with false, where
// a new resource has the name of one that stays.
func (l *layer) patch(prev *layer, used []bool, fresh []int, total map[stream.TypeURL]int) bool {
	now := map[stream.TypeURL]map[string]*stream.Resource{}
	changed := map[stream.TypeURL][]*stream.Resource{}
	for _, i := range fresh {
		for _, r := range l.served(i) {
			if now[r.url] == nil {
				now[r.url] = map[string]*stream.Resource{}
			}
			now[r.url][r.Name] = r.Resource
			if prev.stream.Types[r.url].Get(r.Name) != r.Resource {
				changed[r.url] = append(changed[r.url], r.Resource)
			}
		}
	}
	removed := map[stream.TypeURL][]string{}
	for j := range prev.parts {
		if used[j] {
			continue
		}
		for _, r := range prev.served(j) {
			if now[r.url][r.Name] == nil {
				removed[r.url] = append(removed[r.url], r.Name)
			}
		}
	}
	for url, n := range total {
		set := prev.stream.Types[url]
		if len(changed[url])+len(removed[url]) > 0 {
			set = set.With(changed[url], removed[url])
		}
		if set.Len() != n {
			return false
		}
		l.stream.Types[url] = set
	}
	return true
}

// walk finds what one layer is made from in another, both in the same order but for
// some parts that were added, removed or replaced: a step each. What it does not find
// may be there all the same.
type walk struct {
	list   *layer
	at     int    // parts before are found, or passed
	misses int    // since the last one that was found
	used   []bool // those that were found
}

// find gives the index of a part, or -1.
func (w *walk) find(p view.Part) int {
	const ahead, most = 4, 64
	for j := w.at; j < len(w.used) && j < w.at+ahead+w.misses; j++ {
		if w.list.at(j) == p {
			w.at, w.misses, w.used[j] = j+1, 0, true
			return j
		}
	}
	if w.misses++; w.misses > most { // replaced one for one, as a rule
		w.misses, w.at = most, w.at+1
	}
	return -1
}
