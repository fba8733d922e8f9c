package stream

import (
	"fmt"
	"maps"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// told is the versions that a server sent on a stream, or was told that the peer
// has, as far as it has no reason to doubt that the peer has them: none of these
// may be sent again. An Envoy builds its whole route table anew for a virtual
// host, be it the one that it has.
type told struct {
	versions map[TypeURL]map[string]string
	// names are those of the unanswered responses, by nonce, and open how many of
	// these there are of a type.
	names map[string][]string
	open  map[TypeURL]int
	// follows are clusters whose endpoints are to come behind them. Who is back may
	// have no routes for the listeners that it is sent, until it has answered one:
	// afresh counts these, and came says after which of them a table came.
	follows map[string]bool
	back    bool
	afresh  int
	came    map[string]int
	// tables were sent on this stream: the form of others is not known.
	tables map[string]bool
	fault  string
}

// newTold is for a new stream of who lists some versions.
func newTold(listed map[TypeURL]map[string]string, distrust map[TypeURL][]string) *told {
	t := &told{
		versions: map[TypeURL]map[string]string{}, names: map[string][]string{}, open: map[TypeURL]int{},
		follows: map[string]bool{}, tables: map[string]bool{}, came: map[string]int{}, back: len(listed[ListenerType]) > 0,
	}
	for _, u := range []TypeURL{ClusterType, EndpointType, ListenerType, RouteType, VirtualHostType, SecretType} {
		t.versions[u] = map[string]string{}
		maps.Copy(t.versions[u], listed[u])
		for _, name := range distrust[u] {
			delete(t.versions[u], name)
		}
	}
	return t
}

// request takes what the peer says.
func (t *told) request(m *model, r *discovery.DeltaDiscoveryRequest) {
	if t == nil {
		return
	}
	u := TypeURL(r.GetTypeUrl())
	m.log = append(m.log, fmt.Sprintf("   > %s %s +%v -%v has %v %s", u.Short(), r.GetResponseNonce(),
		r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(), r.GetInitialResourceVersions(), r.GetErrorDetail().GetMessage()))
	if nonce := r.GetResponseNonce(); nonce != "" {
		if r.GetErrorDetail() != nil {
			t.doubt(u, t.names[nonce])
		}
		delete(t.names, nonce)
		t.open[u]--
		t.back = t.back && u != ListenerType
	}
	t.doubt(u, r.GetResourceNamesUnsubscribe())
	if u == RouteType {
		for _, table := range r.GetResourceNamesUnsubscribe() {
			t.doubtHosts(table)
		}
	}
	if r.GetInitialResourceVersions() == nil { // asked for again
		t.doubt(u, r.GetResourceNamesSubscribe())
	}
}

func (t *told) doubt(u TypeURL, names []string) {
	for _, name := range names {
		delete(t.versions[u], name)
	}
}

func (t *told) doubtHosts(table string) {
	maps.DeleteFunc(t.versions[VirtualHostType], func(name, _ string) bool { return strings.HasPrefix(name, table+"/") })
}

// response holds a response to what was sent before.
func (t *told) response(m *model, r *discovery.DeltaDiscoveryResponse) {
	if t == nil {
		return
	}
	u := TypeURL(r.GetTypeUrl())
	if u == ListenerType && t.back && len(r.GetResources()) > 0 {
		t.afresh++
	}
	var names []string
	for _, x := range r.GetResources() {
		name := x.GetName()
		names = append(names, name)
		before, sure := t.versions[u][name]
		again := sure && before == x.GetVersion()
		switch {
		case u == EndpointType && t.follows[name]:
			again = false
		case u == RouteType && t.came[name] < t.afresh:
			again, sure, t.came[name] = false, false, t.afresh
		}
		if again {
			t.fault = fmt.Sprintf("%s %s=%s was sent again; before:\n%s", u.Short(), name, x.GetVersion(), strings.Join(m.log[max(0, len(m.log)-60):], "\n"))
		}
		if u == RouteType && (!sure || !t.tables[name] || !isShell(before) || !isShell(x.GetVersion())) {
			t.doubtHosts(name) // it begins anew
			t.tables[name] = true
		}
		switch u {
		case ClusterType:
			t.follows[name] = true
		case EndpointType:
			delete(t.follows, name)
		default:
		}
		t.versions[u][name] = x.GetVersion()
	}
	names = append(names, r.GetRemovedResources()...)
	t.doubt(u, r.GetRemovedResources())
	t.names[r.GetNonce()] = names
	if t.open[u]++; t.open[u] > maxInflight { // the oldest of them is given up
		clear(t.versions[u])
		if u == RouteType {
			clear(t.versions[VirtualHostType])
		}
	}
}
