package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
)

// manyTables is how many proxies with hash tables are listed.
const manyTables = 10

// writeHashTables writes what the tables of consistentHash take, of the proxies that have the most, and the largest table
// of each.
func writeHashTables(w io.Writer, proxies []server.Proxy) error {
	list := slices.DeleteFunc(slices.Clone(proxies), func(x server.Proxy) bool { return x.HashTables == nil || !x.Connected })
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b server.Proxy) int { return cmp.Compare(b.HashTables.Entries, a.HashTables.Entries) })
	_, _ = fmt.Fprintln(w)
	return table(w, "HASH TABLES\tCLUSTERS\tENTRIES\tMEMORY\tLARGEST\tOF\tDESTINATION RULE", func(w io.Writer) {
		for _, x := range list[:min(len(list), manyTables)] {
			t := x.HashTables
			rule := strings.Join(t.Largest.DestinationRules, ", ")
			if len(t.Largest.Origins) > 0 && rule != "" {
				rule += " (" + t.Largest.Origins[0] + ")"
			}
			_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%.1f MB\t%d\t%s\t%s\n", dash(x.Name), t.Clusters, t.Entries, float64(t.Bytes)/1e6, t.Largest.Entries, safetext.Sanitize(t.Largest.Cluster, 512), safetext.Sanitize(dash(rule), 1024))
		}
		if more := len(list) - manyTables; more > 0 {
			_, _ = fmt.Fprintf(w, "… and %d more\t\t\t\t\t\t\n", more)
		}
	})
}
