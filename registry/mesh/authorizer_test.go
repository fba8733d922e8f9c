package mesh_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestAuthorizers has providers that can be asked, and those that cannot, each with the reason.
func TestAuthorizers(t *testing.T) {
	t.Parallel()
	const ok = `"service":"opa.mesh","port":9000`
	for name, c := range map[string]struct {
		// providers are JSON; the one that is asked for is called "opa", unless name says otherwise.
		providers, name string
		// want is the namespace and host of the service, or what the error says.
		want string
	}{
		"http":              {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `}}`, want: "auth/opa.mesh"},
		"grpc":              {providers: `{"name":"opa","envoyExtAuthzGrpc":{` + ok + `}}`, want: "auth/opa.mesh"},
		"upper_case_host":   {providers: `{"name":"opa","envoyExtAuthzGrpc":{"service":"OPA.mesh","port":9000}}`, want: "auth/opa.mesh"},
		"namespace":         {providers: `{"name":"opa","envoyExtAuthzGrpc":{"service":"auth/opa.mesh","port":9000}}`, want: "auth/opa.mesh"},
		"namespace_of_two":  {providers: `{"name":"opa","envoyExtAuthzGrpc":{"service":"two/both.mesh","port":9000}}`, want: "two/both.mesh"},
		"other_kinds":       {providers: `{"name":"opa","zipkin":{"service":"a","port":1}},{"name":"opa","envoyExtAuthzHttp":{` + ok + `}}`, want: "auth/opa.mesh"},
		"declared_first":    {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"shadowed.mesh","port":9000}}`, want: "auth/shadowed.mesh"},
		"catalog":           {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"catalog.mesh","port":9000}}`, want: "consul/catalog.mesh"},
		"second_has_port":   {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"parts.mesh","port":9001}}`, want: "auth/parts.mesh"},
		"none":              {providers: ``, want: "no envoyExtAuthzHttp and no envoyExtAuthzGrpc of this name"},
		"other_name":        {providers: `{"name":"op","envoyExtAuthzHttp":{` + ok + `}}`, want: "of this name"},
		"only_other_kind":   {providers: `{"name":"opa","zipkin":{"service":"a","port":1}}`, want: "of this name"},
		"twice":             {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `}},{"name":"opa","envoyExtAuthzHttp":{` + ok + `}}`, want: "twice"},
		"no_name":           {name: "-", providers: `{"envoyExtAuthzHttp":{` + ok + `}}`, want: "names no provider"},
		"name_with_bracket": {name: "opa-ns[x", providers: `{"name":"opa-ns[x","envoyExtAuthzHttp":{` + ok + `}}`, want: "lower case letters"},
		"name_upper_case":   {name: "Opa", providers: `{"name":"Opa","envoyExtAuthzHttp":{` + ok + `}}`, want: "lower case letters"},
		"name_hyphen":       {name: "opa-", providers: `{"name":"opa-","envoyExtAuthzHttp":{` + ok + `}}`, want: "hyphen"},
		"name_long":         {name: strings.Repeat("a", 64), providers: ``, want: "more than 63"},
		"unknown_service":   {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"nobody.mesh","port":9000}}`, want: `there is no service "nobody.mesh"`},
		"other_namespace":   {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"shop/opa.mesh","port":9000}}`, want: `there is no service "shop/opa.mesh"`},
		"any_namespace":     {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"*/opa.mesh","port":9000}}`, want: "there is no service"},
		"ambiguous":         {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"both.mesh","port":9000}}`, want: "in the namespaces"},
		"unknown_port":      {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"opa.mesh","port":9999}}`, want: "no port 9999"},
		"no_port":           {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"opa.mesh"}}`, want: "no port 0"},
		"udp":               {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"opa.mesh","port":53}}`, want: "no port 53 for TCP"},
		"no_addresses":      {providers: `{"name":"opa","envoyExtAuthzHttp":{"service":"any.mesh","port":9000}}`, want: "no addresses"},
		"body":              {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"includeRequestBodyInCheck":{}}}`, want: "maxRequestBytes"},
		"body_grpc":         {providers: `{"name":"opa","envoyExtAuthzGrpc":{` + ok + `,"includeRequestBodyInCheck":{"packAsBytes":true}}}`, want: "maxRequestBytes"},
		"prefix":            {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"pathPrefix":"check"}}`, want: "pathPrefix"},
		"prefix_no_url":     {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"pathPrefix":"/%zz"}}`, want: "pathPrefix"},
		"star_check":        {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"includeRequestHeadersInCheck":["*"]}}`, want: "includeRequestHeadersInCheck"},
		"star_check_old":    {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"includeHeadersInCheck":["*"]}}`, want: "includeHeadersInCheck"},
		"star_up":           {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"headersToUpstreamOnAllow":["a","*"]}}`, want: "headersToUpstreamOnAllow"},
		"star_deny":         {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"headersToDownstreamOnDeny":["*"]}}`, want: "headersToDownstreamOnDeny"},
		"empty_allow":       {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"headersToDownstreamOnAllow":[""]}}`, want: "headersToDownstreamOnAllow"},
		"host_header":       {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"includeAdditionalHeadersInCheck":{"Host":"a"}}}`, want: "includeAdditionalHeadersInCheck"},
		"pseudo_header":     {providers: `{"name":"opa","envoyExtAuthzHttp":{` + ok + `,"includeAdditionalHeadersInCheck":{":path":"a"}}}`, want: "includeAdditionalHeadersInCheck"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := &meshconfig.MeshConfig{}
			if err := protojson.Unmarshal([]byte(`{"rootNamespace":"istio-system","extensionProviders":[`+c.providers+`]}`), spec); err != nil {
				t.Fatal(err)
			}
			asked := c.name
			switch asked {
			case "":
				asked = "opa"
			case "-":
				asked = ""
			}
			got, err := mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: spec}, []*mesh.Fragment{authorizerServices()}).Authorizer(asked)
			switch {
			case err != nil:
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				if unknown := strings.HasPrefix(c.want, "there is no service"); errors.Is(err, mesh.ErrNoProviderService) != unknown {
					t.Errorf("%v is about an unknown service: %v", err, !unknown)
				}
			case got.Service.Namespace+"/"+string(got.Service.Hostname) != c.want || (got.HTTP == nil) == (got.GRPC == nil) || got.Name != asked || got.Port.Number < 9000:
				t.Errorf("%+v, want %s", got, c.want)
			}
		})
	}
}

func authorizerServices() *mesh.Fragment {
	service := func(ns, name, host string, ports ...uint32) *mesh.Service {
		s := &mesh.Service{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: ns, Name: name}}, Hostname: mesh.Hostname(host), Resolution: mesh.ResolutionStatic}
		for _, p := range ports {
			protocol := mesh.HTTP
			if p == 53 {
				protocol = mesh.UDP
			}
			s.Ports = append(s.Ports, mesh.Port{Number: p, Protocol: protocol})
		}
		return s
	}
	catalog, shadowed := service("consul", "catalog", "catalog.mesh", 9000), service("consul", "shadowed", "shadowed.mesh", 9000)
	catalog.Catalog, shadowed.Catalog = true, true
	private := service("auth", "opa", "opa.mesh", 53, 9000)
	private.ExportTo = mesh.Exports{"auth"}
	none := service("auth", "none", "any.mesh", 9000)
	none.Resolution = mesh.ResolutionNone
	f := &mesh.Fragment{Services: []*mesh.Service{
		private, none, catalog, shadowed, service("auth", "shadowed", "shadowed.mesh", 9000),
		service("one", "both", "both.mesh", 9000), service("two", "both", "both.mesh", 9000),
		service("auth", "parts-1", "parts.mesh", 9000), service("auth", "parts-2", "parts.mesh", 9001),
	}}
	return f.Sorted()
}

// TestNobodyTakesAnAuthorizersPlace has sources that are bound to a namespace, and declare the
// host of an extension provider there. A provider without a namespace asks none of them, and they
// do not make its host ambiguous.
func TestNobodyTakesAnAuthorizersPlace(t *testing.T) {
	t.Parallel()
	service := func(ns string, catalog bool, exports ...string) *mesh.Service {
		return &mesh.Service{
			Meta:     mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: ns, Name: "opa"}},
			Hostname: "opa.mesh", Resolution: mesh.ResolutionStatic, Ports: []mesh.Port{{Number: 9000, Protocol: mesh.GRPC}},
			ExportTo: exports, Catalog: catalog,
		}
	}
	bindings := []*mesh.Binding{nil, {Namespaces: []string{"evil"}}, {Namespaces: []string{"worse"}}}
	ask := func(text string, defaults, exports []string, owner ...*mesh.Service) (string, error) {
		spec := &meshconfig.MeshConfig{DefaultServiceExportTo: defaults}
		spec.ExtensionProviders = []*meshconfig.MeshConfig_ExtensionProvider{{Name: "opa", Provider: &meshconfig.MeshConfig_ExtensionProvider_EnvoyExtAuthzGrpc{
			EnvoyExtAuthzGrpc: &mesh.GRPCAuthorizer{Service: text, Port: 9000},
		}}}
		s := mesh.Merge(mesh.Input{Fallback: &mesh.MeshConfig{Spec: spec}, Bindings: bindings, Fragments: []*mesh.Fragment{
			{Source: "operator", Services: owner},
			{Source: "evil", Services: []*mesh.Service{service("evil", false, exports...)}},
			{Source: "worse", Services: []*mesh.Service{service("worse", false, exports...)}},
		}})
		a, err := s.Authorizer("opa")
		if err != nil {
			return "", err
		}
		return a.Service.Namespace, nil
	}
	all := [][]string{nil, {"evil", "worse"}, {"~"}, {"*"}}
	for _, defaults := range [][]string{nil, {"."}, {"~"}, {"*"}} {
		for _, exports := range all {
			for _, mine := range all {
				for _, catalog := range []bool{false, true} {
					got, err := ask("opa.mesh", defaults, exports, service("auth", catalog, mine...))
					// A catalog's service that not all see gives way to one that somebody wrote.
					hidden := err != nil && catalog && !slices.Equal(mine, []string{"*"}) && (mine != nil || defaults != nil)
					if got != "auth" && !hidden {
						t.Errorf("defaults %q, exportTo %q of the tenants and %q of the operator's (catalog %v): asks %q, %v", defaults, exports, mine, catalog, got, err)
					}
				}
			}
			got, err := ask("opa.mesh", defaults, exports)
			if err == nil {
				t.Errorf("defaults %q, exportTo %q, nobody else declares the host: asks %q", defaults, exports, got)
			} else if errors.Is(err, mesh.ErrNoProviderService) || !strings.Contains(err.Error(), "write evil/opa.mesh") && !strings.Contains(err.Error(), "write worse/opa.mesh") {
				t.Errorf("defaults %q, exportTo %q: the error does not say what to write: %v", defaults, exports, err)
			}
			if got, err := ask("worse/opa.mesh", defaults, exports, service("auth", false)); err != nil || got != "worse" {
				t.Errorf("with the namespace: asks %q, %v", got, err)
			}
		}
	}
}
