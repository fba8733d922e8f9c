package stream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// start is the time at the beginning of every test; the package reads no clock.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// gen makes a generation from "type/name=version" words, types by their first letters: c,
// e, l, r, s; x is an extension, R is a route configuration whose virtual hosts are delivered by VHDS, and v
// is a virtual host. The model rejects a version that begins with "bad", and one that
// begins with "worse" without saying which resource it was. A word that ends in "@layer"
// puts the resource in that layer.
func gen(number uint64, words ...string) *Generation {
	return sharing{}.gen(number, words...)
}

// sharing makes generations that share equal sets.
type sharing map[string]*Set

func (s sharing) gen(number uint64, words ...string) *Generation {
	layers := map[string]map[TypeURL][]string{}
	for _, w := range words {
		w, in, _ := strings.Cut(w, "@")
		t, rest, _ := strings.Cut(w, "/")
		name := "all but route configurations" + in
		if t == "r" || t == "R" || t == "v" {
			name, _, _ = strings.Cut(rest, "=")
			name, _, _ = strings.Cut(name, "/")
		}
		if layers[name] == nil {
			layers[name] = map[TypeURL][]string{}
		}
		layers[name][letter(t)] = append(layers[name][letter(t)], w)
	}
	g := &Generation{Number: number}
	for _, name := range sortedKeys(layers) {
		l := &Layer{Name: name, Types: map[TypeURL]*Set{}}
		for url, words := range layers[name] {
			l.Types[url] = s.set(url, words)
		}
		g.Layers = append(g.Layers, l)
	}
	return g
}

func (s sharing) set(url TypeURL, words []string) *Set {
	key := strings.Join(words, " ")
	if s[key] == nil {
		var list []*Resource
		for _, w := range words {
			_, rest, _ := strings.Cut(w, "/")
			name, version, _ := strings.Cut(rest, "=")
			r := Resource{Name: name, Version: version, Body: []byte(version), Hosts: w[0] == 'R'}
			if r.Hosts {
				r.Version = "vhds" + r.Version
			}
			list = append(list, NewResource(url, r))
		}
		s[key] = NewSet(list)
	}
	return s[key]
}

func letter(t string) TypeURL {
	return map[string]TypeURL{
		"c": ClusterType, "e": EndpointType, "l": ListenerType, "r": RouteType, "R": RouteType, "v": VirtualHostType, "s": SecretType, "x": ExtensionType,
	}[t]
}

// ownType is the type of the resource that a peer has alone, and ownName its name.
const (
	ownType = TypeURL("type.googleapis.com/test.Own")
	ownName = "own"
)

// ownSet is the one resource of a peer.
func ownSet(version string) *Set {
	return NewSet([]*Resource{NewResource(ownType, Resource{Name: ownName, Version: version, Body: []byte(version)})})
}

// model is a peer that behaves as Envoy was observed to: it applies a NACKed response in
// part, delays the ACK of clusters until they have endpoints, and lists after a reconnect
// what it ACKed, whether it has that or not.
type model struct {
	t      *testing.T
	server *Server
	now    time.Time

	runs       map[TypeURL]map[string]string // what it runs
	listed     map[TypeURL]map[string]string // what it would list
	subscribed map[TypeURL]map[string]bool
	log        []string // what it received: "c+a=1", "l-x"
	// warming are clusters without endpoints, and heldACKs the ACKs that wait for them.
	warming  map[string]bool
	heldACKs []string
	// oracle, if not nil, finds resources that are sent again without need.
	oracle  *resendOracle
	secrets []string // subscribed by name
	owns    bool     // it subscribes to its own resource, see SetOwn
	// drains means that it keeps the route configurations of removed listeners until these
	// have drained; draining are those.
	drains      bool
	draining    map[string]bool
	mute        map[TypeURL]bool // types of which nothing is answered
	slow        bool             // answers are late
	lateAnswers []*discovery.DeltaDiscoveryRequest
	nacks       int
	sent        int

	// hostsSubscribed means that it has subscribed to virtual hosts on this stream. waits
	// are the route configurations that wait for the first response with virtual hosts.
	hostsSubscribed bool
	waits           map[string]bool
	// kept are route configurations that were removed: Envoy keeps those to which it
	// subscribes, with their virtual hosts, but does not list them.
	kept map[string]string
	// extends means that each listener names an extension of its own name.
	extends bool
	// lastExtension is the version of an extension that came last, accepted or not: Envoy
	// ACKs that one whatever it is, and changes nothing.
	lastExtension map[string]string
}

