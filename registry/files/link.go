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

// Limits of the tree behind a symbolic link. People link directories of manifests; a link to
// anything else must not use up memory or the watches of the system.
const (
	// maxBarren is the limit of directories in it without a manifest.
	maxBarren = 1024
	// maxEntries is the limit of names in it.
	maxEntries = 50_000
	// hugeRetry is when a tree that was too large is checked again.
	hugeRetry = time.Minute
)

// links are the symbolic links of a root. The loop owns it.
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

// errHuge means that the tree behind a symbolic link is too large.
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

// link follows a symbolic link. A dangling link counts as unreadable, not as absent: its
// target may be on a disk that is not mounted.
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
	case isManifest(filepath.Base(path)) && !slices.Contains(w.skip, path):
		return w.file(path, target)
	default:
		return nil
	}
}

// linkedDir walks the directory behind a symbolic link. Links in it share its allowance.
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
	w.links.huge[path] = huge{id, err, time.Now().Add(hugeRetry)}
	w.unreadable[path] = err
	return nil
}

// forget removes what was found below a link, except its target.
func (w *walker) forget(path string) {
	below := func(p string) bool { return within(path, p) }
	maps.DeleteFunc(w.files, func(p string, _ sig) bool { return below(p) })
	maps.DeleteFunc(w.dirs, func(p string, _ dirSeen) bool { return below(p) })
	maps.DeleteFunc(w.hops, func(p string, _ []hop) bool { return below(p) && p != path })
	maps.DeleteFunc(w.unreadable, func(p string, _ error) bool { return below(p) })
	maps.DeleteFunc(w.left, func(p, _ string) bool { return below(p) })
}

// tooMuch is an error about the tree behind a symbolic link, if there is one, and else about
// the root.
func (w *walker) tooMuch(err error) error {
	if w.linked == nil {
		return err
	}
	return fmt.Errorf("%w: %w", errHuge, err)
}

// excluded reports whether a directory behind a symbolic link must not be read, and records
// why.
func (w *walker) excluded(path, realPath string, chain []devIno) bool {
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

// isPseudo reports whether a directory is on a pseudo file system, such as /proc.
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

// list returns the names in a directory, within the allowance of a symbolic link.
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
