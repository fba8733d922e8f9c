package relay

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// shop is a small configuration: a listener with routes by RDS to a cluster
// with endpoints by EDS.
type shop struct {
	tb      testing.TB
	port    int
	backend *httptest.Server
}

func newShop(tb testing.TB) *shop {
	tb.Helper()
	s := &shop{tb: tb, port: envoytest.FreePorts(tb, 1)[0]}
	s.backend = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("x-route"))
	}))
	tb.Cleanup(s.backend.Close)
	return s
}

func parse[M proto.Message](tb testing.TB, into M, format string, args ...any) M {
	tb.Helper()
	if err := protojson.Unmarshal(fmt.Appendf(nil, format, args...), into); err != nil {
		tb.Fatal(err)
	}
	return into
}

// messages are the configuration; each request comes back with the route's mark.
func (s *shop) messages(mark string) map[string]proto.Message {
	const ads = `{"ads":{},"resource_api_version":"V3"}`
	_, port, _ := strings.Cut(strings.TrimPrefix(s.backend.URL, "http://"), ":")
	return map[string]proto.Message{
		"cds/app": parse(s.tb, &clusterv3.Cluster{}, `{"name":"app","type":"EDS","connect_timeout":"1s","eds_cluster_config":{"eds_config":%s}}`, ads),
		"eds/app": parse(s.tb, &endpointv3.ClusterLoadAssignment{},
			`{"cluster_name":"app","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"socket_address":{"address":"127.0.0.1","port_value":%s}}}}]}]}`, port),
		"lds/in": parse(s.tb, &listenerv3.Listener{}, `{"name":"in","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},
		 "filter_chains":[{"filters":[{"name":"hcm","typed_config":{
		  "@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager","stat_prefix":"in",
		  "rds":{"route_config_name":"routes","config_source":%s},
		  "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`, s.port, ads),
		"rds/routes": parse(s.tb, &routev3.RouteConfiguration{}, `{"name":"routes","virtual_hosts":[{"name":"all","domains":["*"],
		 "routes":[{"match":{"prefix":"/"},"route":{"cluster":"app"},
		 "request_headers_to_add":[{"header":{"key":"x-route","value":%q}}]}]}]}`, mark),
	}
}

// says is nil once a request is answered with the mark.
func (s *shop) says(mark string) error {
	req, err := http.NewRequestWithContext(s.tb.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", s.port), http.NoBody)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK || string(b) != mark {
		return fmt.Errorf("answer is %s %q, want %q", res.Status, b, mark)
	}
	return nil
}

// envoy starts an Envoy below the relay.
func (h *host) envoy(version string) *envoytest.Envoy {
	h.tb.Helper()
	n, err := bootstrap.ParseNode(h.cfg.Node)
	if err != nil {
		h.tb.Fatal(err)
	}
	b, err := bootstrap.Build(bootstrap.Config{
		Node: *n, XDSSocket: h.cfg.Socket, SDSSocket: filepath.Join(h.dir, "sds.sock"), ALSSocket: filepath.Join(h.dir, "als.sock"), Token: testToken,
		AdminSocket: filepath.Join(h.dir, "admin.sock"),
	})
	if err != nil {
		h.tb.Fatal(err)
	}
	if err := protojson.Unmarshal([]byte(envoytest.AdminJSON), b.GetAdmin()); err != nil {
		h.tb.Fatal(err)
	}
	j, err := protojson.Marshal(b)
	if err != nil {
		h.tb.Fatal(err)
	}
	return envoytest.Start(h.tb, envoytest.Config{Bootstrap: j, Version: version})
}

var fourTypes = []stream.TypeURL{stream.ClusterType, stream.EndpointType, stream.ListenerType, stream.RouteType}

