package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// applySet is what apply does to the files of a directory.
type applySet struct {
	root string
	opts manifest.Options
	// contents are the new files by the path that each will have, in the order of targets.
	contents map[string][]byte
	targets  []string
	// authors are contents as they were given.
	authors map[string][]byte
	// renamed are existing files whose objects are all in a new file: they are removed. The value
	// is the new file.
	renamed map[string]string
	// existing are the files that the directory has.
	existing []string

	defined map[mesh.Key]string // the target that has the object
	stdin   bool
}

// readSet reads what is to be applied: files, directories, and "-".
func readSet(cmd *cobra.Command, root string, opts manifest.Options, args []string) (*applySet, error) {
	s := &applySet{root: root, opts: opts, contents: map[string][]byte{}, renamed: map[string]string{}, defined: map[mesh.Key]string{}}
	var err error
	if s.existing, err = manifestFiles(root); err != nil {
		return nil, err
	}
	for _, name := range args {
		if name == "-" {
			err = s.addStdin(cmd.InOrStdin())
		} else {
			err = s.addPath(name)
		}
		if err != nil {
			return nil, err
		}
	}
	s.findRenamed()
	return s, nil
}

// addPath adds a file under its own name, or what is below a directory under the same paths.
func (s *applySet) addPath(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return fmt.Errorf("reading %q: %w", name, rootCause(err))
	}
	if info.IsDir() {
		names, err := manifestFiles(name)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("%q has no *.yaml or *.yml in it", name)
		}
		for _, path := range names {
			rel, err := filepath.Rel(name, path)
			if err != nil {
				return err
			}
			if err := s.addFile(path, rel, false); err != nil {
				return err
			}
		}
		return nil
	}
	if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
		return fmt.Errorf("%q: the server reads *.yaml and *.yml only: rename the file", name)
	}
	if strings.HasPrefix(filepath.Base(name), ".") {
		return fmt.Errorf("%q: the server does not read files whose names begin with a dot: rename the file", name)
	}
	return s.addFile(name, filepath.Base(name), true)
}

func (s *applySet) addFile(path, rel string, named bool) error {
	content, err := readManifest(path, named)
	if err != nil {
		return err
	}
	return s.add(filepath.Join(s.root, rel), content)
}

func (s *applySet) add(target string, content []byte) error {
	if _, twice := s.contents[target]; twice {
		return fmt.Errorf("%q: two of the files have this name: one would overwrite the other", filepath.Base(target))
	}
	s.contents[target] = content
	s.targets = append(s.targets, target)
	for _, key := range s.keysOf(target, content) {
		s.defined[key] = target
	}
	return nil
}

// keysOf are the objects of a text; none if some of it cannot be read.
func (s *applySet) keysOf(path string, content []byte) []mesh.Key {
	file, _ := manifest.Decode(s.opts, path, content)
	if file.Unparsable {
		return nil
	}
	keys := make([]mesh.Key, 0, len(file.Objects))
	for _, o := range file.Objects {
		keys = append(keys, o.Meta.Key)
	}
	return keys
}

// addStdin adds standard input, in place of the file that has its objects, or as a file that is
// named after its first object.
func (s *applySet) addStdin(r io.Reader) error {
	if s.stdin {
		return errors.New("\"-\" is given twice: standard input can be read once")
	}
	s.stdin = true
	content, err := io.ReadAll(io.LimitReader(r, manifest.MaxFileSize+1))
	if err != nil {
		return fmt.Errorf("reading standard input: %w", err)
	}
	if strings.TrimSpace(string(content)) == "" {
		return errors.New("standard input is empty")
	}
	keys := s.keysOf("stdin", content)
	for _, path := range s.existing {
		if _, isTarget := s.contents[path]; !isTarget && s.within(path, func(k mesh.Key) bool { return slices.Contains(keys, k) }) {
			return s.add(path, content)
		}
	}
	name := "stdin"
	if len(keys) > 0 {
		name = strings.ToLower(fmt.Sprintf("%s-%s-%s", keys[0].Kind, keys[0].Namespace, keys[0].Name))
		name = strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
				return r
			}
			return '-'
		}, name)
	}
	target := filepath.Join(s.root, name+".yaml")
	if slices.Contains(s.existing, target) {
		return fmt.Errorf("standard input would replace %q, which has other objects, too: write it to a file, and apply that", target)
	}
	return s.add(target, content)
}

