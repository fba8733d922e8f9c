package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Names of the sources that read Consul. Each datacenter is a source of its own,
// for the same reason as each directory.
const (
	consulSource = "consul"
	kvSource     = "consul-kv"
)

// Consul is what is read of Consul. The zero value reads nothing of it.
type Consul struct {
	// Client says how Consul is reached; where Address is empty it is not.
	// Datacenter is set for each source.
	Client client.Config
	// Datacenters are read, each as a source of its own; the first is that of the
	// hosts, whose addresses in the LAN count. Empty means that of the agent that
	// is asked.
	Datacenters []string
	// Mapping says how the catalog looks in the mesh.
	Mapping mapping.Config
	// Filter chooses instances, in Consul's filter language; empty means all.
	Filter string
	// SweepInterval is of package consul; 0 means its default.
	SweepInterval time.Duration
	// KVPrefix is where manifests are in the key-value store, as PREFIX or
	// PREFIX=NAMESPACE,…; empty means nowhere.
	KVPrefix string
	// KVHosts are patterns of the hosts that are the prefix's, if it is bound.
	KVHosts []mesh.Hostname
	// KVUnixSockets lets the manifests there name unix sockets.
	KVUnixSockets bool
	// KVFiles lets them name files of the hosts'.
	KVFiles bool
	// KVLocalAddresses lets them have endpoints at addresses that each host has for itself.
	KVLocalAddresses bool
	// KVCredentials are those that proxies of other namespaces use for them, if the prefix is bound.
	KVCredentials []string
	// KVRoutesOnly is [mesh.Binding.RoutesOnly] of the prefix.
	KVRoutesOnly bool
}

// Binding is what the prefix is bound to, or nil.
func (c *Consul) Binding() (*mesh.Binding, error) {
	if c.KVPrefix == "" {
		return nil, nil //nolint:nilnil // it is bound to nothing
	}
	_, namespaces, err := kv.ParsePrefix(c.KVPrefix)
	if err != nil {
		return nil, err
	}
	return files.Root{Path: mesh.KeysSource, Namespaces: namespaces, Hosts: c.KVHosts, Credentials: c.KVCredentials, RoutesOnly: c.KVRoutesOnly}.Binding(), nil
}

// Used reports whether anything of Consul is read.
func (c *Consul) Used() bool { return c.Client.Address != "" }

// Check checks what can be checked without asking Consul.
func (c *Consul) Check() error {
	if !c.Used() {
		return nil
	}
	var errs []error
	seen := map[string]bool{}
	for _, dc := range c.Datacenters {
		if seen[dc] {
			errs = append(errs, fmt.Errorf("--consul-datacenter %q is named twice", dc))
		}
		seen[dc] = true
		if len(c.Datacenters) > 1 && dc == "" || !isDatacenter(dc) {
			errs = append(errs, fmt.Errorf("--consul-datacenter %q: write its name, in letters, digits, '-' and '_'", dc))
		}
	}
	if c.SweepInterval < 0 {
		errs = append(errs, fmt.Errorf("--consul-sweep-interval %s: it cannot be negative", c.SweepInterval))
	}
	if c.Client.Stale < 0 {
		errs = append(errs, fmt.Errorf("--consul-stale %s: it cannot be negative", c.Client.Stale))
	}
	if _, err := c.Mapper(); err != nil {
		errs = append(errs, fmt.Errorf("--consul-host, --consul-mesh-namespace, --consul-service-account, --consul-service, --consul-address-kind: %w", err))
	}
	if c.KVPrefix != "" {
		if _, _, err := kv.ParsePrefix(c.KVPrefix); err != nil {
			errs = append(errs, fmt.Errorf("--consul-kv-prefix: %w", err))
		}
	}
	return errors.Join(errs...)
}

