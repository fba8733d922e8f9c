package kv

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// NoteFile remembers the file that was pushed, after Note of what was written into its key.
func (r *Record) NoteFile(rel string, content []byte) {
	if content == nil || r.Has(rel, content) {
		return
	}
	if r.Files == nil {
		r.Files = map[string]string{}
	}
	r.Files[rel] = hashOf(content)
}

// Note remembers that they agree on a content; nil means that neither has the key.
func (r *Record) Note(rel string, content []byte) {
	delete(r.Files, rel)
	if content == nil {
		delete(r.Hashes, rel)
		return
	}
	r.Hashes[rel] = hashOf(content)
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
