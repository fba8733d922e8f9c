package files

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Release takes what a person confirms: files that are cut off are whole, files that were written in place
// and lack what restricts count at once, and files with errors are complete although the versions that were
// saved of them are damaged. It reports whether there was anything.
func (s *Source) Release() bool {
	if !s.releasable.Load() {
		return false
	}
	select {
	case s.releases <- struct{}{}:
	default: // one waits already
	}
	return true
}

// canRelease reports whether there is something that a person may confirm.
func (t *tree) canRelease() bool {
	for _, f := range t.files {
		if f.V.Cut() {
			return true
		}
	}
	for path, c := range t.changes {
		if _, held := t.heldLoss(path, c); held {
			return true
		}
	}
	return t.uncertain() != ""
}

// release takes what a person has confirmed.
func (t *tree) release(now time.Time) {
	if why := t.uncertain(); why != "" {
		t.saved = nil
		if t.changed.IsZero() {
			t.changed = now
		}
	}
	for path, c := range t.changes {
		if _, held := t.heldLoss(path, c); held {
			c.renamed = true
		}
	}
	for _, path := range slices.Sorted(maps.Keys(t.files)) {
		f := t.files[path]
		if !f.V.Cut() {
			continue
		}
		next := newFile(f.root, path, f.V.Release(f.root.decode(&t.cfg, path, f.V.Blob()), now))
		next.look(f.sig)
		next.readAgain = f.readAgain
		if c := t.changes[path]; c != nil {
			c.next = nil // it is read anew, after this version
		}
		t.add(next, false)
		t.urgent = true
		if t.changed.IsZero() {
			t.changed = now
		}
	}
	t.set.Yield()
}

// uncertain says why the files are not delivered although all could be read: the saved versions are
// damaged, and a file with an error may have had objects that nobody knows. Empty means that they are.
func (t *tree) uncertain() string {
	if t.saved == nil {
		return ""
	}
	for _, path := range slices.Sorted(maps.Keys(t.files)) {
		if f := t.files[path]; !t.saved[path] && f.V.Uncertain() {
			return fmt.Sprintf("the saved versions are damaged, and %s has an error: what it had before is not known; correct the file, or run `fairlead release %s`", path, t.cfg.Name)
		}
	}
	return ""
}
