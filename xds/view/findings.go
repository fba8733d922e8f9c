package view

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// FindingKind is the kind of a [Finding]. It is the name of the condition that it becomes.
type FindingKind string

// The kinds of findings. To add one: a constant here, a case in [Finding.Explain], and who finds it
// appends to routingView.leftOut, or judges a part in scopeState.judge. The server makes a condition of
// each kind, without more; `apply` and `config push` refuse what newly makes one, if they are certain of it.
const (
	// NoDestination is a route to a cluster that the proxy does not have.
	NoDestination FindingKind = "no-destination"
	// NoEndpoints is a route to a cluster of which no endpoint is known. One that is known and
	// unhealthy is one.
	NoEndpoints FindingKind = "no-endpoints"
	// LeftOutServer is a server of a Gateway that the proxy does not serve.
	LeftOutServer FindingKind = "gateway-server"
	// LeftOutDelegate is a delegate that a VirtualService does not include, because that would be too much.
	LeftOutDelegate FindingKind = "delegate-limit"
)

// FindingKinds are all kinds.
func FindingKinds() []FindingKind {
	return []FindingKind{NoDestination, NoEndpoints, LeftOutServer, LeftOutDelegate}
}

// Finding is a fault of the mesh that makes requests fail at a proxy, whatever the proxy does. Two
// findings are the same fault if they are equal. [Finding.Explain] says what a person has to know.
type Finding struct {
	Kind FindingKind
	// Object has what is at fault: a VirtualService, a Sidecar, or a Gateway. Other is the object
	// because of which, or zero.
	Object, Other mesh.Key
	// Host, Port and Subset are where a route leads; Port is 0 if any port is meant.
	Host   mesh.Hostname
	Port   uint32
	Subset string
	// Server names a server of a Gateway, ListensAt is its port, and Reason says why it is left out.
	// Lost are the server names that it does not get, if it gets others; empty if it gets no connections.
	Server    string
	ListensAt uint32
	Reason    string
	Lost      string
}

// Compare orders findings.
func (f Finding) Compare(o Finding) int {
	return cmp.Or(strings.Compare(string(f.Kind), string(o.Kind)), f.Object.Compare(o.Object), f.Other.Compare(o.Other),
		cmp.Compare(f.Host, o.Host), cmp.Compare(f.Port, o.Port), strings.Compare(f.Subset, o.Subset),
		strings.Compare(f.Server, o.Server), cmp.Compare(f.ListensAt, o.ListensAt), strings.Compare(f.Reason, o.Reason), strings.Compare(f.Lost, o.Lost))
}

// Findings are those of one proxy. Proxies that have equal ones share them.
type Findings struct {
	// List is sorted, and has all of them: each is about a part that the proxy has anyway, so that a bound
	// would save nothing, and would hide the faults of one namespace behind those of another.
	List []Finding
}

// All are those in the list; none if there are no findings.
func (f *Findings) All() []Finding {
	if f == nil {
		return nil
	}
	return f.List
}

// judgedRouting is what is known of the faults in the listeners and routes of a routingState.
// Guarded by the scopeState's mu.
type judgedRouting struct {
	view    *routingView // that was judged; or nil
	version uint64       // of the clusters, see scopeState.clusterVersion

	listeners judgedParts[Part]
	routes    map[string]judgedParts[*VirtualHost] // by the name of their layer
}

// judgedParts is which parts of a list have faults.
type judgedParts[P comparable] struct {
	parts  []P
	faults map[P][]Finding // usually empty
}

// next judges another list. Of parts that are in both nothing is looked at again. Usually few differ,
// and the lists are sorted by name. Anything else costs more, and has the same result.
func (j judgedParts[P]) next(parts []P, name func(P) string, judge func(P) []Finding) judgedParts[P] {
	if sameSlice(parts, j.parts) {
		return j
	}
	out := judgedParts[P]{parts: parts, faults: map[P][]Finding{}}
	k := 0
	for _, p := range parts {
		for k < len(j.parts) && j.parts[k] != p && name(j.parts[k]) < name(p) {
			k++ // it is not there any more
		}
		faults := []Finding(nil)
		switch {
		case k < len(j.parts) && j.parts[k] == p:
			if len(j.faults) > 0 {
				faults = j.faults[p]
			}
			k++
		default:
			faults = judge(p)
		}
		if len(faults) > 0 {
			out.faults[p] = faults
		}
	}
	return out
}

