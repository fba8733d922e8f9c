package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// catalogFlags are the flags of the commands that read the catalog of Consul.
type catalogFlags struct {
	consulFlags
	server.Consul
	rules       []string
	addressKind string
	kvHosts     []string
	hostPaths   hostPathFlags
}

func (f *catalogFlags) add(fl *pflag.FlagSet) {
	f.consulFlags.add(fl)
	f.addCatalog(fl)
	f.addKVHosts(fl)
	fl.StringVar(&f.KVPrefix, "consul-kv-prefix", "", "read manifests below this prefix of the key-value store, too; PREFIX=NAMESPACE,… refuses objects of other namespaces")
}

func (f *catalogFlags) addKVHosts(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.kvHosts, "consul-kv-hosts", nil, "hosts that are those of the keys below --consul-kv-prefix if that is bound to namespaces, such as *.shop.internal, whoever else names them")
}

// patterns are the hosts of the keys.
func (f *catalogFlags) patterns() ([]mesh.Hostname, error) {
	var out []mesh.Hostname
	for _, text := range f.kvHosts {
		hosts, err := files.ParseHosts(text)
		if err != nil {
			return nil, fmt.Errorf("--consul-kv-hosts: %w", err)
		}
		out = append(out, hosts...)
	}
	return out, nil
}

// addCatalog adds the flags that say how the catalog looks in the mesh.
func (f *catalogFlags) addCatalog(fl *pflag.FlagSet) {
	f.hostPaths.add(fl)
	fl.StringArrayVar(&f.Datacenters, "consul-datacenter", nil, "a datacenter whose catalog is read; may be repeated, that of the hosts first; none means that of the agent at --consul-address")
	fl.StringVar(&f.Filter, "consul-filter", "", "the instances that are read, in Consul's filter language, such as 'Service.Meta.mesh == \"yes\"'; empty means all")
	fl.DurationVar(&f.Stale, "consul-stale", 0, "let any server of Consul answer that has heard from its leader within this time; 0 means the leader answers")
	fl.StringArrayVar(&f.Mapping.Hosts, "consul-host", nil, "a template of the host names of a service, with {{.Service}}, {{.Namespace}}, {{.ConsulNamespace}}, {{.Partition}}; may be repeated; none means {{.Service}}.service.consul")
	fl.StringVar(&f.Mapping.Namespace, "consul-mesh-namespace", "", "a template of the namespace of a service in the mesh; empty means {{.ConsulNamespace}}, which is \"default\" without Enterprise")
	fl.StringVar(&f.Mapping.ServiceAccount, "consul-service-account", "", "a template of the service account of a service; empty means {{.Service}}")
	fl.StringArrayVar(&f.rules, "consul-service", nil, "a rule for services by name, PATTERN:key=value,…, such as 'web-*:protocol=http,tls=istio'; may be repeated")
	fl.StringVar(&f.addressKind, "consul-address-kind", "", "which address of an instance counts: lan, wan, lan_ipv6, …; empty means lan, and wan in another datacenter than the first")
	fl.BoolVar(&f.Mapping.NodeIsHost, "consul-node-is-host", false, "an instance is of the host that is called as its node, in lower case: no other host may be served as it or report its health")
	fl.BoolVar(&f.Mapping.Loopback, "consul-loopback", false, "take loopback addresses: only where all hosts are one machine, as with consul agent -dev; elsewhere every host would call itself")
}

// read is what the flags ask for; its zero value where --consul-address is not
// set.
func (f *catalogFlags) read(cmd *cobra.Command, log *slog.Logger) (server.Consul, error) {
	if f.Address == "" {
		var errs []error
		cmd.Flags().Visit(func(fl *pflag.Flag) {
			if name := fl.Name; strings.HasPrefix(name, "consul-") && name != "consul-address" {
				errs = append(errs, fmt.Errorf("--%s needs --consul-address, the address of Consul", name))
			}
		})
		return server.Consul{}, errors.Join(errs...)
	}
	out := f.Consul
	out.KVUnixSockets, out.KVFiles = f.hostPaths.unixSockets.keys(), f.hostPaths.files.keys()
	var errs []error
	var err error
	if out.Client, err = f.config(log); err != nil {
		errs = append(errs, err)
	}
	out.Mapping.Address = mapping.AddressKind(f.addressKind)
	if out.KVHosts, err = f.patterns(); err != nil {
		errs = append(errs, err)
	}
	for _, text := range f.rules {
		rule, err := mapping.ParseRule(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--consul-service: %w", err))
			continue
		}
		out.Mapping.Rules = append(out.Mapping.Rules, rule)
	}
	return out, errors.Join(errs...)
}