// isDatacenter is Consul's rule, and the empty name.
func isDatacenter(name string) bool {
	return len(name) <= 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// Mapper makes objects of the mesh of what the catalog has.
func (c *Consul) Mapper() (*mapping.Mapper, error) {
	m := c.Mapping
	m.HomeNamespace, m.HomePartition = c.Client.Namespace, c.Client.Partition
	return mapping.New(m)
}

// Connections to one Consul: all sources together stay below what Consul grants to
// a client (200), and each has enough to follow all services by HTTP/2.
const (
	allConnections   = 64
	leastConnections = 24
)

// connections is how many each source may have.
func (c *Consul) connections() int {
	n := max(1, len(c.Datacenters))
	if c.KVPrefix != "" {
		n++
	}
	return max(leastConnections, allConnections/n)
}

// Catalogs are the configurations of the sources of the catalog, one a
// datacenter, in the order in which they count.
func (c *Consul) Catalogs() ([]consul.Config, error) {
	mapper, err := c.Mapper()
	if err != nil {
		return nil, err
	}
	names := c.Datacenters
	if len(names) == 0 {
		names = []string{""}
	}
	out := make([]consul.Config, 0, len(names))
	for i, dc := range names {
		name := consulSource
		if i > 0 {
			name += ":" + dc
		}
		cl := c.Client
		cl.Datacenter, cl.MaxConnections = dc, c.connections()
		out = append(out, consul.Config{
			Name: name, Logger: cl.Logger, Client: cl, Mapper: mapper, Local: i == 0, Filter: c.Filter, SweepEvery: c.SweepInterval,
		})
	}
	return out, nil
}

// KV is the configuration of the source of manifests in the key-value store.
func (c *Consul) KV() (kv.Config, error) {
	prefix, namespaces, err := kv.ParsePrefix(c.KVPrefix)
	if err != nil {
		return kv.Config{}, fmt.Errorf("--consul-kv-prefix: %w", err)
	}
	cl := c.Client
	cl.Datacenter, cl.MaxConnections = "", c.connections()
	if len(c.Datacenters) > 0 {
		cl.Datacenter = c.Datacenters[0]
	}
	return kv.Config{Name: kvSource, Logger: cl.Logger, Client: cl, Prefix: prefix, Namespaces: namespaces, UnixSockets: c.KVUnixSockets, Files: c.KVFiles, LocalAddresses: c.KVLocalAddresses}, nil
}

// catalogs are the sources that read Consul.
type catalogs struct {
	kv   *kv.Source // or nil
	list []*consul.Source
}

// newCatalogs makes the sources that read Consul. Nobody is asked yet: Consul
// may be away when a control plane starts.
func (s *Server) newCatalogs(context.Context) error {
	c := s.cfg.Consul
	if !c.Used() {
		return nil
	}
	c.Client.Logger = s.cfg.Logger
	if c.KVPrefix != "" {
		cfg, err := c.KV()
		if err != nil {
			return err
		}
		cfg.StateDir, cfg.AwaitDecision = s.cfg.StateDir, true
		cfg.MaxExpansion = s.cfg.maxExpansion(cfg.Namespaces)
		if s.catalogs.kv, err = kv.New(cfg); err != nil {
			return fmt.Errorf("reading manifests from Consul (--consul-address, --consul-kv-prefix): %w", err)
		}
	}
	configs, err := c.Catalogs()
	if err != nil {
		return err
	}
	for _, cfg := range configs {
		cfg.StateDir, cfg.AwaitDecision = s.cfg.StateDir, true
		src, err := consul.New(cfg)
		if err != nil {
			return fmt.Errorf("reading the catalog of Consul (--consul-address): %w", err)
		}
		s.catalogs.list = append(s.catalogs.list, src)
	}
	return nil
}

// sources are those of Consul in the order in which they count, after the files.
func (c *catalogs) sources() []registry.Source {
	var list []registry.Source
	if c.kv != nil {
		list = append(list, c.kv)
	}
	for _, src := range c.list {
		list = append(list, src)
	}
	return list
}

// texts is how the manifests in the key-value store stand.
func (c *catalogs) texts() []files.Status {
	if c.kv == nil {
		return nil
	}
	st := *c.kv.Status()
	st.Faults = slices.Clone(st.Faults)
	return []files.Status{st}
}

// status is how the datacenters stand.
func (c *catalogs) status() []consul.Status {
	out := make([]consul.Status, 0, len(c.list))
	for _, src := range c.list {
		out = append(out, *src.Status())
	}
	return out
}

// whyMissing says why a source of Consul has not delivered; empty for others.
func (c *catalogs) whyMissing(source string) string {
	for _, st := range c.texts() {
		if st.Source == source {
			return st.Reason
		}
	}
	for _, st := range c.status() {
		if st.Source == source {
			return st.Reason
		}
	}
	return ""
}

// old reports catalogs that Consul did not confirm since they were true: they
// are served, and somebody should know.
func (c *catalogs) old(now time.Time) []string {
	var out []string
	add := func(source, reason string, read time.Time, disk bool) {
		from := "serving the last known catalog"
		if disk {
			from = "serving the stored catalog from before the restart"
		}
		out = append(out, fmt.Sprintf("source %s is stale: %s, %s old: %s", source, from, age(now, read), reason))
	}
	for _, st := range c.status() {
		if st.Delivered && !st.Read.IsZero() && (st.FromDisk || st.State == consul.Stale) {
			add(st.Source, st.Reason, st.Read, st.FromDisk)
		}
	}
	for _, st := range c.texts() {
		if st.Delivered && !st.Read.IsZero() && (st.FromDisk || st.State == files.Unavailable) {
			add(st.Source, st.Reason, st.Read, st.FromDisk)
		}
	}
	return out
}

func age(now, then time.Time) string {
	return max(0, now.Sub(then)).Truncate(time.Second).String()
}
