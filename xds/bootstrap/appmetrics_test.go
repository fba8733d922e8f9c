package bootstrap

import (
	"strings"
	"testing"
)

// TestAppMetrics: the annotations of Prometheus say where the application has its metrics, on its
// own host and nowhere else.
func TestAppMetrics(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                   "",
		"other=1":                            "",
		"scrape=true":                        "http://localhost:80/metrics",
		"port=8080":                          "http://localhost:8080/metrics",
		"scrape=true port=8080 path=/stats":  "http://localhost:8080/stats",
		"port=8443 scheme=https":             "https://localhost:8443/metrics",
		"scrape=false port=8080":             "",
		"port=0":                             "",
		"port=65536":                         "",
		"port=80@evil":                       "",
		"path=/a?b=c":                        "",
		"path=@evil/":                        "",
		"path=/a#b":                          "",
		"path=/a%00":                         "",
		"scheme=file":                        "",
		"path=/" + strings.Repeat("a", 1000): "",
	} {
		annotations, metadata := map[string]string{}, map[string]string{"KEPT": "1"}
		for kv := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(kv, "=")
			annotations["prometheus.io/"+name] = value
		}
		SetAppMetrics(metadata, annotations)
		if got := AppMetricsOf(metadata); got != want || metadata["KEPT"] != "1" {
			t.Errorf("%.80s: %q, want %q", text, got, want)
		}
	}
	for _, broken := range []string{"{", "[]", `{"port": 8080}`, "null", `"x"`} {
		if got := AppMetricsOf(map[string]string{metaAppMetrics: broken}); got != "" {
			t.Errorf("%s: %q", broken, got)
		}
	}
}
