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

// file is a file as it is believed. The loop owns it.
type file struct {
	*lastgood.Text
	root *root
	sig  sig
	// suspect says that the next scan shall read the file though it looks the
	// same: it was read too soon after its last change.
	suspect bool
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

// add takes a file into the tree, in the place of the one of that path. Restored
// are those that the state directory has already.
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

// remove takes a file out of the tree.
func (t *tree) remove(f *file) {
	delete(t.files, f.Path)
	f.root.files--
	t.set.Drop(f.Text)
}

// restore takes what the state directory had of the present roots. Entries of
// other roots go when their shard is written next. A restored file has no sig, so
// the first look reads it and finds that its content is the same, or not.
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
		if x.v.Live()+x.v.Kept() > 0 {
			f := newFile(x.root, x.path, x.v)
			f.suspect = true
			t.add(f, true)
		}
	}
	t.set.Yield()
}

// settingsOf is what a file of mesh settings gives, or gave last; or nil.
func (t *tree) settingsOf(r *root) *mesh.Fragment {
	if f := t.files[r.Path]; f != nil {
		return f.V.Piece(meshConfigKey())
	}
	return nil
}
