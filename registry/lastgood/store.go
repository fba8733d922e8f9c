package lastgood

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
)

// shards is the number of files of the state, so that a change writes a small part of it.
const shards = 32

// maxShard bounds one file of the state, in bytes.
const maxShard = 256 << 20

// Store is the state directory: the last good version of every text.
type Store struct{ dir string }

// NewStore is the store of a directory.
func NewStore(dir string) Store { return Store{dir} }

// Dir is the directory.
func (s Store) Dir() string { return s.dir }

// Path is the file that a text is in.
func (s Store) Path(root, rel string) string { return s.path(shardOf(root, rel)) }

// Entry is the state of one text.
type Entry struct {
	// Root is the directory or prefix that the source reads, Rel the text in it.
	Root string `json:"root"`
	Rel  string `json:"rel"`
	// Contents are the texts; the first is the accepted one, kept objects come from the
	// others.
	Contents [][]byte    `json:"contents"`
	Kept     []EntryKept `json:"kept,omitempty"`
	// CreateIndex is that of Consul's key with the text. Earlier releases did not save it: zero, which is
	// not known, until the key is read.
	CreateIndex uint64 `json:"create_index,omitempty"`
	// Whole is the index in Contents of the last one that was taken as whole. Earlier releases
	// do not have it, and take the accepted one.
	Whole int `json:"whole,omitempty"`
}

// EntryKept is an object that an earlier content gave.
type EntryKept struct {
	Key mesh.Key `json:"key"`
	// Content is an index in Contents.
	Content int       `json:"content"`
	Since   time.Time `json:"since"`
}

func shardOf(rootPath, rel string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, rootPath+"\x00"+rel) // never fails
	return int(h.Sum32() % shards)
}

func (s Store) path(shard int) string {
	return filepath.Join(s.dir, fmt.Sprintf("lastgood-%02d.json", shard))
}

// Load reads everything. A damaged file is an error and is not used; the others are.
func (s Store) Load() ([]Entry, error) {
	var (
		all  []Entry
		errs []error
	)
	for shard := range shards {
		list, err := readShard(s.path(shard))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("reading %q: %w", s.path(shard), err))
			continue
		}
		all = append(all, list...)
	}
	return all, errors.Join(errs...)
}

func readShard(path string) ([]Entry, error) {
	data, err := durable.ReadFile(path, maxShard)
	if err != nil {
		return nil, err
	}
	return parseShard(data)
}

// parseShard decodes a file, and checks what the code below relies on.
func parseShard(data []byte) ([]Entry, error) {
	var list []Entry
	if err := durable.OpenSeal(data, &list); err != nil {
		return nil, err
	}
	for _, e := range list {
		if len(e.Contents) == 0 {
			return nil, fmt.Errorf("damaged: %q has no content", e.Rel)
		}
		if e.Whole < 0 || e.Whole >= len(e.Contents) {
			return nil, fmt.Errorf("damaged: %q has no whole content", e.Rel)
		}
		for _, k := range e.Kept {
			if k.Content < 0 || k.Content >= len(e.Contents) {
				return nil, fmt.Errorf("damaged: %q keeps %s of no content", e.Rel, k.Key)
			}
		}
	}
	return list, nil
}

// save replaces one file of the state. After a crash it is the old or the new one.
func (s Store) save(shard int, list []Entry) error {
	return durable.Seal(s.path(shard), list, maxShard)
}

// mark is the time of the last complete reading.
type mark struct {
	Read time.Time `json:"read"`
}

func (s Store) markPath() string { return filepath.Join(s.dir, "read.json") }

func (s Store) saveMark(read time.Time) error {
	return durable.Seal(s.markPath(), mark{read}, maxShard)
}

func (s Store) loadMark() (time.Time, error) {
	var m mark
	err := durable.Unseal(s.markPath(), &m, maxShard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, err
	}
	return m.Read, nil
}

// open makes the directory, and removes temporary files of a crash.
func (s Store) open() error {
	if err := durable.MakeDir(s.dir); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	return nil
}
