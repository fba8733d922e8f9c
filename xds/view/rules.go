package view

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ruleIndex finds the DestinationRules of a host. Rules of one namespace for
// one host are merged: their subsets together, the oldest traffic policy.
type ruleIndex struct {
	root     string
	local    map[string]*ruleSet // by namespace: what its own proxies see
	exported map[string]*ruleSet // by namespace: what others may see
	rootOnly *ruleSet            // private ones of the root namespace
}

// ruleSet is the rules of one namespace by host.
type ruleSet struct {
	byHost    map[mesh.Hostname][]*rule
	wildcards []mesh.Hostname
}

// rule is one DestinationRule, or several merged.
type rule struct {
	spec      *networking.DestinationRule
	namespace string
	exportTo  mesh.Exports
	name      string
	origins   []*mesh.Origin
}

func newRuleIndex(s *mesh.Snapshot, defaults []string) *ruleIndex {
	x := &ruleIndex{
		root:     s.RootNamespace(),
		local:    map[string]*ruleSet{},
		exported: map[string]*ruleSet{},
		rootOnly: newRuleSet(),
	}
	list := slices.Clone(s.DestinationRules)
	slices.SortStableFunc(list, func(a, b *mesh.DestinationRule) int { // those with a selector first
		switch as, bs := a.Spec.GetWorkloadSelector() != nil, b.Spec.GetWorkloadSelector() != nil; {
		case as == bs:
			return 0
		case as:
			return -1
		default:
			return 1
		}
	})
	for _, dr := range list {
		x.add(dr, defaults)
	}
	return x
}

func (x *ruleIndex) add(dr *mesh.DestinationRule, defaults []string) {
	exports := dr.ExportTo
	if dr.Spec.GetWorkloadSelector() != nil { // never leaves its namespace
		exports = mesh.Exports{dr.Namespace}
	}
	if exports.To(dr.Namespace) {
		setOf(x.local, dr.Namespace).merge(dr, exports)
	}
	private := len(exports) == 1 && exports[0] == dr.Namespace
	if len(exports) == 0 && slices.Contains(defaults, ".") {
		private = true
	}
	switch {
	case !private:
		setOf(x.exported, dr.Namespace).merge(dr, exports)
	case dr.Namespace == x.root:
		x.rootOnly.merge(dr, exports)
	}
}

func newRuleSet() *ruleSet { return &ruleSet{byHost: map[mesh.Hostname][]*rule{}} }

func setOf(m map[string]*ruleSet, ns string) *ruleSet {
	if m[ns] == nil {
		m[ns] = newRuleSet()
	}
	return m[ns]
}

// merge adds a rule to the set: into every rule for the same host and the same
// audience, and as one of its own where none took it.
func (s *ruleSet) merge(dr *mesh.DestinationRule, exports mesh.Exports) {
	host := mesh.Hostname(dr.Spec.GetHost())
	selector := dr.Spec.GetWorkloadSelector()
	alone := true
	for _, r := range s.byHost[host] {
		if !slices.Equal(r.exportTo, exports) {
			alone = true
			if !superset(exports, r.exportTo) {
				continue
			}
		} else {
			alone = false
		}
		other := r.spec.GetWorkloadSelector()
		if selector != nil && other != nil && !sameLabels(selector.GetMatchLabels(), other.GetMatchLabels()) {
			alone = true
			continue
		}
		if (selector == nil) == (other == nil) {
			alone = false
		}
		r.absorb(dr)
	}
	if !alone {
		return
	}
	if host.IsWildcard() && len(s.byHost[host]) == 0 {
		s.wildcards = append(s.wildcards, host)
	}
	s.byHost[host] = append(s.byHost[host], &rule{
		spec: dr.Spec, namespace: dr.Namespace, exportTo: exports, name: dr.Name,
		origins: []*mesh.Origin{dr.Origin},
	})
}

// absorb takes the subsets that r lacks, and the traffic policy if it has none.
func (r *rule) absorb(dr *mesh.DestinationRule) {
	spec, _ := proto.Clone(r.spec).(*networking.DestinationRule)
	for _, sub := range dr.Spec.GetSubsets() {
		if !slices.ContainsFunc(spec.GetSubsets(), func(o *networking.Subset) bool { return o.GetName() == sub.GetName() }) {
			spec.Subsets = append(spec.Subsets, sub)
		}
	}
	inherit(&spec.TrafficPolicy, dr.Spec.TrafficPolicy)
	r.spec = spec
	r.origins = append(r.origins, dr.Origin)
}

func superset(a, b mesh.Exports) bool {
	if len(b) == 0 {
		return false
	}
	for _, e := range b {
		if !slices.Contains(a, e) {
			return false
		}
	}
	return true
}

