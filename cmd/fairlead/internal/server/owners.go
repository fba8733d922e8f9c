package server

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// hostOwners keeps in two files which namespace has which host or address, for
// [registry.OwnerStore]: in the first one what stands for itself, and in the second
// wildcards and ranges, which earlier releases had on no record.
type hostOwners struct{ path, wide string }

// hostOwnersFile is either file.
type hostOwnersFile struct {
	Version int         `json:"version"`
	Hosts   []hostOwner `json:"hosts"`
}

type hostOwner struct {
	Host      mesh.Hostname `json:"host"`
	Namespace string        `json:"namespace"`
	// Routes says that the namespace only has routes for the host.
	Routes bool `json:"routes,omitempty"`
	// Left is when the namespace named the host last; nil while it does.
	Left *time.Time `json:"left,omitempty"`
}

const (
	hostOwnersVersion = 1
	// maxHostOwners bounds the file, in bytes.
	maxHostOwners = 256 << 20
)

// Load implements [registry.OwnerStore]. If one file cannot be read, what is in the
// other one counts.
func (o hostOwners) Load() (map[mesh.Hostname]registry.Ownership, error) {
	out := map[mesh.Hostname]registry.Ownership{}
	err := errors.Join(loadOwners(o.path, out), loadOwners(o.wide, out))
	if len(out) == 0 {
		return nil, err
	}
	return out, err
}

func loadOwners(path string, into map[mesh.Hostname]registry.Ownership) error {
	var file hostOwnersFile
	err := durable.Unseal(path, &file, maxHostOwners)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // nothing was ever saved
	case err != nil:
		return err
	case file.Version != hostOwnersVersion:
		return fmt.Errorf("reading %q: it is of version %d, and this release knows %d", path, file.Version, hostOwnersVersion)
	}
	for _, x := range file.Hosts {
		owner := registry.Ownership{Owner: mesh.Owner{Namespace: x.Namespace, Routes: x.Routes}}
		if x.Left != nil {
			owner.Left = *x.Left
		}
		into[x.Host] = owner
	}
	return nil
}

// Save implements [registry.OwnerStore].
func (o hostOwners) Save(record map[mesh.Hostname]registry.Ownership) error {
	narrow, wide := hostOwnersFile{Version: hostOwnersVersion, Hosts: []hostOwner{}}, hostOwnersFile{Version: hostOwnersVersion, Hosts: []hostOwner{}}
	for _, h := range slices.Sorted(maps.Keys(record)) {
		x := hostOwner{Host: h, Namespace: record[h].Namespace, Routes: record[h].Routes}
		if left := record[h].Left; !left.IsZero() {
			left = left.UTC().Truncate(time.Second)
			x.Left = &left
		}
		if mesh.IsWide(h) {
			wide.Hosts = append(wide.Hosts, x)
		} else {
			narrow.Hosts = append(narrow.Hosts, x)
		}
	}
	err := durable.Seal(o.path, narrow, maxHostOwners)
	if _, absent := os.Stat(o.wide); len(wide.Hosts) == 0 && errors.Is(absent, fs.ErrNotExist) {
		return err
	}
	return errors.Join(err, durable.Seal(o.wide, wide, maxHostOwners))
}

func (s *Server) hostOwners() hostOwners {
	return hostOwners{filepath.Join(s.cfg.StateDir, "host-owners.json"), filepath.Join(s.cfg.StateDir, "range-owners.json")}
}

// checkBindings checks what the settings say of bound sources.
func (c *Config) checkBindings() error {
	var errs []error
	type named struct {
		flag string
		b    *mesh.Binding
	}
	var bound []named
	for _, r := range c.Roots {
		switch b := r.Binding(c.HostsOnly); {
		case b != nil:
			bound = append(bound, named{fmt.Sprintf("--config-dir %q", r.Path), b})
		case len(r.Hosts) > 0:
			errs = append(errs, fmt.Errorf("--config-hosts %q: the directory is not bound to a namespace, so it may use every host: bind it with --config-dir DIR=NAMESPACE, or leave its hosts out", r.Path))
		}
	}
	if c.HostRest < 0 {
		errs = append(errs, fmt.Errorf("--host-rest %s: it cannot be negative", c.HostRest))
	}
	b, err := c.Consul.Binding(c.HostsOnly)
	switch {
	case err != nil: // reported by Check
	case b != nil:
		bound = append(bound, named{"--consul-kv-prefix", b})
	case len(c.Consul.KVHosts) > 0:
		errs = append(errs, errors.New("--consul-kv-hosts: the prefix is not bound to a namespace, so it may use every host: bind it with --consul-kv-prefix PREFIX=NAMESPACE, or leave its hosts out"))
	}
	for i, x := range bound {
		for _, y := range bound[:i] {
			if p, q, overlap := mesh.Overlap(y.b, x.b); overlap {
				errs = append(errs, fmt.Errorf("%s and %s: %q and %q have hosts in common: say whose they are", y.flag, x.flag, p, q))
			}
		}
	}
	return errors.Join(errs...)
}

// boundNamespaces are those that some source is bound to.
func (c *Config) boundNamespaces() []string {
	var out []string
	for _, r := range c.Roots {
		out = append(out, r.Namespaces...)
	}
	if b, err := c.Consul.Binding(false); err == nil && b != nil {
		out = append(out, b.Namespaces...)
	}
	return out
}

// checkRoot refuses to bind a source to the root namespace, whose policies hold
// for the whole mesh, unless a second setting says that this is meant.
func (c *Config) checkRoot(root string) error {
	if c.BindRoot {
		return nil
	}
	refuse := func(flag string) error {
		return fmt.Errorf("%s is bound to %q, the root namespace: what it writes there holds for the whole mesh; "+
			"if that is meant, say so with --bind-root-namespace, else take the namespace out", flag, root)
	}
	for _, r := range c.Roots {
		if slices.Contains(r.Namespaces, root) {
			return refuse(fmt.Sprintf("--config-dir %q", r.Path))
		}
	}
	if b, err := c.Consul.Binding(false); err == nil && b != nil && slices.Contains(b.Namespaces, root) {
		return refuse("--consul-kv-prefix")
	}
	return nil
}
