package lastgood

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// good is a valid version of an object, and the contents that it can be read from: of several,
// the last that can be read.
type good struct {
	*Object
	src []*Blob
	// since is when that content was accepted.
	since time.Time
}

// keptGood is a version that replaces an object whose text is broken.
type keptGood struct {
	*good
	since time.Time
}

// Version is the content of a text as it is in force. It is immutable, except for kept, from
// which the Set removes objects that another text defines.
type Version struct {
	blob *Blob
	// whole is the last content of the text that was taken as whole: blob, unless that is cut
	// off or blank.
	whole *Blob
	cut   cut
	// broken means that the objects of the text are unknown: an object that is missing in it
	// may still exist.
	broken bool
	// live are the objects that the text defines.
	live map[mesh.Key]*good
	// kept are objects that earlier content defined and this one neither defines nor removes.
	kept map[mesh.Key]keptGood
	// denied are the broken objects that have a Denial. It is in force if no text has a version.
	denied map[mesh.Key]*good
	// seen is every object that the text names, valid or not, in order.
	seen   []*Object
	faults []manifest.Fault
}

// Blob is the content that it was read from.
func (v *Version) Blob() *Blob { return v.blob }

// Faults are all that is wrong with the text.
func (v *Version) Faults() []manifest.Fault { return v.faults }

// Live is the number of objects that the text defines.
func (v *Version) Live() int { return len(v.live) }

// Kept is the number of objects that stay in force although the text is broken.
func (v *Version) Kept() int { return len(v.kept) }

// Empty reports whether nothing of the text is in force.
func (v *Version) Empty() bool { return len(v.live)+len(v.kept)+len(v.denied) == 0 }

// Fragment has what is in force of an object of the text: its content or, if that is broken,
// its last good version; or nil.
func (v *Version) Fragment(key mesh.Key) *mesh.Fragment {
	if g := v.live[key]; g != nil {
		return g.Fragment
	}
	if k, ok := v.kept[key]; ok {
		return k.Fragment
	}
	if g := v.denied[key]; g != nil {
		return g.Fragment
	}
	return nil
}

// gives reports whether the text defines the object.
func (v *Version) gives(key mesh.Key) bool {
	if v == nil {
		return false
	}
	_, live := v.live[key]
	_, kept := v.kept[key]
	return live || kept
}

