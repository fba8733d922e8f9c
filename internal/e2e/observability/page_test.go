package observability

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestPageSaysWhichPanelsHaveData compares the tables for people with the queries that a real
// Prometheus answers.
func TestPageSaysWhichPanelsHaveData(t *testing.T) {
	t.Parallel()
	titles := map[string]string{
		"mesh": "Mesh", "service": "Service", "workload": "Workload", "performance": "Performance", "extension": "Wasm extension", "pilot": "Control plane", "ztunnel": "Ztunnel",
	}
	answers := map[string]map[string]bool{}
	for _, q := range istioQueries(t) {
		panel := titles[q.dashboard] + ": " + q.row + ": " + q.panel
		if answers[panel] == nil {
			answers[panel] = map[string]bool{}
		}
		answers[panel][q.answer] = true
	}
	want := map[string]string{}
	for panel, has := range answers {
		switch {
		case !has["no"]:
			want[panel] = "yes"
		case len(has) == 1:
			want[panel] = "no"
		default:
			want[panel] = "in part"
		}
	}
	b, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "telemetry-dashboards.md"))
	if err != nil {
		t.Fatal(err)
	}
	got, dashboard := map[string]string{}, ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSuffix(line, "\n")
		if title, ok := strings.CutPrefix(line, "### "); ok {
			dashboard = title
		}
		cells := strings.Split(line, "|")
		if dashboard == "" || len(cells) != 6 || cells[1] == " Row " || strings.HasPrefix(cells[1], "-") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		panel := dashboard + ": " + cells[1] + ": " + cells[2]
		got[panel] = cells[3]
		if why := cells[4] != ""; why != (cells[3] != "yes" || answers[panel]["unnamed"]) {
			t.Errorf("%s: what has no data needs a reason, and only that", panel)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
