package main

import (
	"fmt"
	"io"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// writeConsul lists details of the catalogs, and conflicts between
// them and the manifests, and nothing if there are none. What Consul users
// register is reported, but is no failure: registrants do not run the mesh.
func writeConsul(w io.Writer, s *server.Sources) {
	for i := range s.Consul {
		st := &s.Consul[i]
		if st.State == consul.Starting {
			_, _ = fmt.Fprintf(w, "\nsource %s is %s for %s: %s\n", st.Source, st.State, lasting(st.Since), safetext.Sanitize(st.Reason, 1024))
		}
		writeSome(w, st.Source+": keeping the last state, because Consul's answers are unusable", max(len(st.Unreadable), st.UnreadableCount), func(i int) string { return st.Unreadable[i] })
		writeSome(w, st.Source+": the token lacks", max(len(st.Denied), st.DeniedCount), func(i int) string { return st.Denied[i] })
		var warnings []mapping.Note
		for _, n := range st.Notes {
			if n.Severity == mapping.Warning {
				warnings = append(warnings, n)
			}
		}
		writeSome(w, st.Source+": left out of the mesh", len(warnings), func(i int) string { return noteLine(warnings[i]) })
	}
	conflicts := s.Registry.Conflicts
	var limited []string
	for _, c := range conflicts {
		if c.Reason != "" && c.Kind == mesh.ConflictObject { // others are faults of their source
			at := c.Dropped.String()
			if c.Kept != nil {
				at = c.Kept.String() + ", " + at
			}
			limited = append(limited, c.Key.String()+": "+c.Reason+" ("+at+")")
		}
	}
	writeSome(w, "limited to some namespaces", len(limited), func(i int) string { return limited[i] })
}

func noteLine(n mapping.Note) string {
	what := n.Service
	if n.Instance != "" {
		what += " " + n.Instance
	}
	return fmt.Sprintf("[%s] %s: %s", n.Code, what, n.Message)
}

// writeSome lists the first few of a list, and how many there are.
func writeSome(w io.Writer, head string, n int, line func(i int) string) {
	if n == 0 {
		return
	}
	_, _ = fmt.Fprintf(w, "\n%s:\n", head)
	for i := range min(n, maxShown) {
		_, _ = fmt.Fprintf(w, "  %s\n", safetext.Sanitize(line(i), 1024))
	}
	if n > maxShown {
		_, _ = fmt.Fprintf(w, "  … and %d more, of which /v1/sources of admin.sock lists the first hundred\n", n-maxShown)
	}
}
