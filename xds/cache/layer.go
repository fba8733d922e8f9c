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

// minArenaParts is the number of new parts from which their order in memory matters.
const minArenaParts = 32

// compareNames orders parts approximately as their resources are ordered by name. It
// decides their order in memory only.
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

// layerInput is a layer of a view, and how its route configuration is sent.
type layerInput struct {
	Layer    *view.Layer
	Delivery Delivery
}

// layer is the resources of one layer of a view. It holds the encoded parts, and so keeps
// their bytes alive.
type layer struct {
	layerInput
	stream *stream.Layer

	// routeConfiguration is set if the layer is a route configuration that may be sent by
	// VHDS. Then parts are its virtual hosts, its base, and, if it is sent inline, the
	// complete route configuration. Otherwise parts are those of the view's layer.
	routeConfiguration *view.RouteConfiguration
	parts              []*encoded
	diagnostics        []envoy.Diagnostic
	encryption         Encryption
}

// len is the number of parts.
func (l *layer) len() int {
	switch {
	case l.routeConfiguration == nil:
		return len(l.Layer.Parts)
	case l.Delivery == Inline:
		return len(l.routeConfiguration.VirtualHosts) + 2
	default:
		return len(l.routeConfiguration.VirtualHosts) + 1
	}
}

// at is the part of the view that the i-th part is made from.
func (l *layer) at(i int) view.Part {
	switch {
	case l.routeConfiguration == nil:
		return l.Layer.Parts[i]
	case i < len(l.routeConfiguration.VirtualHosts):
		return l.routeConfiguration.VirtualHosts[i]
	default:
		return l.routeConfiguration
	}
}

func (l *layer) input(i int) input[*builder, encoded] {
	switch {
	case l.routeConfiguration == nil:
		return partInput{l.Layer.Parts[i]}
	case i < len(l.routeConfiguration.VirtualHosts):
		return virtualHostInput{RouteConfiguration: l.routeConfiguration.Name, Host: l.routeConfiguration.VirtualHosts[i]}
	case i == len(l.routeConfiguration.VirtualHosts):
		return vhdsBaseInput{RouteConfiguration: l.routeConfiguration.Name, AllPorts: l.routeConfiguration.AllPorts, CatchAll: l.routeConfiguration.CatchAll}
	default:
		return inlineInput{l.routeConfiguration}
	}
}

// served are the resources of the i-th part; none if it is only an input of the complete
// route configuration.
func (l *layer) served(i int) []resource {
	if l.routeConfiguration != nil && l.Delivery == Inline && i <= len(l.routeConfiguration.VirtualHosts) {
		return nil
	}
	return l.parts[i].resources
}

// layerContext is what a layer is built with besides its input: the previous layer of that
// name, or nil.
type layerContext struct {
	*Cache
	prev *layer
}

func (in layerInput) build(c layerContext) layer {
	l := layer{layerInput: in, encryption: encryptionOf(in.Layer)}
	if t := routeConfigurationOf(in.Layer); t != nil && envoy.SupportsVHDS(t) {
		l.routeConfiguration = t
	}
	prev := c.prev
	if prev == nil || prev.Delivery != l.Delivery || (prev.routeConfiguration == nil) != (l.routeConfiguration == nil) {
		prev = &layer{layerInput: layerInput{Layer: &view.Layer{}}}
	}
	l.parts = make([]*encoded, l.len())
	was := partFinder{list: prev, used: make([]bool, prev.len())}
	var fresh []int // parts that are not in prev
	for i := range l.parts {
		if j := was.find(l.at(i)); j >= 0 {
			l.parts[i] = prev.parts[j]
		} else {
			fresh = append(fresh, i)
		}
	}
	b := &builder{Cache: c.Cache, layer: &l}
	if len(fresh) >= minArenaParts { // in memory, they are in the order in which they are sent
		b.arena = new(stream.Arena)
		if l.routeConfiguration == nil {
			slices.SortStableFunc(fresh, func(i, j int) int { return compareNames(l.at(i), l.at(j)) })
		}
	}
	for _, i := range fresh {
		l.parts[i] = c.encoded.get(b, l.input(i))
	}
	for _, p := range l.parts {
		l.diagnostics = append(l.diagnostics, p.diagnostics...)
	}
	l.assemble(prev, was.used, fresh)
	return l
}

// assemble makes the resource sets of a layer. If few parts changed, it edits the sets of
// the previous layer; used says which of its parts are reused, and fresh lists the new
// ones.
func (l *layer) assemble(prev *layer, used []bool, fresh []int) {
	l.stream = &stream.Layer{Name: l.Layer.Name, Types: map[stream.TypeURL]*stream.Set{}}
	total := map[stream.TypeURL]int{}
	for i := range l.parts {
		for _, r := range l.served(i) {
			total[r.url]++
		}
	}
	if prev.stream != nil && l.patch(prev, used, fresh, total) {
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
	return envoy.Diagnostic{Message: fmt.Sprintf("two parts have the %s %q; the first one is used", url.Short(), name)}
}

// patch makes the sets by editing those of prev. It returns false if a new resource has the
// name of one that stays, or two that stay have one name: then a set is smaller than total.
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

// partFinder finds the parts of one layer in another. Both are in the same order, except
// for some parts that were added, removed or replaced. It may miss parts that are there.
type partFinder struct {
	list   *layer
	at     int    // parts before it are found or passed
	misses int    // since the last part that was found
	used   []bool // parts that were found
}

// find returns the index of a part, or -1.
func (w *partFinder) find(p view.Part) int {
	const ahead, most = 4, 64
	for j := w.at; j < len(w.used) && j < w.at+ahead+w.misses; j++ {
		if w.list.at(j) == p {
			w.at, w.misses, w.used[j] = j+1, 0, true
			return j
		}
	}
	if w.misses++; w.misses > most { // usually parts were replaced one for one
		w.misses, w.at = most, w.at+1
	}
	return -1
}
