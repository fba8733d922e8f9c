package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// source is the name that origins carry where no server reads the files.
const source = "files"

// meshNetworksHelp is the help of --mesh-networks.
const meshNetworksHelp = "file of Istio MeshNetworks: which endpoints are in which network, and the gateways between networks; empty means one network"

// tree is a set of manifests read once, as the offline commands do, and what
// stands beside them in the mesh.
type tree struct {
	Files  []*manifest.File
	Faults []manifest.Fault
	// Catalog is what was read of Consul; nil means that it is not read.
	Catalog *catalogReading
	// networks are those of the mesh; or nil.
	networks *mesh.Networks
	// gateways are the addresses of names of gateways; nil means that each has one.
	gateways *mesh.GatewayAddresses
	// bound are the bindings of files of sources that are bound to namespaces, one
	// for all files of a source.
	bound map[*manifest.File]*mesh.Binding
	// bindings are those of all sources that are bound, also of one without files.
	bindings []*mesh.Binding
	// maxExpansion is what all objects of one such source may make after expansion, and needed what the
	// largest one over it makes.
	maxExpansion, needed int
	// texts are what the files were read from.
	texts []sourceText
	// saved is what each source has with the saved versions of a state directory, by its binding; or nil.
	saved map[*mesh.Binding]*mesh.Fragment
}

// sourceText is a text, and where it is in the state directory of a server.
type sourceText struct {
	opts      manifest.Options
	binding   *mesh.Binding
	path      string
	content   []byte
	root, rel string
}

// foreign are the hosts of others that sources which are bound to namespaces name, and what else they may not.
func (t *tree) foreign(settings *mesh.MeshConfig) []mesh.Conflict {
	if len(t.bound) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(t.snapshot(settings).Conflicts), func(c mesh.Conflict) bool { return !c.OfTenant() })
}

