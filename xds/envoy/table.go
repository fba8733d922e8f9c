package envoy

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/fold"
	"github.com/fairlead/fairlead/xds/view"
)

// maxDirectResponse is the largest body that validation lets through.
const maxDirectResponse = 1 << 20

// Table is a route table whose virtual hosts travel by themselves (VHDS).
type Table struct {
	// Shell is the RouteConfiguration, which has no hosts and waits for them.
	Shell Resource
	// Hosts are VirtualHosts with names TABLE/HOST, the catch-all among them.
	Hosts []Resource
}

// BuildTable makes a route table in pieces. BuildShell, BuildHost and
// BuildCatchAll make each of them alone, with the same bytes.
func BuildTable(t *view.RouteConfiguration) (Table, []Diagnostic) {
	out := Table{Shell: BuildShell(t.Name), Hosts: make([]Resource, 0, len(t.VirtualHosts)+1)}
	var diagnostics []Diagnostic
	for _, h := range t.VirtualHosts {
		r, ds := BuildHost(t.Name, h)
		out.Hosts, diagnostics = append(out.Hosts, r), append(diagnostics, ds...)
	}
	if t.CatchAll != nil {
		out.Hosts = append(out.Hosts, BuildCatchAll(t.Name, *t.CatchAll))
	}
	return out, diagnostics
}

// Whole is the table in one piece, for those who want no VHDS. Its hosts are
// sorted by name. It has no origins.
func (t *Table) Whole() Resource {
	hosts := make([][]byte, 0, len(t.Hosts))
	for i := range t.Hosts {
		hosts = append(hosts, t.Hosts[i].Body)
	}
	body, err := fold.Fold(t.Shell.Body, hosts)
	if err != nil { // only pieces of another table, or a table beyond all bounds
		panic("envoy: " + err.Error())
	}
	return resource(RouteType, t.Shell.Name, body, nil)
}

// Splittable reports whether the virtual hosts of a table may travel by
// themselves: in their names what is before the only slash names the table.
func Splittable(t *view.RouteConfiguration) bool {
	for _, h := range t.VirtualHosts {
		if strings.Contains(h.Name, fold.Separator) {
			return false
		}
	}
	return t.Name != "" && !strings.Contains(t.Name, fold.Separator)
}

// BuildShell makes the RouteConfiguration of a table without its hosts, and so
// without an origin: to gather those of all hosts costs more than the rest.
// Envoy waits for the first host without end, as for everything that comes from
// us: by its own default it would open after 15 seconds and answer 404.
func BuildShell(table string) Resource {
	return resource(RouteType, table, marshal(&routev3.RouteConfiguration{
		Name:                           table,
		ValidateClusters:               wrapperspb.Bool(false),
		Vhds:                           &routev3.Vhds{ConfigSource: ads()},
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(maxDirectResponse),
		IgnorePortInHostMatching:       true,
	}), nil)
}

// BuildHost makes one virtual host of a table, under the name by which it
// travels by itself. The name in it is the same: Envoy removes by that one.
func BuildHost(table string, h *view.VirtualHost) (Resource, []Diagnostic) {
	out := &routev3.VirtualHost{
		Name: hostName(table, h.Name), Domains: h.Domains, IncludeRequestAttemptCount: true,
		Routes: make([]*routev3.Route, 0, len(h.Routes)),
	}
	for _, r := range h.Routes {
		out.Routes = append(out.Routes, buildRoute(r))
	}
	liftRetries(out)
	liftOrigin(out)
	return resource(VirtualHostType, out.GetName(), marshal(out), h.Origins()), nil
}

// BuildCatchAll makes the virtual host for hosts that nobody names, as Istio
// does: on to where the client wanted, or 502. The table has to have one.
func BuildCatchAll(table string, c view.CatchAll) Resource {
	name := "allow_any"
	r := &routev3.Route{Match: everyPath()}
	if c.Refuse {
		name = "block_all"
		r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}}
	} else {
		r.Action = &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: nameOf(c.Cluster)},
			Timeout:          never(),
			MaxGrpcTimeout:   never(), //nolint:staticcheck // its successor cannot express it
		}}
	}
	r.Name = name
	out := &routev3.VirtualHost{
		Name: hostName(table, name), Domains: []string{"*"}, Routes: []*routev3.Route{r}, IncludeRequestAttemptCount: true,
	}
	return resource(VirtualHostType, out.GetName(), marshal(out), nil)
}

func hostName(table, host string) string { return table + fold.Separator + host }
