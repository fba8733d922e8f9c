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

// start is when every test begins; the package reads no clock.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// gen makes a generation from "type/name=version" words, types by their first
// letters: c, e, l, r, s; R is a route configuration whose hosts travel by
// themselves, and v is such a host. A version that begins with "bad" is refused
// by the model, one that begins with "worse" without saying which it was. A word
// that ends in "@layer" puts the resource there.
func gen(number uint64, words ...string) *Generation {
	return sharing{}.gen(number, words...)
}

// sharing makes generations that share what is equal in them, by content.
type sharing map[string]*Set

func (s sharing) gen(number uint64, words ...string) *Generation {
	layers := map[string]map[TypeURL][]string{}
	for _, w := range words {
		w, in, _ := strings.Cut(w, "@")
		t, rest, _ := strings.Cut(w, "/")
		name := "all but tables" + in
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
				r.Version = "shell" + r.Version
			}
			list = append(list, NewResource(url, r))
		}
		s[key] = NewSet(list)
	}
	return s[key]
}

func letter(t string) TypeURL {
	return map[string]TypeURL{
		"c": ClusterType, "e": EndpointType, "l": ListenerType, "r": RouteType, "R": RouteType, "v": VirtualHostType, "s": SecretType,
	}[t]
}

// model is a peer that behaves as Envoy was seen to: it applies a refused
// response in part, holds the ACK of clusters until they have endpoints, and
// lists after a reconnect what it ACKed, true or not.
type model struct {
	t      *testing.T
	server *Server
	now    time.Time

	runs   map[TypeURL]map[string]string // what it really runs
	listed map[TypeURL]map[string]string // what it would say
	asked  map[TypeURL]map[string]bool
	log    []string // what it got: "c+a=1", "l-x"
	// warming are clusters without endpoints, and heldACKs the answers that wait.
	warming  map[string]bool
	heldACKs []string
	// Where it is not nil: what the server has reason to believe of the peer.
	told    *told
	secrets []string // asked for by name
	// lingers has it keep the tables of listeners that have gone until they drain;
	// draining are those.
	lingers  bool
	draining map[string]bool
	mute     map[TypeURL]bool // types of which nothing is answered
	slow     bool             // answers are late
	late     []*discovery.DeltaDiscoveryRequest
	nacks    int
	sent     int

	// Of virtual hosts: whether they were asked for on this stream, which route
	// configurations wait for the first response with some, and those that had the
	// hosts that they run by an earlier subscription.
	hostsAsked bool
	waits      map[string]bool
	// kept are route configurations that were removed: Envoy keeps those that it
	// asks for, and their virtual hosts, but tells nobody.
	kept map[string]string
}

func newModel(t *testing.T, s *Server) *model {
	t.Helper()
	m := &model{t: t, now: start, runs: map[TypeURL]map[string]string{}, listed: map[TypeURL]map[string]string{}, mute: map[TypeURL]bool{}, kept: map[string]string{}}
	for _, u := range []TypeURL{ClusterType, EndpointType, ListenerType, RouteType, VirtualHostType, SecretType} {
		m.runs[u], m.listed[u] = map[string]string{}, map[string]string{}
	}
	m.connect(s)
	return m
}

// connect opens a stream, with what is listed.
func (m *model) connect(s *Server) {
	m.server = s
	m.log = append(m.log, "connected")
	m.heldACKs = nil
	m.late, m.slow, m.hostsAsked = nil, false, false
	m.warming = map[string]bool{}
	if m.waits == nil {
		m.waits = map[string]bool{}
	}
	m.asked = map[TypeURL]map[string]bool{EndpointType: {}, RouteType: {}}
	m.request(ClusterType, nil, m.listed[ClusterType])
	if names := slices.Sorted(maps.Keys(m.runs[ClusterType])); len(names) > 0 {
		m.request(EndpointType, names, m.listed[EndpointType])
	}
	if len(m.secrets) > 0 {
		m.asked[SecretType] = map[string]bool{}
		m.request(SecretType, m.secrets, m.listed[SecretType])
	}
	m.request(ListenerType, nil, m.listed[ListenerType])
	tables := maps.Clone(m.draining)
	if tables == nil {
		tables = map[string]bool{}
	}
	for name := range m.runs[ListenerType] {
		tables[name] = true
	}
	if names := slices.Sorted(maps.Keys(tables)); len(names) > 0 {
		m.request(RouteType, names, m.listed[RouteType])
	}
	for _, tables := range []map[string]string{m.runs[RouteType], m.kept} {
		for _, version := range tables {
			if isShell(version) {
				m.askHosts()
			}
		}
	}
}

// isShell says the form of a route configuration by what the model runs.
func isShell(version string) bool { return strings.HasPrefix(version, "shell") }

// isBad and isWorse say whether the model refuses a version.
func isBad(version string) bool {
	return strings.HasPrefix(strings.TrimPrefix(version, "shell"), "bad")
}

