package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxDepth bounds the directories below one another.
const maxDepth = 64

// walkResult is the result of a walk of a path. All paths are logical: the configured path of
// the root, and names below it, through symbolic links.
type walkResult struct {
	files map[string]sig
	dirs  map[string]dirSeen
	// hops are the names that decide where the symbolic links below lead.
	hops map[string][]hop
	// unreadable are paths below which nothing is known, with the reason.
	unreadable map[string]error
	// left are symbolic links that are not followed, with the reason.
	left map[string]string
}

// dirSeen is a directory behind its logical path.
type dirSeen struct {
	real string
	id   devIno
}

// walker walks a path and everything below it.
type walker struct {
	walkResult
	// watch gets every directory before it is listed, so that changes in between are events.
	watch func(dir string)
	limit int      // of files, and of directories
	skip  []string // paths to leave alone
	links *links   // what is known of symbolic links of this root
	// linked is the remaining allowance of the tree behind a symbolic link; nil outside.
	linked *allowance
}

// errGone means that nothing exists at the path.
var errGone = errors.New("does not exist")

type devIno struct{ dev, ino uint64 }

func newWalkResult() walkResult {
	return walkResult{files: map[string]sig{}, dirs: map[string]dirSeen{}, hops: map[string][]hop{}, unreadable: map[string]error{}, left: map[string]string{}}
}

// root walks a whole root. An error means that it could not be read.
func (w *walker) root(r *root) error {
	realPath, hops, err := resolve(r.abs)
	w.hops[r.Path] = hops
	for _, h := range hops {
		w.watch(h.dir)
	}
	if err != nil {
		return err
	}
	st, err := statFile(realPath)
	switch {
	case err != nil:
		return err
	case r.isFile() && isRegular(&st):
		w.files[r.Path] = sigOf(&st)
		return nil
	case r.isFile():
		return errNotFile
	case !isDir(&st):
		return errors.New("not a directory")
	}
	w.links.above = aboveOf(realPath)
	if err := w.dir(r.Path, realPath, []devIno{idOf(&st)}); err != nil {
		return err
	}
	// What is fatal for the root is merely noted for a directory below it.
	return w.unreadable[r.Path]
}

// below walks a path below a root whose directory is at realDir. chain are the directories
// above it. errGone means that nothing exists there.
func (w *walker) below(path, realDir string, chain []devIno) error {
	fi, err := os.Lstat(filepath.Join(realDir, filepath.Base(path)))
	if err == nil {
		err = w.entry(path, realDir, fs.FileInfoToDirEntry(fi), chain)
	}
	if isAbsent(err) {
		return errGone
	}
	return err
}

// dir walks a directory. It returns an error only if the whole walk is useless.
func (w *walker) dir(path, realPath string, chain []devIno) error {
	if len(chain) > maxDepth {
		return w.tooMuch(fmt.Errorf("more than %d directories below one another at %q", maxDepth, path))
	}
	if len(w.dirs) >= w.limit {
		return w.tooMuch(fmt.Errorf("more than %d directories", w.limit))
	}
	if w.linked != nil && w.excluded(path, realPath, chain) {
		return nil
	}
	w.dirs[path] = dirSeen{real: realPath, id: chain[len(chain)-1]}
	w.watch(realPath)
	entries, err := w.list(realPath)
	switch {
	case errors.Is(err, fs.ErrPermission):
		w.unreadable[path] = err
		return nil
	case err != nil:
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		err := w.entry(filepath.Join(path, e.Name()), realPath, e, chain)
		if err != nil && !isAbsent(err) {
			return err
		}
	}
	return nil
}

// entry walks one name of a directory.
func (w *walker) entry(path, realDir string, e fs.DirEntry, chain []devIno) error {
	realPath := filepath.Join(realDir, e.Name())
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		return w.link(path, realPath, chain)
	case e.IsDir():
		st, err := statFile(realPath)
		if err != nil {
			return w.note(path, err)
		}
		return w.dir(path, realPath, append(chain, idOf(&st)))
	case !isManifest(e.Name()), slices.Contains(w.skip, path):
		return nil
	default:
		return w.file(path, realPath)
	}
}

func (w *walker) file(path, realPath string) error {
	st, err := statFile(realPath)
	switch {
	case err != nil:
		return w.note(path, err)
	case !isRegular(&st):
		w.unreadable[path] = errNotFile
		return nil
	case len(w.files) >= w.limit:
		return w.tooMuch(fmt.Errorf("more than %d files", w.limit))
	}
	w.files[path] = sigOf(&st)
	return nil
}

// note classifies an error of a path: absent is returned, forbidden is unreadable, and
// everything else means a failing disk.
func (w *walker) note(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		w.unreadable[path] = err
		return nil
	}
	return err
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, errGone)
}

func idOf(st *unix.Stat_t) devIno {
	s := sigOf(st)
	return devIno{s.dev, s.ino}
}

// isManifest says whether a name is that of a file to read: hidden files, back
// ups and temporary files of editors are not.
func isManifest(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "#")
}
