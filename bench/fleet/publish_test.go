package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/report"
)

// What has a budget stands in README.md, in the place that is kept for it, and
// what stood there before does not.
func TestSummary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readme := filepath.Join(dir, "README.md")
	if err := os.WriteFile(readme, []byte("before\n"+summaryBegins+"old\n"+summaryEnds+"behind\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &suite{began: time.Now()}
	s.samples.Add(report.Ours, "cold.bytes", 2056)
	p := publication{pages: shortReport(), suite: s, dir: dir}
	for range 2 { // the second finds what the first wrote
		if err := p.publish(&strings.Builder{}); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	got := string(content)
	if !strings.HasPrefix(got, "before\n"+summaryBegins) || !strings.HasSuffix(got, summaryEnds+"behind\n") || strings.Contains(got, "old\n") {
		t.Errorf("around the summary: %s", got)
	}
	if strings.Count(got, "| Cold fleet, bytes a proxy | 2056 KB |") != 1 || strings.Contains(got, "median stream") {
		t.Errorf("the summary: %s", got)
	}
	if err := os.WriteFile(readme, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.publish(&strings.Builder{}); err == nil {
		t.Error("README.md has no place for it, without an error")
	}
}