func sameLabels(a, b map[string]string) bool { return len(a) == len(b) && mesh.Selects(a, b) }

func (s *ruleSet) find(host mesh.Hostname) []*rule {
	if s == nil {
		return nil
	}
	if list := s.byHost[host]; len(list) > 0 {
		return list
	}
	if h, ok := mostSpecific(host, s.wildcards); ok {
		return s.byHost[h]
	}
	return nil
}

// lookup finds the rule of a service for a client: of the client's namespace,
// else of the service's, else of the root's. nil means that there is none.
func (x *ruleIndex) lookup(client string, labels map[string]string, host mesh.Hostname, svcNS string) *rule {
	var list []*rule
	if client != x.root {
		list = x.local[client].find(host)
	} else {
		list = x.rootOnly.find(host)
	}
	if len(list) == 0 {
		list = visible(x.exported[svcNS].find(host), client)
	}
	if len(list) == 0 {
		list = visible(x.exported[x.root].find(host), client)
	}
	var all *rule
	for _, r := range list {
		selector := r.spec.GetWorkloadSelector()
		if selector == nil {
			all = r
			continue
		}
		if r.namespace == client && mesh.Selects(selector.GetMatchLabels(), labels) {
			return r
		}
	}
	return all
}

func visible(list []*rule, client string) []*rule {
	var out []*rule
	for _, r := range list {
		if r.exportTo.To(client) {
			out = append(out, r)
		}
	}
	return out
}

// policyFor is what a rule says for a port, and for a subset of it. Settings of
// a port replace those of the rule as a whole; a subset overrides by field.
func (r *rule) policyFor(port uint32, subset *networking.Subset) *networking.TrafficPolicy {
	if r == nil {
		return nil
	}
	policy, _ := portPolicy(r.spec.GetTrafficPolicy(), port)
	if subset.GetTrafficPolicy() == nil {
		return withoutPorts(policy)
	}
	over, byPort := portPolicy(subset.GetTrafficPolicy(), port)
	if policy == nil {
		return withoutPorts(over)
	}
	out := withoutPorts(policy)
	if over.ConnectionPool != nil || byPort {
		out.ConnectionPool = over.ConnectionPool
	}
	if over.OutlierDetection != nil || byPort {
		out.OutlierDetection = over.OutlierDetection
	}
	if over.LoadBalancer != nil || byPort {
		out.LoadBalancer = over.LoadBalancer
	}
	if over.Tls != nil || byPort {
		out.Tls = over.Tls
	}
	if over.RetryBudget != nil {
		out.RetryBudget = over.RetryBudget
	}
	return out
}

func portPolicy(p *networking.TrafficPolicy, port uint32) (*networking.TrafficPolicy, bool) {
	for _, s := range p.GetPortLevelSettings() {
		if s.GetPort().GetNumber() == port {
			return &networking.TrafficPolicy{
				ConnectionPool: s.ConnectionPool, LoadBalancer: s.LoadBalancer,
				OutlierDetection: s.OutlierDetection, Tls: s.Tls,
			}, true
		}
	}
	return p, false
}

func withoutPorts(p *networking.TrafficPolicy) *networking.TrafficPolicy {
	if p == nil {
		return nil
	}
	return &networking.TrafficPolicy{
		ConnectionPool: p.ConnectionPool, LoadBalancer: p.LoadBalancer,
		OutlierDetection: p.OutlierDetection, Tls: p.Tls, RetryBudget: p.RetryBudget,
	}
}

// hashFor is the consistent hash of a destination, as Istio finds it for
// routes: only a destination that names its port sees settings of a port.
func (r *rule) hashFor(subset string, port uint32) *networking.LoadBalancerSettings_ConsistentHashLB {
	if r == nil {
		return nil
	}
	tp := r.spec.GetTrafficPolicy()
	hash := tp.GetLoadBalancer().GetConsistentHash()
	if h := portHash(tp, port); h != nil {
		hash = h
	}
	for _, s := range r.spec.GetSubsets() {
		if s.GetName() != subset {
			continue
		}
		if h := s.GetTrafficPolicy().GetLoadBalancer().GetConsistentHash(); h != nil {
			hash = h
		}
		if h := portHash(s.GetTrafficPolicy(), port); h != nil {
			hash = h
		}
		break
	}
	return hash
}

func portHash(p *networking.TrafficPolicy, port uint32) *networking.LoadBalancerSettings_ConsistentHashLB {
	for _, s := range p.GetPortLevelSettings() {
		if port != 0 && s.GetPort().GetNumber() == port {
			return s.GetLoadBalancer().GetConsistentHash()
		}
	}
	return nil
}
