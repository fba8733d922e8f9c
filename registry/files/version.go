package files

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// good is a valid version of an object and the content it was read from.
type good struct {
	Object
	src *blob
}

// keptGood is a good that stands for an object whose text is broken.
type keptGood struct {
	*good
	since time.Time
}

// version is what a file gives to the mesh. Immutable but for kept, from which
// the tree takes what has turned up in another file.
type version struct {
	blob *blob
	// broken says that the text does not tell which objects the file holds:
	// what is missing in it may still be there.
	broken bool
	// live is what the text gives.
	live map[mesh.Key]*good
	// kept is what earlier texts gave and this one does not, though it does not
	// take it back either.
	kept map[mesh.Key]keptGood
	// seen is every object that the text names, valid or not, in the order of
	// the file.
	seen   []Object
	faults []manifest.Fault
}

// gives reports whether the file gives the object.
func (v *version) gives(key mesh.Key) bool {
	if v == nil {
		return false
	}
	_, live := v.live[key]
	_, kept := v.kept[key]
	return live || kept
}

// keys are all objects the file gives, sorted.
func (v *version) keys() []mesh.Key {
	if v == nil {
		return nil
	}
	list := make([]mesh.Key, 0, len(v.live)+len(v.kept))
	for k := range v.live {
		list = append(list, k)
	}
	for k := range v.kept {
		list = append(list, k)
	}
	slices.SortFunc(list, mesh.Key.Compare)
	return list
}

// judge makes of a new text of a file what the file gives from now on. old is
// what it gave before, or nil.
func judge(old *version, b *blob, text Decoded, now time.Time) *version {
	if text.Unparsable {
		text.Objects = nil
	}
	v := &version{
		blob: b, broken: text.Unparsable, seen: text.Objects, faults: slices.Clone(text.Faults),
		live: map[mesh.Key]*good{}, kept: map[mesh.Key]keptGood{},
	}
	for _, o := range text.Objects {
		switch _, twice := v.live[o.Key]; {
		case o.Key.Name == "" && o.Key.Kind != mesh.KindMeshConfig:
			v.broken = true
		case o.Piece != nil && !twice:
			v.live[o.Key] = old.same(&good{Object: o, src: b})
		}
	}
	if old == nil {
		return v
	}
	named := map[mesh.Key]bool{}
	for _, o := range text.Objects {
		named[o.Key] = true
	}
	for _, key := range old.keys() {
		if _, live := v.live[key]; live || !v.broken && !named[key] {
			continue
		}
		k, was := old.kept[key]
		if !was {
			k = keptGood{good: old.live[key], since: now}
		}
		v.kept[key] = k
	}
	return v
}

// same returns what v already has of an object that did not change, so that it
// stays the same pointer, and else g. An object that stands elsewhere now is
// another, for its origin is; its hash says that the content is not.
func (v *version) same(g *good) *good {
	if v == nil {
		return g
	}
	was, ok := v.live[g.Key]
	if !ok {
		was = v.kept[g.Key].good
	}
	if was == nil || was.Hash != g.Hash || *was.Origin != *g.Origin {
		return g
	}
	return &good{Object: was.Object, src: g.src}
}

// decode reads a text with the decoder, within the bounds of its root.
func (r *root) decode(c *Config, path string, b *blob) Decoded {
	if r.meshConfig {
		return decodeMeshConfig(c.Decoder, path, b)
	}
	opts := manifest.Options{Source: c.Name, Namespace: r.namespace(), Namespaces: r.Namespaces, Domain: c.Domain}
	return c.Decoder.Decode(opts, path, b.content)
}

// decodeMeshConfig treats the settings as a file of one object. An empty text
// would mean all defaults in Istio; here it is a broken one, for it is what a
// failed write leaves behind.
func decodeMeshConfig(d Decoder, path string, b *blob) Decoded {
	origin := &mesh.Origin{Path: path, Line: 1, Column: 1}
	if b.blank() {
		return Decoded{Unparsable: true, Faults: []manifest.Fault{
			faultAt(origin, meshConfigKey(), CodeUnread, `the file is empty; write "{}" for all defaults`),
		}}
	}
	config, faults := d.DecodeMeshConfig(path, b.content)
	if config == nil {
		return Decoded{Unparsable: true, Faults: faults}
	}
	if config.Origin != nil {
		origin = config.Origin
	}
	return Decoded{Faults: faults, Objects: []Object{{
		Key: meshConfigKey(), Origin: origin, Hash: config.Hash, Piece: &mesh.Fragment{MeshConfig: config},
	}}}
}

// keptList is what the file keeps, sorted by key.
func (v *version) keptList() []keptGood {
	list := make([]keptGood, 0, len(v.kept))
	for _, k := range v.kept {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b keptGood) int { return cmp.Or(a.Key.Compare(b.Key)) })
	return list
}
