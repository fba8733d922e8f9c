package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

const (
	// shards is the number of files, so that a change writes a small part.
	shards = 128
	// maxShard bounds one of them, in bytes.
	maxShard = 256 << 20
	// schema is the version of what is written. Another one is not read.
	schema = 1
)

// store is the state directory: the last known catalog, as Consul's entries, which are
// mapped by the present settings.
type store struct{ dir string }

// shard is the content of one file.
type shard struct {
	Schema   int             `json:"schema"`
	Services []storedService `json:"services"`
}

// storedService is one service of the catalog cache.
type storedService struct {
	Name string `json:"name"`
	// Filtered says that the token could not read all of it, Protocol is Connect's
	// default for it.
	Filtered bool            `json:"filtered,omitempty"`
	Protocol string          `json:"protocol,omitempty"`
	Entries  json.RawMessage `json:"entries"`
	// Held are the keys of the entries that stay for that reason, sorted.
	Held []string `json:"held,omitempty"`
}

// stateMark is stored once for the whole catalog.
type stateMark struct {
	Schema     int       `json:"schema"`
	Datacenter string    `json:"datacenter"`
	Read       time.Time `json:"read"`
}

func shardOf(name string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name) // never fails
	return int(h.Sum32() % shards)
}

func (s store) path(i int) string { return filepath.Join(s.dir, fmt.Sprintf("services-%03d.json", i)) }

func (s store) markPath() string { return filepath.Join(s.dir, "picture.json") }

// open makes the directory.
func (s store) open() error { return durable.MakeDir(s.dir) }

// save replaces one file. A shard without services goes.
func (s store) save(i int, list []storedService) error {
	if len(list) == 0 {
		return durable.Remove(durable.OS{}, s.path(i))
	}
	return durable.Seal(s.path(i), shard{schema, list}, maxShard)
}

func (s store) saveMark(m stateMark) error { return durable.Seal(s.markPath(), m, maxShard) }

// load reads everything. A damaged file is an error, and nothing of it is used;
// the others are.
func (s store) load() (list []storedService, m stateMark, err error) {
	var errs []error
	for i := range shards {
		var x shard
		err := unseal(s.path(i), &x, &x.Schema)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		default:
			list = append(list, x.Services...)
		}
	}
	if err := unseal(s.markPath(), &m, &m.Schema); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return list, m, errors.Join(errs...)
}

// unseal reads a file of a version that is known.
func unseal(path string, v any, version *int) error {
	if err := durable.Unseal(path, v, maxShard); err != nil {
		return err
	}
	if *version != schema {
		return fmt.Errorf("reading %q: version %d is not known here", path, *version)
	}
	return nil
}
