package lastgood

import (
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// smallText is the size up to which a kept object has the whole text that it comes from.
const smallText = 4096

// narrow replaces the text that newly kept objects come from by one of the object alone. Each can come from
// another version of the text: a large one, in which one object after the other breaks, would be in memory and on
// disk once for each object.
func (v *Version) narrow(keys []mesh.Key) {
	places := map[*Blob]map[manifest.Place]bool{}
	from := func(key mesh.Key) (b *Blob, at manifest.Place, ok bool) {
		g := v.kept[key].good
		if g.Encode != nil || len(g.src) != 1 || isSettings(key) || len(g.src[0].Content) <= smallText {
			return nil, at, false
		}
		return g.src[0], manifest.Place{Line: g.Origin.Line, Column: g.Origin.Column}, true
	}
	for _, key := range keys {
		b, at, ok := from(key)
		if !ok {
			continue
		}
		if places[b] == nil {
			places[b] = map[manifest.Place]bool{}
		}
		places[b][at] = true
	}
	pieces := make(map[*Blob]map[manifest.Place][]byte, len(places))
	for b, at := range places {
		pieces[b] = manifest.Pieces(b.Content, at)
	}
	for _, key := range keys {
		b, at, ok := from(key)
		if !ok {
			continue
		}
		if text := pieces[b][at]; text != nil {
			k := v.kept[key]
			k.good = &good{Object: k.Object, src: []*Blob{NewBlob(text)}, since: k.good.since}
			v.kept[key] = k
		}
	}
}

// narrowed is what stands in place of a broken object, for the same reason with the document alone.
func (g *good) narrowed() *good {
	if g.Encode != nil || len(g.src) != 1 || len(g.src[0].Content) <= smallText {
		return g
	}
	text := manifest.Document(g.src[0].Content, g.Origin.Line)
	if len(text) >= len(g.src[0].Content) {
		return g
	}
	return &good{Object: g.Object, src: []*Blob{NewBlob(text)}, since: g.since}
}
