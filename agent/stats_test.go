package agent

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"       // in the listener
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3" // in the listener
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestStatsOfAHost: the Envoy of an agent sends its access log to the agent's own socket, with the
// agent's own token, and the page has the connection with the labels of the workload, beside
// Envoy's statistics.
func TestStatsOfAHost(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	app, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close() }()
	go func() {
		for {
			c, err := app.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	_, appPort, err := net.SplitHostPort(app.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, l := &clusterv3.Cluster{}, &listenerv3.Listener{}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{"name":"db","type":"STATIC","connect_timeout":"5s","load_assignment":{"cluster_name":"db",
	 "endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":%s}}},
	  "metadata":{"filter_metadata":{"istio":{"workload":"db-1;data;db;v1;vms"}}}}]}]}}`, appPort), c); err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{"name":"out","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{
	 "filters":[{"name":"tcp","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
	  "stat_prefix":"out","cluster":"db","access_log_options":{"flush_access_log_on_connected":true},"access_log":[{"name":"als","typed_config":{
	   "@type":"type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig","common_config":{
	    "log_name":"istio/source","transport_api_version":"V3","grpc_service":{"envoy_grpc":{"cluster_name":"als-grpc"}},
	    "custom_tags":[{"tag":"peer","metadata":{"kind":{"host":{}},"metadata_key":{"key":"istio","path":[{"key":"workload"}]}}}]}}}]}}]}]}`, port), l); err != nil {
		t.Fatal(err)
	}
	cp.serve(map[stream.TypeURL]map[string]proto.Message{stream.ClusterType: {"db": c}, stream.ListenerType: {"out": l}})
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	t.Run("counts", func(t *testing.T) { countConnection(t, m, port) })
	// The next agent, with an Envoy of its own, goes on.
	t.Run("goes_on", func(t *testing.T) {
		_, scrape := statsPage(t, m)
		if text := scrape(); !strings.Contains(text, `istio_tcp_connections_closed_total{reporter="source",source_workload="orders-1"`) {
			t.Errorf("the counters begin anew: %.2000s", text)
		}
	})
}

// statsPage starts the agent of a machine, and returns it with what reads its page of metrics.
func statsPage(t *testing.T, m *machine) (a *Agent, scrape func() string) {
	t.Helper()
	a = agentHere(t, m.set.config(&syncBuffer{}))
	page, err := a.StatsHandler(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return a, func() string {
		rec := httptest.NewRecorder()
		page.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/stats/prometheus", http.NoBody))
		return rec.Body.String()
	}
}

// countConnection opens a connection to the listener, and waits until it is counted.
func countConnection(t *testing.T, m *machine, port int) {
	t.Helper()
	a, scrape := statsPage(t, m)
	envoytest.Eventually(t, deadline, func() error {
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		_, err = io.ReadAll(conn)
		_ = conn.Close()
		return err
	})
	envoytest.Eventually(t, deadline, func() error {
		text := scrape()
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "istio_tcp_connections_closed_total{") {
				continue
			}
			for _, label := range []string{`source_workload="orders-1"`, `source_workload_namespace="shop"`, `destination_workload="db-1"`, `destination_cluster="vms"`} {
				if !strings.Contains(line, label) {
					t.Errorf("%s is missing: %s", label, line)
				}
			}
			if !strings.Contains(text, "\nenvoy_server_live 1\n") && !strings.Contains(text, "\nenvoy_server_live{} 1\n") {
				t.Errorf("Envoy's statistics are missing: %.2000s", text)
			}
			return nil
		}
		return fmt.Errorf("no connection is counted: %.2000s", text)
	})
	s := a.Status()
	if _, there := s.RemadeSockets[alsSocket]; !there || s.RefusedCalls != 0 {
		t.Errorf("status %+v", s)
	}
	// Only the agent's user can connect.
	fi, err := os.Stat(filepath.Join(m.set.RunDir, alsSocket))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", fi, err)
	}
}