// keys are all objects the text gives, sorted.
func (v *Version) keys() []mesh.Key {
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

// Cut reports whether the text may have lost its end; see [Version.Release].
func (v *Version) Cut() bool { return v.cut != notCut }

// Uncertain reports whether an earlier version of the text, if there was one, would decide what is in
// force of it: a server that lost its saved versions does not know.
func (v *Version) Uncertain() bool {
	return v.broken || slices.ContainsFunc(v.seen, func(o *Object) bool {
		return o.Over != nil || o.Fragment == nil && !o.Foreign && !o.Unbuilt
	})
}

// NextVersion is the version of a text after its content has changed. old is the one before,
// or nil: it keeps the last good versions of broken objects, and those of a text that lost its
// end.
func NextVersion(old *Version, b *Blob, text Decoded, now time.Time) *Version {
	whole, lost := b, notCut
	if old != nil {
		if lost = cutOf(old.whole.Content, b.Content); lost != notCut || b.Blank() {
			whole = old.whole
		}
	}
	return nextVersion(old, &Version{blob: b, whole: whole, cut: lost}, text, now)
}

// Release is the version after a person has said that the text is whole.
func (v *Version) Release(text Decoded, now time.Time) *Version {
	return nextVersion(v, &Version{blob: v.blob, whole: v.blob}, text, now)
}

// nextVersion fills v, which follows old.
func nextVersion(old, v *Version, text Decoded, now time.Time) *Version {
	if text.Unparsable {
		text.Objects = nil
	}
	v.broken = text.Unparsable || text.Open || v.cut != notCut || v.blob.Blank()
	v.seen, v.live = make([]*Object, 0, len(text.Objects)), make(map[mesh.Key]*good, len(text.Objects))
	v.faults = slices.Clone(text.Faults)
	if v.cut != notCut {
		v.faults = append(v.faults, v.cut.fault(text.End))
	}
	for i, o := range text.Objects {
		seen := &o
		switch _, twice := v.live[o.Key]; {
		case o.Foreign:
		case o.Key.Name == "" && !isSettings(o.Key):
			v.broken = true
		case v.cut != notCut && i == len(text.Objects)-1 && !old.has(seen):
			// Its own end may be missing.
		case o.Fragment != nil && !twice:
			g := old.same(newGood(seen, v.blob, old, now))
			v.live[o.Key], seen = g, g.Object
		}
		v.seen = append(v.seen, seen)
	}
	if old != nil {
		v.keep(old, text, now)
	}
	v.deny(old, now)
	return v
}

// heldBack reports whether the object is the last one of a text that is cut off: only what was
// in force before may be.
func (v *Version) heldBack(key mesh.Key) bool {
	n := len(v.seen)
	return v.cut != notCut && n > 0 && v.seen[n-1].Key == key
}

// has reports whether the object is in force as it is.
func (v *Version) has(o *Object) bool {
	g := v.live[o.Key]
	if g == nil {
		g = v.kept[o.Key].good
	}
	return g != nil && o.Over == nil && g.Hash == o.Hash
}

// keep takes over the last good versions of objects that are broken.
func (v *Version) keep(old *Version, text Decoded, now time.Time) {
	named := map[mesh.Key]bool{}
	for _, o := range text.Objects {
		named[o.Key] = true
	}
	var fresh []mesh.Key
	for _, key := range old.keys() {
		if _, live := v.live[key]; live || !v.broken && !named[key] {
			continue
		}
		k, was := old.kept[key]
		if !was {
			k = keptGood{good: old.live[key], since: now}
			fresh = append(fresh, key)
		}
		if v.kept == nil { // there is nothing broken, as a rule
			v.kept = map[mesh.Key]keptGood{}
		}
		v.kept[key] = k
	}
	v.narrow(fresh)
}

// deny finds what stands in place of broken objects where no version of them is known.
func (v *Version) deny(old *Version, now time.Time) {
	add := func(g *good) {
		if v.denied == nil { // there is nothing broken, as a rule
			v.denied = map[mesh.Key]*good{}
		}
		if v.denied[g.Key] == nil && v.live[g.Key] == nil {
			v.denied[g.Key] = g
		}
	}
	for _, o := range v.seen {
		if o.Denial == nil || o.Key.Name == "" {
			continue
		}
		g := &good{Object: &Object{Key: o.Key, Origin: o.Origin, Hash: o.Denial.Unenforced[0].Hash, Fragment: o.Denial}, src: []*Blob{v.blob}, since: now}
		if old != nil {
			if was := old.denied[o.Key]; was != nil && was.Hash == g.Hash && *was.Origin == *g.Origin {
				g.Object = was.Object // so that the pointer stays
			}
		}
		add(g)
	}
	if old != nil && v.broken { // an object that is missing may still be there
		for _, g := range old.denied {
			add(g.narrowed())
		}
	}
}

// newGood is an object that a text defines, over what was in force of it before.
func newGood(o *Object, b *Blob, old *Version, now time.Time) *good {
	if o.Over != nil && old != nil {
		if last := old.Fragment(o.Key); last != nil {
			o.Fragment, o.Hash = o.Over(last)
		}
	}
	g := &good{Object: o, src: []*Blob{b}, since: now}
	if o.Encode != nil {
		g.src = nil
		for _, text := range o.Encode(o.Fragment) {
			g.src = append(g.src, NewBlob(text))
		}
	}
	return g
}

// same returns the version that v has if the object did not change, so that the pointer stays,
// and else g. An object at another position counts as changed, because its origin changed.
func (v *Version) same(g *good) *good {
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
	return &good{Object: was.Object, src: g.src, since: g.since}
}

// keysOf are the keys of objects, sorted.
func keysOf(objects map[mesh.Key]*good) []mesh.Key {
	return slices.SortedFunc(maps.Keys(objects), mesh.Key.Compare)
}

// keptList is what the text keeps, sorted by key.
func (v *Version) keptList() []keptGood {
	list := make([]keptGood, 0, len(v.kept))
	for _, k := range v.kept {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b keptGood) int { return cmp.Or(a.Key.Compare(b.Key)) })
	return list
}
