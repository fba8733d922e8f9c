package lastgood

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Words are what people call the texts of a source.
type Words struct {
	// Text is one of them, such as "file".
	Text string
	// Name is what they are in order by, such as "path".
	Name string
}

// Set is the texts of a source as they are believed.
type Set struct {
	words Words
	texts map[string]*Text
	// order is the texts in their order; claims, which of them speak of an object.
	order  []*Text
	claims claims

	// touched are the objects that may be others than those of made, with what that
	// has; faulty says that its faults may be others.
	touched map[mesh.Key]*mesh.Fragment
	faulty  bool
	// yielding are objects that texts may keep though another gives them.
	yielding map[mesh.Key]bool
	// unsaved are the shards of the state directory that are to be written.
	unsaved map[int]bool
	made    Assembly
}

// Assembly is what a set of texts comes to; immutable.
type Assembly struct {
	Fragment *mesh.Fragment
	// Faults are sorted by position.
	Faults  []manifest.Fault
	Kept    []Kept
	Objects int
}

// Kept is an object whose text is broken and whose last good version stands.
type Kept struct {
	Key mesh.Key `json:"key"`
	// Origin is where the version that stands was read; the text is another now.
	Origin *mesh.Origin `json:"origin"`
	// Since is when the text was first found broken.
	Since time.Time `json:"since"`
}

// NewSet makes an empty set of a source.
func NewSet(source string, words Words) *Set {
	return &Set{
		words: words, texts: map[string]*Text{}, claims: newClaims(), touched: map[mesh.Key]*mesh.Fragment{},
		yielding: map[mesh.Key]bool{}, unsaved: map[int]bool{},
		made: Assembly{Fragment: &mesh.Fragment{Source: source}},
	}
}

// Len is the number of texts.
func (s *Set) Len() int { return len(s.texts) }

// Text is the text of a path, or nil.
func (s *Set) Text(path string) *Text { return s.texts[path] }

// Texts are all of them, in their order; only to be read.
func (s *Set) Texts() []*Text { return s.order }

// Saved reports whether all of it has been handed to a [Keeper].
func (s *Set) Saved() bool { return len(s.unsaved) == 0 }

// Gives reports whether some text gives the object; one that keeps it does not.
func (s *Set) Gives(key mesh.Key) bool { return s.claims.gives(key, nil) }

// Loses reports whether objects would be gone from the mesh if a text gave this
// from now on; nil means nothing.
func (s *Set) Loses(path string, next *Version) bool {
	t := s.texts[path]
	if t == nil {
		return false
	}
	for _, key := range t.V.keys() {
		if !next.gives(key) && !s.claims.gives(key, t) {
			return true
		}
	}
	return false
}

// Put takes a text into the set, in the place of the one of that path.
func (s *Set) Put(t *Text) {
	s.Restore(t)
	s.unsaved[t.shard] = true
}

// Restore is Put for what the state directory has already.
func (s *Set) Restore(t *Text) {
	if old := s.texts[t.Path]; old != nil {
		s.remove(old)
	}
	t.shard = shardOf(t.Root, t.Rel)
	s.texts[t.Path] = t
	at, _ := slices.BinarySearchFunc(s.order, t, (*Text).Compare)
	s.order = slices.Insert(s.order, at, t)
	for key, twice := range t.claimed() {
		s.touch(key)
		s.claims.add(t, key, twice)
		s.faulty = s.faulty || s.claims.more[key] != nil
		if s.claims.more[key] != nil && s.claims.gives(key, nil) {
			s.yielding[key] = true
		}
	}
	s.faulty = s.faulty || t.troubled()
}

// Drop takes a text out, and with it what it kept.
func (s *Set) Drop(t *Text) {
	s.remove(t)
	s.unsaved[t.shard] = true
}

func (s *Set) remove(t *Text) {
	s.faulty = s.faulty || t.troubled()
	for key := range t.claimed() {
		s.touch(key)
		s.claims.drop(t, key)
	}
	delete(s.texts, t.Path)
	if at, ok := slices.BinarySearchFunc(s.order, t, (*Text).Compare); ok {
		s.order = slices.Delete(s.order, at, at+1)
	}
}

