package files

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// root is a directory, or a file of mesh settings or networks, and its state. The loop owns it.
type root struct {
	Root
	order int
	abs   string
	// kind is that of the one object of a file; empty for a directory.
	kind mesh.Kind
	skip []string // files of mesh settings and networks that lie in here

	// ok means that the last scan found the root; read, that a scan once did.
	ok, read bool
	// stored means that the state directory had something of this root.
	stored bool
	err    error // why it is not ok
	since  time.Time

	files int // that are accepted
	// seen is the last result of a walk, by logical path; its files are not used.
	seen  walkResult
	links links
}

func newRoot(r Root, order int, abs string, kind mesh.Kind) *root {
	if r.Path = filepath.Clean(r.Path); r.Path == "." {
		r.Path = abs // so that every path below begins with it
	}
	return &root{Root: r, order: order, abs: abs, kind: kind, seen: newWalkResult(), links: links{huge: map[string]huge{}}}
}

// isFile reports whether it is a file with one object.
func (r *root) isFile() bool { return r.kind != "" }

// key is that of the object of a file.
func (r *root) key() mesh.Key { return mesh.Key{Kind: r.kind} }

// ignore skips a file of mesh settings or networks, if it is in the directory.
func (r *root) ignore(abs string) {
	if !r.isFile() && within(r.abs, abs) {
		r.skip = append(r.skip, r.Path+strings.TrimPrefix(abs, r.abs))
	}
}

// within reports whether path is dir or lies below it; both are clean.
func within(dir, path string) bool {
	if dir == path || dir == "/" {
		return true
	}
	return len(path) > len(dir) && path[len(dir)] == filepath.Separator && strings.HasPrefix(path, dir)
}

// covered reports whether a path is unknown because it, or a directory above it, could not be
// read.
func (r *root) covered(path string) bool {
	if len(r.seen.unreadable) == 0 {
		return false
	}
	for within(r.Path, path) {
		if _, ok := r.seen.unreadable[path]; ok {
			return true
		}
		if path == r.Path {
			return false
		}
		path = filepath.Dir(path)
	}
	return false
}

// replace replaces the state of path and everything below it by the result of a walk.
func (r *root) replace(path string, w *walkResult) {
	below := func(p string) bool { return within(path, p) }
	maps.DeleteFunc(r.seen.dirs, func(p string, _ dirSeen) bool { return below(p) })
	maps.DeleteFunc(r.seen.hops, func(p string, _ []hop) bool { return below(p) })
	maps.DeleteFunc(r.seen.unreadable, func(p string, _ error) bool { return below(p) })
	maps.DeleteFunc(r.seen.left, func(p, _ string) bool { return below(p) })
	maps.Copy(r.seen.left, w.left)
	maps.Copy(r.seen.dirs, w.dirs)
	maps.Copy(r.seen.hops, w.hops)
	maps.Copy(r.seen.unreadable, w.unreadable)
}

// otherMounts finds directories that are on another device than before although no link
// changed: a disk that is not mounted leaves an empty directory. Such a directory is accepted
// only if it has every file that it had (a disk with a new device number); else nothing is
// known of it. For the root itself that is an error.
func (r *root) otherMounts(w *walkResult, known func(yield func(path string) bool)) error {
	for dir, now := range w.dirs {
		was, ok := r.seen.dirs[dir]
		if !ok || was.real != now.real || was.id.dev == now.id.dev {
			continue
		}
		missing := 0
		for path := range known {
			if _, ok := w.files[path]; !ok && within(dir, path) {
				missing++
			}
		}
		if missing == 0 {
			continue
		}
		err := fmt.Errorf("another file system is mounted there, and it lacks %d of the files", missing)
		if dir == r.Path {
			return err
		}
		w.unreadable[dir] = err
		w.dirs[dir] = was
		maps.DeleteFunc(w.files, func(p string, _ sig) bool { return within(dir, p) })
	}
	return nil
}
