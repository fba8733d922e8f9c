package xds

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// A real Envoy that connects to the server directly: a snapshot leads to traffic, an edit
// is applied at once, and a restarted server sends nothing.
func TestRealEnvoy(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			realEnvoy(t, version)
		})
	}
}

func realEnvoy(t *testing.T, version string) {
	t.Helper()
	v1, v2 := backend(t, "v1"), backend(t, "v2")
	ports := envoytest.FreePorts(t, 2)
	o := new(smallmesh.Objects).Workload("web", "127.0.0.11", nil)
	o.Plain = true // this Envoy has nobody to give it a certificate
	add := func(name string, port int) {
		o.Services = append(o.Services, &mesh.Service{
			Meta: smallmesh.Meta(mesh.KindServiceEntry, name, port), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
			Ports:  []mesh.Port{{Name: "http", Number: uint32(ports[0]), Protocol: mesh.HTTP}},
			Inline: []*mesh.Workload{{Meta: smallmesh.Meta(mesh.KindServiceEntry, name, port), Address: "127.0.0.1", Ports: map[string]uint32{"http": uint32(port)}}},
		})
	}
	add("orders", v1)
	r := newRig(t, o, nil)
	listener := r.listen(t, ports[1])
	n := node("web", "127.0.0.11")
	p, err := n.Proto()
	if err != nil {
		t.Fatal(err)
	}
	body, err := protojson.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	e := envoytest.Start(t, envoytest.Config{Version: version, Bootstrap: bootstrapFor(body, listener)})
	st := r.synced(t, "web.shop")
	if len(st.Types) < 3 || !strings.HasPrefix(version, st.EnvoyVersion) {
		t.Errorf("status %+v", st)
	}
	ask := func(want string) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if got := request(t, ports[0], "orders.mesh"); got != want {
				return fmt.Errorf("%q answered, want %q", got, want)
			}
			return nil
		})
	}
	ask("v1")

	// A VirtualService sends everything to another service.
	add("stock", v2)
	o.VirtualServices = []*mesh.VirtualService{{
		Meta: smallmesh.Meta(mesh.KindVirtualService, "orders"),
		Spec: &networking.VirtualService{
			Hosts: []string{"orders.mesh"}, Gateways: []string{"mesh"},
			Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "stock.mesh"}, Weight: 100}}}},
		},
	}}
	next := o.Snapshot(r.mesh.Snapshot())
	start := time.Now()
	r.mesh.publish(next)
	ask("v2")
	t.Logf("an edit is in force after %v", time.Since(start))
	eventually(t, "the rollout is known to be done", func() bool {
		c, ok := r.server.Convergence(next.Generation)
		return ok && !c.Done.IsZero() && c.Accepted == 1
	})
	e.NoRejections(t)
}

// listen also serves the rig on a loopback port.
func (r *rig) listen(t *testing.T, port int) string {
	t.Helper()
	l, err := listenOn(t, port)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.grpc.Serve(l) })
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func listenOn(t *testing.T, port int) (net.Listener, error) {
	t.Helper()
	var lc net.ListenConfig
	return lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

func backend(t *testing.T, answer string) int {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	t.Cleanup(s.Close)
	a, ok := s.Listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("address %v", s.Listener.Addr())
	}
	return a.Port
}

// request returns the answer to one request, or the error.
func request(t *testing.T, port int, host string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func bootstrapFor(node []byte, xds string) []byte {
	host, port, _ := strings.Cut(xds, ":")
	http2 := `"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
		"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config": {"http2_protocol_options": {}}}}`
	static := func(name string) string {
		return fmt.Sprintf(`{"name": %q, "connect_timeout": "1s", %s, "load_assignment": {"cluster_name": %q, "endpoints": [{"lb_endpoints": [
			{"endpoint": {"address": {"socket_address": {"address": %q, "port_value": %s}}}}]}]}}`, name, http2, name, host, port)
	}
	return fmt.Appendf(nil, `{"node": %s, "admin": %s,
		"dynamic_resources": {
			"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "set_node_on_first_message_only": true,
				"grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]},
			"cds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"},
			"lds_config": {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}},
		"static_resources": {"clusters": [%s, %s]}}`, node, envoytest.AdminJSON, static("xds-grpc"), static("sds-grpc"))
}
