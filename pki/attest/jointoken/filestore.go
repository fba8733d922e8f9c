package jointoken

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/pki/durable"
)

const (
	maxRecordFile = 64 << 10
	recordSuffix  = ".json"
)

// FileStore keeps a record a file, so that the price of a use does not grow with
// the number of tokens.
type FileStore struct {
	dir  string
	fsys durable.FS
}

// NewFileStore uses dir, which it makes. fsys may be nil: the operating system's.
func NewFileStore(dir string, fsys durable.FS) (*FileStore, error) {
	if fsys == nil {
		fsys = durable.OS{}
	}
	if err := durable.MakeDir(dir); err != nil {
		return nil, err
	}
	return &FileStore{dir: dir, fsys: fsys}, nil
}

// Load implements Store.
func (s *FileStore) Load() ([]Record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("reading directory %q: %w", s.dir, err)
	}
	var (
		out    []Record
		faults []error
	)
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		r, err := s.read(name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		out = append(out, r)
	}
	return out, errors.Join(faults...)
}

func (s *FileStore) read(name string) (Record, error) {
	path := filepath.Join(s.dir, name+recordSuffix)
	data, err := durable.ReadFile(path, maxRecordFile)
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("reading %q: %w", path, err)
	}
	if r.Hash.String() != name {
		return Record{}, fmt.Errorf("reading %q: it is the record of another token", path)
	}
	if err := r.Grant.Check(); err != nil {
		return Record{}, fmt.Errorf("reading %q: %w", path, err)
	}
	return r, nil
}

// Put implements Store.
func (s *FileStore) Put(r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding a join token's record: %w", err)
	}
	return durable.WriteFile(s.fsys, s.path(r.Hash), append(data, '\n'), 0o600)
}

// Delete implements Store.
func (s *FileStore) Delete(h Hash) error { return durable.Remove(s.fsys, s.path(h)) }

func (s *FileStore) path(h Hash) string { return filepath.Join(s.dir, h.String()+recordSuffix) }