func TestUpdatesAndRestarts(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			r, stop := h.relay()
			r.SetHealth(Health{Message: "not up"})
			server.set(generation(t, 1, shop.messages("one")))
			e := h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
			server.inStep(t, 1, fourTypes...)
			server.takeSent()

			next := shop.messages("two")
			server.set(generation(t, 2, next))
			envoytest.Eventually(t, deadline, func() error { return shop.says("two") })
			server.inStep(t, 2, fourTypes...)
			if sent := server.takeSent(); !slices.Equal(sent, []string{"routes"}) {
				t.Errorf("one edit sent %q", sent)
			}

			// The control plane restarts: nothing is sent, and Envoy does not notice.
			server.kill()
			if err := shop.says("two"); err != nil {
				t.Error(err)
			}
			server.start()
			server.streamed(t, 2)
			server.set(generation(t, 3, next))
			server.inStep(t, 3, fourTypes...)
			if sent := server.takeSent(); len(sent) > 0 {
				t.Errorf("a restarted control plane sent %q", sent)
			}
			if n := e.Stat(t, "control_plane.connected_state"); n != 1 {
				t.Errorf("connected_state = %d", n)
			}
			if n := e.Stat(t, "cluster.xds-grpc;.upstream_cx_total"); n != 1 {
				t.Errorf("Envoy connected %d times", n)
			}

			// The relay restarts while the control plane is away, Envoy stays.
			server.kill()
			stop()
			h.cfg.EnvoyRunning = true
			r, stop = h.relay()
			envoytest.Eventually(t, deadline, func() error {
				if s := r.Status(); s.Envoy != bootstrap.EnvoyLive {
					return fmt.Errorf("status %+v", s)
				}
				return nil
			})
			if err := shop.says("two"); err != nil {
				t.Error(err)
			}
			// Both restart while it is away.
			e.NoRejections(t)
			e.Kill()
			stop()
			h.cfg.EnvoyRunning = false
			r, _ = h.relay()
			e = h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.says("two") })
			server.takeSent()
			server.start()
			server.set(generation(t, 4, next))
			server.streamed(t, 3)
			server.inStep(t, 4, fourTypes...)
			if sent := server.takeSent(); len(sent) > 0 {
				t.Errorf("sent again: %q", sent)
			}
			// What is removed goes, listeners before clusters.
			server.set(generation(t, 5, map[string]proto.Message{}))
			envoytest.Eventually(t, deadline, func() error {
				if shop.says("two") == nil {
					return errNotYet
				}
				return nil
			})
			envoytest.Eventually(t, deadline, func() error {
				if n := e.Stat(t, "cluster_manager.active_clusters"); n != 3 { // those of the bootstrap
					return fmt.Errorf("%d clusters", n)
				}
				return nil
			})
			envoytest.Eventually(t, deadline, func() error {
				if s := r.Status(); s.Held > 0 || s.Envoy != bootstrap.EnvoyLive {
					return fmt.Errorf("status %+v", s)
				}
				return nil
			})
			e.NoRejections(t)
			for _, want := range []string{"absent", "starting", "live", "health:not up"} {
				if !slices.Contains(server.reported(), want) && want != "absent" {
					t.Errorf("%q was not reported: %q", want, server.reported())
				}
			}
		})
	}
}

// TestNoAckWithoutEnvoy: nothing is acknowledged while no Envoy is connected, and its
// disconnection is reported at once.
func TestNoAckWithoutEnvoy(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	server.set(generation(t, 1, shop.messages("one")))
	envoytest.Eventually(t, deadline, func() error {
		if r.Status().Held == 0 {
			return errNotYet
		}
		return nil
	})
	server.mu.Lock()
	if server.settled[stream.ClusterType] != 0 {
		t.Error("accepted without an Envoy")
	}
	server.mu.Unlock()
	e := h.envoy("")
	envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
	server.inStep(t, 1, fourTypes...)
	envoytest.Eventually(t, deadline, func() error {
		if rep := server.reported(); !slices.Equal(rep, []string{"absent", "starting", "live"}) {
			return fmt.Errorf("reported %q", rep)
		}
		return nil
	})
	began := time.Now()
	e.Kill()
	envoytest.Eventually(t, deadline, func() error {
		if rep := server.reported(); rep[len(rep)-1] != "absent" {
			return fmt.Errorf("reported %q", rep)
		}
		return nil
	})
	t.Logf("reported absent after %s", time.Since(began))
	server.set(generation(t, 2, shop.messages("two")))
	envoytest.Eventually(t, deadline, func() error {
		if r.Status().Held != 1 {
			return fmt.Errorf("status %+v", r.Status())
		}
		return nil
	})
	h.envoy("")
	envoytest.Eventually(t, deadline, func() error { return shop.says("two") })
	server.inStep(t, 2, fourTypes...)
}

