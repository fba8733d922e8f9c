package envoy_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// attackTable is what became of the attacks that the page shows.
type attackTable struct {
	mu       sync.Mutex // guards all following fields
	versions map[string]bool
	rows     []*attackRow
}

type attackRow struct {
	path bool
	text string
	// cells has the answers by normalization, with the releases that gave each.
	cells map[string]map[string][]string
}

// note keeps the outcome of an attack. The table of paths is about one policy of the example, which denies
// /admin.
func (a *attackTable) note(p attackPair, x attack, set, normalization, version string, status int, passed bool) {
	if (p.differ == "path") != (set == "no-admin") || p.differ == "path" && p.refused.path != "/admin" || p.differ == "nothing" || set != "no-admin" && set != "hosts" && set != "headers" {
		return
	}
	outcome := "**passes**"
	switch {
	case passed:
	case status == http.StatusForbidden:
		outcome = "denied"
	default:
		outcome = "refused"
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.versions[version] = true
	i := slices.IndexFunc(a.rows, func(r *attackRow) bool { return r.text == x.shown })
	if i < 0 {
		i = len(a.rows)
		a.rows = append(a.rows, &attackRow{path: x.path, text: x.shown, cells: map[string]map[string][]string{}})
	}
	cells := a.rows[i].cells
	if cells[normalization] == nil {
		cells[normalization] = map[string][]string{}
	}
	cells[normalization][outcome] = append(cells[normalization][outcome], version)
}

// cell is an outcome for people: one that only some releases have is told with them.
func (r *attackRow) cell(normalization string) string {
	outcomes := r.cells[normalization]
	if len(outcomes) == 1 {
		for outcome := range outcomes {
			return outcome
		}
	}
	var parts []string
	for _, outcome := range slices.Sorted(maps.Keys(outcomes)) {
		versions := outcomes[outcome]
		slices.Sort(versions)
		parts = append(parts, outcome+" ("+strings.Join(slices.Compact(versions), ", ")+")")
	}
	return strings.Join(parts, ", ")
}

const (
	attackTableBegin = "<!-- made by: go test ./xds/envoy -run TestAttackers -update -->\n"
	attackTableEnd   = "<!-- end -->\n"
)

// compare compares the page with the outcomes.
func (a *attackTable) compare(t *testing.T, page string) {
	t.Helper()
	order := map[string]int{"**passes**": 0, "denied": 1, "refused": 2}
	rank := func(r *attackRow) string {
		return fmt.Sprint(order[r.cell("NONE")], order[r.cell("BASE")], order[r.cell("MERGE_SLASHES")], order[r.cell("DECODE_AND_MERGE_SLASHES")])
	}
	slices.SortFunc(a.rows, func(x, y *attackRow) int {
		return cmp.Or(strings.Compare(rank(y), rank(x)), strings.Compare(x.text, y.text))
	})
	var paths, others strings.Builder
	_, _ = paths.WriteString("| A client asks for | `NONE` | `BASE` (default) | `MERGE_SLASHES` | `DECODE_AND_MERGE_SLASHES` |\n|---|---|---|---|---|\n")
	_, _ = others.WriteString("| A client sends | |\n|---|---|\n")
	for _, r := range a.rows {
		if !r.path {
			if d, b := r.cell("DECODE_AND_MERGE_SLASHES"), r.cell("BASE"); d != b {
				t.Errorf("%s: %q with DECODE_AND_MERGE_SLASHES, and %q with BASE", r.text, d, b)
			}
			_, _ = fmt.Fprintf(&others, "| %s | %s |\n", r.text, r.cell("BASE"))
			continue
		}
		if d, b := r.cell("DEFAULT"), r.cell("BASE"); d != b {
			t.Errorf("%s: %q by default, and %q with BASE", r.text, d, b)
		}
		_, _ = fmt.Fprintf(&paths, "| `%s` | %s | %s | %s | %s |\n", r.text, r.cell("NONE"), r.cell("BASE"), r.cell("MERGE_SLASHES"), r.cell("DECODE_AND_MERGE_SLASHES"))
	}
	made := attackTableBegin + "\n" + paths.String() + "\n" + others.String() + "\n"
	body, err := os.ReadFile(page)
	fatalIf(t, err, "reading %q", page)
	before, rest, ok := strings.Cut(string(body), attackTableBegin)
	had, after, closed := strings.Cut(rest, attackTableEnd)
	if !ok || !closed {
		t.Fatalf("%s has no table of attacks", page)
	}
	if attackTableBegin+had == made {
		return
	}
	if *update {
		fatalIf(t, os.WriteFile(page, []byte(before+made+attackTableEnd+after), 0o600), "writing %q", page)
		return
	}
	t.Errorf("%s does not say what passes: go test ./xds/envoy -run TestAttackers -update; want\n%s", page, made)
}
