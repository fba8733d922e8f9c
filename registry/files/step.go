package files

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// step accepts the files that may be accepted by now, and returns when to call it again; zero
// means not before something happens.
func (t *tree) step(now time.Time) time.Time {
	ahead := t.prefetch(now)
	defer ahead.end()
	// Objects of one file may be lost only until another file that has them is
	// accepted, so it repeats until nothing changes.
	for again := true; again; {
		again = false
		for _, path := range slices.Sorted(maps.Keys(t.changes)) {
			if c := t.changes[path]; c != nil && !c.readAt().After(now) && t.tryAccept(path, c, now, ahead) {
				again = true
			}
		}
	}
	t.set.Yield()
	t.logDeletions(now)
	var next time.Time
	for path, c := range t.changes {
		at := c.readAt()
		if c.gone || c.next != nil {
			at = t.acceptAt(path, c)
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// logDeletions logs the files that were deleted: one line for a whole tree.
func (t *tree) logDeletions(now time.Time) {
	pending := false
	for _, c := range t.changes {
		pending = pending || c.gone
	}
	t.deleted.Log(t.log, "file deleted", "files deleted", pending, now)
	t.moved.Log(t.log, "file deleted, its objects are in other files", "files deleted, their objects are in other files", pending, now)
}

// writing reports whether some file is being written in place.
func (t *tree) writing() bool {
	for _, c := range t.changes {
		if !c.gone && c.next == nil {
			return true
		}
	}
	return false
}

// tryAccept accepts a change if its time has come.
func (t *tree) tryAccept(path string, c *change, now time.Time, ahead *prefetch) bool {
	if !c.gone && c.next == nil && !t.take(path, c, now, ahead.reading(t, path, c)) {
		return false
	}
	if t.acceptAt(path, c).After(now) {
		return false
	}
	if !t.confirm(path, c, now) {
		return false
	}
	delete(t.changes, path)
	t.accept(path, c, now)
	return true
}

// acceptAt is when a change that was read may be accepted. An empty file waits as one that loses
// objects: its writer is about to write, as a rule.
func (t *tree) acceptAt(path string, c *change) time.Time {
	if c.next != nil && c.blob.Blank() {
		return c.acceptAt(lastgood.SomeLoss, 0)
	}
	loss, _ := t.set.Loss(path, c.next)
	return c.acceptAt(loss, t.cfg.LossAfter)
}

// heldLoss says what a file which was read lacks and restricts, if the file waits for that.
func (t *tree) heldLoss(path string, c *change) (what string, held bool) {
	if c.gone || c.renamed || c.next == nil {
		return "", false
	}
	loss, what := t.set.Loss(path, c.next)
	return what, loss == lastgood.RestrictingLoss
}

// take makes the new version of a change. False means that there is none.
func (t *tree) take(path string, c *change, now time.Time, r reading) bool {
	t.counts.Reads++
	switch err := r.err; {
	case errors.Is(err, errMoving):
		t.saw(target{c.root, path}, r.sig, now, false)
		if t.changes[path] == c { // it moved after stat
			c.since, c.renamed, c.old = now, false, false
		}
		return false
	case isAbsent(err):
		delete(t.changes, path)
		t.missed(target{c.root, path}, now)
		return false
	case err != nil:
		delete(t.changes, path)
		t.failRead(path, err)
		return false
	}
	delete(t.unread, path)
	f := t.files[path]
	if r.same {
		f.look(c.sig)
		f.readAgain = racy(c.sig, now)
		delete(t.changes, path)
		return false
	}
	var old *lastgood.Version
	if f != nil {
		old = f.V
	}
	t.counts.Decodes++
	t.counts.Objects += uint64(len(r.text.Objects))
	c.blob, c.next = r.blob, lastgood.NextVersion(old, r.blob, r.text, now)
	if what, held := t.heldLoss(path, c); held {
		t.log.Warn("file written in place lacks what it had, waiting until it rests", "path", path, "what", what)
	}
	return true
}

// failRead records a file that cannot be read. Its objects stay in force.
func (t *tree) failRead(path string, err error) {
	if was := t.unread[path]; was == nil || was.Error() != err.Error() {
		t.log.Error("unreadable file, its last objects stay in force", "path", path, "err", err)
	}
	t.unread[path] = err
}

// confirm checks once more a change that has waited. A missing file is accepted only below a
// root that still exists.
func (t *tree) confirm(path string, c *change, now time.Time) bool {
	if !c.since.Before(now) {
		return true
	}
	st, err := statFile(path)
	switch {
	case c.gone && (isAbsent(err) || err == nil && isDir(&st)): // a directory of that name is not the file
		rootStat, err := statFile(c.root.abs)
		if d, ok := c.root.seen.dirs[c.root.Path]; err == nil && ok && sigOf(&rootStat).dev == d.id.dev {
			return true
		}
		t.scanRoot(c.root, now, 0)
		return false
	case !c.gone && err == nil && sigOf(&st) == c.sig:
		return true
	default:
		t.visit(target{c.root, path}, now, 0)
		if t.changes[path] == c { // it looks the same to the walk: begin anew
			c.since, c.renamed, c.old, c.next = now, false, false, nil
		}
		return false
	}
}

// accept puts a change in force.
func (t *tree) accept(path string, c *change, now time.Time) {
	f := t.files[path]
	t.urgent = t.urgent || c.renamed
	if t.changed.IsZero() {
		t.changed = now
	}
	if t.noticed.IsZero() || c.first.Before(t.noticed) {
		t.noticed = c.first
	}
	if c.gone {
		objects := f.V.Live() + f.V.Kept()
		loss, _ := t.set.Loss(path, nil)
		t.remove(f)
		delete(t.unread, path)
		if objects > 0 && loss == lastgood.NoLoss { // it was renamed, as a rule
			t.moved.Add(path, objects, now)
		} else {
			t.deleted.Add(path, objects, now)
		}
		return
	}
	next := newFile(c.root, path, c.next)
	next.look(c.sig)
	next.readAgain = racy(c.sig, now)
	t.add(next, false)
	lastgood.LogFaults(t.log, path, c.next)
	t.log.Debug("file was read", "path", path, "objects", c.next.Live(), "at_once", c.renamed || c.old)
}

// delivered reports whether every root has been read, or is known from the state directory,
// and no unknown file is being written.
func (t *tree) delivered(waited bool) bool {
	for _, r := range t.roots {
		if !r.read && !r.stored {
			return false
		}
		if r.isFile() && t.settingsOf(r) == nil {
			return false // never the defaults in place of what is broken
		}
	}
	for path, c := range t.changes {
		if t.files[path] == nil && !c.gone && !waited {
			return false
		}
	}
	return t.uncertain() == ""
}

// whole reports whether the last scan could read everything.
func (t *tree) whole() bool {
	for _, r := range t.roots {
		if !r.ok || len(r.seen.unreadable) > 0 {
			return false
		}
	}
	for path, c := range t.changes {
		if _, held := t.heldLoss(path, c); !held {
			return false
		}
	}
	return len(t.unread) == 0
}

// faults are those that do not belong to a text.
func (t *tree) faults(now time.Time) []manifest.Fault {
	var list []manifest.Fault
	add := func(path string, code manifest.Code, severity manifest.Severity, format string, args ...any) {
		list = append(list, manifest.Fault{Origin: &mesh.Origin{Source: t.cfg.Name, Path: path}, Code: code, Severity: severity, Message: fmt.Sprintf(format, args...)})
	}
	for _, r := range t.roots {
		if !r.ok && r.err != nil {
			add(r.Path, CodeUnread, manifest.Error, "unreadable, its last state stays in force: %v", r.err)
		}
		for path, err := range r.seen.unreadable {
			add(path, CodeUnread, manifest.Error, "unreadable, its last objects stay in force: %v", err)
		}
	}
	for _, r := range t.roots {
		for path, why := range r.seen.left {
			add(path, CodeLink, manifest.Warning, "the symbolic link is not followed: %s", why)
		}
	}
	for path, err := range t.unread {
		add(path, CodeUnread, manifest.Error, "unreadable, its last objects stay in force: %v", err)
	}
	for path, c := range t.changes {
		if what, held := t.heldLoss(path, c); held {
			add(path, CodeLoss, manifest.Warning, "was written in place and lacks %s; this counts when the file rests for %s: rename files into place, "+
				"or run `fairlead release %s`, if it is to count at once", what, t.cfg.LossAfter, t.cfg.Name)
			continue
		}
		if waiting := now.Sub(c.first); waiting > startFor {
			add(path, CodeRestless, manifest.Warning, "has been changing for %s and is not read until it stops changing",
				waiting.Round(time.Second))
		}
	}
	return list
}