// TestRejectedResource sends an invalid cluster and a valid change. The valid one is in force.
// The invalid one is reported and its last accepted version stays, also across a restart of
// Envoy. A corrected one is accepted.
func TestRejectedResource(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			r, stop := h.relay()
			server.set(generation(t, 1, shop.messages("one")))
			e := h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
			server.inStep(t, 1, fourTypes...)

			bad := shop.messages("two")
			// Passes protoc-gen-validate and is rejected by the code.
			cluster := bad["cds/app"].(*clusterv3.Cluster)
			cluster.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
			bad["cds/other"] = parse(t, &clusterv3.Cluster{}, `{"name":"other","type":"STATIC","connect_timeout":"1s",
			 "load_assignment":{"cluster_name":"other"}}`)
			server.set(generation(t, 2, bad))
			envoytest.Eventually(t, deadline, func() error { return shop.says("two") })
			server.inStep(t, 2, fourTypes...)
			server.mu.Lock()
			rejected := slices.DeleteFunc(slices.Clone(server.events), func(ev stream.Event) bool { return ev.Kind != stream.EventRejected })
			server.mu.Unlock()
			if len(rejected) != 1 || rejected[0].Name != "app" {
				t.Errorf("rejected upstream: %+v", rejected)
			}
			if s := r.Status(); s.Envoy != bootstrap.EnvoyRejecting || len(s.Rejected) != 1 || s.Rejected[0].Name != "app" {
				t.Errorf("status %+v", s)
			}
			if dump := e.Admin(t, "/clusters"); !strings.Contains(dump, "other::") {
				t.Error("the good cluster is not there")
			}

			// Without the control plane, agent and Envoy start again.
			server.kill()
			stop()
			e.Kill()
			_, _ = h.relay()
			e = h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.says("two") })
			e.NoRejections(t)
			server.start()
			server.set(generation(t, 3, shop.messages("three")))
			envoytest.Eventually(t, deadline, func() error { return shop.says("three") })
			server.inStep(t, 3, fourTypes...)
		})
	}
}

