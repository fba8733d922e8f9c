package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// listedGrants bounds the names that a condition lists; the file has all.
const listedGrants = 20

// hostGrantsOpen says which names namespaces have from before patterns, until a person has written patterns.
func hostGrantsOpen(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	if s.Registry.GrantsFault != "" {
		out = append(out, Condition{
			Subject: "server", Text: "hosts that no pattern gives serve their own namespaces only, because " + hostGrantsName + " is not known: " + s.Registry.GrantsFault,
			Action: "correct the file in the state directory, or restore it, and restart the server; or write patterns (--config-hosts, --consul-kv-hosts)",
		})
	}
	grants := s.Registry.Grants // sorted by namespace
	for len(grants) > 0 {
		ns, n := grants[0].Namespace, 0
		for n < len(grants) && grants[n].Namespace == ns {
			n++
		}
		out = append(out, grantsOf(ns, grants[:n]))
		grants = grants[n:]
	}
	return out
}

// grantsOf is the condition of one namespace. Names are those of manifests: only what can be a pattern is written
// where people copy it.
func grantsOf(ns string, grants []mesh.Grant) Condition {
	var names, patterns []string
	for _, g := range grants[:min(len(grants), listedGrants)] {
		what := string(g.Name)
		if g.Gateways {
			what += " (at gateways)"
		}
		names = append(names, what)
		if h, err := mesh.ParseHostPattern(string(g.Name)); err == nil {
			patterns = append(patterns, string(h))
		}
	}
	more := ""
	if n := len(grants) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return Condition{
		Subject: "namespace " + ns,
		Text:    fmt.Sprintf("%d names belong to the namespace from before patterns: %s%s", len(grants), strings.Join(names, ", "), more),
		Action: fmt.Sprintf("give them to its directory, with --config-hosts 'DIR=%s', or to its keys, with --consul-kv-hosts, and restart the server; take those that it does not need out of %s in the state directory",
			strings.Join(patterns, ","), hostGrantsName),
	}
}
