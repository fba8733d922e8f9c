package server

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestMetricsOfIstiod: each metric of istiod exists with its name, or the page of differences says
// why not. testdata/istiod-metrics.txt has the names that istiod's packages register
// (monitoring.New… in pilot, security and pkg, without those of agents), Istio 1.31.
func TestMetricsOfIstiod(t *testing.T) {
	t.Parallel()
	s, err := New(t.Context(), config(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	descriptions := make(chan *prometheus.Desc)
	go func() {
		s.metrics.Describe(descriptions)
		close(descriptions)
	}()
	fqName := regexp.MustCompile(`fqName: "([^"]*)"`)
	exists := map[string]bool{}
	for d := range descriptions {
		exists[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	page := read(filepath.Join(envoytest.ModuleRoot(t), "docs", "differences-from-istio.md"))
	_, section, found := strings.Cut(page, "## Metrics of istiod\n")
	section, _, ended := strings.Cut(section, "\n## ")
	if !found || !ended {
		t.Fatal("the page has no section on the metrics of istiod")
	}
	absent := map[string]bool{}
	quoted := regexp.MustCompile("`([a-z0-9_]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			absent[m[1]] = true
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if name := m[1]; strings.Contains(name, "_") && !exists[name] && name != "membership_healthy" {
				t.Errorf("a reason names the metric %s, which does not exist", name)
			}
		}
	}
	n := 0
	for name := range strings.FieldsSeq(read(filepath.Join("testdata", "istiod-metrics.txt"))) {
		n++
		switch {
		case exists[name] && absent[name]:
			t.Errorf("%s exists, and the page says that it does not", name)
		case !exists[name] && !absent[name]:
			t.Errorf("%s does not exist, and the page gives no reason", name)
		}
		delete(absent, name)
	}
	for name := range absent {
		t.Errorf("the page names %s, which istiod does not have", name)
	}
	if n < 80 {
		t.Errorf("the list has %d names", n)
	}
}
