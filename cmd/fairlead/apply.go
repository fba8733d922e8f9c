package main

import (
	"bytes"
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

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

type applyFlags struct {
	configDir, meshConfig, meshNetworks string
	otherDirs, filenames                []string
	dryRun                              bool
	catalog                             catalogFlags
	bound                               boundFlags
	breakingFlag
	resultFlags
}

func newApply() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply {-f FILE | FILE}… --config-dir DIR",
		Short: "Write manifests into the directory of a mesh, if the mesh stays valid",
		Long: `Checks the files, and the whole mesh as it would be with them, as Istio's admission webhook does. If
there is an error, it reports the position and writes nothing. Otherwise it writes each file into DIR
under its own name, by atomic rename, and says which objects were created, changed and removed.
Warnings are reported, but do not prevent this.

The command judges each workload of the mesh, and refuses a change that newly makes its requests fail: by
a route to a host, port or subset that does not exist, to a service or subset without a workload, or by a
server of a Gateway that is left out. --even-if-breaking writes it all the same. If the mesh has more
directories, name them with --other-config-dir. Without this, a service without a workload counts only if
its namespace has a workload in DIR: the workloads may be elsewhere.

FILE is a file; a directory, whose *.yaml and *.yml are written to the same paths below DIR; or - for
standard input, which replaces the file that has its objects, or gets a file named after its first
object. If all objects of a file in DIR are in files of other names now, that file is removed.

A Gateway that is new gets a creationTimestamp, if there are others and all of them have one, and keeps it:
it takes nothing from those that serve. The first one gets one only with --other-config-dir. What is written ends with the line "...": a part of it, as a full
disk leaves it, removes nothing. A file without this line that is the beginning of the stored one is refused: it may be a copy that lost its end.

With --consul-address, and the other flags of the server for Consul, the check includes the catalog of
Consul.

If a server on this machine reads DIR (--run-dir), the command waits for the result: how many proxies
have applied the change, and what a proxy rejects, in Envoy's words.

Exit code 0: applied; 1: the check failed, or a proxy rejects the change; 2: could not run; 3: written, and
the server did not say within --wait what became of it. With --wait 0, or without such a server, nobody is asked.`,
		Example: "  fairlead apply -f orders.yaml --config-dir /etc/fairlead/mesh\n" +
			"  fairlead apply -f mesh/ --config-dir /etc/fairlead/mesh --dry-run\n" +
			"  cat orders.yaml | fairlead apply -f - --config-dir /etc/fairlead/mesh",
		RunE: func(cmd *cobra.Command, args []string) error { return apply(cmd, &f, args) },
	}
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.filenames, "filename", "f", nil, "file or directory to apply, or - for standard input; may be repeated")
	fl.StringVar(&f.configDir, "config-dir", "", "directory of the mesh, or DIR=NAMESPACE,…")
	fl.StringArrayVar(&f.otherDirs, "other-config-dir", nil, "another directory of the same mesh, or DIR=NAMESPACE,…; it is only read, to check the whole mesh; may be repeated")
	fl.StringVar(&f.meshConfig, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	fl.StringVar(&f.meshNetworks, "mesh-networks", "", meshNetworksHelp)
	fl.StringVar(&f.runDir, "run-dir", defaultRunDir("server"), "the runtime directory of the server, which reports the result of the change")
	fl.BoolVar(&f.dryRun, "dry-run", false, "check the files and the mesh, and write nothing")
	f.bound.add(fl)
	f.addBreaking(fl)
	f.catalog.add(fl)
	fl.DurationVar(&f.wait, "wait", 10*time.Second, "how long to wait until the proxies have applied the change; 0 means not at all")
	return cmd
}

func apply(cmd *cobra.Command, f *applyFlags, args []string) error {
	if args = slices.Concat(f.filenames, args); len(args) == 0 {
		return fmt.Errorf("missing argument; usage: %s", cmd.UseLine())
	}
	if f.configDir == "" {
		return errors.New("--config-dir is required: the directory of the mesh")
	}
	roots, err := rootsOf(slices.Concat([]string{f.configDir}, f.otherDirs), &f.bound)
	if err != nil {
		return fmt.Errorf("--config-dir, --other-config-dir: %w", err)
	}
	root := roots[0]
	f.catalog.hostPaths.allow(&root)
	opts := manifest.Options{Source: source, Namespaces: root.Namespaces, NoUnixSockets: root.NoUnixSockets(), NoFiles: root.NoFiles(), NoLocalAddresses: root.NoLocalAddresses()}
	if len(root.Namespaces) == 1 {
		opts.Namespace = root.Namespaces[0]
	}
	set, err := readSet(cmd, root.Path, opts, args)
	if err != nil {
		return err
	}
	others, err := treeOf(cmd.InOrStdin(), roots[1:], &f.bound, f.catalog.hostPaths)
	if err != nil {
		return fmt.Errorf("--other-config-dir: %w", err)
	}
	if err := others.addConsul(cmd, &f.catalog); err != nil {
		return err
	}
	if err := set.complete(cmd.OutOrStdout(), others, f.told(), wallclock.Now()); err != nil {
		return err
	}
	changes, ok, err := checkApply(cmd, f, root, set, others)
	if err != nil {
		return err
	}
	if !ok {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "refused: nothing was written")
		return errors.Join(errInvalid, err)
	}
	if f.dryRun {
		printObjectChanges(cmd.OutOrStdout(), changes)
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "it would be applied: nothing was written")
		return err
	}
	begin := time.Now()
	if err := set.write(cmd.OutOrStdout()); err != nil {
		return err
	}
	printObjectChanges(cmd.OutOrStdout(), changes)
	made, err := set.change(changes, begin)
	if err != nil {
		return err
	}
	return reportResult(cmd, f.resultFlags, made)
}

