package view

import (
	"cmp"
	"fmt"
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// inclusion decides which delegates VirtualServices include, as far as there are limits. What a VirtualService includes of
// its own namespace and of sources without a namespace comes first, all of it or nothing. What it includes of
// tenants comes after that, that of each tenant for itself and the smallest first: a tenant that has its delegate
// grow leaves itself out, not others. The same holds for all VirtualServices of a namespace.
type inclusion struct {
	delegates map[mesh.Key]*mesh.VirtualService
	defaults  []string
	tenant    func(mesh.Key) bool
	leftOut   map[share]bool
}

// share is what a VirtualService includes of an author: of a tenant, by its namespace, or of all others.
type share struct {
	root   *mesh.VirtualService
	author string
}

// matches are those of a share.
type matches struct {
	share

	n int
}

func newInclusion(list []*mesh.VirtualService, defaults []string, tenant func(mesh.Key) bool) *inclusion {
	in := &inclusion{delegates: map[mesh.Key]*mesh.VirtualService{}, defaults: defaults, tenant: tenant, leftOut: map[share]bool{}}
	for _, vs := range list {
		if len(vs.Spec.GetHosts()) == 0 {
			in.delegates[mesh.Key{Namespace: vs.Namespace, Name: vs.Name}] = vs
		}
	}
	byNamespace, known := map[string][]matches{}, map[*mesh.VirtualService]int{}
	for _, vs := range list {
		if len(vs.Spec.GetHosts()) > 0 && hasDelegates(vs) {
			byNamespace[vs.Namespace] = append(byNamespace[vs.Namespace], in.limitRoot(in.sharesOf(vs, known))...)
		}
	}
	for _, shares := range byNamespace {
		in.limitNamespace(shares)
	}
	return in
}

// author is the tenant that a delegate is of for a VirtualService of another namespace; empty for others.
func (in *inclusion) author(root, delegate *mesh.VirtualService) string {
	if root.Namespace == delegate.Namespace || !in.tenant(delegate.Key) {
		return ""
	}
	return delegate.Namespace
}

// sharesOf are those of a VirtualService. known has the matches of delegates.
func (in *inclusion) sharesOf(root *mesh.VirtualService, known map[*mesh.VirtualService]int) []matches {
	var out []matches
	for _, rule := range root.Spec.GetHttp() {
		to := in.delegateOf(root, rule)
		if to == nil {
			continue
		}
		if _, counted := known[to]; !counted {
			known[to] = mesh.IncludableMatches(to.Spec)
		}
		s := share{root, in.author(root, to)}
		i := slices.IndexFunc(out, func(m matches) bool { return m.share == s })
		if i < 0 {
			i, out = len(out), append(out, matches{share: s})
		}
		out[i].n = min(out[i].n+known[to]*max(1, len(rule.GetMatch()))+to.Refused.Len()*len(root.Spec.GetGateways()), mesh.MaxIncluded+1)
	}
	return out
}

// limitRoot leaves out what is too much for one VirtualService, and returns the rest.
func (in *inclusion) limitRoot(shares []matches) []matches {
	slices.SortFunc(shares, func(a, b matches) int {
		return cmp.Or(cmp.Compare(min(len(a.author), 1), min(len(b.author), 1)), cmp.Compare(a.n, b.n), cmp.Compare(a.author, b.author))
	})
	return in.limit(shares, mesh.MaxIncluded)
}

// limitNamespace leaves out what is too much for all VirtualServices of a namespace.
func (in *inclusion) limitNamespace(shares []matches) {
	total := map[string]int{}
	for _, m := range shares {
		total[m.author] += m.n
	}
	slices.SortStableFunc(shares, func(a, b matches) int {
		return cmp.Or(cmp.Compare(min(len(a.author), 1), min(len(b.author), 1)), cmp.Compare(total[a.author], total[b.author]), cmp.Compare(a.author, b.author))
	})
	in.limit(shares, mesh.MaxIncludedByNamespace)
}

func (in *inclusion) limit(shares []matches, most int) (rest []matches) {
	n := 0
	for _, m := range shares {
		if n+m.n > most {
			in.leftOut[m.share] = true
			continue
		}
		n += m.n
		rest = append(rest, m)
	}
	return rest
}

// delegateOf is the VirtualService that a route includes; nil if it includes none, or none that it may.
func (in *inclusion) delegateOf(root *mesh.VirtualService, rule *networking.HTTPRoute) *mesh.VirtualService {
	d := rule.GetDelegate()
	if d == nil {
		return nil
	}
	to, ok := in.delegates[mesh.Key{Namespace: cmp.Or(d.GetNamespace(), root.Namespace), Name: d.GetName()}]
	if !ok || !exported(to.ExportTo, in.defaults, to.Namespace, root.Namespace) {
		return nil
	}
	return to
}

// excludedDelegates are the delegates that routes of the scope would include, and that are left out.
func (sc *sidecarScope) excludedDelegates() (out []Finding) {
	for _, vs := range sc.excluding {
		if sc.has(vs) {
			out = append(out, vs.excluded...)
		}
	}
	return out
}

// has reports whether the scope has a VirtualService.
func (sc *sidecarScope) has(vs *virtualService) bool {
	if sc.proxy.Type == Router {
		return slices.ContainsFunc(sc.gateways, func(g *mesh.Gateway) bool { return slices.Contains(sc.boundTo(g.Namespace+"/"+g.Name), vs) })
	}
	return slices.ContainsFunc(sc.egress, func(e *egressListener) bool { return slices.Contains(e.virtualServices, vs) })
}

// LeftOutDelegates are the delegates that some VirtualService would include, and that are left out.
func (x *Index) LeftOutDelegates() (out []Finding) {
	for _, vs := range x.excluding {
		out = append(out, vs.excluded...)
	}
	return out
}

// explainExcluded says what a VirtualService does not include.
func (f Finding) explainExcluded(s *mesh.Snapshot) (text, action string) {
	delegate, n := f.Other.String(), 0
	for _, vs := range s.VirtualServices {
		if vs.Key == f.Other {
			delegate, n = fmt.Sprintf("%s (%s)", vs.Key, vs.Origin), mesh.IncludableMatches(vs.Spec)
		}
	}
	return fmt.Sprintf("does not include %s, which has %d matches: each counts with each match of the routes that include it, and one VirtualService may include %d, all of a namespace %d; "+
			"requests for these routes go to other routes, or fail", delegate, n, mesh.MaxIncluded, mesh.MaxIncludedByNamespace),
		"give the delegate fewer matches, or include it in fewer routes"
}