func newModel(t *testing.T, s *Server) *model {
	t.Helper()
	m := &model{t: t, now: start, runs: map[TypeURL]map[string]string{}, listed: map[TypeURL]map[string]string{}, mute: map[TypeURL]bool{}, kept: map[string]string{}}
	for _, u := range []TypeURL{ClusterType, EndpointType, ListenerType, RouteType, VirtualHostType, SecretType, ExtensionType, ownType} {
		m.runs[u], m.listed[u] = map[string]string{}, map[string]string{}
	}
	m.connect(s)
	return m
}

// connect opens a stream, with the listed versions.
func (m *model) connect(s *Server) {
	m.server = s
	m.log = append(m.log, "connected")
	m.heldACKs, m.lastExtension = nil, map[string]string{}
	m.lateAnswers, m.slow, m.hostsSubscribed = nil, false, false
	m.warming = map[string]bool{}
	if m.waits == nil {
		m.waits = map[string]bool{}
	}
	m.subscribed = map[TypeURL]map[string]bool{EndpointType: {}, RouteType: {}, ExtensionType: {}}
	m.request(ClusterType, nil, m.listed[ClusterType])
	if names := slices.Sorted(maps.Keys(m.runs[ClusterType])); len(names) > 0 {
		m.request(EndpointType, names, m.listed[EndpointType])
	}
	if len(m.secrets) > 0 {
		m.subscribed[SecretType] = map[string]bool{}
		m.request(SecretType, m.secrets, m.listed[SecretType])
	}
	if m.owns {
		m.subscribed[ownType] = map[string]bool{}
		m.request(ownType, []string{ownName}, m.listed[ownType])
	}
	m.request(ListenerType, nil, m.listed[ListenerType])
	routeConfigs := maps.Clone(m.draining)
	if routeConfigs == nil {
		routeConfigs = map[string]bool{}
	}
	for name := range m.runs[ListenerType] {
		routeConfigs[name] = true
	}
	if names := slices.Sorted(maps.Keys(routeConfigs)); len(names) > 0 {
		if m.extends {
			m.request(ExtensionType, names, m.listed[ExtensionType])
		}
		m.request(RouteType, names, m.listed[RouteType])
	}
	for _, routeConfigs := range []map[string]string{m.runs[RouteType], m.kept} {
		for _, version := range routeConfigs {
			if isVHDS(version) {
				m.subscribeHosts()
			}
		}
	}
}

// isVHDS tells by its version in the model whether a route configuration is delivered by
// VHDS.
func isVHDS(version string) bool { return strings.HasPrefix(version, "vhds") }

// isBad and isWorse tell whether the model rejects a version.
func isBad(version string) bool {
	return strings.HasPrefix(strings.TrimPrefix(version, "vhds"), "bad")
}

func isWorse(version string) bool {
	return strings.HasPrefix(strings.TrimPrefix(version, "vhds"), "worse")
}

// subscribeHosts subscribes to virtual hosts, once a stream.
func (m *model) subscribeHosts() {
	m.t.Helper()
	if !m.hostsSubscribed {
		m.hostsSubscribed = true
		m.request(VirtualHostType, nil, maps.Clone(m.listed[VirtualHostType]))
	}
}

