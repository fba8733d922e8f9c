package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// keysSource is what --allow-unix-sockets, --allow-files and --allow-local-addresses call the
// manifests in Consul.
const keysSource = mesh.KeysSource

const configCredentials = "config-credentials" //nolint:gosec // G101: the name of a flag

// hostPathFlags are the sources whose objects may name what an Envoy opens as its
// own user, or what its host has for itself.
type hostPathFlags struct {
	unixSockets, files, localAddresses sourcesFlag
	// credentials are those that hosts of other namespaces use for a source.
	credentials sourceValuesFlag
	// routesOnly limits what gateways of other namespaces do for all bound sources.
	routesOnly bool
}

// pathFlag allows something to objects of sources.
type pathFlag struct {
	name string
	list *sourcesFlag
	what string
}

// paths are the flags that allow what Envoys open as their own user, or look for on their own hosts.
func (f *hostPathFlags) paths() []pathFlag {
	return []pathFlag{
		{"allow-unix-sockets", &f.unixSockets, "unix sockets, which Envoys open as their own user"},
		{"allow-files", &f.files, "files of the hosts (keys, certificates and revocation lists for TLS), which Envoys open as their own user"},
		{"allow-local-addresses", &f.localAddresses, "loopback and link-local addresses and metadata servers of clouds as endpoints, which each Envoy looks for on its own host"},
	}
}

func (f *hostPathFlags) add(fl *pflag.FlagSet) {
	for _, flag := range f.paths() {
		fl.StringArrayVar((*[]string)(flag.list), flag.name, nil,
			"a bound directory of --config-dir, or consul-kv, whose objects may name "+flag.what+"; may be repeated. Unbound directories always may")
	}
	fl.StringArrayVar((*[]string)(&f.credentials), configCredentials, nil,
		"DIR=NAME,…: credentialNames that DestinationRules of a bound directory, or of consul-kv, may have gateways of other namespaces present; may be repeated. Gateways of the own namespace use every credential of their hosts")
	fl.BoolVar(&f.routesOnly, "config-routes-only", false, "gateways of other namespaces follow routes of bound directories and keys only to services of their own namespaces, of unbound sources and of Consul, and to those that name the namespace in exportTo; by default others are a warning (FL0233)")
}

// allow notes what the objects of a directory may name.
func (f *hostPathFlags) allow(root *files.Root) {
	root.UnixSockets, root.Files, root.LocalAddresses = f.unixSockets.dir(root.Path), f.files.dir(root.Path), f.localAddresses.dir(root.Path)
	root.Credentials, root.RoutesOnly = f.credentials.dir(root.Path), f.routesOnly
}

// check refuses what allows nothing: a slip in the name would be found out when an
// object is kept out.
func (f *hostPathFlags) check(roots []files.Root, kvPrefix string) error {
	errs := []error{f.credentials.check(roots, kvPrefix)}
	for _, flag := range f.paths() {
		errs = append(errs, flag.list.check(flag.name, roots, kvPrefix))
	}
	return errors.Join(errs...)
}

// sourcesFlag are sources by name.
type sourcesFlag []string

// keys reports whether the manifests in Consul are among them.
func (f sourcesFlag) keys() bool { return slices.Contains(f, keysSource) }

// dir reports whether a directory is.
func (f sourcesFlag) dir(path string) bool {
	abs, err := filepath.Abs(path)
	return err == nil && slices.ContainsFunc(f, func(s string) bool {
		named, err := filepath.Abs(s)
		return err == nil && s != keysSource && named == abs
	})
}

func (f sourcesFlag) check(flag string, roots []files.Root, kvPrefix string) error {
	var errs []error
	for _, s := range f {
		switch {
		case s == keysSource && kvPrefix == "":
			errs = append(errs, fmt.Errorf("--%s %s: no manifests are read from Consul: name them with --consul-kv-prefix", flag, s))
		case s != keysSource && !slices.ContainsFunc(roots, func(r files.Root) bool { return sourcesFlag{s}.dir(r.Path) }):
			errs = append(errs, fmt.Errorf("--%s %q: write a directory of --config-dir, without its namespaces, or %s", flag, s, keysSource))
		}
	}
	return errors.Join(errs...)
}
