package stream

import (
	"fmt"
	"maps"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// resendOracle finds resources that are sent again without need. It keeps the versions
// that were sent on a stream, or listed by the peer, as long as nothing puts in doubt that
// the peer has them: none of these may be sent again. For Envoy every virtual host costs a
// rebuild of its route configuration, even an unchanged one.
type resendOracle struct {
	versions map[TypeURL]map[string]string
	// names are those in unanswered responses, by nonce; unanswered is the number of
	// these, by type.
	names      map[string][]string
	unanswered map[TypeURL]int
	// endpointsDue are clusters whose endpoints must be sent behind them. A peer that has
	// reconnected may have no routes for the listeners that it is sent, until it has
	// answered a listener response: listenerResponses counts these, and routesSentAfter
	// says after which of them a route configuration was sent.
	endpointsDue      map[string]bool
	reconnected       bool
	listenerResponses int
	routesSentAfter   map[string]int
	// sentRouteConfigs were sent on this stream: whether others are inline is not known.
	sentRouteConfigs map[string]bool
	fault            string
}

// newResendOracle is for a new stream of a peer that lists some versions.
func newResendOracle(listed map[TypeURL]map[string]string, unacknowledged map[TypeURL][]string) *resendOracle {
	t := &resendOracle{
		versions: map[TypeURL]map[string]string{}, names: map[string][]string{}, unanswered: map[TypeURL]int{},
		endpointsDue: map[string]bool{}, sentRouteConfigs: map[string]bool{}, routesSentAfter: map[string]int{}, reconnected: len(listed[ListenerType]) > 0,
	}
	for _, u := range []TypeURL{ClusterType, EndpointType, ListenerType, RouteType, VirtualHostType, SecretType, ExtensionType, ownType} {
		t.versions[u] = map[string]string{}
		maps.Copy(t.versions[u], listed[u])
		for _, name := range unacknowledged[u] {
			delete(t.versions[u], name)
		}
	}
	return t
}

// request takes a request.
func (t *resendOracle) request(m *model, r *discovery.DeltaDiscoveryRequest) {
	if t == nil {
		return
	}
	u := TypeURL(r.GetTypeUrl())
	m.log = append(m.log, fmt.Sprintf("   > %s %s +%v -%v has %v %s", u.Short(), r.GetResponseNonce(),
		r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(), r.GetInitialResourceVersions(), r.GetErrorDetail().GetMessage()))
	if nonce := r.GetResponseNonce(); nonce != "" {
		if r.GetErrorDetail() != nil {
			t.forget(u, t.names[nonce])
		}
		delete(t.names, nonce)
		t.unanswered[u]--
		t.reconnected = t.reconnected && u != ListenerType
	}
	t.forget(u, r.GetResourceNamesUnsubscribe())
	if u == RouteType {
		for _, routeConfig := range r.GetResourceNamesUnsubscribe() {
			t.forgetHosts(routeConfig)
		}
	}
	if r.GetInitialResourceVersions() == nil { // subscribed again
		t.forget(u, r.GetResourceNamesSubscribe())
	}
}

func (t *resendOracle) forget(u TypeURL, names []string) {
	for _, name := range names {
		delete(t.versions[u], name)
	}
}

func (t *resendOracle) forgetHosts(routeConfig string) {
	maps.DeleteFunc(t.versions[VirtualHostType], func(name, _ string) bool { return strings.HasPrefix(name, routeConfig+"/") })
}

// response checks a response against what was sent before.
func (t *resendOracle) response(m *model, r *discovery.DeltaDiscoveryResponse) {
	if t == nil {
		return
	}
	u := TypeURL(r.GetTypeUrl())
	if u == ListenerType && t.reconnected && len(r.GetResources()) > 0 {
		t.listenerResponses++
	}
	var names []string
	for _, x := range r.GetResources() {
		name := x.GetName()
		names = append(names, name)
		before, sure := t.versions[u][name]
		again := sure && before == x.GetVersion()
		switch {
		case u == EndpointType && t.endpointsDue[name]:
			again = false
		case u == RouteType && t.routesSentAfter[name] < t.listenerResponses:
			again, sure, t.routesSentAfter[name] = false, false, t.listenerResponses
		}
		if again {
			t.fault = fmt.Sprintf("%s %s=%s was sent again; before:\n%s", u.Short(), name, x.GetVersion(), strings.Join(m.log[max(0, len(m.log)-60):], "\n"))
		}
		if u == RouteType && (!sure || !t.sentRouteConfigs[name] || !isVHDS(before) || !isVHDS(x.GetVersion())) {
			t.forgetHosts(name) // its virtual hosts start from nothing
			t.sentRouteConfigs[name] = true
		}
		switch u {
		case ClusterType:
			t.endpointsDue[name] = true
		case EndpointType:
			delete(t.endpointsDue, name)
		default:
		}
		t.versions[u][name] = x.GetVersion()
	}
	names = append(names, r.GetRemovedResources()...)
	t.forget(u, r.GetRemovedResources())
	t.names[r.GetNonce()] = names
	if t.unanswered[u]++; t.unanswered[u] > maxInflight { // the server abandons the oldest
		clear(t.versions[u])
		if u == RouteType {
			clear(t.versions[VirtualHostType])
		}
	}
}
