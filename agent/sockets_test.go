package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// attack is a mesh in which somebody has named unix sockets as endpoints: symbolic links in a
// directory of their own, to any target.
type attack struct {
	tb    testing.TB
	links string
	port  int
}

// Names of the links. The last one is made again for each path that is tried.
const (
	linkSDS = "sds"
	linkXDS = "xds"
	linkAny = "any"
)

func newAttack(tb testing.TB, p *plane) *attack {
	tb.Helper()
	links := envoytest.ShortDir(tb)
	a := &attack{tb: tb, links: links, port: envoytest.FreePorts(tb, 1)[0]}
	clusters := map[string]proto.Message{}
	var routes []string
	for _, name := range []string{linkSDS, linkXDS, linkAny} {
		options := ""
		if name != linkAny {
			options = `,"typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
			 "@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}}}}`
		}
		c := &clusterv3.Cluster{}
		if err := protojson.Unmarshal(fmt.Appendf(nil, `{"name":%[1]q,"type":"STATIC","connect_timeout":"1s","load_assignment":{"cluster_name":%[1]q,
		 "endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"pipe":{"path":%[2]q}}}}]}]}%[3]s}`, name, filepath.Join(links, name), options), c); err != nil {
			tb.Fatal(err)
		}
		clusters[name] = c
		// What a route can take from a request and its proxy, it may try to show.
		routes = append(routes, fmt.Sprintf(`{"match":{"prefix":"/","headers":[{"name":"x-to","string_match":{"exact":%[1]q}}]},
		 "request_headers_to_add":[{"header":{"key":"x-copy","value":"%%REQ(%[2]s)%%"}}],
		 "response_headers_to_add":[{"header":{"key":"x-copy","value":"[%%REQ(%[2]s)%%]"}}],
		 "route":{"cluster":%[1]q,"retry_policy":{"retry_on":"5xx,reset,connect-failure","num_retries":2}}}`, name, bootstrap.TokenHeader))
	}
	l := &listenerv3.Listener{}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{"name":"out","address":{"socket_address":{"address":"127.0.0.1","port_value":%d}},"filter_chains":[{
	 "filters":[{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
	  "stat_prefix":"out","route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[%s]}]},
	  "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}]}]}`,
		a.port, strings.Join(routes, ",")), l); err != nil {
		tb.Fatal(err)
	}
	p.serve(map[stream.TypeURL]map[string]proto.Message{stream.ClusterType: clusters, stream.ListenerType: {"out": l}})
	return a
}

func (a *attack) link(name, target string) {
	a.tb.Helper()
	at := filepath.Join(a.links, name)
	_ = os.Remove(at)
	if err := os.Symlink(target, at); err != nil {
		a.tb.Fatal(err)
	}
}

// dial is a gRPC client whose calls the Envoy routes to a link.
func (a *attack) dial(link string, more ...string) grpc.ClientConnInterface {
	a.tb.Helper()
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:127.0.0.1:%d", a.port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return next(metadata.AppendToOutgoingContext(ctx, append([]string{"x-to", link}, more...)...), desc, cc, method, opts...)
		}))
	if err != nil {
		a.tb.Fatal(err)
	}
	a.tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// get sends a request over HTTP/1.1 through the link to any target.
func (a *attack) get(path string) (string, error) {
	req, err := http.NewRequestWithContext(a.tb.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d%s", a.port, path), http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("x-to", linkAny)
	res, err := (&http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.Status + " " + string(b), err
}

// TestEndpointsDoNotLeadToTheAgent makes a workload's own Envoy connect to the sockets of its
// agent and to its own admin interface, by links of an attacker who may write manifests and is
// any user of the machine.
func TestEndpointsDoNotLeadToTheAgent(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			cp := newPlane(t, 0)
			ports := envoytest.FreePorts(t, 3)
			in := ports[0]
			cp.set(in)
			evil := newAttack(t, cp)
			m := newMachine(t, cp.token("orders-1", "shop/orders"))
			m.set.Envoy = envoytest.BinaryVersion(t, version)
			evil.link(linkSDS, filepath.Join(m.set.RunDir, sdsSocket))
			evil.link(linkXDS, filepath.Join(m.set.RunDir, xdsSocket))
			log := &syncBuffer{}
			c := m.set.config(log)
			c.EnvoyArgs = []string{"--concurrency", "1", "--log-level", "trace"}
			c.HealthPort, c.StatsPort = ports[1], ports[2] // the default ones are for one agent at an address
			a := agentHere(t, c)
			envoytest.Eventually(t, deadline, cp.caller(in).call) // it has its own key
			if s := a.Status(); s.RefusedCalls != 0 || s.ClosedConnections != 0 {
				t.Errorf("its own Envoy was rejected: %d calls rejected, %d connections closed", s.RefusedCalls, s.ClosedConnections)
			}

			for name, more := range map[string][]string{
				"nothing": nil, "empty": {bootstrap.TokenHeader, ""}, "guess": {bootstrap.TokenHeader, strings.Repeat("A", 52)},
				"command": {bootstrap.TokenHeader, "%REQ(" + bootstrap.TokenHeader + ")%"},
			} {
				evil.wantNoKey(t, name, a.Status().Node, more)
			}
			if s := a.Status(); s.RefusedCalls == 0 {
				t.Error("the status does not count rejected calls")
			}
			evil.wantNoAdmin(t, m.set.RunDir)
			wantSecretsNowhere(t, a, m, log)
			envoytest.Eventually(t, deadline, cp.caller(in).call)
		})
	}
}

