package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

func makeAllPaths() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

// buildRoute makes one route of a VirtualService, or the default route of a service.
func buildRoute(p *view.Route) *routev3.Route {
	out := defaultRoute
	if p.Rule != nil {
		out = ruleRoute
	}
	r := out(p)
	if p.Traced {
		r.Decorator = operation(p, r.GetMatch())
	}
	return r
}

func ruleRoute(p *view.Route) *routev3.Route {
	out := &routev3.Route{
		Name:       p.Rule.GetName(),
		Match:      routeMatch(p.Match),
		StatPrefix: p.Match.GetStatPrefix(),
		Metadata:   configMetadata(p.Config),
	}
	if n := p.Match.GetName(); n != "" {
		out.Name += "." + n
	}
	ops := headerOps(p.Rule.GetHeaders())
	out.RequestHeadersToAdd, out.RequestHeadersToRemove = ops.requestAdd, ops.requestRemove
	out.ResponseHeadersToAdd, out.ResponseHeadersToRemove = ops.responseAdd, ops.responseRemove
	if p.HTTP3 {
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, announceHTTP3(p.Port))
	}
	switch {
	case p.Rule.GetRedirect() != nil:
		out.Action = redirect(p.Rule.GetRedirect(), p.Port, p.TLS)
	case p.Rule.GetDirectResponse() != nil:
		out.Action = directResponse(p.Rule.GetDirectResponse())
	default:
		forward(out, p, ops.authority)
	}
	perRoute(out, p.Rule)
	return out
}

func defaultRoute(p *view.Route) *routev3.Route {
	to := p.Destinations[0]
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameOf(to.Cluster)},
		RetryPolicy:      retryPolicy(p.Retry, false),
		HashPolicy:       hashPolicy(to.Hash),
		Timeout:          noTimeout(),
		MaxGrpcTimeout:   noTimeout(), //nolint:staticcheck // its successor cannot express it
	}
	return &routev3.Route{
		Name:   "default",
		Match:  allPaths(),
		Action: &routev3.Route_Route{Route: action},

		TypedPerFilterConfig: perDestination(to),
	}
}

// hoistMetadata moves the metadata from the routes to the virtual host, if all routes come
// from one object.
func hoistMetadata(host *routev3.VirtualHost) {
	routes := host.GetRoutes()
	if len(routes) < 2 || routes[0].GetMetadata() == nil {
		return
	}
	for _, r := range routes[1:] {
		if !proto.Equal(r.GetMetadata(), routes[0].GetMetadata()) {
			return
		}
	}
	host.Metadata = routes[0].GetMetadata()
	for _, r := range routes {
		r.Metadata = nil
	}
}

// configMetadata names the object that a route was made from, where Istio's tools expect
// it.
func configMetadata(k mesh.Key) *corev3.Metadata {
	path := "/apis/networking.istio.io/v1/namespaces/" + k.Namespace + "/virtual-service/" + k.Name
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio": {Fields: map[string]*structpb.Value{"config": structpb.NewStringValue(path)}},
	}}
}
