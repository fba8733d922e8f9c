package view

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// headerFields is a message for each field of proxyHeaders, at any depth, in which that field
// alone has another value than its zero.
func headerFields(tb testing.TB) map[string]*meshconfig.ProxyConfig_ProxyHeaders {
	tb.Helper()
	out := map[string]*meshconfig.ProxyConfig_ProxyHeaders{}
	var walk func(path []protoreflect.FieldDescriptor, m protoreflect.MessageDescriptor)
	walk = func(path []protoreflect.FieldDescriptor, m protoreflect.MessageDescriptor) {
		for i := range m.Fields().Len() {
			fd := m.Fields().Get(i)
			here := slices.Concat(path, []protoreflect.FieldDescriptor{fd})
			if fd.Message() != nil {
				walk(here, fd.Message())
				continue
			}
			one, name := &meshconfig.ProxyConfig_ProxyHeaders{}, ""
			at := one.ProtoReflect()
			for _, step := range here[:len(here)-1] {
				at, name = at.Mutable(step).Message(), name+string(step.Name())+"."
			}
			at.Set(fd, map[protoreflect.Kind]protoreflect.Value{
				protoreflect.BoolKind: protoreflect.ValueOfBool(true), protoreflect.StringKind: protoreflect.ValueOfString("x"), protoreflect.EnumKind: protoreflect.ValueOfEnum(1),
			}[fd.Kind()])
			out[name+string(fd.Name())] = one
		}
	}
	walk(nil, (&meshconfig.ProxyConfig_ProxyHeaders{}).ProtoReflect().Descriptor())
	if len(out) < 10 {
		tb.Fatalf("only %d fields", len(out))
	}
	return out
}

// headersMesh has an HTTP service that one VirtualService rewrites, a TCP service, and ports of
// the proxy's own.
func headersMesh(tb testing.TB, defaults *meshconfig.ProxyConfig_ProxyHeaders) *meshFixture {
	tb.Helper()
	w := newMeshFixture(tb)
	if defaults != nil {
		w.mc.DefaultConfig = &meshconfig.ProxyConfig{ProxyHeaders: defaults}
	}
	w.service("shop", "orders.mesh", 80)
	w.service("shop", "carts.mesh", 80)
	tcp := w.service("shop", "db.mesh", 5432)
	tcp.Ports[0].Protocol = mesh.TCP
	w.routes("shop", "orders", `{"hosts":["orders.mesh"],"http":[{"rewrite":{"authority":"new.mesh"},"route":[{"destination":{"host":"orders.mesh"}}]}]}`)
	w.sidecar("shop", "own", `{"ingress":[{"port":{"number":9080,"name":"http","protocol":"HTTP"},"defaultEndpoint":"127.0.0.1:8080"}],"egress":[{"hosts":["*/*"]}]}`)
	return w
}

// expectHeaders fails unless all parts of a view are made with the settings.
func expectHeaders(t *testing.T, v *View, want *meshconfig.ProxyConfig_ProxyHeaders) {
	t.Helper()
	keepsCase, noCount, host := want.GetPreserveHttp1HeaderCase().GetValue(), want.GetAttemptCount().GetDisabled().GetValue(), want.GetXForwardedHost().GetEnabled().GetValue()
	managers, clusters, hosts, rewrites := 0, 0, 0, 0
	for p := range v.Parts() {
		switch p := p.(type) {
		case *Listener:
			for _, c := range slices.Concat(p.Chains, []*FilterChain{p.Default}) {
				if c == nil || c.HTTP == nil {
					continue
				}
				if managers++; !proto.Equal(c.HTTP.Headers, want) {
					t.Errorf("%s of listener %s has %v", c.Name, p.Name, c.HTTP.Headers)
				}
			}
		case *Cluster:
			if http := p.Protocol.IsHTTP() || p.Protocol == mesh.Undeclared; http {
				if clusters++; p.KeepHeaderCase != keepsCase {
					t.Errorf("cluster %v keeps the case of headers: %t", p.Ref, p.KeepHeaderCase)
				}
			}
		case *RouteConfiguration:
			for _, vh := range p.VirtualHosts {
				if hosts++; vh.NoAttemptCount != noCount {
					t.Errorf("virtual host %s has no count of attempts: %t", vh.Name, vh.NoAttemptCount)
				}
				for _, r := range vh.Routes {
					if r.Rule.GetRewrite() == nil {
						continue
					}
					if rewrites++; r.ForwardedHost != host {
						t.Errorf("a route of %s forwards the host: %t", vh.Name, r.ForwardedHost)
					}
				}
			}
			if c := p.CatchAll; c != nil && (c.NoAttemptCount != noCount || c.ForwardedHost != host) {
				t.Errorf("the catch-all of %s: %v", p.Name, c)
			}
		}
	}
	if clusters == 0 || v.proxy.Type == Sidecar && (managers < 2 || hosts < 2 || rewrites == 0) {
		t.Errorf("only %d HTTP connection managers, %d clusters, %d virtual hosts, %d routes with a rewrite", managers, clusters, hosts, rewrites)
	}
}

