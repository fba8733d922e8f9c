package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// What the tree behind a symbolic link may cost. People link directories of
// manifests; a link to anything else must not fill the memory, nor the system's
// watches.
const (
	// maxBarren bounds the directories in it that have no manifest.
	maxBarren = 1024
	// maxEntries bounds the names in it.
	maxEntries = 50_000
	// hugeAgain is when a tree that was too large is looked at again.
	hugeAgain = time.Minute
)

// links is what a root knows of symbolic links. The loop owns it.
type links struct {
	// above are the directories that the root lies in.
	above map[devIno]bool
	// huge are links to trees that were too large.
	huge map[string]huge
}

type huge struct {
	id    devIno
	err   error
	until time.Time
}

// allowance is what is left of the bounds.
type allowance struct{ barren, entries int }

// errHuge says that there is too much behind a symbolic link.
var errHuge = errors.New("too large a tree")

// aboveOf are the directories above a path that has no symbolic link in it.
func aboveOf(realPath string) map[devIno]bool {
	above := map[devIno]bool{}
	for dir := realPath; dir != "/"; {
		dir = filepath.Dir(dir)
		if st, err := statFile(dir); err == nil {
			above[idOf(&st)] = true
		}
	}
	return above
}

// link follows a symbolic link. One that leads nowhere is unreadable and not
// absent: what it led to may be on a disk that is away.
func (w *walker) link(path, realPath string, chain []devIno) error {
	target, hops, err := resolve(realPath)
	w.hops[path] = hops
	for _, h := range hops {
		w.watch(h.dir)
	}
	var st unix.Stat_t
	if err == nil {
		st, err = statFile(target)
	}
	switch {
	case err != nil:
		if _, gone := os.Lstat(realPath); isAbsent(gone) {
			return gone // the link itself went away
		}
		w.unreadable[path] = fmt.Errorf("following the symbolic link: %w", err)
		return nil
	case isDir(&st):
		return w.linkedDir(path, target, append(chain, idOf(&st)))
	case isManifest(filepath.Base(path)) && path != w.skip:
		return w.file(path, target)
	default:
		return nil
	}
}

// linkedDir looks at the directory behind a symbolic link. What is behind links in it
// counts to what it may cost.
func (w *walker) linkedDir(path, target string, chain []devIno) error {
	if w.linked != nil {
		return w.dir(path, target, chain)
	}
	id := chain[len(chain)-1]
	known, tried := w.links.huge[path]
	if tried && known.id == id && time.Now().Before(known.until) {
		w.unreadable[path] = known.err
		return nil
	}
	delete(w.links.huge, path)
	w.linked = &allowance{barren: maxBarren, entries: maxEntries}
	err := w.dir(path, target, chain)
	w.linked = nil
	if !errors.Is(err, errHuge) {
		return err
	}
	w.forget(path)
	err = fmt.Errorf("following the symbolic link: %q is no directory of manifests: %w", target, err)
	w.links.huge[path] = huge{id, err, time.Now().Add(hugeAgain)}
	w.unreadable[path] = err
	return nil
}

// forget drops what was found below a link, but for where the link leads.
func (w *walker) forget(path string) {
	below := func(p string) bool { return within(path, p) }
	maps.DeleteFunc(w.files, func(p string, _ sig) bool { return below(p) })
	maps.DeleteFunc(w.dirs, func(p string, _ dirSeen) bool { return below(p) })
	maps.DeleteFunc(w.hops, func(p string, _ []hop) bool { return below(p) && p != path })
	maps.DeleteFunc(w.unreadable, func(p string, _ error) bool { return below(p) })
	maps.DeleteFunc(w.left, func(p, _ string) bool { return below(p) })
}

// tooMuch is an error about the tree behind a symbolic link, where there is one, and
// about the root elsewhere.
func (w *walker) tooMuch(err error) error {
	if w.linked == nil {
		return err
	}
	return fmt.Errorf("%w: %w", errHuge, err)
}

// astray reports whether a directory behind a symbolic link is not for reading, and
// notes why.
func (w *walker) astray(path, realPath string, chain []devIno) bool {
	id, before := chain[len(chain)-1], chain[:len(chain)-1]
	switch {
	case slices.Contains(before, id):
		w.left[path] = fmt.Sprintf("it leads back to %q, which it lies in", realPath)
	case w.links.above[id]:
		w.left[path] = fmt.Sprintf("it leads to %q, which the directory that is read lies in", realPath)
	case before[len(before)-1].dev != id.dev && isPseudo(realPath):
		w.left[path] = fmt.Sprintf("it leads to %q, which the kernel makes up", realPath)
	default:
		return false
	}
	return true
}

// isPseudo reports whether a directory is on a file system that has no files of
// people.
func isPseudo(dir string) bool {
	var st unix.Statfs_t
	if err := ignoreEINTR(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return false
	}
	return slices.Contains([]int64{
		unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC,
	}, int64(st.Type)) //nolint:unconvert // not int64 everywhere
}

// list gives the names in a directory, within what the tree behind a symbolic link
// may cost.
func (w *walker) list(dir string) ([]fs.DirEntry, error) {
	if w.linked == nil {
		return os.ReadDir(dir)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(w.linked.entries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	w.linked.entries -= len(entries)
	if w.linked.entries < 0 {
		return nil, w.tooMuch(fmt.Errorf("more than %d names", maxEntries))
	}
	if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return isManifest(e.Name()) }) {
		return entries, nil
	}
	if w.linked.barren--; w.linked.barren < 0 {
		return nil, w.tooMuch(fmt.Errorf("more than %d directories without a manifest", maxBarren))
	}
	return entries, nil
}
