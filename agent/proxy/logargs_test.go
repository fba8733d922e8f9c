package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestLogHasNoDeprecationWarnings starts real Envoys with route tables as Istio makes them. The
// log of one with nothing but a log level shows that these tables cause warnings.
func TestLogHasNoDeprecationWarnings(t *testing.T) {
	t.Parallel()
	const tables = 20
	for _, version := range envoytest.Versions() {
		for level, quiet := range map[string]bool{"warning": true, "info": true, "debug": false} {
			t.Run(version+"_"+level, func(t *testing.T) {
				t.Parallel()
				c := testConfig(t)
				c.Binary = envoytest.BinaryVersion(t, version)
				c.Args = append(c.Args, LogArgs(level)...)
				writeTables(t, c, tables)
				run(t, c).live(t, 0)
				n := deprecations(t, c)
				if quiet && n != 0 || !quiet && n < tables {
					t.Errorf("%d warnings about deprecated fields in %d tables", n, tables)
				}
			})
		}
		t.Run(version+"_plain", func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			c.Binary = envoytest.BinaryVersion(t, version)
			c.Args = append(c.Args, "--log-level", "warning")
			writeTables(t, c, tables)
			run(t, c).live(t, 0)
			if n := deprecations(t, c); n < tables {
				t.Errorf("%d warnings in %d tables: Envoy does not warn any more, so that LogArgs may go", n, tables)
			}
		})
	}
}

func writeTables(tb testing.TB, c Config, n int) {
	tb.Helper()
	ports := envoytest.FreePorts(tb, n)
	listeners := make([]string, n)
	for i, port := range ports {
		listeners[i] = fmt.Sprintf(`{"name":"l%[1]d","address":{"socket_address":{"address":"127.0.0.1","port_value":%[2]d}},"filter_chains":[{"filters":[
		 {"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		  "stat_prefix":"out","route_config":{"name":"t%[1]d","virtual_hosts":[{"name":"all","domains":["*"],"routes":[
		   {"match":{"prefix":"/"},"route":{"cluster":"none","timeout":"0s","max_grpc_timeout":"0s"}}]}],"validate_clusters":false},
		  "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`, i, port)
	}
	boot := fmt.Sprintf(`{"admin":{"address":{"pipe":{"path":%q}}},"static_resources":{"listeners":[%s]}}`,
		filepath.Join(filepath.Dir(c.BootstrapPath), "admin.sock"), strings.Join(listeners, ","))
	if err := os.WriteFile(c.BootstrapPath, []byte(boot), 0o600); err != nil {
		tb.Fatal(err)
	}
}

func deprecations(tb testing.TB, c Config) int {
	tb.Helper()
	b, err := os.ReadFile(c.LogFile)
	if err != nil {
		tb.Fatal(err)
	}
	return strings.Count(string(b), "max_grpc_timeout")
}

// TestLastWordsAreNoDeprecationWarning: what a killed Envoy wrote last says why only if it is not
// about a field that will be removed one day.
func TestLastWordsAreNoDeprecationWarning(t *testing.T) {
	t.Parallel()
	const deprecated = "[2026-08-20 10:00:01.000][7][warning][misc] [source/common/protobuf/message_validator_impl.cc:23] Deprecated field: type " +
		"envoy.config.route.v3.RouteAction Using deprecated option 'envoy.config.route.v3.RouteAction.max_grpc_timeout' from file route_components.proto.\n"
	const other = "[2026-08-20 10:00:00.000][7][warning][config] [source/x.cc:1] gRPC config stream closed\n"
	for want, log := range map[string]string{
		"":                                 deprecated + deprecated,
		"gRPC config stream closed":        other + deprecated,
		"[error][main] unable to allocate": "[1][error][main] unable to allocate\n" + other + deprecated,
	} {
		path := filepath.Join(t.TempDir(), "envoy.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastLogLine(path); !strings.HasSuffix(got, want) || want == "" && got != "" {
			t.Errorf("last words = %q, want %q", got, want)
		}
	}
}
