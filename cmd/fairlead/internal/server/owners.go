package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
)

// hostGrants keeps the names that namespaces of bound sources have from before owners were decided by patterns
// alone, for [registry.GrantStore]. They are made once, of the record of owners of earlier releases, which
// stays as it is: an earlier release may start again.
type hostGrants struct {
	dir string
	// none says that nothing is made of the record: there were patterns alone before, too.
	none bool
}

// hostGrantsFile is JSON that a person may edit.
type hostGrantsFile struct {
	Version int          `json:"version"`
	Grants  []mesh.Grant `json:"grants"`
}

// hostOwnersFile is a record of owners of an earlier release.
type hostOwnersFile struct {
	Version int         `json:"version"`
	Hosts   []hostOwner `json:"hosts"`
}

type hostOwner struct {
	Host      mesh.Hostname `json:"host"`
	Namespace string        `json:"namespace"`
	Routes    bool          `json:"routes,omitempty"`
}

const (
	hostGrantsName = "host-grants.json"
	// hostGrantsMade says that the file was made: one that a person removed is not made again.
	hostGrantsMade    = "host-grants.made"
	hostGrantsVersion = 1
	hostOwnersVersion = 1
	// maxHostOwners bounds each file, in bytes.
	maxHostOwners = 256 << 20
)

// Load implements [registry.GrantStore].
func (g hostGrants) Load() (grants []mesh.Grant, made bool, err error) {
	grants, made, err = g.read()
	if err != nil {
		return grants, made, err
	}
	if !made && g.none {
		return nil, true, g.Save(nil)
	}
	if _, err := os.Stat(filepath.Join(g.dir, hostGrantsMade)); made && errors.Is(err, fs.ErrNotExist) {
		_ = g.mark() // the server ended before it could; the next start tries again
	}
	return grants, made, nil
}

// read is Load without a change of the directory, which may be that of a server that runs.
func (g hostGrants) read() (grants []mesh.Grant, made bool, err error) {
	path := filepath.Join(g.dir, hostGrantsName)
	data, err := durable.ReadFile(path, maxHostOwners)
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Stat(filepath.Join(g.dir, hostGrantsMade))
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return nil, true, err
		}
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	var file hostGrantsFile
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, false, fmt.Errorf("reading %q: %w: correct it, or restore it from a backup, and restart the server", path, err)
	}
	if file.Version != hostGrantsVersion {
		return nil, false, fmt.Errorf("reading %q: it is of version %d, and this release knows %d", path, file.Version, hostGrantsVersion)
	}
	for i, x := range file.Grants {
		if x.Name == "" || x.Namespace == "" {
			return nil, false, fmt.Errorf("reading %q: grant %d has no name, or no namespace: correct it, and restart the server", path, i+1)
		}
	}
	return file.Grants, true, nil
}

// mark notes that the file was made.
func (g hostGrants) mark() error {
	return durable.WriteFile(durable.OS{}, filepath.Join(g.dir, hostGrantsMade), nil, 0o600)
}

// Recorded implements [registry.GrantStore].
func (g hostGrants) Recorded() ([]mesh.Recorded, error) {
	var out []mesh.Recorded
	found := false
	for _, name := range []string{"host-owners.json", "range-owners.json"} {
		path := filepath.Join(g.dir, name)
		var file hostOwnersFile
		err := durable.Unseal(path, &file, maxHostOwners)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case file.Version != hostOwnersVersion:
			return nil, fmt.Errorf("reading %q: it is of version %d, and this release knows %d", path, file.Version, hostOwnersVersion)
		}
		found = true
		for _, x := range file.Hosts {
			out = append(out, mesh.Recorded{Name: x.Host, Namespace: x.Namespace, Routes: x.Routes})
		}
	}
	if found && out == nil {
		out = []mesh.Recorded{} // there is a record, of nothing
	}
	return out, nil
}