func isWorse(version string) bool {
	return strings.HasPrefix(strings.TrimPrefix(version, "shell"), "worse")
}

// askHosts asks for virtual hosts, once a stream.
func (m *model) askHosts() {
	m.t.Helper()
	if !m.hostsAsked {
		m.hostsAsked = true
		m.request(VirtualHostType, nil, maps.Clone(m.listed[VirtualHostType]))
	}
}

// reply answers, perhaps later.
func (m *model) reply(r *discovery.DeltaDiscoveryRequest) {
	m.t.Helper()
	if m.slow {
		m.late = append(m.late, r)
		return
	}
	m.do(r)
}

func (m *model) catchUp() {
	m.t.Helper()
	m.slow = false
	for _, r := range m.late {
		m.do(r)
	}
	m.late = nil
}

func (m *model) request(u TypeURL, names []string, versions map[string]string) {
	m.t.Helper()
	m.do(&discovery.DeltaDiscoveryRequest{TypeUrl: string(u), ResourceNamesSubscribe: names, InitialResourceVersions: versions})
	for _, n := range names {
		m.asked[u][n] = true
	}
}

func (m *model) do(r *discovery.DeltaDiscoveryRequest) {
	m.t.Helper()
	m.told.request(m, r)
	if err := m.server.Request(m.now, r); err != nil {
		m.t.Fatal(err)
	}
}

// run exchanges messages until nobody has anything to say.
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
		m.take(r)
	}
}

func (m *model) take(r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	u := TypeURL(r.GetTypeUrl())
	m.told.response(m, r)
	short := strings.ToLower(u.Short()[:1])
	if u == EndpointType {
		short = "e"
	}
	if u != VirtualHostType && len(r.GetResources()) > 0 && len(r.GetRemovedResources()) > 0 {
		m.t.Errorf("a response both adds and removes: %v", r)
	}
	if u == VirtualHostType {
		m.takeHosts(r)
		return
	}
	bad := []string{}
	worse := slices.ContainsFunc(r.GetResources(), func(x *discovery.Resource) bool { return isWorse(x.GetVersion()) })
	words := []string{}
	for _, x := range r.GetResources() {
		m.sent++
		words = append(words, fmt.Sprintf("%s+%s=%s", short, x.GetName(), x.GetResource().GetValue()))
		if isShell(x.GetVersion()) {
			words[len(words)-1] += "(shell)"
		}
		switch {
		case worse:
		case isBad(x.GetVersion()):
			bad = append(bad, x.GetName()+": does not compute")
		default:
			if u == RouteType {
				m.takeTable(x)
			}
			m.runs[u][x.GetName()] = string(x.GetResource().GetValue())
			if u == RouteType && isShell(x.GetVersion()) {
				m.runs[u][x.GetName()] = x.GetVersion()
			}
			if u == ClusterType {
				m.warming[x.GetName()] = true
			}
		}
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, short+"-"+n)
		if version := m.table(n); u == RouteType && version != "" && m.asked[u][n] {
			m.kept[n] = version
		}
		delete(m.runs[u], n)
		delete(m.listed[u], n)
	}
	m.log = append(m.log, strings.Join(words, " "))
	m.answer(u, r, bad, worse)
	m.after(u, r)
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

// after asks for what follows from what was received.
func (m *model) after(u TypeURL, r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	follow := map[TypeURL]TypeURL{ClusterType: EndpointType, ListenerType: RouteType}
	if next, ok := follow[u]; ok {
		var add, drop []string
		for _, x := range r.GetResources() {
			if _, runs := m.runs[u][x.GetName()]; runs {
				if u == ListenerType {
					delete(m.draining, x.GetName())
				}
				if !m.asked[next][x.GetName()] {
					add = append(add, x.GetName())
					m.asked[next][x.GetName()] = true
				}
			}
		}
		for _, n := range r.GetRemovedResources() {
			if !m.asked[next][n] {
				continue
			}
			if next == RouteType && m.lingers {
				m.draining[n] = true
				continue
			}
			drop = append(drop, n)
			m.giveUp(next, n)
		}
		if len(add)+len(drop) > 0 {
			m.do(&discovery.DeltaDiscoveryRequest{TypeUrl: string(next), ResourceNamesSubscribe: add, ResourceNamesUnsubscribe: drop})
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
	if u == RouteType && slices.ContainsFunc(r.GetResources(), func(x *discovery.Resource) bool { return isShell(x.GetVersion()) }) {
		m.askHosts()
	}
	if len(m.warming) == 0 && !m.mute[ClusterType] {
		held := m.heldACKs
		m.heldACKs = nil
		for _, nonce := range held {
			m.reply(&discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResponseNonce: nonce})
		}
	}
}

// got gives the log since the last call, a response a line, without empty ones.
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