// reply sends an answer, perhaps later.
func (m *model) reply(r *discovery.DeltaDiscoveryRequest) {
	m.t.Helper()
	if m.slow {
		m.lateAnswers = append(m.lateAnswers, r)
		return
	}
	m.send(r)
}

func (m *model) catchUp() {
	m.t.Helper()
	m.slow = false
	for _, r := range m.lateAnswers {
		m.send(r)
	}
	m.lateAnswers = nil
}

func (m *model) request(u TypeURL, names []string, versions map[string]string) {
	m.t.Helper()
	m.send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(u), ResourceNamesSubscribe: names, InitialResourceVersions: versions})
	for _, n := range names {
		m.subscribed[u][n] = true
	}
}

func (m *model) send(r *discovery.DeltaDiscoveryRequest) {
	m.t.Helper()
	m.oracle.request(m, r)
	if err := m.server.Request(m.now, r); err != nil {
		m.t.Fatal(err)
	}
}

// run exchanges messages until nothing is left to send.
func (m *model) run() {
	m.t.Helper()
	for i := 0; ; i++ {
		r := m.server.Next(m.now).Message()
		if r == nil {
			return
		}
		if i > 5000 {
			m.t.Fatalf("the server never stops sending; last %v", r)
		}
		m.receive(r)
	}
}

func (m *model) receive(r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	u := TypeURL(r.GetTypeUrl())
	m.oracle.response(m, r)
	short := strings.ToLower(u.Short()[:1])
	switch u {
	case EndpointType:
		short = "e"
	case ExtensionType:
		short = "x"
	default:
	}
	if u != VirtualHostType && len(r.GetResources()) > 0 && len(r.GetRemovedResources()) > 0 {
		m.t.Errorf("a response both adds and removes: %v", r)
	}
	if u == VirtualHostType {
		m.receiveHosts(r)
		return
	}
	bad := []string{}
	again := func(x *discovery.Resource) bool {
		return u == ExtensionType && m.lastExtension[x.GetName()] == x.GetVersion()
	}
	worse := slices.ContainsFunc(r.GetResources(), func(x *discovery.Resource) bool { return isWorse(x.GetVersion()) && !again(x) })
	words := []string{}
	for _, x := range r.GetResources() {
		m.sent++
		words = append(words, fmt.Sprintf("%s+%s=%s", short, x.GetName(), x.GetResource().GetValue()))
		if isVHDS(x.GetVersion()) {
			words[len(words)-1] += "(vhds)"
		}
		switch {
		case again(x):
		case worse:
		case isBad(x.GetVersion()):
			bad = append(bad, x.GetName()+": does not compute")
		default:
			if u == RouteType {
				m.receiveRouteConfig(x)
			}
			m.runs[u][x.GetName()] = string(x.GetResource().GetValue())
			if u == RouteType && isVHDS(x.GetVersion()) {
				m.runs[u][x.GetName()] = x.GetVersion()
			}
			if u == ClusterType {
				m.warming[x.GetName()] = true
			}
		}
	}
	if u == ExtensionType {
		for _, x := range r.GetResources() {
			m.lastExtension[x.GetName()] = x.GetVersion()
		}
		for _, n := range r.GetRemovedResources() {
			delete(m.lastExtension, n)
		}
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, short+"-"+n)
		if version := m.routeConfigVersion(n); u == RouteType && version != "" && m.subscribed[u][n] {
			m.kept[n] = version
		}
		if _, has := m.listed[u][n]; u == ExtensionType && has {
			m.t.Errorf("extension %s was removed while it is subscribed to: a listener that uses it refuses everything", n)
		}
		delete(m.runs[u], n)
		delete(m.listed[u], n)
	}
	m.log = append(m.log, strings.Join(words, " "))
	m.answer(u, r, bad, worse)
	m.subscribeDependents(u, r)
}