func TestCorruptStore(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	if err := os.WriteFile(h.cfg.StoreFile, []byte(storeMagic+"garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	h.relay()
	envoytest.Eventually(t, deadline, func() error { _, err := os.Stat(h.cfg.StoreFile + ".unusable"); return err })
	server.set(generation(t, 1, shop.messages("one")))
	h.envoy("")
	envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
	envoytest.Eventually(t, deadline, func() error { _, err := readStore(h.cfg.StoreFile); return err })
}

// TestLostStoreLosesNoTraffic deletes the store while Envoy runs: the relay removes nothing
// from Envoy that it does not know.
func TestLostStoreLosesNoTraffic(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	_, stop := h.relay()
	server.set(generation(t, 1, shop.messages("one")))
	e := h.envoy("")
	envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
	server.inStep(t, 1, fourTypes...)
	stop()
	if err := os.Remove(h.cfg.StoreFile); err != nil {
		t.Fatal(err)
	}
	server.kill()
	h.relay()
	envoytest.Eventually(t, deadline, func() error {
		if n := e.Stat(t, "cluster.xds-grpc;.upstream_cx_total"); n < 2 {
			return fmt.Errorf("Envoy connected %d times", n)
		}
		return shop.says("one")
	})
	server.start()
	server.streamed(t, 2)
	server.set(generation(t, 2, shop.messages("two")))
	envoytest.Eventually(t, deadline, func() error {
		if err := shop.says("two"); err == nil {
			return nil
		}
		if err := shop.says("one"); err != nil && shop.says("two") != nil {
			t.Errorf("traffic failed: %v", err)
		}
		return errNotYet
	})
	server.inStep(t, 2, fourTypes...)
}

// TestStoreOfAnotherWorkload is not served.
func TestStoreOfAnotherWorkload(t *testing.T) {
	t.Parallel()
	h := newHost(t, "127.0.0.1:1")
	if _, err := writeStore(h.cfg.StoreFile, &state{Who: "somebody"}); err != nil {
		t.Fatal(err)
	}
	r, _ := h.relay()
	defer func() {
		if len(r.Status().Types) > 0 {
			t.Errorf("status %+v", r.Status())
		}
	}()
	envoytest.Eventually(t, deadline, func() error { _, err := os.Stat(h.cfg.StoreFile + ".unusable"); return err })
}

// TestSecondServer has a dead server first in the list.
func TestSecondServer(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, "127.0.0.1:1", server.addr)
	h.relay()
	server.set(generation(t, 1, shop.messages("one")))
	h.envoy("")
	envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
}

// renewed is a host whose first certificate lives for ten seconds and is renewed before that.
type renewed struct {
	anyone
	first, asked atomic.Pointer[time.Time] // the end of the first, and when it was too old
}

func (r *renewed) NotAfter() time.Time {
	now := time.Now()
	if end := now.Add(10 * time.Second); r.first.CompareAndSwap(nil, &end) {
		return end
	}
	r.asked.CompareAndSwap(nil, &now)
	return now.Add(time.Hour)
}

// TestStreamEndsBeforeTheCertificate has a certificate of ten seconds.
func TestStreamEndsBeforeTheCertificate(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	server := newServer(t)
	server.set(generation(t, 1, map[string]proto.Message{}))
	h := newHost(t, server.addr)
	host := &renewed{}
	h.cfg.Credentials = host
	h.relay()
	server.streamed(t, 2)
	if end, asked := host.first.Load(), host.asked.Load(); asked.After(*end) {
		t.Errorf("the first stream was left %s after its certificate's end", asked.Sub(*end))
	}
}

func TestAnotherReleaseIsReported(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	h.relay()
	server.set(generation(t, 1, shop.messages("one")))
	e := h.envoy(envoytest.Oldest)
	envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
	e.Kill()
	h.envoy(envoytest.Default)
	envoytest.Eventually(t, deadline, func() error {
		server.mu.Lock()
		defer server.mu.Unlock()
		if v := server.versions; v[len(v)-1] != (bootstrap.Version{Major: 1, Minor: 40}) {
			return fmt.Errorf("versions %v", v)
		}
		return nil
	})
}

// TestCredentialsAreReported: the newest report goes up after the state of Envoy, on every stream, and
// only when it changed.
func TestCredentialsAreReported(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	server.set(generation(t, 1, shop.messages("one")))
	for i, name := range []string{"one", "two"} {
		report := bootstrap.ReportCredentials([]bootstrap.Credential{{Name: name, State: bootstrap.CredentialReady}})
		text, err := report.Encode()
		if err != nil {
			t.Fatal(err)
		}
		r.SetCredentials(report)
		r.SetHealth(Health{Message: name})
		envoytest.Eventually(t, deadline, func() error {
			got := server.reported()
			if !slices.Contains(got, "health:"+name) {
				return errNotYet
			}
			if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != text })); n != 1 {
				return fmt.Errorf("report %d came %d times: %q", i, n, got)
			}
			return nil
		})
	}
}
