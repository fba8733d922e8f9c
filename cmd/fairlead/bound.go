package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// boundFlags say what sources that are bound to namespaces speak for.
type boundFlags struct {
	hosts     []string
	hostsOnly bool
}

func (f *boundFlags) add(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.hosts, "config-hosts", nil, "DIR=HOST,…: host names, such as teams/shop=*.shop.internal, that belong to a directory that is bound to namespaces, even if other sources declare them; may be repeated")
	fl.BoolVar(&f.hostsOnly, "config-hosts-only", false, "is the default, and has no other effect than that an upgrade grants no hosts: directories and keys that are bound to namespaces own only the host names of --config-hosts and --consul-kv-hosts")
}

// give gives the roots their hosts.
func (f *boundFlags) give(roots []files.Root) error {
	var errs []error
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
