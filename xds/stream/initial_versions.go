package stream

import (
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Request is a request. The initial_resource_versions are a list and not the message's
// map: a peer that reconnects lists thousands, and a list takes less memory.
type Request struct {
	*discovery.DeltaDiscoveryRequest
	// Versions are the initial_resource_versions. If a name occurs more than once, the
	// last one counts.
	Versions []Version

	lists *requestLists // or nil
	known *mergedSet    // in which the versions were found
}

// Release lets the lists of the request be used for another one. Nobody may use them from
// then on.
func (r *Request) Release() {
	if r.lists == nil {
		return
	}
	r.lists.release()
	r.lists, r.Versions, r.ResourceNamesSubscribe, r.ResourceNamesUnsubscribe = nil, nil, nil, nil
}

// Version is a name and version that a peer lists.
type Version struct {
	Name, Version string

	index int32 // where the request's set has the name, plus 1; 0 means that it is not known
}

// newRequest converts a message, which stays unchanged.
func newRequest(req *discovery.DeltaDiscoveryRequest) *Request {
	out := &Request{DeltaDiscoveryRequest: req}
	if n := len(req.GetInitialResourceVersions()); n > 0 {
		out.Versions = make([]Version, 0, n)
		for name, version := range req.GetInitialResourceVersions() {
			out.Versions = append(out.Versions, Version{Name: name, Version: version})
		}
	}
	return out
}

// lastVersions is the list without duplicate names: the last one counts.
func lastVersions(list []Version) []Version {
	at := make(map[string]int, len(list))
	var out []Version
	for _, v := range list {
		if i, twice := at[v.Name]; twice {
			out[i] = v
			continue
		}
		at[v.Name] = len(out)
		out = append(out, v)
	}
	return out
}

// forgetInitialHosts drops the listed virtual hosts of some route configurations.
func (t *typeState) forgetInitialHosts(gone func(routeConfig string) bool) {
	t.initialVersions = slices.DeleteFunc(t.initialVersions, func(v Version) bool {
		routeConfig, _, _ := splitHostName(v.Name)
		return gone(routeConfig)
	})
}

// takeInitialVersions returns and clears the listed versions of a route configuration, or
// of the type if that is empty.
func (t *typeState) takeInitialVersions(routeConfig string) []Version {
	other := func(v Version) bool {
		of, _, _ := splitHostName(v.Name)
		return of != routeConfig
	}
	if routeConfig == "" || !slices.ContainsFunc(t.initialVersions, other) { // the usual case
		listed := t.initialVersions
		t.initialVersions = nil
		return listed
	}
	var out, rest []Version
	for _, v := range t.initialVersions {
		if other(v) {
			rest = append(rest, v)
		} else {
			out = append(out, v)
		}
	}
	t.initialVersions = rest
	return out
}

// What the peer listed of a resource of the target.
const (
	notListed = iota
	otherVersion
	wantedVersion
)

// initialComparison is what a peer has, according to what it listed.
type initialComparison struct {
	// exact means that the peer has all of the target that it subscribes to, and nothing
	// else.
	exact bool
	// have are the resources that it has if it is not exact; count is their number.
	have  []*Resource
	count int
}

// compareInitialVersions compares what a peer listed with the target. The indexes of the
// list are those of a set which is usually the same.
func compareInitialVersions(want *mergedSet, sub subscription, listed []Version, indexed *mergedSet) initialComparison {
	if len(listed) == 0 {
		return initialComparison{exact: len(want.deltaFrom(nil, sub).add) == 0}
	}
	lookUp, size := want.lookUp()
	found := make([]byte, size)
	others := map[string]string{} // not in the target, or there in another version
	wanted := 0
	for _, v := range listed {
		r, index := want.at(int(v.index)-1), int(v.index)-1
		if v.index == 0 || indexed != want {
			r, index = lookUp(v.Name)
		}
		switch {
		case r == nil:
			others[v.Name] = v.Version
		case found[index] != notListed:
			return compareInitialVersions(want, sub, lastVersions(listed), indexed)
		case r.Version == v.Version:
			found[index] = wantedVersion
			wanted++
		default:
			found[index] = otherVersion
			others[v.Name] = v.Version
		}
	}
	subscribed := len(want.deltaFrom(nil, sub).add)
	if wanted == want.len() && len(others) == 0 {
		return initialComparison{exact: true, count: subscribed}
	}
	out := initialComparison{have: make([]*Resource, 0, wanted+len(others)), exact: true}
	for r, index := range want.numbered() {
		if found[index] == wantedVersion && sub.has(r.Name) {
			out.have = append(out.have, r)
		}
	}
	for name, version := range others {
		if version != "" && sub.has(name) {
			out.exact = false
			// Cloned: these are substrings of the request.
			out.have = append(out.have, &Resource{Name: strings.Clone(name), Version: strings.Clone(version)})
		}
	}
	out.count = len(out.have)
	out.exact = out.exact && out.count == subscribed
	return out
}
