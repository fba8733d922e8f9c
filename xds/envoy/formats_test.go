package envoy_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// canary is what the tests write into each field in turn.
const canary = "%ENVIRONMENT(HOME)%"

// literals are the fields of Envoy's configuration that are no formats though a
// manifest decides on them: what is not here is taken for one.
func literals() map[protoreflect.FullName]bool {
	out := map[protoreflect.FullName]bool{
		// It is a format, but no tunnel with a percent sign in its targetHost is in force.
		"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig.hostname": true,
	}
	for name := range strings.FieldsSeq(`
		envoy.extensions.access_loggers.file.v3.FileAccessLog.path
		envoy.config.cluster.v3.Cluster.alt_stat_name
		envoy.config.cluster.v3.Cluster.name
		envoy.config.core.v3.DataSource.filename
		envoy.config.core.v3.DataSource.inline_string
		envoy.config.core.v3.SocketAddress.address
		envoy.config.endpoint.v3.ClusterLoadAssignment.cluster_name
		envoy.config.listener.v3.FilterChain.name
		envoy.config.listener.v3.FilterChainMatch.server_names
		envoy.config.listener.v3.Listener.name
		envoy.config.route.v3.RedirectAction.host_redirect
		envoy.config.route.v3.RedirectAction.path_redirect
		envoy.config.route.v3.RedirectAction.prefix_rewrite
		envoy.config.route.v3.RedirectAction.scheme_redirect
		envoy.config.route.v3.Route.name
		envoy.config.route.v3.Route.request_headers_to_remove
		envoy.config.route.v3.Route.response_headers_to_remove
		envoy.config.route.v3.Route.stat_prefix
		envoy.config.route.v3.RouteAction.HashPolicy.Cookie.name
		envoy.config.route.v3.RouteAction.HashPolicy.Cookie.path
		envoy.config.route.v3.RouteAction.HashPolicy.CookieAttribute.name
		envoy.config.route.v3.RouteAction.HashPolicy.CookieAttribute.value
		envoy.config.route.v3.RouteAction.HashPolicy.Header.header_name
		envoy.config.route.v3.RouteAction.HashPolicy.QueryParameter.name
		envoy.config.route.v3.RouteAction.RequestMirrorPolicy.cluster
		envoy.config.route.v3.RouteAction.cluster
		envoy.config.route.v3.RouteAction.host_rewrite_literal
		envoy.config.route.v3.RouteAction.prefix_rewrite
		envoy.config.route.v3.RouteMatch.path
		envoy.config.route.v3.RouteMatch.prefix
		envoy.extensions.filters.http.cors.v3.CorsPolicy.allow_headers
		envoy.extensions.filters.http.cors.v3.CorsPolicy.allow_methods
		envoy.extensions.filters.http.cors.v3.CorsPolicy.expose_headers
		envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.server_name
		envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.stat_prefix
		envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.cluster
		envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.stat_prefix
		envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin.metric_names_for_computing_utilization
		envoy.extensions.transport_sockets.tls.v3.TlsParameters.cipher_suites
		envoy.extensions.transport_sockets.tls.v3.TlsParameters.ecdh_curves
		envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext.sni
		envoy.type.matcher.v3.RegexMatchAndSubstitute.substitution
		envoy.type.matcher.v3.RegexMatcher.regex
		envoy.type.matcher.v3.StringMatcher.exact
		envoy.type.matcher.v3.StringMatcher.prefix
	`) {
		out[protoreflect.FullName(name)] = true
	}
	return out
}

