package lastgood

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// shards is the number of files that the state is spread over, so that a
// change writes a small part of it.
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
	// Root is the place that the source reads, Rel the text in it.
	Root string `json:"root"`
	Rel  string `json:"rel"`
	// Contents are the texts; the first is the one that is believed, the others
	// are those that kept objects were read from.
	Contents [][]byte    `json:"contents"`
	Kept     []EntryKept `json:"kept,omitempty"`
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

// Load reads everything. A damaged file is an error and nothing of it is used;
// the others are.
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
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxShard+1))
	if err != nil {
		return nil, err
	}
	return parseShard(data)
}

// parseShard reads a file, and checks what the code below relies on.
func parseShard(data []byte) ([]Entry, error) {
	body, err := unseal(data)
	if err != nil {
		return nil, err
	}
	var list []Entry
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	for _, e := range list {
		if len(e.Contents) == 0 {
			return nil, fmt.Errorf("damaged: %q has no content", e.Rel)
		}
		for _, k := range e.Kept {
			if k.Content < 0 || k.Content >= len(e.Contents) {
				return nil, fmt.Errorf("damaged: %q keeps %s of no content", e.Rel, k.Key)
			}
		}
	}
	return list, nil
}

// save replaces one file of the state, so that a crash leaves the old or the
// new one.
func (s Store) save(shard int, list []Entry) error {
	return writeSealed(s.path(shard), list)
}

// mark is when everything was last read.
type mark struct {
	Read time.Time `json:"read"`
}

func (s Store) markPath() string { return filepath.Join(s.dir, "read.json") }

func (s Store) saveMark(read time.Time) error { return writeSealed(s.markPath(), mark{read}) }

func (s Store) loadMark() (time.Time, error) {
	data, err := os.ReadFile(s.markPath())
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	var m mark
	if err == nil {
		data, err = unseal(data)
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("reading %q: %w", s.markPath(), err)
	}
	return m.Read, nil
}

// unseal takes the hash in the first line off and holds the rest to it.
func unseal(data []byte) ([]byte, error) {
	if len(data) > maxShard {
		return nil, fmt.Errorf("larger than %d bytes", maxShard)
	}
	line, body, _ := bytes.Cut(data, []byte("\n"))
	sum := sha256.Sum256(body)
	if string(line) != "sha256:"+hex.EncodeToString(sum[:]) {
		return nil, errors.New("damaged: the hash is not that of the content")
	}
	return body, nil
}

// writeSealed writes something as JSON, below its hash.
func writeSealed(path string, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxShard-128 {
		return fmt.Errorf("writing %q: larger than %d bytes", path, maxShard)
	}
	sum := sha256.Sum256(body)
	data := append([]byte("sha256:"+hex.EncodeToString(sum[:])+"\n"), body...)
	return writeAtomic(path, data)
}

func writeAtomic(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*") // 0600
	if err != nil {
		return fmt.Errorf("writing %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("writing %q: %w", path, err), ignoreAbsent(os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func ignoreAbsent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// open makes the directory, and clears away what a crash left in it.
func (s Store) open() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("making the state directory: %w", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("reading the state directory: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".tmp-") {
			if err := ignoreAbsent(os.Remove(filepath.Join(s.dir, e.Name()))); err != nil {
				return fmt.Errorf("clearing the state directory: %w", err)
			}
		}
	}
	return nil
}
