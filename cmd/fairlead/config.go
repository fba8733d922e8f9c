package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/manifest"
)

// configFlags are the flags of all subcommands of config.
type configFlags struct {
	catalog catalogFlags
	prefix  string
}

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Manifests in Consul's key-value store: push, pull, diff",
		Long: `Synchronizes a directory of manifests with a prefix of Consul's key-value store. The part of a key
after the prefix is the path of a file in the directory. Only *.yaml and *.yml are used, and no name
that begins with a dot. A server reads the keys with --consul-kv-prefix.`,
	}
	cmd.AddCommand(newConfigPush(), newConfigPull(), newConfigDiff())
	return cmd
}

// add adds the flags; those that say how the catalog looks in the mesh are for
// commands that check the mesh.
func (f *configFlags) add(cmd *cobra.Command, checks bool) {
	fl := cmd.Flags()
	f.catalog.consulFlags.add(fl)
	if checks {
		f.catalog.addCatalog(fl)
	} else {
		fl.StringArrayVar(&f.catalog.Datacenters, "consul-datacenter", nil, "Consul datacenter of the keys; if repeated, the first one; none means that of the agent at --consul-address")
	}
	fl.StringVar(&f.prefix, "consul-kv-prefix", "", "prefix of the keys, such as fairlead/mesh, or PREFIX=NAMESPACE,…")
}

// target is the place in Consul that a command speaks of.
type target struct {
	store *kv.Store
	opts  manifest.Options
}

func (f *configFlags) open() (*target, error) {
	if f.prefix == "" {
		return nil, errors.New("--consul-kv-prefix is required: the prefix of the keys, such as fairlead/mesh")
	}
	prefix, namespaces, err := kv.ParsePrefix(f.prefix)
	if err != nil {
		return nil, fmt.Errorf("--consul-kv-prefix: %w", err)
	}
	conf, err := f.catalog.config(slog.New(slog.DiscardHandler)) // what goes wrong is the command's error
	if err != nil {
		return nil, err
	}
	if dcs := f.catalog.Datacenters; len(dcs) > 0 {
		conf.Datacenter = dcs[0] // as the server does
	}
	store, err := kv.Open(conf, prefix)
	if err != nil {
		return nil, err
	}
	t := &target{store: store, opts: manifest.Options{Source: source, Namespaces: namespaces, NoUnixSockets: !f.catalog.hostPaths.unixSockets.keys(), NoFiles: !f.catalog.hostPaths.files.keys(), NoLocalAddresses: !f.catalog.hostPaths.localAddresses.keys()}}
	if len(namespaces) == 1 {
		t.opts.Namespace = namespaces[0]
	}
	return t, nil
}

// path names a key in messages.
func (t *target) path(rel string) string { return kv.PathOf(t.store.Prefix() + "/" + rel) }

// readDir reads the manifests of a directory, by their path below it.
func readDir(dir string) (map[string][]byte, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", dir, rootCause(err))
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%q is no directory: name the one that has the manifests", dir)
	}
	names, err := manifestFiles(dir)
	if err != nil {
		return nil, err
	}
	contents := map[string][]byte{}
	for _, name := range names {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return nil, err
		}
		rel = filepath.ToSlash(rel)
		if err := kv.CheckRel(rel); err != nil {
			return nil, fmt.Errorf("%q cannot be a key: %w; rename the file", name, err)
		}
		content, err := os.ReadFile(name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading %q: %w", name, rootCause(err))
		case len(content) > kv.MaxValueSize:
			return nil, fmt.Errorf("%q has %d bytes; Consul takes at most %d a key: split the file", name, len(content), kv.MaxValueSize)
		}
		contents[rel] = content
	}
	return contents, nil
}

// count writes "1 key" or "3 keys".
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