// judge finds the faults in what a routingState has, and keeps them in its view. Routes and listeners
// that did not change are judged again only if the clusters that there are did. Called with mu held.
func (ss *scopeState) judge(r *routingState) {
	j := &r.judged
	if j.view == r.view && j.version == ss.clusterVersion {
		return
	}
	if j.view == nil || j.version != ss.clusterVersion {
		*j = judgedRouting{version: ss.clusterVersion}
	}
	j.listeners = j.listeners.next(r.view.listeners.Parts, listenerNameOf, ss.faultsOfListener)
	routes := make(map[string]judgedParts[*VirtualHost], len(r.view.routeConfigurations))
	all := slices.Concat(r.view.leftOut, ss.scope.excludedDelegates())
	for _, l := range r.view.routeConfigurations {
		for _, p := range l.Parts {
			t, ok := p.(*RouteConfiguration)
			if !ok {
				continue
			}
			of := j.routes[l.Name].next(t.VirtualHosts, func(h *VirtualHost) string { return h.Name }, ss.faultsOfHost)
			routes[l.Name] = of
			for _, faults := range of.faults {
				all = append(all, faults...)
			}
			if t.CatchAll != nil && !t.CatchAll.Refuse {
				all = ss.appendFault(all, ss.sidecarKey(), t.CatchAll.Cluster)
			}
		}
	}
	for _, faults := range j.listeners.faults {
		all = append(all, faults...)
	}
	j.routes = routes
	if findings := ss.meshContext.findingsOf(all); findings != r.view.findings {
		v := *r.view
		v.findings = findings
		r.view = &v
	}
	j.view = r.view
}

// findingsOf makes findings of faults, which may be there several times; nil if there are none.
func (mc *meshContext) findingsOf(all []Finding) *Findings {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, Finding.Compare)
	all = slices.Compact(all)
	return mc.findingSets.intern(Findings{List: all})
}

func listenerNameOf(p Part) string {
	if l, ok := p.(*Listener); ok {
		return l.Name
	}
	return ""
}

// faultsOfListener are those of what connections are forwarded to.
func (ss *scopeState) faultsOfListener(p Part) (out []Finding) {
	ss.meshContext.count.judged.Add(1)
	l, ok := p.(*Listener)
	if !ok {
		return nil
	}
	for _, c := range append(slices.Clone(l.Chains), l.Default) {
		if c == nil || c.TCP == nil {
			continue
		}
		by := c.TCP.Config
		if c.TCP.CatchAll {
			by = ss.sidecarKey()
		}
		for _, d := range c.TCP.Destinations {
			out = ss.appendFault(out, by, d.Cluster)
		}
	}
	return out
}

// faultsOfHost are those of where the routes of a virtual host lead. Mirrored copies are nobody's
// requests. The route that a service has without a VirtualService is no fault: it may have been scaled
// to zero. Neither is a route that forwards no request.
func (ss *scopeState) faultsOfHost(vh *VirtualHost) (out []Finding) {
	ss.meshContext.count.judged.Add(1)
	meant := ss.meantBy(vh)
	if vh.RequireTLS || meant == meantByNobody {
		return nil
	}
	for _, r := range vh.Routes {
		if r.Rule == nil || r.Rule.GetRedirect() != nil || r.Rule.GetDirectResponse() != nil || abortsAll(r.Rule) {
			continue
		}
		for i, d := range r.Destinations {
			if d.Weight == 0 && len(r.Destinations) > 1 {
				continue
			}
			had := len(out)
			out = ss.appendFault(out, r.Config, d.Cluster)
			ofPort := len(out) > had && out[had].Kind == NoDestination && out[had].Port != 0
			if ofPort && meant == meantByName && r.Match.GetPort() == 0 && r.Rule.GetRoute()[i].GetDestination().GetPort() == nil {
				out = out[:had] // a port that no object names
			}
		}
	}
	return out
}