// boundNamespaces are the namespaces that sources are bound to, sorted.
func (t *tree) boundNamespaces() []string {
	var out []string
	for _, b := range t.bound {
		out = append(out, b.Namespaces...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// clone is a tree to which other files can be added.
func (t *tree) clone() *tree {
	return &tree{Files: slices.Clone(t.Files), Faults: slices.Clone(t.Faults), Catalog: t.Catalog, networks: t.networks, gateways: t.gateways, bound: maps.Clone(t.bound), bindings: slices.Clone(t.bindings), maxExpansion: t.maxExpansion}
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
func readTree(stdin io.Reader, paths []string, bound *boundFlags, allowed hostPathFlags) (*tree, error) {
	roots, err := rootsOf(paths, bound)
	if err != nil {
		return nil, err
	}
	return treeOf(stdin, roots, bound, allowed)
}

// treeOf is readTree for what rootsOf has read.
func treeOf(stdin io.Reader, roots []files.Root, bound *boundFlags, allowed hostPathFlags) (*tree, error) {
	t := &tree{maxExpansion: cmp.Or(bound.maxExpansion, lastgood.DefaultMaxExpansion)}
	for _, root := range roots {
		allowed.allow(&root)
		binding := root.Binding()
		if binding != nil {
			t.bindings = append(t.bindings, binding)
		}
		opts := manifest.Options{Source: source, Namespaces: root.Namespaces, NoUnixSockets: root.NoUnixSockets(), NoFiles: root.NoFiles(), NoLocalAddresses: root.NoLocalAddresses()}
		if len(root.Namespaces) == 1 {
			opts.Namespace = root.Namespaces[0]
		}
		if root.Path == "-" {
			content, err := io.ReadAll(io.LimitReader(stdin, manifest.MaxFileSize+1))
			if err != nil {
				return nil, fmt.Errorf("reading standard input: %w", err)
			}
			t.add(opts, binding, "stdin", content)
			continue
		}
		if err := t.walk(opts, binding, root.Path); err != nil {
			return nil, err
		}
	}
	t.limitSources()
	return t, nil
}

// rootsOf reads DIR and DIR=NAMESPACE,…
func rootsOf(paths []string, bound *boundFlags) ([]files.Root, error) {
	var roots []files.Root
	var bindings []*mesh.Binding
	for _, p := range paths {
		root, err := files.ParseRoot(p)
		if err != nil {
			return nil, err
		}
		roots = append(roots, root)
	}
	if err := bound.give(roots); err != nil {
		return nil, err
	}
	for _, r := range roots {
		if b := r.Binding(); b != nil {
			bindings = append(bindings, b)
		}
	}
	return roots, checkOverlap(bindings)
}

func (t *tree) walk(opts manifest.Options, binding *mesh.Binding, root string) error {
	names, err := manifestFiles(root)
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	for _, name := range names {
		content, err := readManifest(name, name == root)
		if err != nil {
			return err
		}
		t.add(opts, binding, name, content)
		if rel, err := filepath.Rel(root, name); err == nil {
			t.place(abs, rel)
		}
	}
	return nil
}

// place says where the last text is in the state directory of a server.
func (t *tree) place(root, rel string) {
	x := &t.texts[len(t.texts)-1]
	x.root, x.rel = root, rel
}

// readManifest reads no more than shows that a file is too large. What lies in a
// directory has to be a regular file: a pipe would be waited for, and a device may
// never end. A file that somebody named may be a pipe, as a shell makes them.
func readManifest(name string, named bool) ([]byte, error) {
	mode := os.O_RDONLY
	if !named {
		mode |= syscall.O_NONBLOCK
	}
	f, err := os.OpenFile(name, mode, 0)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, rootCause(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, rootCause(err))
	}
	if !named && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %q: it is not a regular file; take it out of the directory", name)
	}
	content, err := io.ReadAll(io.LimitReader(f, manifest.MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", name, rootCause(err))
	}
	return content, nil
}

func (t *tree) add(opts manifest.Options, binding *mesh.Binding, path string, content []byte) {
	f, faults := manifest.Decode(opts, path, content)
	if binding != nil {
		if t.bound == nil {
			t.bound = map[*manifest.File]*mesh.Binding{}
		}
		t.bound[f] = binding
	}
	t.Files = append(t.Files, f)
	t.Faults = append(t.Faults, faults...)
	t.texts = append(t.texts, sourceText{opts: opts, binding: binding, path: path, content: content})
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

// snapshot is the mesh that the tree describes, without its invalid objects, and
// with what was read of Consul.
func (t *tree) snapshot(settings *mesh.MeshConfig) *mesh.Snapshot {
	return mesh.Merge(t.input(settings))
}

// input is what the snapshot is made of.
func (t *tree) input(settings *mesh.MeshConfig) mesh.Input {
	bindings := []*mesh.Binding{nil}
	bindings = append(bindings, t.bindings...)
	for _, f := range t.Files {
		if b := t.bound[f]; !slices.Contains(bindings, b) {
			bindings = append(bindings, b)
		}
	}
	fragments := make([]*mesh.Fragment, 0, len(bindings))
	for i, b := range bindings {
		whole := t.fragment(b)
		if i > 0 {
			whole.Source += fmt.Sprintf(":%d", i)
		}
		fragments = append(fragments, whole)
	}
	if t.Catalog != nil {
		fragments = append(fragments, t.Catalog.fragments...)
	}
	if t.networks != nil {
		fragments = append(fragments, &mesh.Fragment{Source: "mesh-networks", MeshNetworks: t.networks})
	}
	return mesh.Input{
		GatewayAddresses: cmp.Or(t.gateways, assumedGateways(t.networks)),
		Fallback:         settings, Fragments: fragments, Bindings: bindings,
		Allocations: addresses.Of(addresses.Default(), fragments, bindings), // as a server without a record
	}
}

// assumedGateways are an address for each name of a gateway: what is checked without the nameservers
// of the server must not depend on those of this machine.
func assumedGateways(networks *mesh.Networks) *mesh.GatewayAddresses {
	names := map[string][]netip.Addr{}
	for _, name := range networks.GatewayNames() {
		names[name] = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 1})} // for documentation
	}
	return mesh.NewGatewayAddresses(names)
}

// fragment is what the files with a binding give.
func (t *tree) fragment(binding *mesh.Binding) *mesh.Fragment {
	if t.saved != nil {
		whole := mesh.Fragment{}
		if f := t.saved[binding]; f != nil {
			whole = *f
		}
		whole.Source = source
		return &whole
	}
	seen := map[mesh.Key]bool{}
	var pieces []*mesh.Fragment
	var keys []mesh.Key
	var objects []*manifest.Object
	for _, f := range t.Files {
		if t.bound[f] == binding {
			objects = append(objects, f.Objects...)
		}
	}
	for _, o := range objects {
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
	return whole
}

// meshSettings reads a file of MeshConfig; without a path, the defaults. Where a
// fault keeps the whole file out, there is an error that lists all faults. The
// settings have the default of a field that cannot be in force: what the server had
// before is not known here.
func meshSettings(path string) (*mesh.MeshConfig, []manifest.Fault, error) {
	if path == "" {
		return manifest.DefaultMeshConfig(), nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the mesh configuration: %w", err)
	}
	if blank(content) {
		fault := files.Blank(mesh.KindMeshConfig, path)
		return nil, []manifest.Fault{fault}, errors.New(fault.String())
	}
	settings, faults := manifest.DecodeMeshConfig(path, content)
	if settings != nil {
		return settings, faults, nil
	}
	return nil, faults, joinedFaults(faults)
}

// meshNetworks reads a file of MeshNetworks; without a path, there are none. With an error in the file,
// there is an error that lists all faults.
func meshNetworks(path string) (*mesh.Networks, []manifest.Fault, error) {
	if path == "" {
		return nil, nil, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the networks of the mesh: %w", err)
	}
	if blank(content) {
		fault := files.Blank(mesh.KindMeshNetworks, path)
		return nil, []manifest.Fault{fault}, errors.New(fault.String())
	}
	networks, faults := manifest.DecodeMeshNetworks(path, content)
	if networks != nil {
		return networks, faults, nil
	}
	return nil, faults, joinedFaults(faults)
}

// blank reports whether the server keeps a file of settings or networks out because nothing is in it.
func blank(content []byte) bool { return len(bytes.TrimSpace(content)) == 0 }

func joinedFaults(faults []manifest.Fault) error {
	var errs []error
	for _, f := range faults {
		errs = append(errs, errors.New(f.String()))
	}
	return errors.Join(errs...)
}
