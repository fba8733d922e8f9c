package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/registry/files"
)

// keysSource is what --allow-unix-sockets calls the manifests in Consul.
const keysSource = "consul-kv"

// unixSocketsFlag are the sources whose objects may name unix sockets.
type unixSocketsFlag []string

func (f *unixSocketsFlag) add(fl *pflag.FlagSet) {
	fl.StringArrayVar((*[]string)(f), "allow-unix-sockets", nil,
		"a source whose objects may name unix sockets, which Envoys open as their own user: a directory that --config-dir binds to namespaces, "+
			"or consul-kv; may be repeated. Directories that are not bound always may")
}

// keys reports whether the manifests in Consul may.
func (f unixSocketsFlag) keys() bool { return slices.Contains(f, keysSource) }

// dir reports whether those of a directory may.
func (f unixSocketsFlag) dir(path string) bool {
	abs, err := filepath.Abs(path)
	return err == nil && slices.ContainsFunc(f, func(s string) bool {
		named, err := filepath.Abs(s)
		return err == nil && s != keysSource && named == abs
	})
}

// check refuses what allows nothing: a slip in the name would be found out when an
// object is kept out.
func (f unixSocketsFlag) check(roots []files.Root, kvPrefix string) error {
	var errs []error
	for _, s := range f {
		switch {
		case s == keysSource && kvPrefix == "":
			errs = append(errs, fmt.Errorf("--allow-unix-sockets %s: no manifests are read from Consul: name them with --consul-kv-prefix", s))
		case s != keysSource && !slices.ContainsFunc(roots, func(r files.Root) bool { return unixSocketsFlag{s}.dir(r.Path) }):
			errs = append(errs, fmt.Errorf("--allow-unix-sockets %q: write a directory of --config-dir, without its namespaces, or %s", s, keysSource))
		}
	}
	return errors.Join(errs...)
}
