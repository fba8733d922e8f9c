package server

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// TestMetricsHelpStandsAlone reads the descriptions of all metrics of a server: each help is a
// sentence that names every label of its metric.
func TestMetricsHelpStandsAlone(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Consul = Consul{Client: client.Config{Address: "127.0.0.1:1"}}
	s, err := New(t.Context(), cfg)
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
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant := regexp.MustCompile(`([a-z_]+)="`)
	labels := map[string][]string{}
	for d := range descriptions {
		m := form.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("not the form of a description: %s", d)
		}
		name, help := m[1], m[2]
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		if !strings.HasSuffix(help, ".") || len(strings.Fields(help)) < 3 {
			t.Errorf("the help of %s is no sentence: %s", name, help)
		}
		named := strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' || r == ' ' })
		for _, c := range constant.FindAllStringSubmatch(m[3], -1) {
			named = append(named, c[1])
		}
		for _, label := range named {
			if !regexp.MustCompile(`\b` + regexp.QuoteMeta(label) + `\b`).MatchString(help) {
				t.Errorf("the help of %s does not name its label %s: %s", name, label, help)
			}
		}
		labels[name] = named
	}
	if len(labels) < 60 {
		t.Errorf("found %d metrics: %v", len(labels), slices.Sorted(maps.Keys(labels)))
	}
}
