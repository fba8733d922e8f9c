package jwks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

const (
	cacheVersion = 1
	// maxCached bounds one file of the cache, in bytes.
	maxCached = 2*MaxSet + 16<<10
	// cacheSuffix ends the names of the files.
	cacheSuffix = ".json"
	// keepUnwanted is how long a file stays of which nobody wants the keys.
	keepUnwanted = 7 * 24 * time.Hour
)

// cached is a file: the last good keys of one location.
type cached struct {
	Version int `json:"version"`
	// Location is the hash of what they are the keys of.
	Location string `json:"location"`
	// From is for people.
	From string `json:"from"`
	// Confirmed is when the issuer published these keys last, by the wall clock.
	Confirmed time.Time `json:"confirmed"`
	// Keys are Set.JSON, Sum is the SHA-256 of them.
	Keys string `json:"keys"`
	Sum  string `json:"sum"`
}

// cache is the key sets on disk, each in a file.
type cache struct {
	dir  string
	fsys durable.FS
	// files says that key sets are read from files: what the network said of a location before
	// is not what the directory has, and the other way round.
	files bool
}

// digest names the file of a location.
func (c cache) digest(l location) string {
	name := strconv.FormatBool(l.discovery) + " " + strconv.FormatBool(l.private) + " " + l.uri
	if c.files {
		name = "file " + name
	}
	h := sha256.Sum256([]byte(name))
	return hex.EncodeToString(h[:])
}

func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func (c cache) path(digest string) string { return filepath.Join(c.dir, digest+cacheSuffix) }

// load reads what was saved of a location. It is nil without an error if that is nothing.
func (c cache) load(l location) (*Set, cached, error) {
	path := c.path(c.digest(l))
	data, err := durable.ReadFile(path, maxCached)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cached{}, nil
	}
	if err != nil {
		return nil, cached{}, err
	}
	set, f, err := decodeCached(data, c.digest(l))
	if err != nil {
		return nil, cached{}, fmt.Errorf("reading %q: %w", path, err)
	}
	return set, f, nil
}

var errNotWritten = errors.New("it is not what was written")

func decodeCached(data []byte, digest string) (*Set, cached, error) {
	var f cached
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, cached{}, errNotWritten
	}
	if f.Version != cacheVersion || f.Location != digest || f.Sum != sum(f.Keys) {
		return nil, cached{}, errNotWritten
	}
	if f.Keys == withdrawn().JSON {
		return withdrawn(), f, nil
	}
	set, _, err := Parse([]byte(f.Keys))
	if err != nil {
		return nil, cached{}, err
	}
	return set, f, nil
}

// withdrawn is what is kept of an issuer that published a set without a key to use, so that no
// earlier one comes back. It is never in force.
func withdrawn() *Set { return &Set{JSON: `{"keys":[]}`} }

func (c cache) save(digest, from string, s *Set, confirmed time.Time) error {
	data, err := json.Marshal(cached{cacheVersion, digest, from, confirmed.UTC(), s.JSON, sum(s.JSON)})
	if err != nil {
		return fmt.Errorf("writing the cache of key sets: %w", err)
	}
	return durable.WriteFile(c.fsys, c.path(digest), data, 0o600)
}

// sweep removes files of which nobody wants the keys: old ones, and the oldest beyond most.
func (c cache) sweep(wanted map[string]struct{}, most int, now time.Time) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", c.dir, err)
	}
	type file struct {
		name string
		at   time.Time
	}
	var unwanted []file
	for _, e := range entries {
		digest, ok := strings.CutSuffix(e.Name(), cacheSuffix)
		if _, isWanted := wanted[digest]; !ok || isWanted || !e.Type().IsRegular() {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it has just gone
		}
		unwanted = append(unwanted, file{e.Name(), info.ModTime()})
	}
	slices.SortFunc(unwanted, func(a, b file) int { return b.at.Compare(a.at) })
	var errs []error
	for i, f := range unwanted {
		if i >= most || now.Sub(f.at) > keepUnwanted {
			errs = append(errs, durable.Remove(c.fsys, filepath.Join(c.dir, f.name)))
		}
	}
	return errors.Join(errs...)
}
