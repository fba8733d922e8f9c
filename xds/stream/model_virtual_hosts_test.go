package stream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// routeConfigVersion is the version of a route configuration that is in force, or empty.
func (m *model) routeConfigVersion(name string) string {
	return cmp.Or(m.runs[RouteType][name], m.kept[name])
}

// receiveRouteConfig updates the state of a route configuration's virtual hosts.
func (m *model) receiveRouteConfig(x *discovery.Resource) {
	m.t.Helper()
	if isVHDS(x.GetVersion()) && m.routeConfigVersion(x.GetName()) == "" {
		m.waits[x.GetName()] = true // one that was inline has its earlier virtual hosts at once
	}
	delete(m.kept, x.GetName())
	if !isVHDS(x.GetVersion()) {
		delete(m.waits, x.GetName())
	}
}

// receiveHosts takes a response with virtual hosts. Those of route configurations that do
// not exist are lost.
func (m *model) receiveHosts(r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	var words []string
	routeConfigs := map[string]bool{}
	var bad *discovery.Resource
	for _, x := range r.GetResources() {
		m.sent++
		words = append(words, "v+"+x.GetName()+"="+x.GetVersion())
		routeConfig, _, _ := strings.Cut(x.GetName(), "/")
		routeConfigs[routeConfig] = true
		if isBad(x.GetVersion()) || isWorse(x.GetVersion()) {
			bad = x
		}
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, "v-"+n)
		routeConfig, _, _ := strings.Cut(n, "/")
		routeConfigs[routeConfig] = true
	}
	m.log = append(m.log, strings.Join(words, " "))
	if len(routeConfigs) != 1 {
		m.t.Errorf("a response with virtual hosts of %d route configurations: %v", len(routeConfigs), r)
	}
	ack := &discovery.DeltaDiscoveryRequest{TypeUrl: string(VirtualHostType), ResponseNonce: r.GetNonce()}
	if bad != nil {
		m.nacks++
		ack.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Proto constraint validation failed"}
		if isBad(bad.GetVersion()) {
			ack.ErrorDetail.Message = "something is wrong with " + bad.GetName()
		}
		m.reply(ack)
		return
	}
	for routeConfig := range routeConfigs {
		there := isVHDS(m.routeConfigVersion(routeConfig))
		if there {
			delete(m.waits, routeConfig)
		}
		for _, x := range r.GetResources() {
			if there {
				m.runs[VirtualHostType][x.GetName()] = x.GetVersion()
			}
			m.listed[VirtualHostType][x.GetName()] = x.GetVersion()
		}
		if !there {
			m.log = append(m.log, "LOST "+routeConfig+" is "+m.runs[RouteType][routeConfig])
		}
		for _, n := range r.GetRemovedResources() {
			if there {
				delete(m.runs[VirtualHostType], n)
			}
			delete(m.listed[VirtualHostType], n)
		}
	}
	if !m.mute[VirtualHostType] {
		m.reply(ack)
	}
}

// forget forgets a name to which it does not subscribe any more.
func (m *model) forget(u TypeURL, name string) {
	delete(m.subscribed[u], name)
	delete(m.runs[u], name)
	delete(m.listed[u], name)
	switch u {
	case EndpointType:
		delete(m.warming, name)
	case ExtensionType:
		delete(m.lastExtension, name)
	case RouteType:
		m.forgetRouteConfig(name)
	default:
	}
}

// drain ends the connections of removed listeners.
func (m *model) drain() {
	m.t.Helper()
	names := slices.Sorted(maps.Keys(m.draining))
	if len(names) == 0 {
		return
	}
	clear(m.draining)
	for _, n := range names {
		m.forget(ExtensionType, n)
		m.forget(RouteType, n)
	}
	m.log = append(m.log, fmt.Sprint("drained ", names))
	for _, u := range []TypeURL{ExtensionType, RouteType} {
		if u == ExtensionType && !m.extends {
			continue
		}
		m.send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(u), ResourceNamesUnsubscribe: names})
	}
}

// forgetRouteConfig forgets a route configuration and its virtual hosts.
func (m *model) forgetRouteConfig(routeConfig string) {
	delete(m.waits, routeConfig)
	delete(m.kept, routeConfig)
	for _, of := range []map[string]string{m.runs[VirtualHostType], m.listed[VirtualHostType]} {
		maps.DeleteFunc(of, func(name, _ string) bool { return strings.HasPrefix(name, routeConfig+"/") })
	}
}
