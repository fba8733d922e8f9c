package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fairlead/fairlead/pki/durable"
)

// secretFile is a file that only its owner can read, whatever the umask. It takes
// its name when its content is whole and on the disk; what had the name before is
// replaced, not written into: nobody who can read that can read this.
type secretFile struct {
	path string
	fsys durable.OS
	temp durable.File
}

// newSecretFile shows that the file can be written, before there is a secret.
func newSecretFile(path string) (*secretFile, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("writing %q: %w", path, err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("writing %q: it is no regular file: name another, or omit --out to print the token", path)
	}
	s := &secretFile{path: path}
	if s.temp, err = s.fsys.CreateTemp(filepath.Dir(path), ".tmp-"+filepath.Base(path)+"-*"); err != nil {
		return nil, fmt.Errorf("writing %q: %w", path, err)
	}
	return s, nil
}

// write puts the secret at its place.
func (s *secretFile) write(secret string) error {
	temp := s.temp
	s.temp = nil
	_, err := temp.Write([]byte(secret))
	err = errors.Join(err, temp.Sync(), temp.Close())
	if err == nil {
		err = s.fsys.Rename(temp.Name(), s.path)
	}
	if err != nil {
		return fmt.Errorf("writing %q: %w", s.path, errors.Join(err, s.fsys.Remove(temp.Name())))
	}
	if err := s.fsys.SyncDir(filepath.Dir(s.path)); err != nil {
		return fmt.Errorf("writing %q: syncing its directory: %w", s.path, err)
	}
	return nil
}

// close leaves nothing behind where there was no secret.
func (s *secretFile) close() error {
	if s == nil || s.temp == nil {
		return nil
	}
	return errors.Join(s.temp.Close(), s.fsys.Remove(s.temp.Name()))
}
