package files

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// file is an accepted file. The loop owns it.
type file struct {
	*lastgood.Text
	root *root
	sig  sig
	// readAgain makes the next scan read the file although it looks unchanged: it was read too
	// soon after its last change.
	readAgain bool
}

func (f *file) look(s sig) { f.sig, f.Twin = s, s }

// newFile makes a file of a root. It has no sig until it is seen.
func newFile(r *root, path string, v *lastgood.Version) *file {
	t := &lastgood.Text{Path: path, Order: r.order, Root: r.abs, V: v}
	if rel, err := filepath.Rel(r.Path, path); err == nil {
		t.Rel = rel
	}
	return &file{Text: t, root: r}
}

// add adds a file to the tree, and replaces the one with the same path. restored means that it
// comes from the state directory.
func (t *tree) add(f *file, restored bool) {
	if old := t.files[f.Path]; old != nil {
		old.root.files--
	}
	t.files[f.Path] = f
	f.root.files++
	if restored {
		t.set.Restore(f.Text)
	} else {
		t.set.Put(f.Text)
	}
}

// remove removes a file from the tree.
func (t *tree) remove(f *file) {
	delete(t.files, f.Path)
	f.root.files--
	t.set.Drop(f.Text)
}

// restore adds the files of the present roots from the state directory. Entries of other roots
// disappear when their shard is written next. A restored file has no sig, so the first check
// reads it and compares its content.
func (t *tree) restore(list []lastgood.Entry, now time.Time) {
	type text struct {
		entry *lastgood.Entry
		root  *root
		path  string
		v     *lastgood.Version
	}
	var texts []text
	for i := range list {
		e := &list[i]
		for _, r := range t.roots {
			if r.abs != e.Root || !filepath.IsLocal(e.Rel) && e.Rel != "." {
				continue
			}
			r.stored = true
			texts = append(texts, text{entry: e, root: r, path: filepath.Join(r.Path, e.Rel)})
		}
	}
	slices.SortStableFunc(texts, func(a, b text) int { // as they are kept
		return cmp.Or(cmp.Compare(a.root.order, b.root.order), cmp.Compare(a.path, b.path))
	})
	var workers sync.WaitGroup
	size := func(i int) (n int64) {
		for _, content := range texts[i].entry.Contents {
			n += int64(len(content))
		}
		return n
	}
	spread(&workers, len(texts), size, func(i int) {
		x := &texts[i]
		x.v = x.entry.Revive(func(b *lastgood.Blob) lastgood.Decoded { return x.root.decode(&t.cfg, x.path, b) }, now)
	})
	workers.Wait()
	for _, x := range texts {
		if !x.v.Empty() {
			f := newFile(x.root, x.path, x.v)
			f.readAgain = true
			t.add(f, true)
		}
	}
	t.set.Yield()
}

// settingsOf is the content of a file of mesh settings or networks, or its last good version; or nil.
func (t *tree) settingsOf(r *root) *mesh.Fragment {
	if f := t.files[r.Path]; f != nil {
		return f.V.Fragment(r.key())
	}
	return nil
}