func (m *model) answer(u TypeURL, r *discovery.DeltaDiscoveryResponse, bad []string, worse bool) {
	m.t.Helper()
	if m.mute[u] {
		return
	}
	ack := &discovery.DeltaDiscoveryRequest{TypeUrl: string(u), ResponseNonce: r.GetNonce()}
	switch {
	case worse:
		ack.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Proto constraint validation failed"}
	case len(bad) > 0:
		kind := map[TypeURL]string{ClusterType: "cluster", ListenerType: "listener"}[u]
		ack.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "Error adding/updating " + cmp.Or(kind, "thing") + "(s) " + strings.Join(bad, ", ")}
	}
	if ack.ErrorDetail != nil {
		m.nacks++
		m.reply(ack)
		return
	}
	for _, x := range r.GetResources() {
		m.listed[u][x.GetName()] = x.GetVersion()
	}
	if u == ClusterType && len(r.GetResources()) > 0 {
		m.heldACKs = append(m.heldACKs, r.GetNonce())
		return
	}
	m.reply(ack)
}

// subscribeDependents subscribes to the dependents of what was received.
func (m *model) subscribeDependents(u TypeURL, r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	follow := map[TypeURL][]TypeURL{ClusterType: {EndpointType}, ListenerType: {ExtensionType, RouteType}}
	for _, next := range follow[u] {
		if next == ExtensionType && !m.extends {
			continue
		}
		var add, drop []string
		for _, x := range r.GetResources() {
			if _, runs := m.runs[u][x.GetName()]; runs {
				if u == ListenerType {
					delete(m.draining, x.GetName())
				}
				if !m.subscribed[next][x.GetName()] {
					add = append(add, x.GetName())
					m.subscribed[next][x.GetName()] = true
				}
			}
		}
		for _, n := range r.GetRemovedResources() {
			if !m.subscribed[next][n] {
				continue
			}
			if u == ListenerType && m.drains {
				m.draining[n] = true
				continue
			}
			drop = append(drop, n)
			m.forget(next, n)
		}
		if len(add)+len(drop) > 0 {
			m.send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(next), ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
		}
	}
	if u == EndpointType {
		for _, x := range r.GetResources() {
			delete(m.warming, x.GetName())
		}
		for _, n := range r.GetRemovedResources() {
			delete(m.warming, n)
		}
	}
	if u == RouteType && slices.ContainsFunc(r.GetResources(), func(x *discovery.Resource) bool { return isVHDS(x.GetVersion()) }) {
		m.subscribeHosts()
	}
	if len(m.warming) == 0 && !m.mute[ClusterType] {
		held := m.heldACKs
		m.heldACKs = nil
		for _, nonce := range held {
			m.reply(&discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResponseNonce: nonce})
		}
	}
}

// got returns the log since the last call, one response a line, without empty ones.
func (m *model) got() string {
	log := slices.DeleteFunc(m.log, func(s string) bool { return s == "" || s == "connected" })
	m.log = nil
	return strings.Join(log, "\n")
}

func (m *model) set(g *Generation) {
	m.t.Helper()
	m.server.SetGeneration(g)
	m.run()
}

func (m *model) wantLog(want ...string) {
	m.t.Helper()
	if got := m.got(); got != strings.Join(want, "\n") {
		m.t.Errorf("the peer got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

func (m *model) wantRuns(words ...string) {
	m.t.Helper()
	var got []string
	for l, u := range map[string]TypeURL{"c": ClusterType, "e": EndpointType, "l": ListenerType, "r": RouteType} {
		for n, v := range m.runs[u] {
			got = append(got, l+"/"+n+"="+v)
		}
	}
	slices.Sort(got)
	slices.Sort(words)
	if !slices.Equal(got, words) {
		m.t.Errorf("the peer runs %v, want %v", got, words)
	}
}

func (m *model) status(u TypeURL) TypeStatus {
	m.t.Helper()
	for _, st := range m.server.Status() {
		if st.Type == u {
			return st
		}
	}
	m.t.Fatalf("no status of %s", u)
	return TypeStatus{}
}
