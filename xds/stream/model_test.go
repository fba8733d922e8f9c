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
// letters: c, e, l, r, s. A version that begins with "bad" is refused by the
// model, one that begins with "worse" without saying which it was.
func gen(number uint64, words ...string) *Generation {
	types := map[TypeURL][]*Resource{}
	for _, w := range words {
		t, rest, _ := strings.Cut(w, "/")
		name, version, _ := strings.Cut(rest, "=")
		url := letter(t)
		types[url] = append(types[url], NewResource(url, Resource{Name: name, Version: version, Body: []byte(version)}))
	}
	l := &Layer{Types: map[TypeURL]*Set{}}
	for url, list := range types {
		l.Types[url] = NewSet(list)
	}
	return &Generation{Number: number, Layers: []*Layer{l}}
}

func letter(t string) TypeURL {
	return map[string]TypeURL{"c": ClusterType, "e": EndpointType, "l": ListenerType, "r": RouteType, "s": SecretType}[t]
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
	// warming are clusters without endpoints, and heldACK the answer that waits.
	warming map[string]bool
	heldACK string
	mute    map[TypeURL]bool // types of which nothing is answered
	nacks   int
	sent    int
}

func newModel(t *testing.T, s *Server) *model {
	t.Helper()
	m := &model{t: t, now: start, runs: map[TypeURL]map[string]string{}, listed: map[TypeURL]map[string]string{}, mute: map[TypeURL]bool{}}
	for _, u := range []TypeURL{ClusterType, EndpointType, ListenerType, RouteType, SecretType} {
		m.runs[u], m.listed[u] = map[string]string{}, map[string]string{}
	}
	m.connect(s)
	return m
}

// connect opens a stream, with what is listed.
func (m *model) connect(s *Server) {
	m.server = s
	m.heldACK = ""
	m.warming = map[string]bool{}
	m.asked = map[TypeURL]map[string]bool{EndpointType: {}, RouteType: {}}
	m.request(ClusterType, nil, m.listed[ClusterType])
	if names := slices.Sorted(maps.Keys(m.runs[ClusterType])); len(names) > 0 {
		m.request(EndpointType, names, m.listed[EndpointType])
	}
	m.request(ListenerType, nil, m.listed[ListenerType])
	if names := slices.Sorted(maps.Keys(m.runs[ListenerType])); len(names) > 0 {
		m.request(RouteType, names, m.listed[RouteType])
	}
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
	short := strings.ToLower(u.Short()[:1])
	if u == EndpointType {
		short = "e"
	}
	if len(r.GetResources()) > 0 && len(r.GetRemovedResources()) > 0 {
		m.t.Errorf("a response both adds and removes: %v", r)
	}
	bad := []string{}
	worse := slices.ContainsFunc(r.GetResources(), func(x *discovery.Resource) bool { return strings.HasPrefix(x.GetVersion(), "worse") })
	words := []string{}
	for _, x := range r.GetResources() {
		m.sent++
		words = append(words, fmt.Sprintf("%s+%s=%s", short, x.GetName(), x.GetResource().GetValue()))
		switch {
		case worse:
		case strings.HasPrefix(x.GetVersion(), "bad"):
			bad = append(bad, x.GetName()+": does not compute")
		default:
			m.runs[u][x.GetName()] = string(x.GetResource().GetValue())
			if u == ClusterType {
				m.warming[x.GetName()] = true
			}
		}
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, short+"-"+n)
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
		m.do(ack)
		return
	}
	for _, x := range r.GetResources() {
		m.listed[u][x.GetName()] = x.GetVersion()
	}
	if u == ClusterType && len(r.GetResources()) > 0 {
		m.heldACK = r.GetNonce()
		return
	}
	m.do(ack)
}

// after asks for what follows from what was received.
func (m *model) after(u TypeURL, r *discovery.DeltaDiscoveryResponse) {
	m.t.Helper()
	follow := map[TypeURL]TypeURL{ClusterType: EndpointType, ListenerType: RouteType}
	if next, ok := follow[u]; ok {
		var add, drop []string
		for _, x := range r.GetResources() {
			if _, runs := m.runs[u][x.GetName()]; runs && !m.asked[next][x.GetName()] {
				add = append(add, x.GetName())
				m.asked[next][x.GetName()] = true
			}
		}
		for _, n := range r.GetRemovedResources() {
			if m.asked[next][n] {
				drop = append(drop, n)
				delete(m.asked[next], n)
				delete(m.runs[next], n)
				delete(m.listed[next], n)
				delete(m.warming, n)
			}
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
	if len(m.warming) == 0 && m.heldACK != "" && !m.mute[ClusterType] {
		nonce := m.heldACK
		m.heldACK = ""
		m.do(&discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResponseNonce: nonce})
	}
}

// got gives the log since the last call, a response a line, without empty ones.
func (m *model) got() string {
	log := slices.DeleteFunc(m.log, func(s string) bool { return s == "" })
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
