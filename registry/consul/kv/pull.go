package kv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"github.com/fairlead/fairlead/registry/manifest"
)

// Pull says what a pull does with a directory.
type Pull struct {
	// Dir is the directory. It is made if need be.
	Dir string
	// Force overwrites files that were edited.
	Force bool
	// Prune deletes files whose key is gone, unless they were edited.
	Prune bool
	// DryRun writes nothing.
	DryRun bool
	// Options say how the texts are read.
	Options manifest.Options
}

// Pulled is what became of one file.
type Pulled struct {
	Op  Op
	Rel string
	// Err says why it stays as it is, or nil.
	Err error
}

// errEdited is what Force is for.
var errEdited = errors.New("it was edited here, and in Consul it is another")

// Run makes the files of a directory what the keys are, each by an atomic rename,
// and never one outside of the directory. What could not be done to one file is
// told and keeps no other from being done. The error is that of the directory as
// a whole.
func (p Pull) Run(s *Store, st *State) (list []Pulled, same int, err error) {
	if !p.DryRun {
		if err := os.MkdirAll(p.Dir, 0o755); err != nil { //nolint:gosec // a directory of manifests, not of secrets
			return nil, 0, err
		}
	}
	root, err := os.OpenRoot(p.Dir)
	if p.DryRun && errors.Is(err, fs.ErrNotExist) {
		for _, rel := range slices.Sorted(maps.Keys(st.Values)) {
			list = append(list, Pulled{Create, rel, CheckRel(rel)})
		}
		return list, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	record, err := loadRecord(root, s.prefix)
	if err != nil {
		return nil, 0, err
	}
	if record == nil {
		record = &Record{Prefix: s.prefix, Hashes: map[string]string{}}
	}
	for _, rel := range slices.Sorted(maps.Keys(st.Values)) {
		op, local, err := p.pull(root, record, rel, st.Values[rel].Content)
		if err == nil {
			record.Note(p.Options, rel, nonNil(st.Values[rel].Content), local)
		}
		if op == "" && err == nil {
			same++
			continue
		}
		list = append(list, Pulled{op, rel, err})
	}
	for _, rel := range slices.Sorted(maps.Keys(record.Hashes)) {
		if _, there := st.Values[rel]; there {
			continue
		}
		if x, reported := p.gone(root, record, rel); reported {
			list = append(list, x)
		}
	}
	if p.DryRun {
		return list, same, nil
	}
	return list, same, record.save(root)
}

// nonNil tells an empty content from none.
func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// pull makes one file what its key is; op is empty where it is so already, but for what a push wrote into the key
// only. Then it returns the file.
func (p Pull) pull(root *os.Root, record *Record, rel string, content []byte) (op Op, same []byte, err error) {
	if err := CheckRel(rel); err != nil {
		return Create, nil, fmt.Errorf("the key cannot be a file: %w; give it another name", err)
	}
	local, err := readFile(root, rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		op = Create
	case err != nil:
		return Update, nil, err
	case bytes.Equal(record.Own(p.Options, rel, local, content).Into(p.Options, local), content):
		return "", local, nil
	default:
		op = Update
		if !p.Force && !record.HasFile(rel, local) {
			return op, nil, fmt.Errorf("%w; see `fairlead config diff`, and keep one of them: push the file, or pull with --force", errEdited)
		}
	}
	if p.DryRun {
		return op, nil, nil
	}
	if dir := path.Dir(rel); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return op, nil, err
		}
	}
	return op, nil, writeFile(root, rel, content)
}

// gone deals with a file whose key is gone; reported says that there is something to
// report.
func (p Pull) gone(root *os.Root, record *Record, rel string) (x Pulled, reported bool) {
	x = Pulled{Op: Delete, Rel: rel}
	if CheckRel(rel) != nil { // somebody wrote that into the record
		record.Note(p.Options, rel, nil, nil)
		return x, false
	}
	local, err := readFile(root, rel)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		record.Note(p.Options, rel, nil, nil)
		return x, false
	case err != nil:
		x.Err = err
	case !p.Prune:
		x.Op = Keep
	case !p.Force && !record.HasFile(rel, local):
		x.Err = errors.New("its key is gone from Consul, but it was edited here: push it, or pull with --prune --force")
	case p.DryRun:
	default:
		if x.Err = root.Remove(rel); x.Err == nil {
			record.Note(p.Options, rel, nil, nil)
		}
	}
	return x, true
}

// readFile reads a file that is one, and no link to elsewhere.
func readFile(root *os.Root, rel string) ([]byte, error) {
	info, err := root.Lstat(rel)
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
	case mode.IsDir():
		return nil, errors.New("it is a directory; move it away, or give the key another name")
	case mode&fs.ModeSymlink != 0:
		return nil, errors.New("it is a symbolic link, which may lead anywhere; move it away")
	default:
		return nil, errors.New("it is no regular file; move it away")
	}
	content, err := root.ReadFile(rel)
	return nonNil(content), err
}

// writeFile puts a file in place by rename, so that a crash leaves the old or the
// new one.
func writeFile(root *os.Root, rel string, content []byte) (err error) {
	dir := path.Dir(rel)
	tmp := path.Join(dir, ".fairlead-pull.tmp")
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(tmp)
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(0o644) // whatever the umask
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = root.Rename(tmp, rel); err != nil {
		return err
	}
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
