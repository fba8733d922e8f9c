package files

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// tree has all roots: their accepted files, and changes that are not accepted yet. The loop
// owns it.
type tree struct {
	cfg   Config
	log   *slog.Logger
	roots []*root
	watch watcher // or nil

	files   map[string]*file
	changes map[string]*change
	// unread are files that were seen and could not be read.
	unread map[string]error
	// set has their content.
	set *lastgood.Set
	// saved are the files that the state directory had, if it is damaged; else nil.
	saved map[string]bool
	// byReal and byHop lead from a name on disk to the paths it stands for.
	byReal map[string][]target
	byHop  map[hop][]target

	watchErr error // why some directories are not watched, or nil
	starting bool  // the first scan
	counts   Counters

	// What happened since the loop last asked.
	changed time.Time // when the first file was accepted, or zero
	noticed time.Time // when the first of the accepted changes was noticed
	urgent  bool      // one of them was renamed into place

	// Deleted files that are not logged yet. The objects of moved ones are in other files.
	deleted, moved lastgood.Deletions
}

// target is a path below a root.
type target struct {
	root *root
	path string
}

func newTree(cfg Config, roots []*root) *tree {
	set := lastgood.NewSet(cfg.Name, lastgood.Words{Text: "file", Name: "path"})
	set.LimitExpansion(cfg.MaxExpansion)
	return &tree{
		cfg: cfg, log: cfg.Logger, roots: roots,
		files: map[string]*file{}, changes: map[string]*change{}, unread: map[string]error{}, set: set,
	}
}

// scan checks everything.
func (t *tree) scan(now time.Time) {
	t.counts.Scans++
	t.watchErr = nil
	for _, r := range t.roots {
		t.scanRoot(r, now, 0)
	}
	if t.watch == nil {
		return
	}
	dirs := map[string]struct{}{}
	for dir := range t.byReal {
		dirs[dir] = struct{}{}
	}
	for h := range t.byHop {
		dirs[h.dir] = struct{}{}
	}
	t.watch.retain(dirs)
}

func (t *tree) walker(r *root) *walker {
	return &walker{walkResult: newWalkResult(), limit: t.cfg.MaxFiles, skip: r.skip, links: &r.links, watch: func(dir string) {
		if t.watch == nil {
			return
		}
		if err := t.watch.add(dir); err != nil && t.watchErr == nil {
			t.watchErr = err
		}
	}}
}

// scanRoot checks a whole root. If it cannot be read completely, nothing changes: its files
// stay as they are. Files that were not changed after whole (see completeUntil) came with a
// directory or link, and are complete.
func (t *tree) scanRoot(r *root, now time.Time, whole int64) {
	w := t.walker(r)
	err := w.root(r)
	if err == nil {
		err = r.otherMounts(&w.walkResult, t.known(r))
	}
	if err != nil {
		t.fail(r, &w.walkResult, err, now)
		return
	}
	if !r.ok {
		if r.read {
			t.log.Info("directory is readable again", "path", r.Path, "after", now.Sub(r.since).Round(time.Millisecond).String())
		}
		r.ok, r.read, r.err, r.since = true, true, nil, now
	}
	t.apply(target{r, r.Path}, &w.walkResult, now, whole)
}

// fail records that a root cannot be read.
func (t *tree) fail(r *root, w *walkResult, err error, now time.Time) {
	if r.ok || r.err == nil {
		r.since = now
	}
	if r.err == nil || r.err.Error() != err.Error() {
		t.log.Error("source is unavailable", "path", r.Path, "err", err, "last_good_files", r.files)
	}
	r.ok, r.err = false, err
	r.seen.hops[r.Path] = w.hops[r.Path] // how to learn of its return
	maps.DeleteFunc(t.changes, func(_ string, c *change) bool { return c.root == r })
	t.index()
}

// known yields the paths of the accepted files of a root.
func (t *tree) known(r *root) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for path, f := range t.files {
			if f.root == r && !yield(path) {
				return
			}
		}
	}
}

// visit checks one path, and everything below it if it is a directory.
func (t *tree) visit(at target, now time.Time, whole int64) {
	parent, ok := at.root.seen.dirs[filepath.Dir(at.path)]
	if at.path == at.root.Path || !at.root.ok || !ok {
		t.scanRoot(at.root, now, whole)
		return
	}
	w := t.walker(at.root)
	chain, err := at.root.chain(filepath.Dir(at.path))
	if err == nil {
		err = w.below(at.path, parent.real, chain)
	}
	switch {
	case errors.Is(err, errGone):
		w.walkResult = newWalkResult()
	case err != nil:
		// Something above it has changed too, or the disk fails.
		t.scanRoot(at.root, now, whole)
		return
	}
	if err := at.root.otherMounts(&w.walkResult, t.known(at.root)); err != nil {
		t.scanRoot(at.root, now, whole)
		return
	}
	t.apply(at, &w.walkResult, now, whole)
}

// chain are the directories from the root down to dir, so that a link back to one of them is
// recognized as a loop.
func (r *root) chain(dir string) ([]devIno, error) {
	var chain []devIno
	for {
		st, err := statFile(r.seen.dirs[dir].real)
		if err != nil {
			return nil, err
		}
		chain = append(chain, idOf(&st))
		if dir == r.Path {
			slices.Reverse(chain)
			return chain, nil
		}
		dir = filepath.Dir(dir)
	}
}

