package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

type applyFlags struct {
	configDir, meshConfig string
	dryRun                bool
	catalog               catalogFlags
	bound                 boundFlags
	resultFlags
}

func newApply() *cobra.Command {
	var f applyFlags
	cmd := &cobra.Command{
		Use:   "apply FILE… --config-dir DIR",
		Short: "Write manifests into the directory of a mesh, if the mesh stays valid",
		Long: `Checks the files, and the whole mesh as it would be with them, as Istio's admission webhook does. If
there is an error, it reports the position and writes nothing. Otherwise it writes each file into DIR
under its own name, by atomic rename. Warnings are reported, but do not prevent this.

With --consul-address, and the other flags of the server for Consul, the check includes the catalog of
Consul.

If a server on this machine reads DIR (--run-dir), the command waits for the result: how many proxies
have applied the change, and what a proxy rejects, in Envoy's words.

Exit code 0: applied; 1: the check failed, or a proxy rejects the change; 2: could not run.`,
		Example: "  fairlead apply orders.yaml --config-dir /etc/fairlead/mesh",
		Args:    wantArgs(0),
		RunE:    func(cmd *cobra.Command, args []string) error { return apply(cmd, &f, args) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.configDir, "config-dir", "", "directory of the mesh, or DIR=NAMESPACE,…")
	fl.StringVar(&f.meshConfig, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	fl.StringVar(&f.runDir, "run-dir", defaultRunDir("server"), "the runtime directory of the server, which reports the result of the change")
	fl.BoolVar(&f.dryRun, "dry-run", false, "check the files and the mesh, and write nothing")
	f.bound.add(fl)
	f.catalog.add(fl)
	fl.DurationVar(&f.wait, "wait", 10*time.Second, "how long to wait until the proxies have applied the change; 0 means not at all")
	return cmd
}

func apply(cmd *cobra.Command, f *applyFlags, args []string) error {
	if f.configDir == "" {
		return errors.New("--config-dir is required: the directory of the mesh")
	}
	roots, err := rootsOf([]string{f.configDir}, &f.bound)
	if err != nil {
		return fmt.Errorf("--config-dir: %w", err)
	}
	root := roots[0]
	contents, targets, err := readNew(root, args)
	if err != nil {
		return err
	}
	ok, err := checkApply(cmd, f, root, contents)
	if err != nil {
		return err
	}
	if !ok {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "refused: nothing was written")
		return errors.Join(errInvalid, err)
	}
	if f.dryRun {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "it would be applied: nothing was written")
		return err
	}
	dir, err := filepath.Abs(root.Path)
	if err != nil {
		return err
	}
	made := change{root: dir, is: func(path string) bool { return samePlace(path, dir) }, begin: time.Now()}
	for _, target := range targets {
		if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, contents[target]) {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: unchanged\n", target); err != nil {
				return err
			}
			continue
		}
		name := filepath.Base(target)
		made.places = append(made.places, changedPlace{name, filepath.Join(dir, name)})
		if err := durable.WriteFile(durable.OS{}, target, contents[target], 0o644); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "written to %s\n", target); err != nil {
			return err
		}
	}
	return reportResult(cmd, f.resultFlags, made)
}

// readNew reads the files, by the path that each will have.
func readNew(root files.Root, args []string) (contents map[string][]byte, targets []string, err error) {
	contents = map[string][]byte{}
	for _, name := range args {
		if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
			return nil, nil, fmt.Errorf("%q: the server reads *.yaml and *.yml only: rename the file", name)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, fmt.Errorf("reading %q: %w", name, rootCause(err))
		}
		target := filepath.Join(root.Path, filepath.Base(name))
		if contents[target] != nil {
			return nil, nil, fmt.Errorf("%q: two of the files have this name: one would overwrite the other", filepath.Base(name))
		}
		contents[target] = content
		targets = append(targets, target)
	}
	return contents, targets, nil
}

// checkApply checks the mesh as it would be. Faults that other files had before do not prevent
// the change.
func checkApply(cmd *cobra.Command, f *applyFlags, root files.Root, contents map[string][]byte) (bool, error) {
	settings, _, err := meshSettings(f.meshConfig)
	if err != nil {
		return false, err
	}
	names, err := manifestFiles(root.Path)
	if err != nil {
		return false, err
	}
	consul := &tree{}
	if err := consul.addConsul(cmd, &f.catalog, f.bound.hostsOnly); err != nil {
		return false, err
	}
	before, after := consul.clone(), consul.clone()
	f.catalog.hostPaths.allow(&root)
	opts := manifest.Options{Source: source, Namespaces: root.Namespaces, NoUnixSockets: root.NoUnixSockets(), NoFiles: root.NoFiles()}
	if len(root.Namespaces) == 1 {
		opts.Namespace = root.Namespaces[0]
	}
	binding := root.Binding(f.bound.hostsOnly)
	for target := range contents {
		if !slices.Contains(names, target) {
			names = append(names, target)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		old, err := readManifest(name, false)
		if err == nil {
			before.add(opts, binding, name, old)
		} else if contents[name] == nil {
			return false, err
		}
		if content, replaced := contents[name]; replaced {
			after.add(opts, binding, name, content)
		} else {
			after.add(opts, binding, name, old)
		}
	}
	return checkChange(cmd.OutOrStdout(), before, after, changeCheck{settings: settings, mine: func(file string) bool {
		_, mine := contents[file]
		return mine
	}})
}

// changeCheck says how a change to a set of manifests is checked.
type changeCheck struct {
	settings *mesh.MeshConfig
	// mine reports whether a file is part of the change.
	mine func(file string) bool
}

// checkChange reports faults of a change, and faults elsewhere because of it, and whether the
// change may be made.
func checkChange(w io.Writer, before, after *tree, j changeCheck) (bool, error) {
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
		if _, err := fmt.Fprintln(w, x); err != nil {
			return false, err
		}
	}
	return ok, nil
}

// identity is what stays the same of a finding when lines move.
func (f finding) identity() string {
	return strings.Join([]string{f.File, f.Code, f.Kind, f.Namespace, f.Name, f.Field, f.Message}, "\x00")
}
