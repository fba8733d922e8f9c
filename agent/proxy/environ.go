package proxy

import (
	"slices"
	"strings"
)

// usualEnv are the variables that every Envoy inherits from its agent: those that the C
// library, the resolvers and Envoy read to find files and names. None of them is for a secret,
// because whoever configures an Envoy may be able to read its environment.
//
//nolint:gochecknoglobals // a read-only table
var usualEnv = []string{
	"CARES_HOSTS", "ENVOY_CGROUP_CPU_DETECTION", "ENVOY_DYNAMIC_MODULES_SEARCH_PATH", "HOSTALIASES", "LD_LIBRARY_PATH",
	"LOCALDOMAIN", "RES_OPTIONS", "SSL_CERT_DIR", "SSL_CERT_FILE", "TZ", "TZDIR",
}

// UsualEnvironment are the names of the variables that every Envoy inherits, sorted.
func UsualEnvironment() []string { return slices.Clone(usualEnv) }

// Environment is the part of the agent's environment that Envoy inherits, as NAME=value: the
// usual variables, and the named ones.
func Environment(environ, names []string) []string {
	out := []string{}
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		if slices.Contains(usualEnv, name) || slices.Contains(names, name) {
			out = append(out, kv)
		}
	}
	return out
}