// wantNoKey requests secrets and configuration in each possible way.
func (a *attack) wantNoKey(t *testing.T, name, node string, more []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	refused := func(what string, err error, got fmt.Stringer) {
		t.Helper()
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s, %s: got %.300s, %v", name, what, got, err)
		}
	}
	sds := secretv3.NewSecretDiscoveryServiceClient(a.dial(linkSDS, more...))
	whole, err := sds.StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = whole.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"default", "ROOTCA"}})
	w, err := whole.Recv()
	refused("StreamSecrets", err, w)
	delta, err := sds.DeltaSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = delta.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"default"}})
	d, err := delta.Recv()
	refused("DeltaSecrets", err, d)
	req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(stream.ListenerType), Node: &corev3.Node{Id: node}}
	ads, err := discoveryv3.NewAggregatedDiscoveryServiceClient(a.dial(linkXDS, more...)).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = ads.Send(req)
	d, err = ads.Recv()
	refused("DeltaAggregatedResources", err, d)
}

// wantNoAdmin looks for Envoy's admin interface at every socket path that a user of the
// machine can find.
func (a *attack) wantNoAdmin(t *testing.T, runDir string) {
	t.Helper()
	seen := []string{filepath.Join(runDir, adminSocket), filepath.Join(runDir, adminSocket) + "/", "/proc/self/cwd/" + adminSocket}
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if path := f[len(f)-1]; strings.HasPrefix(path, runDir) && !slices.Contains(seen, path) {
			seen = append(seen, path)
		}
	}
	if len(seen) < 4 {
		t.Errorf("saw only %q: the test looks for sockets in the wrong way", seen)
	}
	for _, path := range seen {
		a.link(linkAny, path)
		for _, ask := range []string{"/config_dump", "/server_info"} {
			if got, err := a.get(ask); err != nil || strings.HasPrefix(got, "200") {
				t.Errorf("%s through %q: %v %.200s", ask, path, err, got)
			}
		}
	}
}

