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

// table is the version of a route configuration that is in force, or empty.
func (m *model) table(name string) string { return cmp.Or(m.runs[RouteType][name], m.kept[name]) }

// takeTable is what a route configuration does to its virtual hosts.
func (m *model) takeTable(x *discovery.Resource) {
	m.t.Helper()
	if isShell(x.GetVersion()) && m.table(x.GetName()) == "" {
		m.waits[x.GetName()] = true // one that was whole has those at once that it had before
	}
	delete(m.kept, x.GetName())
	if !isShell(x.GetVersion()) {
		delete(m.waits, x.GetName())
	}
}

// takeHosts takes virtual hosts: those of route configurations that are not
// there are lost.
func (m *model) takeHosts(r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	var words []string
	tables := map[string]bool{}
	var bad *discovery.Resource
	for _, x := range r.GetResources() {
		m.sent++
		words = append(words, "v+"+x.GetName()+"="+x.GetVersion())
		table, _, _ := strings.Cut(x.GetName(), "/")
		tables[table] = true
		if isBad(x.GetVersion()) || isWorse(x.GetVersion()) {
			bad = x
		}
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, "v-"+n)
		table, _, _ := strings.Cut(n, "/")
		tables[table] = true
	}
	m.log = append(m.log, strings.Join(words, " "))
	if len(tables) != 1 {
		m.t.Errorf("a response with virtual hosts of %d tables: %v", len(tables), r)
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
	for table := range tables {
		there := isShell(m.table(table))
		if there {
			delete(m.waits, table)
		}
		for _, x := range r.GetResources() {
			if there {
				m.runs[VirtualHostType][x.GetName()] = x.GetVersion()
			}
			m.listed[VirtualHostType][x.GetName()] = x.GetVersion()
		}
		if !there {
			m.log = append(m.log, "LOST "+table+" is "+m.runs[RouteType][table])
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

// giveUp forgets what is not asked for any more.
func (m *model) giveUp(u TypeURL, name string) {
	delete(m.asked[u], name)
	delete(m.runs[u], name)
	delete(m.listed[u], name)
	if u == EndpointType {
		delete(m.warming, name)
	} else {
		m.loseTable(name)
	}
}

// drain has the connections of listeners that have gone end.
func (m *model) drain() {
	m.t.Helper()
	names := slices.Sorted(maps.Keys(m.draining))
	if len(names) == 0 {
		return
	}
	clear(m.draining)
	for _, n := range names {
		m.giveUp(RouteType, n)
	}
	m.log = append(m.log, fmt.Sprint("drained ", names))
	m.do(&discovery.DeltaDiscoveryRequest{TypeUrl: string(RouteType), ResourceNamesUnsubscribe: names})
}

// loseTable forgets all of a route configuration.
func (m *model) loseTable(table string) {
	delete(m.waits, table)
	delete(m.kept, table)
	for _, of := range []map[string]string{m.runs[VirtualHostType], m.listed[VirtualHostType]} {
		maps.DeleteFunc(of, func(name, _ string) bool { return strings.HasPrefix(name, table+"/") })
	}
}
