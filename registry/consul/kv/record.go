package kv

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// recordName is a file beside the manifests; no source of directories reads it.
const recordName = ".fairlead-config.json"

// Record is what a directory and Consul had in common when they were last equal,
// key by key. Without it nobody could tell a file that was edited from one whose
// key was. A pull makes it; a push keeps it up to date.
type Record struct {
	// Prefix is that of the keys.
	Prefix string `json:"prefix"`
	// Hashes are the SHA-256 of contents, by the part of the key below the prefix.
	Hashes map[string]string `json:"sha256"`
	// Files are the SHA-256 of files that differ from their key in what push writes besides what their
	// author wrote; see [manifest.AsStored].
	Files map[string]string `json:"files_sha256,omitempty"`
	// Ended are the files that ended with [manifest.EndMark], whether their author wrote it or a pull did.
	Ended map[string]bool `json:"ended,omitempty"`
	// Dates are the creationTimestamps of the Gateways in the values, by their names as people read them;
	// empty for a Gateway without one.
	Dates map[string]map[string]string `json:"dates,omitempty"`
}

func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// LoadRecord reads the record of a directory; nil without an error means that it
// has none of this prefix.
func LoadRecord(dir, prefix string) (*Record, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return loadRecord(root, prefix)
}

func loadRecord(root *os.Root, prefix string) (*Record, error) {
	data, err := root.ReadFile(recordName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("reading %q, in which the last pull is remembered: %w; delete it, and what differs counts as edited", recordName, err)
	}
	if r.Prefix != prefix {
		return nil, nil
	}
	if r.Hashes == nil {
		r.Hashes = map[string]string{}
	}
	return r, nil
}

// Has reports whether the directory and Consul last agreed on this content.
func (r *Record) Has(rel string, content []byte) bool {
	return r != nil && content != nil && r.Hashes[rel] == hashOf(content)
}

// HasFile reports whether a file is as it was when the directory and Consul last agreed.
func (r *Record) HasFile(rel string, content []byte) bool {
	return r.Has(rel, content) || r != nil && content != nil && r.Files[rel] == hashOf(content)
}

// hadEnd reports whether a file ended with the mark when the directory and Consul last agreed. Earlier releases did
// not note it: then it did if it was the value.
func (r *Record) hadEnd(rel string, stored []byte) bool {
	return r != nil && (r.Ended[rel] || r.Files[rel] == "" && r.Has(rel, stored) && manifest.Ended(stored))
}

// LostEnd reports whether a file ended with [manifest.EndMark] when the directory and Consul last agreed, and does
// not now: it may be cut off.
func (r *Record) LostEnd(rel string, file, stored []byte) bool {
	return r.hadEnd(rel, stored) && !manifest.Ended(file)
}

// Own is what was written into a value besides what the author of its file wrote: not a date that somebody else has
// written since the directory and Consul last agreed, and no end that the file has lost.
func (r *Record) Own(opts manifest.Options, rel string, file, stored []byte) manifest.Written {
	w := manifest.WrittenIn(opts, stored)
	w.End = w.End && !r.LostEnd(rel, file, stored)
	if r == nil || r.Dates[rel] == nil {
		return w
	}
	w.Dates = maps.Clone(w.Dates)
	maps.DeleteFunc(w.Dates, func(key mesh.Key, at time.Time) bool {
		was, known := r.Dates[rel][key.String()]
		return known && was != dateText(at)
	})
	return w
}

func dateText(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339Nano)
}

// Note remembers that they agree on a value, and the file that it was made of, nil if that is equal. A value that
// is nil means that neither has the key.
func (r *Record) Note(opts manifest.Options, rel string, value, file []byte) {
	delete(r.Files, rel)
	delete(r.Ended, rel)
	delete(r.Dates, rel)
	if value == nil {
		delete(r.Hashes, rel)
		return
	}
	r.Hashes[rel] = hashOf(value)
	if file == nil {
		file = value
	}
	if hash := hashOf(file); hash != r.Hashes[rel] {
		r.Files = noted(r.Files, rel, hash)
	}
	if manifest.Ended(file) {
		r.Ended = noted(r.Ended, rel, true)
	}
	dates := map[string]string{}
	for key, at := range manifest.GatewayDates(opts, value) {
		dates[key.String()] = dateText(at)
	}
	if len(dates) > 0 {
		r.Dates = noted(r.Dates, rel, dates)
	}
}

// noted is a map, or a new one, with a value.
func noted[V any](m map[string]V, rel string, v V) map[string]V {
	if m == nil {
		m = map[string]V{}
	}
	m[rel] = v
	return m
}

// Save writes the record.
func (r *Record) Save(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return r.save(root)
}

func (r *Record) save(root *os.Root) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return writeFile(root, recordName, append(data, '\n'))
}

// Overwritten are the changes that would undo what somebody else did since the
// directory was last pulled or pushed. Without a record nobody knows, and there
// are none.
func (p *Plan) Overwritten(r *Record) []Change {
	var list []Change
	for _, c := range p.Changes {
		if r != nil && c.Op != Create && !r.Has(c.Rel, c.Old) {
			list = append(list, c)
		}
	}
	return list
}
