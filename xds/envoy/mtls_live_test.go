package envoy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

const liveService = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: lines, namespace: shop}
spec:
  hosts: [lines.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: lines}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: lines, namespace: shop}
spec: {address: 127.0.0.1, ports: {tcp: LINES}, labels: {app: lines}, serviceAccount: lines}
`

// liveOld is an endpoint that takes no mTLS, and no traffic either.
const liveOld = `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: old, namespace: shop}
spec: {address: 127.0.0.2, ports: {tcp: LINES}, labels: {app: lines, test/health: unhealthy}}
`

const liveDisabled = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {selector: {matchLabels: {app: lines}}, mtls: {mode: DISABLE}}
`

// fileFed is an Envoy that has its clusters and endpoints from files.
type fileFed struct {
	dir    string
	writes int
}

// write replaces the resources of a type.
func (f *fileFed) write(t *testing.T, name string, list ...proto.Message) {
	t.Helper()
	f.writes++
	resp := &discoveryv3.DiscoveryResponse{VersionInfo: strconv.Itoa(f.writes)}
	for _, m := range list {
		body, err := anypb.New(m)
		fatalIf(t, err, "packing")
		resp.Resources = append(resp.Resources, body)
	}
	body, err := protojson.Marshal(resp)
	fatalIf(t, err, "marshaling")
	var node map[string]any
	fatalIf(t, json.Unmarshal(body, &node), "reading own JSON")
	withoutSDS(node)
	body, err = json.Marshal(node)
	fatalIf(t, err, "marshaling")
	tmp := filepath.Join(f.dir, name+".tmp")
	fatalIf(t, os.WriteFile(tmp, body, 0o600), "writing %q", tmp)
	fatalIf(t, os.Rename(tmp, filepath.Join(f.dir, name)), "renaming %q", tmp)
}

// show gives Envoy what is built of the manifests.
func (f *fileFed) show(t *testing.T, manifests string) {
	t.Helper()
	const name = "outbound|9000||lines.shop.mesh"
	s := snapshotOf(t, manifests, "")
	for _, r := range buildAll(view.Build(s, proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "10.9.9.9"}.proxy())) {
		if r.Name != name {
			continue
		}
		m, err := envoy.Decode(r)
		fatalIf(t, err, "decoding")
		if c, ok := m.(*clusterv3.Cluster); ok {
			c.EdsClusterConfig.EdsConfig = pathSource(filepath.Join(f.dir, "eds.json"))
			f.write(t, "cds.json", c)
		} else {
			f.write(t, "eds.json", m)
		}
	}
}

func pathSource(path string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
			PathConfigSource: &corev3.PathConfigSource{Path: path},
		},
	}
}

func (f *fileFed) bootstrap(t *testing.T, port int) []byte {
	t.Helper()
	ca := newAuthority(t)
	cert, key := ca.identity(t, webID)
	return fmt.Appendf(nil, `{"node": {"id": "test", "cluster": "test"}, "admin": %s,
"dynamic_resources": {"cds_config": {"resource_api_version": "V3", "path_config_source": {"path": %s}}},
"static_resources": {
 "secrets": [{"name": "default", "tls_certificate": {"certificate_chain": {"inline_string": %s}, "private_key": {"inline_string": %s}}},
  {"name": "ROOTCA", "validation_context": {"trusted_ca": {"inline_string": %s}}}],
 "listeners": [{"name": "tcp", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
  "filter_chains": [{"filters": [{"name": "tcp", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
   "stat_prefix": "tcp", "cluster": "outbound|9000||lines.shop.mesh"}}]}]}]}}`,
		envoytest.AdminJSON, strconv.Quote(filepath.Join(f.dir, "cds.json")), strconv.Quote(cert), strconv.Quote(key), strconv.Quote(ca.rootPEM()), port)
}

// firstByteServer tells handshakes from lines, and counts both.
type firstByteServer struct {
	port              int
	lines, handshakes atomic.Int32
}

func newFirstByteServer(t *testing.T) *firstByteServer {
	t.Helper()
	s := &firstByteServer{}
	s.port = accept(t, func(c net.Conn) {
		first := make([]byte, 1)
		if _, err := io.ReadFull(c, first); err == nil && first[0] == 22 {
			s.handshakes.Add(1)
		} else if err == nil {
			s.lines.Add(1)
		}
	})
	return s
}

// TestModeChangesReachHosts turns mTLS off and on again for an endpoint that an
// Envoy already has: with its cluster changing besides, and by its mark alone.
func TestModeChangesReachHosts(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]string{"cluster_changes": "", "mark_alone": liveOld} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fileFed{dir: t.TempDir()}
			server := newFirstByteServer(t)
			manifests := strings.ReplaceAll(liveService+more, "LINES", strconv.Itoa(server.port))
			port := envoytest.FreePorts(t, 1)[0]
			f.show(t, manifests)
			e := envoytest.Start(t, envoytest.Config{Bootstrap: f.bootstrap(t, port)})
			plain := func(want bool) {
				t.Helper()
				lines, handshakes := server.lines.Load(), server.handshakes.Load()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					_, err := sayLine(t.Context(), at("127.0.0.1", port))
					if want && server.lines.Load() == lines || !want && server.handshakes.Load() == handshakes {
						return fmt.Errorf("not in plaintext %v: %w", want, errors.Join(err))
					}
					return nil
				})
			}
			f.show(t, manifests+liveDisabled)
			plain(true)
			f.show(t, manifests)
			plain(false)
			f.show(t, manifests+liveDisabled)
			plain(true)
			e.NoRejections(t)
		})
	}
}
