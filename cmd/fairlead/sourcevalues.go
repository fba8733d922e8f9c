package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/files"
)

// sourceValuesFlag is what sources that are bound to namespaces have of something, each as
// SOURCE=VALUE,…: a source is a directory, or the manifests in Consul.
type sourceValuesFlag []string

// dir are the values of a directory; sorted.
func (f sourceValuesFlag) dir(path string) []string {
	return f.of(func(source string) bool { return sourcesFlag{source}.dir(path) })
}

// keys are the values of the manifests in Consul.
func (f sourceValuesFlag) keys() []string {
	return f.of(func(source string) bool { return source == keysSource })
}

func (f sourceValuesFlag) of(is func(source string) bool) []string {
	var out []string
	for _, s := range f {
		if source, values, _ := strings.Cut(s, "="); is(source) {
			out = append(out, strings.Split(values, ",")...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// check refuses what gives nothing to anybody.
func (f sourceValuesFlag) check(roots []files.Root, kvPrefix string) error {
	const flag = configCredentials
	var errs []error
	for _, s := range f {
		source, values, found := strings.Cut(s, "=")
		if !found || source == "" || slices.ContainsFunc(strings.Split(values, ","), func(v string) bool { return v == "" || strings.ContainsAny(v, " \t*") }) {
			errs = append(errs, fmt.Errorf("--%s %q: write DIR=NAME,… with whole names, or %s=NAME,…", flag, s, keysSource))
			continue
		}
		if err := (sourcesFlag{source}).check(flag, roots, kvPrefix); err != nil {
			errs = append(errs, err)
			continue
		}
		_, namespaces, err := kv.ParsePrefix(kvPrefix)
		bound := source == keysSource && (err != nil || len(namespaces) > 0) || slices.ContainsFunc(roots, func(r files.Root) bool {
			return source != keysSource && sourcesFlag{source}.dir(r.Path) && len(r.Namespaces) > 0
		})
		if !bound {
			errs = append(errs, fmt.Errorf("--%s %q: the source is not bound to a namespace, so it needs none of this: write %s=NAMESPACE where it is named, or leave this out", flag, s, source))
		}
	}
	return errors.Join(errs...)
}
