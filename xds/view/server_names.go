package view

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// withAcceptedNames is a chain with the server names that Envoy accepts: in lower case, each once, and
// with a wildcard for whole labels only. For any other it rejects the whole listener. It is nil if a
// chain that has names has none of these.
func withAcceptedNames(c *FilterChain) *FilterChain {
	names := c.Match.ServerNames
	accepted := make([]string, 0, len(names))
	for _, n := range names {
		if n = strings.ToLower(n); !mesh.Hostname(n).IsPartialWildcard() && !slices.Contains(accepted, n) {
			accepted = append(accepted, n)
		}
	}
	switch {
	case slices.Equal(accepted, names):
		return c
	case len(accepted) == 0:
		return nil
	}
	out := *c
	out.Match.ServerNames = accepted
	return &out
}

func lowerAll(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = strings.ToLower(n)
	}
	return out
}
