package bootstrap

import (
	"cmp"
	"encoding/json"
	"regexp"
	"strconv"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// metaAppMetrics is the variable of Istio's agent that says where the application has its metrics
// (pilot/cmd/pilot-agent/status, PrometheusScrapeConfiguration).
const metaAppMetrics = "ISTIO_PROMETHEUS_ANNOTATIONS"

// scrape is what the annotations of Prometheus say.
type scrape struct {
	Scrape string `json:"scrape"`
	Path   string `json:"path"`
	Port   string `json:"port"`
	Scheme string `json:"scheme,omitempty"`
}

// SetAppMetrics writes what the annotations prometheus.io/scrape, port, path and scheme of a
// workload say into the proxy_metadata of a ProxyConfig. Without any of them nothing changes.
func SetAppMetrics(to, annotations map[string]string) {
	s := scrape{
		Scrape: annotations[metakeys.PrometheusScrape], Path: annotations[metakeys.PrometheusPath],
		Port: annotations[metakeys.PrometheusPort], Scheme: annotations[metakeys.PrometheusScheme],
	}
	if s == (scrape{}) {
		return
	}
	text, _ := json.Marshal(s) // texts can always be written
	to[metaAppMetrics] = string(text)
}

// appPath is the path of a page of metrics: no query, since whoever writes an annotation chooses it.
var appPath = regexp.MustCompile(`^/[A-Za-z0-9._~/-]{0,512}$`)

// AppMetricsOf is the URL of the application's metrics on its own host, or empty: nobody says, it
// is switched off, or what is said cannot be used. Port and path are 80 and /metrics by default, as
// Istio's.
func AppMetricsOf(metadata map[string]string) string {
	var s scrape
	text := metadata[metaAppMetrics]
	if text == "" || json.Unmarshal([]byte(text), &s) != nil || s == (scrape{}) || s.Scrape == "false" {
		return ""
	}
	scheme, path := cmp.Or(s.Scheme, "http"), cmp.Or(s.Path, "/metrics")
	port, err := strconv.ParseUint(cmp.Or(s.Port, "80"), 10, 16)
	if err != nil || port == 0 || !appPath.MatchString(path) || scheme != "http" && scheme != "https" {
		return ""
	}
	return scheme + "://localhost:" + strconv.FormatUint(port, 10) + path
}