// told reports whether the command knows of other sources of the mesh than its directory.
func (f *applyFlags) told() bool { return len(f.otherDirs) > 0 || f.catalog.KVPrefix != "" }

// write writes the new files, and then removes those that were renamed: no object is missing in
// between.
func (s *applySet) write(w io.Writer) error {
	for _, target := range s.targets {
		if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, s.contents[target]) {
			_, _ = fmt.Fprintf(w, "%s: unchanged\n", target)
			continue
		}
		if err := s.makeDir(target); err != nil {
			return err
		}
		if err := durable.WriteFile(durable.OS{}, target, s.contents[target], 0o644); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "written to %s\n", target)
	}
	for _, old := range slices.Sorted(maps.Keys(s.renamed)) {
		if err := durable.Remove(durable.OS{}, old); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "removed %s: its objects are in %s\n", old, s.renamed[old])
	}
	return nil
}

// makeDir makes the directories between the root and a file, so that they outlive a power cut.
func (s *applySet) makeDir(target string) error {
	rel, err := filepath.Rel(s.root, target)
	if err != nil {
		return err
	}
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as readable as the manifests in it
		return err
	}
	for range strings.Count(rel, string(filepath.Separator)) {
		dir = filepath.Dir(dir)
		if err := (durable.OS{}).SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// change is what the server is asked about: files of which an object is another one now.
func (s *applySet) change(changes []objectChange, begin time.Time) (change, error) {
	dir, err := filepath.Abs(s.root)
	if err != nil {
		return change{}, err
	}
	made := change{root: dir, is: func(path string) bool { return samePlace(path, dir) }, begin: begin}
	for _, target := range s.targets {
		if !slices.ContainsFunc(changes, func(c objectChange) bool { return c.file == target && c.what != "unchanged" }) {
			continue
		}
		rel, err := filepath.Rel(s.root, target)
		if err != nil {
			return change{}, err
		}
		made.places = append(made.places, changedPlace{rel, filepath.Join(dir, rel)})
	}
	return made, nil
}

// checkApply checks the mesh as it would be. Faults that other files had before do not prevent
// the change.
func checkApply(cmd *cobra.Command, f *applyFlags, root files.Root, set *applySet, others *tree) ([]objectChange, bool, error) {
	settings, _, err := meshSettings(f.meshConfig)
	if err != nil {
		return nil, false, err
	}
	networks, _, err := meshNetworks(f.meshNetworks)
	if err != nil {
		return nil, false, err
	}
	others.networks = networks
	before, after := others.clone(), others.clone()
	binding := root.Binding()
	names := slices.Concat(set.existing, set.targets)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		content, replaced := set.contents[name]
		old, err := readManifest(name, false)
		if err == nil {
			before.add(set.opts, binding, name, old)
		} else if !replaced {
			return nil, false, err
		}
		if _, renamed := set.renamed[name]; renamed {
			continue
		}
		if !replaced {
			content = old
		}
		after.add(set.opts, binding, name, content)
	}
	ok, err := checkChange(cmd.OutOrStdout(), before, after, changeCheck{
		settings: settings, evenIfBreaking: f.evenIfBreaking, told: f.told(), tell: "--other-config-dir",
		mine: func(file string) bool {
			_, mine := set.contents[file]
			return mine
		},
		line: func(file string, line int) int {
			return manifest.AuthorLine(set.authors[file], set.contents[file], line)
		},
	})
	return set.objectChanges(before, after), ok, err
}

// changeCheck says how a change to a set of manifests is checked.
type changeCheck struct {
	settings *mesh.MeshConfig
	// mine reports whether a file is part of the change.
	mine func(file string) bool
	// line is the line of a file of the change as its author has it.
	line func(file string, line int) int
	// evenIfBreaking allows a change that newly makes requests fail.
	evenIfBreaking bool
	// told says that the command was told of other sources of the mesh, and tell is the flag that does it.
	told bool
	tell string
}

// checkChange reports faults of a change, and faults elsewhere because of it, and whether the
// change may be made.
func checkChange(w io.Writer, before, after *tree, j changeCheck) (bool, error) {
	before.limitSources()
	after.limitSources()
	known := map[string]bool{}
	for _, x := range analyzeTree(before, j.settings) {
		known[x.identity()] = true
	}
	ok := true
	for _, x := range analyzeTree(after, j.settings) {
		if !j.mine(x.File) && known[x.identity()] {
			continue
		}
		if x.Severity == string(manifest.Error) {
			ok = false
		}
		if j.mine(x.File) {
			x.Line = j.line(x.File, x.Line)
		}
		if _, err := fmt.Fprintln(w, x); err != nil {
			return false, err
		}
	}
	if !ok {
		return false, nil
	}
	broken, err := brokenBy(w, before, after, j)
	if err != nil || broken == 0 || j.evenIfBreaking {
		return err == nil, err
	}
	hint := ""
	if !j.told {
		hint = "; if another directory of the mesh has what is missing, name it with " + j.tell
	}
	_, err = fmt.Fprintf(w, "requests would fail that do not fail now%s; --even-if-breaking writes the change all the same\n", hint)
	return false, err
}

// identity is what stays the same of a finding when lines move.
func (f finding) identity() string {
	return strings.Join([]string{f.File, f.Code, f.Kind, f.Namespace, f.Name, f.Field, f.Message}, "\x00")
}