// apply compares the result of a walk with the accepted files.
func (t *tree) apply(at target, w *walkResult, now time.Time, whole int64) {
	_, wasDir := at.root.seen.dirs[at.path]
	_, wasUnreadable := at.root.seen.unreadable[at.path]
	wide := wasDir || wasUnreadable || len(w.dirs) > 0
	if wide || len(w.hops) > 0 || at.root.seen.hops[at.path] != nil || len(w.unreadable) > 0 || len(w.left) > 0 {
		at.root.replace(at.path, w)
		t.index()
	}
	for path, s := range w.files {
		t.saw(target{at.root, path}, s, now, max(s.mtime, s.ctime) <= whole)
	}
	gone := func(path string, r *root) {
		if _, there := w.files[path]; r != at.root || there || !within(at.path, path) {
			return
		}
		if r.covered(path) {
			delete(t.changes, path)
			return
		}
		t.missed(target{r, path}, now)
	}
	if !wide {
		gone(at.path, at.root)
		return
	}
	for path, f := range t.files {
		gone(path, f.root)
	}
	for path, c := range t.changes {
		gone(path, c.root)
	}
}

// index makes byReal and byHop again.
func (t *tree) index() {
	t.byReal, t.byHop = map[string][]target{}, map[hop][]target{}
	// A directory mounted in two places is watched once, under either path.
	twins := map[devIno][]target{}
	for _, r := range t.roots {
		for path, d := range r.seen.dirs {
			twins[d.id] = append(twins[d.id], target{r, path})
		}
	}
	for _, r := range t.roots {
		for _, d := range r.seen.dirs {
			t.byReal[d.real] = twins[d.id]
		}
		for path, hops := range r.seen.hops {
			for _, h := range hops {
				t.byHop[h] = append(t.byHop[h], target{r, path})
			}
		}
	}
}

// saw records the state of a file.
func (t *tree) saw(at target, s sig, now time.Time, placed bool) {
	f, known := t.files[at.path]
	_, failed := t.unread[at.path]
	if known && f.sig == s && !f.readAgain && !failed {
		delete(t.changes, at.path)
		return
	}
	t.changes[at.path] = observe(t.changes[at.path], change{
		root: at.root, sig: s, since: now, renamed: placed, old: t.starting && atRest(s, now),
	})
}

// missed records that a file is missing.
func (t *tree) missed(at target, now time.Time) {
	if _, known := t.files[at.path]; !known {
		delete(t.changes, at.path)
		delete(t.unread, at.path)
		return
	}
	t.changes[at.path] = observe(t.changes[at.path], change{root: at.root, gone: true, since: now})
}

// handle checks everything that a batch of events names.
func (t *tree) handle(b batch, now time.Time) {
	t.counts.Events += uint64(len(b.names))
	if b.lost {
		t.counts.Overflows++
		t.log.Warn("file events lost (queue overflow), rescanning all directories")
		t.scan(now)
		return
	}
	targets := map[target]int64{}
	came := map[hop][]target{} // files that appeared
	for h, how := range b.names {
		list := t.targets(h)
		var whole int64
		if how == appeared && len(list) > 0 {
			var isFile bool
			if whole, isFile = completeUntil(h); isFile {
				came[h] = list
			}
		}
		for _, at := range list {
			targets[at] = max(targets[at], whole)
		}
	}
	list := slices.SortedFunc(maps.Keys(targets), func(a, b target) int {
		return cmp.Or(cmp.Compare(a.root.order, b.root.order), cmp.Compare(a.path, b.path))
	})
	for _, at := range list {
		t.force(at.path)
		t.visit(at, now, targets[at])
	}
	t.markRenamed(came)
	if b.moved {
		t.scan(now)
	}
}

// targets are the paths that a name on disk stands for.
func (t *tree) targets(h hop) []target {
	list := slices.Clone(t.byHop[h])
	for _, dir := range t.byReal[h.dir] {
		switch {
		case h.name == "":
			list = append(list, dir)
		case h.name[0] != '.':
			list = append(list, target{dir.root, filepath.Join(dir.path, h.name)})
		}
	}
	return slices.DeleteFunc(list, func(at target) bool { return slices.Contains(at.root.skip, at.path) })
}

// markRenamed marks the files that appeared with content and were not written since: they were
// renamed or linked into place.
func (t *tree) markRenamed(came map[hop][]target) {
	maps.DeleteFunc(came, func(_ hop, list []target) bool {
		return !slices.ContainsFunc(list, func(at target) bool { return t.changes[at.path].filled() })
	})
	if len(came) == 0 {
		return
	}
	names := slices.Collect(maps.Keys(came))
	for i, untouched := range t.watch.untouched(names) {
		for _, at := range came[names[i]] {
			if c := t.changes[at.path]; untouched && c.filled() {
				c.renamed = true
			}
		}
	}
}

// force makes the next check of a file read it even if it looks unchanged, because of an
// event.
func (t *tree) force(path string) {
	if f, ok := t.files[path]; ok {
		f.readAgain = true
	}
}
