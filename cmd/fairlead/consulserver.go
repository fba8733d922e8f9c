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
	fl.StringVar(&f.KVPrefix, "consul-kv-prefix", "", "prefix of manifests in Consul's key-value store; PREFIX=NAMESPACE,… accepts only objects of these namespaces")
}

func (f *catalogFlags) addKVHosts(fl *pflag.FlagSet) {
	fl.StringSliceVar(&f.kvHosts, "consul-kv-hosts", nil, "host names, such as *.shop.internal, that belong to --consul-kv-prefix if it is bound to namespaces, even if other sources declare them")
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

// addNames adds the flags that say which services there are, and who they are in the mesh.
func (f *catalogFlags) addNames(fl *pflag.FlagSet) {
	fl.StringArrayVar(&f.Datacenters, "consul-datacenter", nil, "Consul datacenter to read; may be repeated, with the datacenter of the hosts first; none means that of the agent at --consul-address")
	fl.StringVar(&f.Mapping.Namespace, "consul-mesh-namespace", "", "template of the mesh namespace of a Consul service; empty means {{.ConsulNamespace}}, which is \"default\" without Enterprise")
	fl.StringVar(&f.Mapping.ServiceAccount, "consul-service-account", "", "template of the service account of a Consul service; empty means {{.Service}}")
	fl.StringArrayVar(&f.rules, "consul-service", nil, "rule for Consul services by name, PATTERN:key=value,…, such as 'web-*:protocol=http,tls=istio'; may be repeated")
}

// addCatalog adds the flags that say how the catalog looks in the mesh.
func (f *catalogFlags) addCatalog(fl *pflag.FlagSet) {
	f.hostPaths.add(fl)
	f.addNames(fl)
	fl.StringVar(&f.Filter, "consul-filter", "", "filter expression of Consul for the instances to read, such as 'Service.Meta.mesh == \"yes\"'; empty means all")
	fl.DurationVar(&f.Stale, "consul-stale", 0, "allow stale reads: any Consul server may answer that had contact with its leader within this time; 0 means the leader answers")
	fl.StringArrayVar(&f.Mapping.Hosts, "consul-host", nil, "template of the host names of a Consul service, with {{.Service}}, {{.Namespace}}, {{.ConsulNamespace}}, {{.Partition}}; may be repeated; none means {{.Service}}.service.consul")
	fl.StringVar(&f.addressKind, "consul-address-kind", "", "address of a Consul instance to use: lan, wan, lan_ipv6, …; empty means lan, and wan for datacenters other than the first")
	fl.BoolVar(&f.Mapping.NodeIsHost, "consul-node-is-host", false, "take the Consul node name, in lower case, as the host of an instance: no other host may be served as the instance or report its health")
	fl.BoolVar(&f.Mapping.Loopback, "consul-loopback", false, "accept loopback addresses of Consul instances. Only for a mesh on one machine, such as with consul agent -dev; elsewhere every host would call itself")
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
	out.KVUnixSockets, out.KVFiles, out.KVLocalAddresses = f.hostPaths.unixSockets.keys(), f.hostPaths.files.keys(), f.hostPaths.localAddresses.keys()
	out.KVRoutesOnly = f.hostPaths.routesOnly
	out.KVCredentials = f.hostPaths.credentials.keys()
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
