package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Both bound the names that one condition lists, by number and by their length: what is listed is a command that
// people copy, so that it must not be cut. The file has all.
const (
	listedGrants     = 20
	listedGrantBytes = 400
)

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

// grantsOf is the condition of one namespace, with the flags that give its names to the sources that name them.
// Names are those of manifests: only what can be a pattern is written where people copy it.
func grantsOf(ns string, grants []mesh.OpenGrant) Condition {
	var names, sources, ports []string
	bySource := map[string][]mesh.Hostname{}
	var overlaps []string
	size := 0
	for _, g := range grants[:min(len(grants), listedGrants)] {
		if size += len(g.Name) + len(g.Overlaps); size > listedGrantBytes && len(names) > 0 {
			break
		}
		what := string(g.Name)
		if port, is := g.Port(); is {
			what = fmt.Sprintf("port %d", port)
			ports = append(ports, what)
		} else if g.Gateways {
			what += " (at gateways)"
		}
		if names = append(names, what); what != string(g.Name) && !g.Gateways {
			continue // no pattern gives a port
		}
		if g.Overlaps != "" {
			overlaps = append(overlaps, fmt.Sprintf("%s cannot be a pattern, because it overlaps with %s", g.Name, g.Overlaps))
			continue
		}
		for _, source := range g.Sources {
			if bySource[source] == nil {
				sources = append(sources, source)
			}
			bySource[source] = append(bySource[source], g.Name)
		}
	}
	var flags []string
	for _, source := range sources {
		if flag := mesh.HostsFlag(source, bySource[source]...); flag != "" {
			flags = append(flags, flag)
		}
	}
	more, all := "", ""
	if n := len(grants) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
		all = "; `fairlead analyze --bound --state-dir` prints the flags for all"
	}
	action := "take those that the namespace does not need out of " + hostGrantsName + " in the state directory"
	if len(flags) > 0 {
		action = fmt.Sprintf("start the server with %s; take those that the namespace does not need out of %s in the state directory", strings.Join(flags, " "), hostGrantsName)
	}
	if len(ports) > 0 {
		action = fmt.Sprintf("at %s, its services come before those of others: give them addresses by patterns, or other ports; %s", strings.Join(ports, ", "), action)
	}
	if len(overlaps) > 0 {
		action += fmt.Sprintf("; %s: write patterns for single names, or name the hosts in a Gateway of a directory without a namespace, as %s/HOST", strings.Join(overlaps, "; "), ns)
	}
	return Condition{
		Subject: "namespace " + ns,
		Text:    fmt.Sprintf("%d names belong to namespace %s from before patterns: %s%s", len(grants), ns, strings.Join(names, ", "), more),
		Action:  action + all,
	}
}
