package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/bench/fleet/internal/report"
)

// TestCommittedPagesHaveTheTables holds the committed pages against the tables that write them:
// a title, text or row that is changed here is changed there, too.
func TestCommittedPagesHaveTheTables(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	readme := read("README.md")
	for _, p := range []pages{shortReport(), longReport(), consulReport()} {
		text := read(p.page)
		_, rest, _ := strings.Cut(readme, p.begins)
		summary, _, _ := strings.Cut(rest, p.ends)
		for _, tab := range p.tables {
			for _, want := range []string{"\n## " + tab.Title + "\n", tab.Text, tab.Notes} {
				if !strings.Contains(text, want) {
					t.Errorf("%s does not have %q", p.page, want)
				}
			}
			for _, r := range tab.Rows {
				if !strings.Contains(text, "\n| "+r.Name+" | ") {
					t.Errorf("%s has no row %q", p.page, r.Name)
				}
				if p.begins != "" && r.Budget != report.None && !strings.Contains(summary, "\n| "+r.Name+" | ") {
					t.Errorf("README.md has no row %q", r.Name)
				}
			}
			budgets := slices.ContainsFunc(tab.Rows, func(r report.Row) bool { return r.Budget != report.None })
			if p.begins != "" && budgets && !strings.Contains(summary, "\n### "+tab.Title+"\n") {
				t.Errorf("README.md has no heading %q", tab.Title)
			}
		}
	}
}
