package proxyconfig

import (
	"fmt"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
)

// listenerRows has one row for each filter chain.
func listenerRows(e *Entry, l *listenerv3.Listener) (rows [][]string) {
	first, port := addressOf(l.GetAddress())
	addresses := []string{first}
	for _, more := range l.GetAdditionalAddresses() {
		a, _ := addressOf(more.GetAddress())
		addresses = append(addresses, a)
	}
	address := strings.Join(addresses, ",")
	chains := l.GetFilterChains()
	add := func(c *listenerv3.FilterChain, match string) {
		filters, destination := describeFilters(c.GetFilters())
		rows = append(rows, []string{address, port, match, filters, destination, from(e), l.GetName()})
	}
	for _, c := range chains {
		add(c, chainMatch(c.GetFilterChainMatch()))
	}
	if c := l.GetDefaultFilterChain(); c != nil {
		match := "ALL"
		if len(chains) > 0 {
			match = "no other chain"
		}
		add(c, match)
	}
	if len(rows) == 0 { // one that only hands connections over to others
		rows = append(rows, []string{address, port, "", "", "", from(e), l.GetName()})
	}
	return rows
}

// chainMatch says which connections a filter chain takes, in istioctl's words.
func chainMatch(m *listenerv3.FilterChainMatch) string {
	var out []string
	add := func(what string, list []string) {
		if len(list) > 0 {
			out = append(out, what+": "+strings.Join(list, ","))
		}
	}
	add("SNI", m.GetServerNames())
	if p := m.GetTransportProtocol(); p != "" {
		add("Trans", []string{p})
	}
	add("App", m.GetApplicationProtocols())
	port := ""
	if p := m.GetDestinationPort(); p != nil {
		port = fmt.Sprintf(":%d", p.GetValue())
	}
	var ranges []string
	for _, r := range m.GetPrefixRanges() {
		ranges = append(ranges, fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
	}
	switch {
	case len(ranges) > 0:
		out = append(out, "Addr: "+strings.Join(ranges, ",")+port)
	case port != "":
		out = append(out, "Addr: *"+port)
	}
	ranges = nil
	for _, r := range m.GetSourcePrefixRanges() {
		ranges = append(ranges, fmt.Sprintf("%s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
	}
	add("Source", ranges)
	if len(out) == 0 {
		return "ALL"
	}
	return strings.Join(out, "; ")
}

// describeFilters names the filters of a chain, and where its connections go.
func describeFilters(list []*listenerv3.Filter) (filters, destination string) {
	var names []string
	for _, f := range list {
		name := shortName(f.GetName())
		manager, proxy := &hcmv3.HttpConnectionManager{}, &tcpproxyv3.TcpProxy{}
		switch config := f.GetTypedConfig(); {
		case config.MessageIs(manager) && config.UnmarshalTo(manager) == nil:
			var inner []string
			for _, h := range manager.GetHttpFilters() {
				inner = append(inner, shortName(h.GetName()))
			}
			name, destination = "http("+strings.Join(inner, ",")+")", httpDestination(manager)
		case config.MessageIs(proxy) && config.UnmarshalTo(proxy) == nil:
			destination = tcpDestination(proxy)
		}
		names = append(names, name)
	}
	return strings.Join(names, ","), destination
}

// shortName leaves out of a filter's name what most of them have in common.
func shortName(name string) string {
	for _, prefix := range []string{"envoy.filters.network.", "envoy.filters.http.", "envoy.filters.listener."} {
		if short, ok := strings.CutPrefix(name, prefix); ok {
			return short
		}
	}
	return name
}

func httpDestination(m *hcmv3.HttpConnectionManager) string {
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		return "Route: " + name
	}
	hosts := m.GetRouteConfig().GetVirtualHosts()
	var parts []string
	for _, h := range hosts {
		for _, r := range h.GetRoutes() {
			where := strings.Join(destinations(r), ",")
			if len(hosts) == 1 && len(h.GetRoutes()) == 1 && r.GetMatch().GetPrefix() == "/" {
				return where
			}
			parts = append(parts, domains(h)+" "+routeMatch(r.GetMatch())+" → "+where)
		}
	}
	if len(parts) == 0 {
		return "HTTP"
	}
	return "Inline Route: " + strings.Join(parts, "; ")
}

// destinations are the destinations of a route, without weights.
func destinations(r *routev3.Route) (names []string) {
	for _, d := range routeDestinations(r) {
		names = append(names, d.where)
	}
	return names
}

func tcpDestination(p *tcpproxyv3.TcpProxy) string {
	weighted := p.GetWeightedClusters().GetClusters()
	if len(weighted) == 0 {
		return named(p.GetCluster())
	}
	var names []string
	for _, c := range weighted {
		names = append(names, fmt.Sprintf("%s %d", c.GetName(), c.GetWeight()))
	}
	return "Clusters: " + strings.Join(names, ", ")
}

// named is a cluster as a destination, the fixed ones by their name alone, as in istioctl.
func named(cluster string) string {
	if strings.HasSuffix(cluster, "Cluster") {
		return cluster
	}
	return "Cluster: " + cluster
}
