package lastgood

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Words name the texts of a source in messages.
type Words struct {
	// Text is one of them, such as "file".
	Text string
	// Name is what they are sorted by, such as "path".
	Name string
}

// Set has the accepted texts of a source.
type Set struct {
	words Words
	texts map[string]*Text
	// order is the texts in their order; claims, which of them speak of an object.
	order       []*Text
	definitions definitions

	// touched are the objects that may differ from those of made, with their content in it;
	// faulty means that its faults may differ.
	touched map[mesh.Key]*mesh.Fragment
	faulty  bool
	// yielding are objects that texts keep although another text defines them.
	yielding map[mesh.Key]bool
	// unsaved are the shards of the state directory to write.
	unsaved map[int]bool
	made    Assembly

	// limit is what all objects may make after expansion, or zero; refused are objects that are
	// not in force because of it.
	limit   int
	refused map[mesh.Key]Excess
}

// Assembly is the content of all texts together; immutable.
type Assembly struct {
	Fragment *mesh.Fragment
	// Faults are sorted by position.
	Faults  []manifest.Fault
	Kept    []Kept
	Objects int
}

// Kept is an object whose text is broken and whose last good version stays in force.
type Kept struct {
	Key mesh.Key `json:"key"`
	// Origin is the position of the version in force; the text has changed since.
	Origin *mesh.Origin `json:"origin"`
	// Since is when the text was first found broken.
	Since time.Time `json:"since"`
}

// NewSet makes an empty set of a source.
func NewSet(source string, words Words) *Set {
	return &Set{
		words: words, texts: map[string]*Text{}, definitions: newDefinitions(), touched: map[mesh.Key]*mesh.Fragment{},
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

// Saved reports whether all of it was given to a [Persister].
func (s *Set) Saved() bool { return len(s.unsaved) == 0 }

// Gives reports whether a text defines the object; keeping an earlier version does not count.
func (s *Set) Gives(key mesh.Key) bool { return s.definitions.gives(key, nil) }

// Put adds a text, and replaces the one with the same path.
func (s *Set) Put(t *Text) {
	s.Restore(t)
	s.unsaved[t.shard] = true
}

// Restore is Put for a text from the state directory.
func (s *Set) Restore(t *Text) {
	if old := s.texts[t.Path]; old != nil {
		s.remove(old)
	}
	t.shard = shardOf(t.Root, t.Rel)
	s.texts[t.Path] = t
	at, _ := slices.BinarySearchFunc(s.order, t, (*Text).Compare)
	s.order = slices.Insert(s.order, at, t)
	for key, twice := range t.defines() {
		s.touch(key)
		s.definitions.add(t, key, twice)
		s.faulty = s.faulty || s.definitions.more[key] != nil
		if s.definitions.more[key] != nil && s.definitions.gives(key, nil) {
			s.yielding[key] = true
		}
	}
	s.faulty = s.faulty || t.troubled()
}

// Drop removes a text, with the versions that it kept.
func (s *Set) Drop(t *Text) {
	s.remove(t)
	s.unsaved[t.shard] = true
}

func (s *Set) remove(t *Text) {
	s.faulty = s.faulty || t.troubled()
	for key := range t.defines() {
		s.touch(key)
		s.definitions.drop(t, key)
	}
	delete(s.texts, t.Path)
	if at, ok := slices.BinarySearchFunc(s.order, t, (*Text).Compare); ok {
		s.order = slices.Delete(s.order, at, at+1)
	}
}

// touch remembers the content in force of an object that is about to change.
func (s *Set) touch(key mesh.Key) {
	s.faulty = s.faulty || s.definitions.more[key] != nil || s.definitions.one[key] != nil && s.definitions.one[key].V.kept[key].good != nil
	if _, known := s.touched[key]; known {
		return
	}
	s.touched[key] = s.inForce(key)
}

// Yield drops kept versions of objects that another text defines now. They do not come back if
// that text loses them. Call it after all texts that are accepted at one time are in the set.
func (s *Set) Yield() {
	for key := range s.yielding {
		if !s.definitions.gives(key, nil) {
			continue
		}
		for _, t := range slices.Clone(s.definitions.of(key)) {
			if _, kept := t.V.kept[key]; !kept {
				continue
			}
			s.touch(key)
			s.faulty = true
			delete(t.V.kept, key)
			s.unsaved[t.shard] = true
			if _, named := t.defines()[key]; !named {
				s.definitions.drop(t, key)
			}
		}
	}
	clear(s.yielding)
}

// Assemble returns the content of all texts. It is built from the last one, and changed only
// where texts changed. Equal texts give equal assemblies, whatever came before.
func (s *Set) Assemble() Assembly {
	var out, in []*mesh.Fragment
	s.refuse()
	for key, before := range s.touched {
		now := s.inForce(key)
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
	s.touched = map[mesh.Key]*mesh.Fragment{} // the old map may be large
	s.made.Fragment = s.made.Fragment.Replace(out, in)
	if s.faulty {
		s.faulty = false
		s.collectFaults()
	}
	return s.made
}

// collectFaults makes the faults again.
func (s *Set) collectFaults() {
	s.made.Faults, s.made.Kept = nil, nil
	for _, t := range s.order {
		s.made.Faults = append(s.made.Faults, t.V.faults...)
		for _, k := range t.V.keptList() {
			if by, _, kept := s.definitions.winner(k.Key); by != t || !kept {
				continue
			}
			s.made.Kept = append(s.made.Kept, Kept{Key: k.Key, Origin: k.Origin, Since: k.since})
			s.made.Faults = append(s.made.Faults, keptFault(t, k, s.words.Text))
		}
		for _, key := range keysOf(t.V.denied) {
			if by, g, _ := s.definitions.winner(key); by == t && g == t.V.denied[key] {
				s.made.Faults = append(s.made.Faults, deniesFault(g))
			}
		}
	}
	s.made.Faults = append(s.made.Faults, s.excessFaults()...)
	for key, list := range s.definitions.more {
		s.made.Faults = append(s.made.Faults, s.definitions.twice(key, list, s.words.Name)...)
	}
	slices.SortStableFunc(s.made.Faults, CompareFaults)
}

func keptFault(t *Text, k keptGood, text string) manifest.Fault {
	at, until := &mesh.Origin{Path: t.Path}, "this %s has no error"
	for _, o := range t.V.seen {
		if o.Key == k.Key {
			at, until = o.Origin, "you fix the object or remove it from this %s"
		}
	}
	if t.V.cut != notCut && (until == "this %s has no error" || t.V.heldBack(k.Key)) {
		until = "this %s has its end"
	}
	flt := faultAt(at, k.Key, CodeKept, fmt.Sprintf("the last good version (from %s) stays in force until "+until, k.Origin, cmp.Or(text, "text")))
	flt.Severity = manifest.Warning
	return flt
}

func deniesFault(g *good) manifest.Fault {
	flt := faultAt(g.Origin, g.Key, CodeDenies, "it has no last good version"+manifest.Consequence(g.Fragment.Unenforced[0]))
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

// Lost reports whether something of a restored fragment is missing in a fragment. The guard
// must decide about what was lost while the server was stopped, so the source sends the
// restored fragment first. restored may be nil.
func Lost(restored, f *mesh.Fragment) bool {
	if restored == nil {
		return false
	}
	d := mesh.Compare(restored, f)
	return len(d.Removed()) > 0 || len(d.LostInline()) > 0 || d.LostGateways() != nil
}
