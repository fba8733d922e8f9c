package stream

import (
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// Request is what a peer says. What it lists is not in the message's map: a peer
// that comes back lists thousands of names, and only a list of them is small.
type Request struct {
	*discovery.DeltaDiscoveryRequest
	// Versions are what it has, as it says; of those of one name the last counts.
	Versions []Version
}

// Version is a resource that a peer has, as it says.
type Version struct{ Name, Version string }

// requestOf is a message as a Request; it stays as it is.
func requestOf(req *discovery.DeltaDiscoveryRequest) *Request {
	out := &Request{DeltaDiscoveryRequest: req}
	if n := len(req.GetInitialResourceVersions()); n > 0 {
		out.Versions = make([]Version, 0, n)
		for name, version := range req.GetInitialResourceVersions() {
			out.Versions = append(out.Versions, Version{name, version})
		}
	}
	return out
}

// owned gives versions texts of their own: that of the request they came in has
// much else.
func owned(list []Version) []Version {
	out := make([]Version, len(list))
	for i, v := range list {
		out[i] = Version{strings.Clone(v.Name), strings.Clone(v.Version)}
	}
	return out
}

// lastOf is a list in which each name is once: the last one counts.
func lastOf(list []Version) []Version {
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

// forgetTables takes the virtual hosts of some route configurations out of what
// was listed.
func (t *typeState) forgetTables(gone func(table string) bool) {
	t.listed = slices.DeleteFunc(t.listed, func(v Version) bool {
		table, _, _ := cutHost(v.Name)
		return gone(table)
	})
}

// take gives the versions that the peer listed of a table, or of the whole type.
func (t *typeState) take(table string) []Version {
	other := func(v Version) bool {
		of, _, _ := cutHost(v.Name)
		return of != table
	}
	if table == "" || !slices.ContainsFunc(t.listed, other) { // nearly always
		listed := t.listed
		t.listed = nil
		return listed
	}
	var out, rest []Version
	for _, v := range t.listed {
		if other(v) {
			rest = append(rest, v)
		} else {
			out = append(out, v)
		}
	}
	t.listed = rest
	return out
}

// What was listed of a resource that shall be there.
const (
	unlisted = iota
	otherwise
	asWanted
)

// tally is what a peer has according to what it lists.
type tally struct {
	// exact means that it is all that it shall have, and nothing else.
	exact bool
	// have are the resources, where it is not exact; n is how many they are.
	have []*Resource
	n    int
}

// compareListed holds what a peer lists against what it shall have.
func compareListed(want *union, sub subscription, listed []Version) tally {
	if len(listed) == 0 {
		return tally{exact: len(want.plan(nil, sub).add) == 0}
	}
	at, places := want.lookUp()
	found := make([]byte, places)
	others := map[string]string{} // those that shall not be there, or in another version
	wanted := 0
	for _, v := range listed {
		r, place := at(v.Name)
		switch {
		case r == nil:
			others[v.Name] = v.Version
		case found[place] != unlisted:
			return compareListed(want, sub, lastOf(listed))
		case r.Version == v.Version:
			found[place] = asWanted
			wanted++
		default:
			found[place] = otherwise
			others[v.Name] = v.Version
		}
	}
	shall := len(want.plan(nil, sub).add)
	if wanted == want.len() && len(others) == 0 {
		return tally{exact: true, n: shall}
	}
	out := tally{have: make([]*Resource, 0, wanted+len(others)), exact: true}
	for r, place := range want.places() {
		if found[place] == asWanted && sub.has(r.Name) {
			out.have = append(out.have, r)
		}
	}
	for name, version := range others {
		if version != "" && sub.has(name) {
			out.exact = false
			// With a text of its own: that of the request is not to be kept.
			out.have = append(out.have, &Resource{Name: strings.Clone(name), Version: strings.Clone(version)})
		}
	}
	out.n = len(out.have)
	out.exact = out.exact && out.n == shall
	return out
}