// wantSecretsNowhere looks for the secrets of agent and Envoy in all places where they could
// appear.
func wantSecretsNowhere(t *testing.T, a *Agent, m *machine, log *syncBuffer) {
	t.Helper()
	known, err := loadEnvoySecrets(filepath.Join(m.set.StateDir, envoySecretsFile))
	if err != nil {
		t.Fatal(err)
	}
	places := map[string][]byte{"the agent's log": log.bytes()}
	if places["/v1/status"], err = json.Marshal(a.Status()); err != nil {
		t.Fatal(err)
	}
	if places["/v1/config_dump"], err = a.ConfigDump(t.Context()); err != nil {
		t.Fatal(err)
	}
	places["logged"] = fmt.Appendf(nil, "%v", known.LogValue())
	proc := fmt.Sprintf("/proc/%d/", m.envoyPID())
	for _, path := range []string{proc + "cmdline", proc + "environ", "/proc/net/unix"} {
		if places[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{m.set.StateDir, m.set.RunDir} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if base := filepath.Base(path); base == envoySecretsFile || base == "envoy.json" {
				if fi, err := e.Info(); err != nil || fi.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v, %v", path, fi.Mode(), err)
				}
				return nil
			}
			places[path], err = os.ReadFile(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where, b := range places {
		if bytes.Contains(b, []byte(known.Token)) {
			t.Errorf("the token is in %s", where)
		}
		// Envoy's own log, which only its user can read, names the sockets.
		if bytes.Contains(b, []byte(known.AdminSocket)) && filepath.Base(where) != "envoy.log" {
			t.Errorf("the admin socket's name is in %s", where)
		}
	}
	raw, err := a.admin.Get(t.Context(), "/config_dump")
	if err != nil || bytes.Contains(raw, []byte(known.Token)) {
		t.Errorf("envoy's config_dump has the token, or %v", err)
	}
	if fi, err := os.Stat(filepath.Dir(newAdminPaths(m.set.RunDir, known.AdminSocket).moved)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the admin socket is %v, %v", fi, err)
	}
}

// TestEnvoyHasItsOwnEnvironment reads the environment that an Envoy could be made to reveal.
func TestEnvoyHasItsOwnEnvironment(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	cp.set(envoytest.FreePorts(t, 1)[0])
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	m.env = []string{"FAIRLEAD_FLAG_TOKEN_FILE=secret", "AWS_SECRET_ACCESS_KEY=secret", "HOME=/secret", "TZ=UTC"}
	m.start()
	var environ []byte
	envoytest.Eventually(t, deadline, func() (err error) {
		environ, err = os.ReadFile(fmt.Sprintf("/proc/%d/environ", m.envoyPID()))
		return err
	})
	for kv := range strings.SplitSeq(strings.Trim(string(environ), "\x00"), "\x00") {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.Contains(proxy.UsualEnvironment(), name) {
			t.Errorf("envoy has %q", kv)
		}
	}
	if !bytes.Contains(environ, []byte("TZ=UTC")) {
		t.Errorf("envoy has not been given the time zone: %q", environ)
	}
	m.stop()
}

// TestLeaveRunningKeepsTheEnvoy restarts the agent: its Envoy keeps running, and has the
// token.
func TestLeaveRunningKeepsTheEnvoy(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	m.set.LeaveRunning = true
	m.start()
	envoytest.Eventually(t, deadline, cp.caller(port).call)
	pid := m.envoyPID()
	for connected := 2; connected <= 4; connected++ {
		m.stop()
		m.set.LeaveRunning = connected < 4
		m.start()
		envoytest.Eventually(t, deadline, func() error {
			log, err := os.ReadFile(filepath.Join(m.set.RunDir, "agent.log"))
			if n := bytes.Count(log, []byte("Envoy connected")); n < connected {
				return fmt.Errorf("Envoy connected %d times, %w", n, err)
			}
			return cp.caller(port).call()
		})
		if got := m.envoyPID(); got != pid || !running(pid) {
			t.Fatalf("envoy is %d, was %d", got, pid)
		}
	}
	m.stop()
	if running(pid) {
		t.Error("envoy outlived a stop")
	}
}

// TestEnvoyOfTheLastReleaseIsReplacedOnce has an agent find an Envoy without a token, as a
// release before tokens started it, with the control plane unreachable.
func TestEnvoyOfTheLastReleaseIsReplacedOnce(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 0)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	web := cp.caller(port)
	m.start()
	envoytest.Eventually(t, deadline, web.call)
	envoytest.Eventually(t, deadline, func() error {
		b, err := os.ReadFile(filepath.Join(m.set.StateDir, "accepted.xds"))
		if err == nil && !bytes.Contains(b, []byte("sds-grpc")) {
			err = errors.New("the accepted listener is not on disk")
		}
		return err
	})
	m.stop()
	cp.kill()
	defer cp.start() // which the plane's own end expects
	old := m.lastRelease()

	m.start()
	envoytest.Eventually(t, deadline, web.call)
	pid := m.envoyPID()
	if pid == old || running(old) {
		t.Errorf("envoy %d was not replaced: %d", old, pid)
	}
	log := must[[]byte](t)(os.ReadFile(filepath.Join(m.set.RunDir, "agent.log")))
	for _, says := range []string{"restarting Envoy: it does not have the token", "draining Envoy", "way=quit"} {
		if !bytes.Contains(log, []byte(says)) {
			t.Errorf("the log does not say %q", says)
		}
	}
	if bytes.Contains(log, []byte("draining Envoy failed")) {
		t.Error("the old envoy was not drained")
	}

	// Only once.
	m.kill()
	m.start()
	envoytest.Eventually(t, deadline, func() error {
		b, err := os.ReadFile(filepath.Join(m.set.RunDir, "agent.log"))
		if err == nil && !bytes.Contains(b, []byte("taking over the running Envoy")) {
			err = errors.New("the second envoy was not taken over")
		}
		return err
	})
	if got := m.envoyPID(); got != pid {
		t.Errorf("envoy is %d, was %d", got, pid)
	}
	envoytest.Eventually(t, deadline, web.call)
	m.stop()
}

// lastRelease leaves the machine as a killed agent of a release before tokens: its Envoy runs,
// with its admin socket where it was made.
func (m *machine) lastRelease() (pid int) {
	t, boot := m.tb, filepath.Join(m.set.RunDir, "envoy.json")
	if err := os.Remove(filepath.Join(m.set.StateDir, envoySecretsFile)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(m.set.RunDir, "envoy")); err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(must[[]byte](t)(os.ReadFile(boot)), b); err != nil {
		t.Fatal(err)
	}
	b.StaticResources.Secrets = nil
	for _, c := range b.GetStaticResources().GetClusters() {
		for name, a := range c.GetTypedExtensionProtocolOptions() {
			options := &httpv3.HttpProtocolOptions{}
			if err := a.UnmarshalTo(options); err != nil {
				t.Fatal(err)
			}
			options.HttpFilters = nil
			c.TypedExtensionProtocolOptions[name] = must[*anypb.Any](t)(anypb.New(options))
		}
	}
	if err := os.WriteFile(boot, must[[]byte](t)(protojson.Marshal(b)), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := proxy.NewAdmin("unix", filepath.Join(m.set.RunDir, adminSocket))
	p, err := proxy.New(proxy.Config{
		Logger: slog.New(slog.DiscardHandler), Binary: m.set.Envoy, BootstrapPath: boot, Admin: admin, Fingerprint: "earlier",
		StateFile: filepath.Join(m.set.RunDir, "envoy.process.json"), LogFile: filepath.Join(m.set.RunDir, "envoy.log"),
		Args: []string{"--concurrency", "1"}, LeaveRunning: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	envoytest.Eventually(t, deadline, func() error {
		_, err := admin.Get(t.Context(), "/server_info")
		return err
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return m.envoyPID()
}