// TestEveryFormatIsKnown sets each text that a manifest can have, builds Envoy's
// configuration, and looks where it went. Fields that reach a format have to be
// among those that validation looks into.
func TestEveryFormatIsKnown(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	base := snapshotOf(t, formatsBase, "")
	found := map[protoreflect.FullName]bool{}
	known, unknown := literals(), map[protoreflect.FullName][]string{}
	texts := 0
	try := func(spec proto.Message, rebuild func(proto.Message) *mesh.Snapshot) {
		for _, p := range textPaths(spec.ProtoReflect().Descriptor(), nil) {
			texts++
			m := proto.Clone(spec)
			p.set(m.ProtoReflect())
			for _, r := range buildAll(view.Build(rebuild(m), formatsProxy())) {
				decoded, err := envoy.Decode(r)
				fatalIf(t, err, "decoding")
				for _, fd := range textsWith(t, decoded.ProtoReflect(), canary) {
					switch {
					case fd.FullName() == "envoy.config.core.v3.HeaderValue.value":
						found[p.leaf().FullName()] = true
					case !known[fd.FullName()]:
						unknown[fd.FullName()] = append(unknown[fd.FullName()], p.String())
					}
				}
			}
		}
	}
	replace(base, try)
	t.Logf("%d texts, and %d fields that are formats: %v", texts, len(found), slices.Sorted(maps.Keys(found)))
	for name := range found {
		if !manifest.IsFormat(name) {
			t.Errorf("%s reaches a format of Envoy's, and validation does not look into it", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		t.Errorf("%s of Envoy is new here, set by %s: if it is a format, list what sets it in registry/manifest, else list it above", name, strings.Join(unknown[name][:min(3, len(unknown[name]))], ", "))
	}
	if len(found) == 0 {
		t.Error("no text reached a format: the test sees nothing")
	}
}

const formatsBase = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: shop}
spec:
  hosts: [a.shop.mesh]
  addresses: [10.1.0.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}, {number: 9000, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.1, labels: {app: a}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec:
  hosts: [a.shop.mesh]
  http: [{route: [{destination: {host: a.shop.mesh}}]}]
  tcp: [{match: [{port: 9000}], route: [{destination: {host: a.shop.mesh}}]}]
  tls: [{match: [{port: 443, sniHosts: [a.shop.mesh]}], route: [{destination: {host: a.shop.mesh}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a.shop.mesh, trafficPolicy: {tls: {mode: SIMPLE}}, subsets: [{name: v1, labels: {app: a}}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8081"}]
  egress: [{hosts: ["./*"]}]
`

func formatsProxy() view.Proxy {
	return proxyFile{Namespace: "shop", ServiceAccount: "web", IP: "10.9.9.9", Labels: map[string]string{"app": "web"}}.proxy()
}

// replace gives try each specification of the snapshot, with what makes a
// snapshot of it and the rest.
func replace(base *mesh.Snapshot, try func(proto.Message, func(proto.Message) *mesh.Snapshot)) {
	with := func(change func(*mesh.Fragment), mc *mesh.MeshConfig) *mesh.Snapshot {
		f := &mesh.Fragment{
			Source: "test", Services: base.Services, VirtualServices: slices.Clone(base.VirtualServices),
			DestinationRules: slices.Clone(base.DestinationRules), Sidecars: slices.Clone(base.Sidecars),
		}
		change(f)
		return mesh.NewSnapshot(nil, mc, []*mesh.Fragment{f})
	}
	for i, o := range base.VirtualServices {
		try(o.Spec, func(m proto.Message) *mesh.Snapshot {
			c := *o
			c.Spec, _ = m.(*networking.VirtualService)
			return with(func(f *mesh.Fragment) { f.VirtualServices[i] = &c }, base.MeshConfig)
		})
	}
	for i, o := range base.DestinationRules {
		try(o.Spec, func(m proto.Message) *mesh.Snapshot {
			c := *o
			c.Spec, _ = m.(*networking.DestinationRule)
			return with(func(f *mesh.Fragment) { f.DestinationRules[i] = &c }, base.MeshConfig)
		})
	}
	for i, o := range base.Sidecars {
		try(o.Spec, func(m proto.Message) *mesh.Snapshot {
			c := *o
			c.Spec, _ = m.(*networking.Sidecar)
			return with(func(f *mesh.Fragment) { f.Sidecars[i] = &c }, base.MeshConfig)
		})
	}
	try(base.MeshConfig.Spec, func(m proto.Message) *mesh.Snapshot {
		c := *base.MeshConfig
		c.Spec, _ = m.(*meshconfig.MeshConfig)
		return with(func(*mesh.Fragment) {}, &c)
	})
}

// textPath leads to a text in a message.
type textPath []protoreflect.FieldDescriptor

func (p textPath) leaf() protoreflect.FieldDescriptor { return p[len(p)-1] }

func (p textPath) String() string {
	names := make([]string, 0, len(p))
	for _, fd := range p {
		names = append(names, fd.JSONName())
	}
	return string(p[0].ContainingMessage().Name()) + "." + strings.Join(names, ".")
}

// textPaths are all that a message can have, but for those in messages that hold
// themselves.
func textPaths(d protoreflect.MessageDescriptor, before textPath) []textPath {
	for _, fd := range before {
		if fd.ContainingMessage() == d {
			return nil
		}
	}
	var out []textPath
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path, value := append(slices.Clone(before), fd), fd
		if fd.IsMap() {
			value = fd.MapValue()
		}
		switch {
		case value.Message() != nil:
			out = append(out, textPaths(value.Message(), path)...)
		case value.Kind() == protoreflect.StringKind:
			out = append(out, path)
		}
	}
	return out
}

// set writes the canary there.
func (p textPath) set(m protoreflect.Message) { p.setTo(m, canary) }

// setTo writes a text there; it makes what is on the way.
func (p textPath) setTo(m protoreflect.Message, s string) {
	fd, rest := p[0], p[1:]
	text := protoreflect.ValueOfString(s)
	switch {
	case fd.IsList():
		list := m.Mutable(fd).List()
		if len(rest) == 0 {
			list.Append(text)
			return
		}
		if list.Len() == 0 {
			list.AppendMutable()
		}
		rest.setTo(list.Get(0).Message(), s)
	case fd.IsMap():
		entries, key := m.Mutable(fd).Map(), protoreflect.ValueOfString("x-canary").MapKey()
		if fd.MapKey().Kind() != protoreflect.StringKind {
			return
		}
		if len(rest) == 0 {
			entries.Set(key, text)
			return
		}
		rest.setTo(entries.Mutable(key).Message(), s)
	case len(rest) == 0:
		m.Set(fd, text)
	default:
		rest.setTo(m.Mutable(fd).Message(), s)
	}
}

// textsWith are the fields whose text, or key, holds what is looked for; what is
// packed is looked into.
func textsWith(t *testing.T, m protoreflect.Message, text string) []protoreflect.FieldDescriptor {
	t.Helper()
	var out []protoreflect.FieldDescriptor
	if packed, ok := m.Interface().(*anypb.Any); ok {
		inner, err := packed.UnmarshalNew()
		fatalIf(t, err, "unpacking %s", packed.GetTypeUrl())
		return textsWith(t, inner.ProtoReflect(), text)
	}
	value := func(fd, kind protoreflect.FieldDescriptor, v protoreflect.Value) {
		if kind.Message() != nil {
			out = append(out, textsWith(t, v.Message(), text)...)
		} else if strings.Contains(v.String(), text) {
			out = append(out, fd)
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsList():
			for i := range v.List().Len() {
				value(fd, fd, v.List().Get(i))
			}
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if strings.Contains(k.String(), text) {
					out = append(out, fd)
				}
				value(fd, fd.MapValue(), v)
				return true
			})
		default:
			value(fd, fd, v)
		}
		return true
	})
	return out
}