func (ss *scopeState) sidecarKey() mesh.Key {
	if ss.key.sidecar == nil {
		return mesh.Key{}
	}
	return ss.key.sidecar.Key
}

// appendFault appends what is wrong with a cluster that an object has requests sent to; nothing if no
// object does.
func (ss *scopeState) appendFault(to []Finding, by mesh.Key, c ClusterRef) []Finding {
	if by == (mesh.Key{}) || c.Kind != OutboundCluster {
		return to
	}
	f := Finding{Kind: NoDestination, Object: by, Host: c.Host, Port: c.Port, Subset: c.Subset}
	i, ok := slices.BinarySearchFunc(ss.scope.services, c.Host, compareHosts)
	if !ok {
		f.Port, f.Subset = 0, ""
		return append(to, f)
	}
	p := ss.parts[i]
	if slices.Contains(p.empty, c) {
		f.Kind = NoEndpoints
		if !p.hasOthers(func(o ClusterRef) bool { return o.Subset == c.Subset && !slices.Contains(p.empty, o) }) {
			f.Port = 0
		}
		return append(to, f)
	}
	if p.hasOthers(func(o ClusterRef) bool { return o == c }) {
		return to
	}
	if c.Subset != "" && p.hasOthers(func(o ClusterRef) bool { return o.Port == c.Port }) { // the subset is what there is not
		f.Port = 0
	}
	return append(to, f)
}

// hasOthers reports whether some cluster of the service is so, even if it is left out because no
// endpoint of it is known, or because none is healthy.
func (p *serviceParts) hasOthers(is func(ClusterRef) bool) bool {
	return slices.ContainsFunc(p.empty, is) || slices.ContainsFunc(p.unhealthy, is) || slices.ContainsFunc(p.clusters, func(x Part) bool {
		c, ok := x.(*Cluster)
		return ok && is(c.Ref)
	})
}

// sameClusters reports whether a service has the same clusters, and endpoints in the same ones.
func (p *serviceParts) sameClusters(o *serviceParts) bool {
	return slices.Equal(p.empty, o.empty) && slices.Equal(p.unhealthy, o.unhealthy) && slices.EqualFunc(p.clusters, o.clusters, func(a, b Part) bool {
		return a == b || refOfCluster(a) == refOfCluster(b)
	})
}

func refOfCluster(p Part) ClusterRef {
	if c, ok := p.(*Cluster); ok {
		return c.Ref
	}
	return ClusterRef{}
}

// known reports whether a cluster has an endpoint that is known, healthy or not. Where an endpoint is
// does not matter: a proxy that sends none there now may have to later.
func (in *clusterInput) known(d Discovery) bool {
	dns := d == DiscoverStrictDNS || d == DiscoverLogicalDNS
	if in.resolvesItself(d) {
		return true
	}
	return slices.ContainsFunc(in.members, func(m member) bool {
		return mesh.Selects(in.subset.GetLabels(), m.Labels) && m.usable(dns) && (m.Address != "" || in.networks != nil)
	})
}

// usable reports whether Envoy takes the address of an endpoint.
func (m member) usable(dns bool) bool {
	return dns || m.Address == "" || isUnix(m.Address) || isIP(m.Address)
}

// resolvesItself reports whether the cluster resolves the name of its service, for it lists no endpoint.
func (in *clusterInput) resolvesItself(d Discovery) bool {
	return (d == DiscoverStrictDNS || d == DiscoverLogicalDNS) && len(in.members) == 0 &&
		!in.passes && in.subset == nil && in.svc.Selector == nil && !in.svc.Hostname.IsWildcard()
}
