package envoy

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// maxDirectResponse is the largest body that validation accepts.
const maxDirectResponse = 1 << 20

// VHDSRoutes is a route configuration whose virtual hosts are resources of their own
// (VHDS).
type VHDSRoutes struct {
	// Base is the RouteConfiguration, without virtual hosts and with vhds.
	Base Resource
	// VirtualHosts are VirtualHosts named ROUTE_CONFIGURATION/HOST, including the
	// catch-all.
	VirtualHosts []Resource
}

// BuildVHDSRoutes makes a route configuration for VHDS. BuildVHDSBase, BuildVirtualHost and
// BuildCatchAll make each of its resources alone, with the same bytes.
func BuildVHDSRoutes(t *view.RouteConfiguration) (VHDSRoutes, []Diagnostic) {
	out := VHDSRoutes{Base: BuildVHDSBase(t.Name, t.AllPorts), VirtualHosts: make([]Resource, 0, len(t.VirtualHosts)+1)}
	var diagnostics []Diagnostic
	for _, h := range t.VirtualHosts {
		r, ds := BuildVirtualHost(t.Name, h)
		out.VirtualHosts, diagnostics = append(out.VirtualHosts, r), append(diagnostics, ds...)
	}
	if t.CatchAll != nil {
		out.VirtualHosts = append(out.VirtualHosts, BuildCatchAll(t.Name, *t.CatchAll))
	}
	return out, diagnostics
}

// Inline is the complete route configuration, for clients without VHDS. Its virtual hosts
// are sorted by name. It has no origins.
func (t *VHDSRoutes) Inline() Resource {
	hosts := make([][]byte, 0, len(t.VirtualHosts))
	for i := range t.VirtualHosts {
		hosts = append(hosts, t.VirtualHosts[i].Body)
	}
	body, err := vhds.Merge(t.Base.Body, hosts)
	if err != nil { // only for virtual hosts of another route configuration, or one over the size limit
		panic("envoy: " + err.Error())
	}
	return resource(RouteType, t.Base.Name, body, nil)
}

// SupportsVHDS reports whether the virtual hosts of a route configuration can be VHDS
// resources. Their names have one slash, after the name of the route configuration.
func SupportsVHDS(t *view.RouteConfiguration) bool {
	for _, h := range t.VirtualHosts {
		if strings.Contains(h.Name, vhds.Separator) {
			return false
		}
	}
	return t.Name != "" && !strings.Contains(t.Name, vhds.Separator)
}

// BuildVHDSBase makes the RouteConfiguration without virtual hosts and origins: collecting
// the origins of all virtual hosts costs more than everything else. Envoy waits for the
// first virtual host without a timeout, as for all our resources. With its default it would
// start after 15 seconds, and answer 404.
//
// allPorts has the port of a request's host count. (Istio leaves it out there, too, so that Envoy finds
// only the domains without a port: those of port 80.)
func BuildVHDSBase(routeName string, allPorts bool) Resource {
	return resource(RouteType, routeName, marshal(&routev3.RouteConfiguration{
		Name:                           routeName,
		ValidateClusters:               wrapperspb.Bool(false),
		Vhds:                           &routev3.Vhds{ConfigSource: ads()},
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponse),
		IgnorePortInHostMatching:       !allPorts,
	}), nil)
}

// BuildVirtualHost makes one VHDS resource. The name in the message is the name of the
// resource, because Envoy removes virtual hosts by that name.
func BuildVirtualHost(routeName string, h *view.VirtualHost) (Resource, []Diagnostic) {
	out := &routev3.VirtualHost{
		Name: hostName(routeName, h.Name), Domains: h.Domains, IncludeRequestAttemptCount: !h.NoAttemptCount,
		Routes: make([]*routev3.Route, 0, len(h.Routes)),
	}
	if h.RequireTLS {
		out.RequireTls = routev3.VirtualHost_ALL
	}
	for _, r := range h.Routes {
		out.Routes = append(out.Routes, buildRoute(r))
	}
	hoistRetryPolicy(out)
	hoistMetadata(out)
	return resource(VirtualHostType, out.GetName(), marshal(out), h.Origins()), nil
}

// BuildCatchAll makes the virtual host for unknown hosts, as Istio does: it forwards to the
// original destination, or answers 502.
func BuildCatchAll(routeName string, c view.CatchAll) Resource {
	name := "allow_any"
	r := &routev3.Route{Match: allPaths()}
	if c.Refuse {
		name = "block_all"
		r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	} else {
		r.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameOf(c.Cluster)},
			Timeout:          noTimeout(),
			MaxGrpcTimeout:   noTimeout(), //nolint:staticcheck // its successor cannot express it

			AppendXForwardedHost: c.ForwardedHost,
		}}
	}
	r.Name = name
	out := &routev3.VirtualHost{
		Name: hostName(routeName, name), Domains: []string{"*"}, Routes: []*routev3.Route{r}, IncludeRequestAttemptCount: !c.NoAttemptCount,
	}
	return resource(VirtualHostType, out.GetName(), marshal(out), nil)
}

func hostName(routeName, host string) string { return routeName + vhds.Separator + host }