// TestOwnHeadersAreAsMeshConfigs: each field of proxyHeaders does for one proxy what it does for all
// in MeshConfig, and nothing for others, also if it comes and goes while the proxy is connected.
func TestOwnHeadersAreAsMeshConfigs(t *testing.T) {
	t.Parallel()
	for name, headers := range headerFields(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, mode := range []Interception{InterceptNone, InterceptRedirect} {
				for _, kind := range []ProxyType{Sidecar, Router} {
					p := proxyIn("shop", map[string]string{"app": "a"})
					p.Interception, p.Type = mode, kind
					own := p
					own.Headers = headers
					w := headersMesh(t, nil)
					plain := mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: w.mc}, []*mesh.Fragment{smallmesh.Clone(w.f.Sorted())})
					all, none := Build(headersMesh(t, headers).snapshot(), p), Build(plain, p)
					x := NewIndex(plain)
					one, other := x.Build(own), x.Build(p)
					if one.hash != all.hash {
						t.Errorf("%s %s: the proxy's own setting makes another view than MeshConfig's", kind, mode)
					}
					if other.hash != none.hash {
						t.Errorf("%s %s: the setting of one proxy reaches another one", kind, mode)
					}
					if got := x.Rebuild(other, own); got.hash != all.hash {
						t.Errorf("%s %s: a setting that comes later has another effect", kind, mode)
					}
					if got := x.Rebuild(one, p); got.hash != none.hash {
						t.Errorf("%s %s: a setting that went is still in force", kind, mode)
					}
					expectHeaders(t, one, headers)
					w.service("shop", "later.mesh", 80)
					later := x.Next(mesh.NewSnapshot(plain, plain.MeshConfig, []*mesh.Fragment{smallmesh.Clone(w.f.Sorted())})).Rebuild(one, own)
					if !hasCluster(later, Outbound("later.mesh", 80, "")) {
						t.Error("the view lacks a service that came later")
					}
					expectHeaders(t, later, headers)
				}
			}
		})
	}
}

// TestHeadersShareWhatTheyDoNotChange: a proxy with settings of its own has the same clusters as
// others, unless their case of headers differs, and then still the same for TCP.
func TestHeadersShareWhatTheyDoNotChange(t *testing.T) {
	t.Parallel()
	x := NewIndex(headersMesh(t, nil).snapshot())
	p := proxyIn("shop", map[string]string{"app": "a"})
	for name, headers := range headerFields(t) {
		own := p
		own.Headers = headers
		a, b := x.Build(p), x.Build(own)
		same := func(host mesh.Hostname, port uint32) bool {
			of := func(v *View) *Cluster {
				return findPart(t, v, func(c *Cluster) bool { return c.Ref == Outbound(host, port, "") })
			}
			return of(a) == of(b)
		}
		if !same("db.mesh", 5432) {
			t.Errorf("%s: a cluster of TCP is another one", name)
		}
		if same("orders.mesh", 80) != (headers.GetPreserveHttp1HeaderCase() == nil) {
			t.Errorf("%s: the cluster of HTTP is the same: %t", name, same("orders.mesh", 80))
		}
	}
}