// within reports whether a valid file has objects, and all of them are in a set.
func (s *applySet) within(path string, has func(mesh.Key) bool) bool {
	content, err := readManifest(path, false)
	if err != nil {
		return false // the check of the mesh reports it
	}
	_, faults := manifest.Decode(s.opts, path, content)
	if slices.ContainsFunc(faults, func(f manifest.Fault) bool { return f.Severity == manifest.Error }) {
		return false // it may have more than can be told
	}
	keys := s.keysOf(path, content)
	return len(keys) > 0 && !slices.ContainsFunc(keys, func(k mesh.Key) bool { return !has(k) })
}

// findRenamed finds the files whose objects are all in files of other names now.
func (s *applySet) findRenamed() {
	for _, path := range s.existing {
		if _, isTarget := s.contents[path]; isTarget {
			continue
		}
		to := ""
		if s.within(path, func(k mesh.Key) bool {
			target, ok := s.defined[k]
			to = target
			return ok
		}) {
			s.renamed[path] = to
		}
	}
}

// complete makes the new files what is to be written.
func (s *applySet) complete(w io.Writer, others *tree, told bool, now time.Time) error {
	stored := map[string][]byte{}
	for _, path := range s.existing {
		content, err := readManifest(path, false)
		if _, replaced := s.contents[path]; err != nil && !replaced {
			return err
		}
		if err == nil {
			stored[path] = content
		}
	}
	s.authors = maps.Clone(s.contents)
	return wholeTexts{
		opts: s.opts, others: others, told: told, stored: stored, label: filepath.Base,
		// Nobody knows how the author's last text ended. Its beginning may be a copy of the stored one that lost its end.
		lostEnd: func(_ string, author, stored []byte) bool { return beginsStored(s.opts, author, stored) },
	}.complete(w, s.contents, now)
}

// objectChange is what became of one object.
type objectChange struct {
	key  mesh.Key
	what string // created, changed, unchanged, removed
	file string // the target that has it, or had it
	from string // the file that it was in, if another
}

// objectPlace is an object in a file or key.
type objectPlace struct {
	hash mesh.Hash
	file string
}

// objectChanges compares the objects of the changed files.
func (s *applySet) objectChanges(before, after *tree) []objectChange {
	places := func(t *tree) map[mesh.Key]objectPlace {
		out := map[mesh.Key]objectPlace{}
		for _, f := range t.Files {
			_, isTarget := s.contents[f.Path]
			if _, isRenamed := s.renamed[f.Path]; !isTarget && !isRenamed {
				continue
			}
			for _, o := range f.Objects {
				out[o.Meta.Key] = objectPlace{o.Meta.Hash, f.Path}
			}
		}
		return out
	}
	return compareObjects(places(before), places(after))
}

// compareObjects says what became of each object.
func compareObjects(was, is map[mesh.Key]objectPlace) []objectChange {
	var out []objectChange
	for key, now := range is {
		old, there := was[key]
		c := objectChange{key: key, what: "unchanged", file: now.file}
		switch {
		case !there:
			c.what = "created"
		case old.hash != now.hash || old.hash.IsZero():
			c.what = "changed"
		}
		if there && old.file != now.file {
			c.from = old.file
		}
		out = append(out, c)
	}
	for key, old := range was {
		if _, there := is[key]; !there {
			out = append(out, objectChange{key: key, what: "removed", file: old.file})
		}
	}
	slices.SortFunc(out, func(a, b objectChange) int { return a.key.Compare(b.key) })
	return out
}

// maxUnchanged limits the unchanged objects that are listed.
const maxUnchanged = 20

// printObjectChanges lists what became of each object; of the unchanged ones the first few.
func printObjectChanges(w io.Writer, changes []objectChange) {
	unchanged := 0
	for _, c := range changes {
		if c.what == "unchanged" {
			if unchanged++; unchanged > maxUnchanged {
				continue
			}
		}
		from := ""
		if c.from != "" {
			from = ", was in " + c.from
		}
		_, _ = fmt.Fprintf(w, "%s %s%s\n", c.key, c.what, from)
	}
	if more := unchanged - maxUnchanged; more > 0 {
		_, _ = fmt.Fprintf(w, "… and %d more unchanged\n", more)
	}
}
