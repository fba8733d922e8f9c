package envoy_test

import (
	"path/filepath"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/mesh"
	boot "github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// plainText reports whether a field of Envoy names no cluster, though a manifest may
// write the name of one there: a header may have that value.
func plainText(field protoreflect.FullName) bool {
	known := literals()[field] || field == "envoy.config.route.v3.VirtualHost.domains" || strings.HasPrefix(string(field), "envoy.config.core.v3.HeaderValue.")
	return known && !strings.Contains(strings.ToLower(string(field)), "cluster")
}

// noMisuse holds that nothing but the source of our own secrets names a cluster of
// the bootstrap.
func noMisuse(t *testing.T, what string, resources []envoy.Resource) (secrets int) {
	t.Helper()
	for _, r := range resources {
		m, err := envoy.Decode(r)
		fatalIf(t, err, "decoding")
		for _, place := range envoytest.Misuses(m, boot.SDSCluster, boot.ALSCluster, boot.Reserved()) {
			if plainText(place.Field) {
				continue
			}
			t.Errorf("%s: %s %q: %s", what, r.TypeURL, r.Name, place.At)
		}
		secrets += len(textsWith(t, m.ProtoReflect(), boot.SDSCluster))
	}
	return secrets
}

// TestOnlySecretsNameTheAgent goes through the golden meshes, one whose every name
// is that of a cluster of the bootstrap, and one in which each text of each object
// is, in turn. What connects to these clusters is shown the token of the agent's
// sockets, or Envoy's admin interface.
func TestOnlySecretsNameTheAgent(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	secrets := 0
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		secrets += noMisuse(t, path, buildAll(view.Build(snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml")), pf.proxy())))
	}
	if secrets < 10 {
		t.Errorf("the golden meshes ask for %d secrets: the test sees nothing", secrets)
	}
	for _, name := range boot.Reserved() {
		// Underscores are not in host names.
		manifests := strings.NewReplacer("NAME", strings.ReplaceAll(name, "_", "-")).Replace(namedMesh)
		s := snapshotOf(t, manifests, "")
		if rs := buildAll(view.Build(s, formatsProxy())); len(rs) < 5 {
			t.Errorf("%s: %d resources", name, len(rs))
		} else {
			noMisuse(t, "mesh of "+name, rs)
		}
	}
	base := snapshotOf(t, formatsBase, "")
	texts := 0
	replace(base, func(spec proto.Message, rebuild func(proto.Message) *mesh.Snapshot) {
		for _, p := range textPaths(spec.ProtoReflect().Descriptor(), nil) {
			name := boot.Reserved()[texts%len(boot.Reserved())]
			texts++
			m := proto.Clone(spec)
			p.setTo(m.ProtoReflect(), name)
			noMisuse(t, p.String()+" = "+name, buildAll(view.Build(rebuild(m), formatsProxy())))
		}
	})
	if texts < 300 {
		t.Errorf("%d texts: the test looks for them in the wrong way", texts)
	}
}

const namedMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME]
  addresses: [10.1.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.1, labels: {app: NAME}, serviceAccount: NAME}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: shop}
spec:
  hosts: [NAME]
  http: [{name: NAME, route: [{destination: {host: NAME, subset: NAME}}], mirror: {host: NAME}}]
  tcp: [{match: [{port: 9000}], route: [{destination: {host: NAME}}]}]
  tls: [{match: [{port: 443, sniHosts: [NAME]}], route: [{destination: {host: NAME}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: NAME, namespace: shop}
spec: {host: NAME, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}, subsets: [{name: NAME, labels: {app: NAME}}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8081"}]
  egress: [{hosts: ["./*"]}]
`

// TestMisusesAreSeen breaks the rule in ways that the test before must see.
func TestMisusesAreSeen(t *testing.T) {
	t.Parallel()
	packed := func(m proto.Message) *anypb.Any {
		a, err := anypb.New(m)
		fatalIf(t, err, "packing")
		return a
	}
	log := func(cluster string) proto.Message {
		return &grpclogv3.TcpGrpcAccessLogConfig{CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{GrpcService: &corev3.GrpcService{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster}},
		}}}
	}
	if found := envoytest.Misuses(log(boot.ALSCluster), boot.SDSCluster, boot.ALSCluster, boot.Reserved()); len(found) != 0 {
		t.Errorf("an access log to the agent: %q", found)
	}
	for name, m := range map[string]proto.Message{
		"log":             log(boot.SDSCluster),
		"als_of_a_route":  &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: boot.ALSCluster}},
		"als_of_a_filter": &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: boot.ALSCluster}}},
		"route":           &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: boot.XDSCluster}},
		"mirror":          &routev3.RouteAction{RequestMirrorPolicies: []*routev3.RouteAction_RequestMirrorPolicy{{Cluster: boot.SDSCluster}}},
		"header":          &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "x-to"}},
		"cluster":         &clusterv3.Cluster{Name: boot.SDSCluster},
		"tcp_proxy": &listenerv3.Filter{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(&tcpproxyv3.TcpProxy{
			ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: boot.SDSCluster},
		})}},
	} {
		if found := envoytest.Misuses(m, boot.SDSCluster, boot.ALSCluster, boot.Reserved()); len(found) != 1 {
			t.Errorf("%s: found %q", name, found)
		}
	}
}