// Save implements [registry.GrantStore].
func (g hostGrants) Save(grants []mesh.Grant) error {
	data, err := json.MarshalIndent(hostGrantsFile{hostGrantsVersion, append([]mesh.Grant{}, grants...)}, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(durable.OS{}, filepath.Join(g.dir, hostGrantsName), append(data, '\n'), 0o600); err != nil {
		return err
	}
	return g.mark()
}

// Owners is what a state directory says of the owners of hosts.
type Owners struct {
	// Recorded is the record of an earlier release; nil if there is none.
	Recorded []mesh.Recorded
	// Grants are those that an upgrade made of it, if Made is set.
	Grants []mesh.Grant
	Made   bool
}

// ReadOwners reads a state directory, and changes nothing in it. The server may run.
func ReadOwners(dir string) (Owners, error) {
	g := hostGrants{dir: dir}
	var o Owners
	var err, recordErr error
	o.Grants, o.Made, err = g.read()
	o.Recorded, recordErr = g.Recorded()
	return o, errors.Join(err, recordErr)
}

func (s *Server) hostGrants() hostGrants { return hostGrants{s.cfg.StateDir, s.cfg.HostsOnly} }

// manifestSource is a directory or a prefix of keys with manifests, as settings have it.
type manifestSource struct {
	// flag names it, and hostsFlag the setting of its hosts; bind is how it is bound to a namespace.
	flag, hostsFlag, bind string
	binding               *mesh.Binding // or nil
	hosts                 []mesh.Hostname
}

// manifestSources are all of them. A prefix that cannot be read is none; [Consul.Check] reports it.
func (c *Config) manifestSources() []manifestSource {
	var out []manifestSource
	for _, r := range c.Roots {
		out = append(out, manifestSource{
			flag: fmt.Sprintf("--config-dir %q", r.Path), hostsFlag: fmt.Sprintf("--config-hosts %q: the directory", r.Path), bind: "--config-dir DIR=NAMESPACE",
			binding: r.Binding(), hosts: r.Hosts,
		})
	}
	if b, err := c.Consul.Binding(); err == nil {
		out = append(out, manifestSource{
			flag: "--consul-kv-prefix", hostsFlag: "--consul-kv-hosts: the prefix", bind: "--consul-kv-prefix PREFIX=NAMESPACE",
			binding: b, hosts: c.Consul.KVHosts,
		})
	}
	return out
}

// bound are those that are bound to namespaces.
func (c *Config) bound() []manifestSource {
	return slices.DeleteFunc(c.manifestSources(), func(x manifestSource) bool { return x.binding == nil })
}

// CheckBindings checks what the settings say of bound sources.
func (c *Config) CheckBindings() error {
	var errs []error
	for _, x := range c.manifestSources() {
		if x.binding == nil && len(x.hosts) > 0 {
			errs = append(errs, fmt.Errorf("%s is not bound to a namespace, so it may use every host: bind it with %s, or leave its hosts out", x.hostsFlag, x.bind))
		}
	}
	bound := c.bound()
	for i, x := range bound {
		for _, y := range bound[:i] {
			if p, q, overlap := mesh.Overlap(y.binding, x.binding); overlap {
				errs = append(errs, fmt.Errorf("%s and %s: %q and %q have hosts in common: say whose they are", y.flag, x.flag, p, q))
			}
		}
	}
	return errors.Join(errs...)
}

// boundNamespaces are those that some source is bound to.
func (c *Config) boundNamespaces() []string {
	var out []string
	for _, x := range c.bound() {
		out = append(out, x.binding.Namespaces...)
	}
	return out
}

// checkRoot refuses to bind a source to the root namespace, whose policies hold
// for the whole mesh, unless a second setting says that this is meant.
func (c *Config) checkRoot(root string) error {
	if c.BindRoot {
		return nil
	}
	for _, x := range c.bound() {
		if slices.Contains(x.binding.Namespaces, root) {
			return fmt.Errorf("%s is bound to %q, the root namespace: what it writes there holds for the whole mesh; "+
				"if that is meant, say so with --bind-root-namespace, else take the namespace out", x.flag, root)
		}
	}
	return nil
}

// reportCatalogOwners names the sources that are bound to the namespace of all services of the Consul catalog: they may
// route all of them, whatever patterns say.
func (s *Server) reportCatalogOwners(ctx context.Context) error {
	if !s.cfg.Consul.Used() {
		return nil
	}
	mapper, err := s.cfg.Consul.Mapper()
	if err != nil {
		return err
	}
	namespace := mapper.CommonNamespace()
	for _, name := range slices.Sorted(maps.Keys(s.bound)) {
		if b := s.bound[name]; slices.Contains(b.Namespaces, namespace) {
			s.cfg.Logger.WarnContext(ctx, "source is bound to the namespace of the Consul catalog and may route all of its services; if that is not meant, bind it to another namespace, or set --consul-mesh-namespace",
				"source", b.Source, "namespace", namespace)
		}
	}
	return nil
}
