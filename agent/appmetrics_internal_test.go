package agent

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestMetricsOfTheApplication: the page has the application's metrics where the annotations of the
// workload say, as soon as the control plane sends them; the flag wins.
func TestMetricsOfTheApplication(t *testing.T) {
	t.Parallel()
	app := func(text string) (port string) {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, text+strings.ReplaceAll(r.URL.Path, "/", "_")+" 1\n")
		}))
		t.Cleanup(s.Close)
		_, port, err := net.SplitHostPort(s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	annotated, flagged := app("annotated"), app("flagged")
	a := &Agent{c: Config{Logger: slog.New(slog.DiscardHandler)}}
	page := func(flag *url.URL) string {
		h, err := a.StatsHandler(prometheus.NewRegistry(), flag)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/stats/prometheus", http.NoBody))
		return w.Body.String()
	}
	if got := page(nil); strings.Contains(got, "annotated") {
		t.Errorf("before the control plane has said so: %s", got)
	}
	pc := &meshconfig.ProxyConfig{ProxyMetadata: map[string]string{}}
	bootstrap.SetAppMetrics(pc.GetProxyMetadata(), map[string]string{"prometheus.io/port": annotated, "prometheus.io/path": "/stats"})
	body, err := proto.Marshal(pc)
	if err != nil {
		t.Fatal(err)
	}
	c, err := readProxyConfig(body, netip.MustParseAddr("10.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	a.config.Store(c)
	if got := page(nil); !strings.Contains(got, "annotated_stats 1\n") {
		t.Errorf("by the annotations: %s", got)
	}
	if got := page(&url.URL{Scheme: "http", Host: "127.0.0.1:" + flagged, Path: "/own"}); !strings.Contains(got, "flagged_own 1\n") || strings.Contains(got, "annotated") {
		t.Errorf("by the flag: %s", got)
	}
}
