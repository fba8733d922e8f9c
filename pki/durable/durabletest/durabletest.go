// Package durabletest dies in the middle of writing a file, for tests of what a
// kill -9 leaves behind. It is not for production code. The callers are the tests
// of pki and its children; it has no goroutine.
package durabletest

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/fairlead/fairlead/pki/durable"
)

// ErrDied is what every call gives after the death.
var ErrDied = errors.New("died while writing")

// FS is the operating system's file system until the call number Steps, counted
// from 0, which is done by half; from then on nothing is done any more.
type FS struct {
	Steps int
	// Die is called at the death; nil means the process lives on, with a file
	// system that does nothing.
	Die func()

	mu   sync.Mutex // guards all following fields
	step int
	died bool
}

// Died says whether there were enough calls to get there.
func (f *FS) Died() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.died
}

// alive counts a call. The second value is true for the call that dies.
func (f *FS) alive() (ok, dying bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.died {
		return false, false
	}
	f.died = f.step == f.Steps
	f.step++
	return !f.died, f.died
}

func (f *FS) do(call func() error) error {
	ok, dying := f.alive()
	if ok {
		return call()
	}
	if dying && f.Die != nil {
		f.Die()
	}
	return ErrDied
}

// CreateTemp implements durable.FS.
func (f *FS) CreateTemp(dir, pattern string) (durable.File, error) {
	var out durable.File
	err := f.do(func() error {
		inner, err := durable.OS{}.CreateTemp(dir, pattern)
		out = &file{File: inner, fsys: f}
		return err
	})
	return out, err
}

// Rename implements durable.FS.
func (f *FS) Rename(from, to string) error {
	return f.do(func() error { return durable.OS{}.Rename(from, to) })
}

// Remove implements durable.FS.
func (f *FS) Remove(path string) error {
	return f.do(func() error { return durable.OS{}.Remove(path) })
}

// SyncDir implements durable.FS.
func (f *FS) SyncDir(dir string) error {
	return f.do(func() error { return durable.OS{}.SyncDir(dir) })
}

type file struct {
	durable.File

	fsys *FS
}

// Write writes half of the bytes when it dies.
func (f *file) Write(p []byte) (int, error) {
	ok, dying := f.fsys.alive()
	if ok {
		return f.File.Write(p)
	}
	if dying {
		n, err := f.File.Write(p[:len(p)/2])
		if f.fsys.Die != nil {
			f.fsys.Die()
		}
		return n, errors.Join(ErrDied, err)
	}
	return 0, ErrDied
}

// Chmod implements durable.File.
func (f *file) Chmod(mode fs.FileMode) error {
	return f.fsys.do(func() error { return f.File.Chmod(mode) })
}

// Sync implements durable.File.
func (f *file) Sync() error { return f.fsys.do(f.File.Sync) }