// touch remembers what is in force of an object that may be about to change.
func (s *Set) touch(key mesh.Key) {
	s.faulty = s.faulty || s.claims.more[key] != nil || s.claims.one[key] != nil && s.claims.one[key].V.kept[key].good != nil
	if _, known := s.touched[key]; known {
		return
	}
	var piece *mesh.Fragment
	if _, g, _ := s.claims.winner(key); g != nil {
		piece = g.Piece
	}
	s.touched[key] = piece
}

// Yield takes kept objects out of force that another text gives now. They do not
// come back when that text loses them. It is called when all texts that are
// believed at one time are in the set.
func (s *Set) Yield() {
	for key := range s.yielding {
		if !s.claims.gives(key, nil) {
			continue
		}
		for _, t := range slices.Clone(s.claims.of(key)) {
			if _, kept := t.V.kept[key]; !kept {
				continue
			}
			s.touch(key)
			s.faulty = true
			delete(t.V.kept, key)
			s.unsaved[t.shard] = true
			if _, named := t.claimed()[key]; !named {
				s.claims.drop(t, key)
			}
		}
	}
	clear(s.yielding)
}

// Assemble is what the texts come to. It is made of what was made before, and
// only changed where the texts did. Equal texts give equal assemblies, whatever
// came before.
func (s *Set) Assemble() Assembly {
	var out, in []*mesh.Fragment
	for key, before := range s.touched {
		_, g, _ := s.claims.winner(key)
		var now *mesh.Fragment
		if g != nil {
			now = g.Piece
		}
		if before == now {
			continue
		}
		if before != nil {
			out = append(out, before)
			s.made.Objects--
		}
		if now != nil {
			in = append(in, now)
			s.made.Objects++
		}
	}
	s.touched = map[mesh.Key]*mesh.Fragment{} // it was large once
	s.made.Fragment = s.made.Fragment.Replace(out, in)
	if s.faulty {
		s.faulty = false
		s.tellFaults()
	}
	return s.made
}

// tellFaults makes the faults anew.
func (s *Set) tellFaults() {
	s.made.Faults, s.made.Kept = nil, nil
	for _, t := range s.order {
		s.made.Faults = append(s.made.Faults, t.V.faults...)
		for _, k := range t.V.keptList() {
			if by, _, kept := s.claims.winner(k.Key); by != t || !kept {
				continue
			}
			s.made.Kept = append(s.made.Kept, Kept{Key: k.Key, Origin: k.Origin, Since: k.since})
			s.made.Faults = append(s.made.Faults, keptFault(t, k, s.words.Text))
		}
	}
	for key, list := range s.claims.more {
		s.made.Faults = append(s.made.Faults, s.claims.twice(key, list, s.words.Name)...)
	}
	slices.SortStableFunc(s.made.Faults, CompareFaults)
}

func keptFault(t *Text, k keptGood, text string) manifest.Fault {
	at := &mesh.Origin{Path: t.Path}
	for _, o := range t.V.seen {
		if o.Key == k.Key {
			at = o.Origin
		}
	}
	flt := faultAt(at, k.Key, CodeKept, fmt.Sprintf("the last good version (from %s) stays in force until you fix the object or remove it from this %s", k.Origin, cmp.Or(text, "text")))
	flt.Severity = manifest.Warning
	return flt
}

// Same reports whether two fragments hold the same pointers.
func Same(a, b *mesh.Fragment) bool {
	if a == b {
		return true
	}
	return a != nil && b != nil && a.Same(b)
}

// Lost reports whether something of what was restored is not in a fragment. What
// was lost while nobody looked is to be judged like any other loss, by who knows
// what was there before: a source sends the restored one first, then. restored
// may be nil.
func Lost(restored, f *mesh.Fragment) bool {
	if restored == nil {
		return false
	}
	d := mesh.Compare(restored, f)
	return len(d.Removed()) > 0 || len(d.LostInline()) > 0
}
