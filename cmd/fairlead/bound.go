package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// boundFlags say what sources that are bound to namespaces speak for.
type boundFlags struct {
	hosts     []string
	hostsOnly bool
	// maxExpansion is what all objects of one such source may make after expansion.
	maxExpansion int
}

func (f *boundFlags) add(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.hosts, "config-hosts", nil, "DIR=HOST,…: host names, such as teams/shop=*.shop.internal, that belong to a directory that is bound to namespaces, even if other sources declare them; may be repeated")
	fl.IntVar(&f.maxExpansion, "max-expansion", lastgood.DefaultMaxExpansion, "how much all objects of one directory or prefix that is bound to namespaces may make after expansion (hosts × ports × endpoints, hosts × routes); what is over it is refused, the largest objects first")
	fl.BoolVar(&f.hostsOnly, "config-hosts-only", false, "is the default, and has no other effect than that an upgrade grants no hosts: directories and keys that are bound to namespaces own only the host names of --config-hosts and --consul-kv-hosts")
}

// give gives the roots their hosts.
func (f *boundFlags) give(roots []files.Root) error {
	var errs []error
	if f.maxExpansion < 0 {
		errs = append(errs, f.check())
	}
	for _, s := range f.hosts {
		if err := files.AddHosts(roots, s); err != nil {
			errs = append(errs, fmt.Errorf("--config-hosts: %w", err))
		}
	}
	for _, r := range roots {
		if len(r.Hosts) > 0 && len(r.Namespaces) == 0 {
			errs = append(errs, fmt.Errorf("--config-hosts: the directory %q is not bound to a namespace, so it may use every host: write %s=NAMESPACE where it is named, or leave its hosts out", r.Path, r.Path))
		}
	}
	return errors.Join(errs...)
}

// readSources is readTree for a command that is given the flags of a server, with all of its sources: it refuses what
// the server does not start with.
func readSources(stdin io.Reader, paths []string, bound *boundFlags, catalog *catalogFlags) (*tree, error) {
	roots, err := rootsOf(paths, bound)
	if err != nil {
		return nil, err
	}
	cfg := server.Config{Roots: roots}
	cfg.Consul.KVPrefix = catalog.KVPrefix
	if cfg.Consul.KVHosts, err = catalog.patterns(); err != nil {
		return nil, err
	}
	if err := errors.Join(bound.check(), catalog.hostPaths.check(roots, catalog.KVPrefix), cfg.CheckBindings()); err != nil {
		return nil, err
	}
	return treeOf(stdin, roots, bound, catalog.hostPaths)
}

// check refuses a limit that refuses everything.
func (f *boundFlags) check() error {
	if f.maxExpansion < 1 {
		return fmt.Errorf("--max-expansion %d: it must be at least 1", f.maxExpansion)
	}
	return nil
}

// limitSources refuses the objects of sources that are bound to namespaces and have too much
// after expansion, as the server does.
func (t *tree) limitSources() {
	files := map[*mesh.Binding][]int{}
	for i, f := range t.Files {
		if b := t.bound[f]; b != nil {
			files[b] = append(files[b], i)
		}
	}
	for _, indexes := range files {
		var list []lastgood.Sized
		seen := map[mesh.Key]bool{}
		for _, i := range indexes {
			for _, o := range t.Files[i].Objects {
				if f := o.Fragment(); f != nil && !seen[o.Meta.Key] {
					seen[o.Meta.Key] = true
					list = append(list, lastgood.Sized{Key: o.Meta.Key, Expansion: o.Expansion().Count, Weight: o.Weight(), Fragment: f})
				}
			}
		}
		if refused := lastgood.OverLimit(list, t.maxExpansion); len(refused) > 0 {
			t.needed = max(t.needed, lastgood.NeededLimit(list, t.maxExpansion))
			for _, i := range indexes {
				t.refuse(i, refused)
			}
		}
	}
}

// refuse takes objects of a file out of force. Trees share files, so it is copied.
func (t *tree) refuse(file int, refused map[mesh.Key]lastgood.Excess) {
	f := *t.Files[file]
	f.Objects = slices.Clone(f.Objects)
	for i, o := range f.Objects {
		if excess, is := refused[o.Meta.Key]; is && o.Valid {
			fault := lastgood.ExcessFault(o.Meta.Origin, o.Meta.Key, excess)
			f.Objects[i] = o.Refuse(fault)
			t.Faults = append(t.Faults, fault)
		}
	}
	t.bound[&f] = t.bound[t.Files[file]]
	t.Files[file] = &f
}

// checkOverlap refuses a further binding, or nil, with hosts that others have.
func (t *tree) checkOverlap(binding *mesh.Binding) error {
	if binding == nil {
		return nil
	}
	bindings := []*mesh.Binding{binding}
	for _, b := range t.bound {
		if !slices.Contains(bindings, b) {
			bindings = append(bindings, b)
		}
	}
	return checkOverlap(bindings)
}

// checkOverlap refuses patterns of two sources that cover the same host.
func checkOverlap(bindings []*mesh.Binding) error {
	for i, b := range bindings {
		for _, a := range bindings[:i] {
			if p, q, overlap := mesh.Overlap(a, b); overlap {
				return fmt.Errorf("--config-hosts, --consul-kv-hosts: %q of the namespaces %v and %q of the namespaces %v have hosts in common: say whose they are", p, a.Namespaces, q, b.Namespaces)
			}
		}
	}
	return nil
}
