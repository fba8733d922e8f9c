package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// source is the name that origins carry where no server reads the files.
const source = "files"

// tree is a set of manifests read once, as the offline commands do, and what
// stands beside them in the mesh.
type tree struct {
	Files  []*manifest.File
	Faults []manifest.Fault
	// Catalog is what was read of Consul; nil means that it is not read.
	Catalog *catalogReading
}

// clone is a tree to which other files can be added.
func (t *tree) clone() *tree {
	return &tree{Files: slices.Clone(t.Files), Faults: slices.Clone(t.Faults), Catalog: t.Catalog}
}

// objects are all objects of the tree, in order.
func (t *tree) objects() []*manifest.Object {
	var all []*manifest.Object
	for _, f := range t.Files {
		all = append(all, f.Objects...)
	}
	return all
}

// readTree reads files and directories; "-" is standard input. A named file is
// read whatever its name; in directories only *.yaml and *.yml are.
func readTree(stdin io.Reader, paths []string) (*tree, error) {
	t := &tree{}
	for _, p := range paths {
		root, err := files.ParseRoot(p)
		if err != nil {
			return nil, err
		}
		opts := manifest.Options{Source: source, Namespaces: root.Namespaces}
		if len(root.Namespaces) == 1 {
			opts.Namespace = root.Namespaces[0]
		}
		if p == "-" {
			content, err := io.ReadAll(io.LimitReader(stdin, manifest.MaxFileSize+1))
			if err != nil {
				return nil, fmt.Errorf("reading standard input: %w", err)
			}
			t.add(opts, "stdin", content)
			continue
		}
		if err := t.walk(opts, root.Path); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *tree) walk(opts manifest.Options, root string) error {
	names, err := manifestFiles(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("reading %q: %w", name, err)
		}
		t.add(opts, name, content)
	}
	return nil
}

func (t *tree) add(opts manifest.Options, path string, content []byte) {
	f, faults := manifest.Decode(opts, path, content)
	t.Files = append(t.Files, f)
	t.Faults = append(t.Faults, faults...)
}

// manifestFiles is a file itself, or the manifests below a directory, sorted.
func manifestFiles(root string) ([]string, error) {
	info, err := os.Stat(root)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", root, rootCause(err))
	}
	if !info.IsDir() {
		return []string{root}, nil
	}
	resolved, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", root, err)
	}
	var names []string
	err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != resolved
		switch {
		case d.IsDir() && hidden:
			return filepath.SkipDir
		case d.IsDir(), hidden, !strings.HasSuffix(path, ".yaml") && !strings.HasSuffix(path, ".yml"):
			return nil
		}
		rel, err := filepath.Rel(resolved, path)
		names = append(names, filepath.Join(root, rel))
		return err
	})
	slices.Sort(names)
	return names, err
}

func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// snapshot is the mesh that the tree describes, without its invalid objects, and
// with what was read of Consul.
func (t *tree) snapshot(settings *mesh.MeshConfig) *mesh.Snapshot {
	seen := map[mesh.Key]bool{}
	var pieces []*mesh.Fragment
	var keys []mesh.Key
	for _, o := range t.objects() {
		piece := o.Fragment()
		if piece == nil || seen[o.Meta.Key] {
			continue
		}
		seen[o.Meta.Key] = true
		pieces, keys = append(pieces, piece), append(keys, o.Meta.Key)
	}
	order := make([]int, len(keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return keys[a].Compare(keys[b]) })
	whole := &mesh.Fragment{Source: source}
	for _, i := range order {
		whole.Append(pieces[i])
	}
	fragments := []*mesh.Fragment{whole}
	if t.Catalog != nil {
		fragments = append(fragments, t.Catalog.fragments...)
	}
	return mesh.NewSnapshot(nil, settings, fragments)
}

// meshSettings reads a file of MeshConfig; without a path, the defaults. Faults
// are returned as an error that lists them all.
func meshSettings(path string) (*mesh.MeshConfig, []manifest.Fault, error) {
	if path == "" {
		return manifest.DefaultMeshConfig(), nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh configuration: %w", err)
	}
	settings, faults := manifest.DecodeMeshConfig(path, content)
	if settings != nil {
		return settings, faults, nil
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, errors.New(f.String()))
	}
	return nil, nil, errors.Join(errs...)
}
