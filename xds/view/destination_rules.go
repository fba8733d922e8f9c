package view

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ruleIndex finds the DestinationRules of a host. Rules of one namespace for one host are
// merged: all subsets, and the oldest traffic policy.
type ruleIndex struct {
	root     string
	defaults []string
	local    map[string]*ruleSet // by namespace: visible to its own proxies
	exported map[string]*ruleSet // by namespace: visible to others
	rootOnly *ruleSet            // private ones of the root namespace
}

// ruleSet is the rules of one namespace by host.
type ruleSet struct {
	byHost    map[mesh.Hostname][]*rule
	wildcards []mesh.Hostname
}

// rule is one DestinationRule, or several that are merged.
type rule struct {
	spec      *networking.DestinationRule
	namespace string
	exportTo  mesh.Exports
	name      string
	origins   []*mesh.Origin
	// limitTables is that of one of the rules.
	limitTables bool
}

// newRuleIndex returns an index without rules.
func newRuleIndex(s *mesh.Snapshot) *ruleIndex {
	return &ruleIndex{
		root:     s.RootNamespace(),
		defaults: s.MeshConfig.Spec.GetDefaultDestinationRuleExportTo(),
		local:    map[string]*ruleSet{},
		exported: map[string]*ruleSet{},
		rootOnly: &ruleSet{},
	}
}

// next is the index of a list that differs from x's list by the changes. It merges only the
// rules for the changed hosts and namespaces again.
func (x *ruleIndex) next(changes []mesh.Delta[*mesh.DestinationRule], list []*mesh.DestinationRule) *ruleIndex {
	if len(changes) == 0 {
		return x
	}
	type place struct {
		ns   string
		host mesh.Hostname
	}
	at := func(dr *mesh.DestinationRule) place { return place{dr.Namespace, mesh.Hostname(dr.Spec.GetHost())} }
	changed := map[place][]*mesh.DestinationRule{}
	for _, c := range changes {
		for _, dr := range []*mesh.DestinationRule{c.Old, c.New} {
			if dr != nil {
				changed[at(dr)] = nil
			}
		}
	}
	for _, dr := range list {
		if l, ok := changed[at(dr)]; ok {
			changed[at(dr)] = append(l, dr)
		}
	}
	out := &ruleIndex{
		root: x.root, defaults: x.defaults, local: maps.Clone(x.local), exported: maps.Clone(x.exported), rootOnly: x.rootOnly,
	}
	namespaces := map[string]bool{}
	for p := range changed {
		namespaces[p.ns] = true
	}
	for ns := range namespaces {
		out.local[ns], out.exported[ns] = x.local[ns].copy(), x.exported[ns].copy()
		if ns == x.root {
			out.rootOnly = x.rootOnly.copy()
		}
	}
	for p, rules := range changed {
		for _, set := range out.sets(p.ns) {
			delete(set.byHost, p.host)
		}
		slices.SortStableFunc(rules, func(a, b *mesh.DestinationRule) int { // those with a selector first
			switch as, bs := a.Spec.GetWorkloadSelector() != nil, b.Spec.GetWorkloadSelector() != nil; {
			case as == bs:
				return 0
			case as:
				return -1
			default:
				return 1
			}
		})
		for _, dr := range rules {
			out.add(dr)
		}
		unify(out.local[p.ns].byHost[p.host], out.exported[p.ns].byHost[p.host])
	}
	for ns := range namespaces {
		for _, set := range out.sets(ns) {
			set.findWildcards()
		}
	}
	return out
}

// unify replaces rules in others by equal ones in own, so that what is made from them is
// shared.
func unify(own, others []*rule) {
	for i, r := range others {
		for _, o := range own {
			if slices.Equal(o.exportTo, r.exportTo) && o.limitTables == r.limitTables && (o.spec == r.spec || proto.Equal(o.spec, r.spec)) {
				others[i] = o
				break
			}
		}
	}
}

// sets are those that rules of a namespace may be in.
func (x *ruleIndex) sets(ns string) []*ruleSet {
	out := []*ruleSet{x.local[ns], x.exported[ns]}
	if ns == x.root {
		out = append(out, x.rootOnly)
	}
	return out
}

func (x *ruleIndex) add(dr *mesh.DestinationRule) {
	exports := dr.ExportTo
	if dr.Spec.GetWorkloadSelector() != nil { // never leaves its namespace
		exports = mesh.Exports{dr.Namespace}
	}
	if exports.To(dr.Namespace) {
		x.local[dr.Namespace].merge(dr, dr.Spec, exports)
	}
	private := len(exports) == 1 && exports[0] == dr.Namespace
	if len(exports) == 0 && slices.Contains(x.defaults, ".") {
		private = true
	}
	switch {
	case !private:
		x.exported[dr.Namespace].merge(dr, dr.SpecElsewhere(), exports)
	case dr.Namespace == x.root:
		x.rootOnly.merge(dr, dr.Spec, exports)
	}
}

// copy returns a set that may be changed.
func (s *ruleSet) copy() *ruleSet {
	if s == nil || s.byHost == nil {
		return &ruleSet{byHost: map[mesh.Hostname][]*rule{}}
	}
	return &ruleSet{byHost: maps.Clone(s.byHost)}
}

func (s *ruleSet) findWildcards() {
	for h := range s.byHost {
		if h.IsWildcard() {
			s.wildcards = append(s.wildcards, h)
		}
	}
	slices.Sort(s.wildcards)
}

// merge adds a rule to the set. It is merged into every rule for the same host with the
// same exportTo. If there is none, it is added as a rule of its own. spec is what the rule says
// to those who look into the set.
func (s *ruleSet) merge(dr *mesh.DestinationRule, spec *networking.DestinationRule, exports mesh.Exports) {
	host := mesh.Hostname(spec.GetHost())
	selector := spec.GetWorkloadSelector()
	alone := true
	for _, r := range s.byHost[host] {
		if !slices.Equal(r.exportTo, exports) && !superset(exports, r.exportTo) {
			alone = true
			continue
		}
		other := r.spec.GetWorkloadSelector()
		if selector != nil && other != nil && !sameLabels(selector.GetMatchLabels(), other.GetMatchLabels()) {
			alone = true
			continue
		}
		// A rule without a selector that is merged into one with a selector still counts by
		// itself: for the clients that are not selected.
		alone = (selector == nil) != (other == nil)
		r.absorb(dr, spec)
	}
	if !alone {
		return
	}
	s.byHost[host] = append(s.byHost[host], &rule{
		spec: spec, namespace: dr.Namespace, exportTo: exports, name: dr.Name,
		origins: []*mesh.Origin{dr.Origin}, limitTables: dr.LimitTables,
	})
}

// absorb adds the subsets that r lacks, and the traffic policy if r has none.
func (r *rule) absorb(dr *mesh.DestinationRule, spec *networking.DestinationRule) {
	merged, _ := proto.Clone(r.spec).(*networking.DestinationRule)
	for _, sub := range spec.GetSubsets() {
		if !slices.ContainsFunc(merged.GetSubsets(), func(o *networking.Subset) bool { return o.GetName() == sub.GetName() }) {
			merged.Subsets = append(merged.Subsets, sub)
		}
	}
	inherit(&merged.TrafficPolicy, spec.TrafficPolicy)
	r.spec, r.limitTables = merged, r.limitTables || dr.LimitTables
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

// lookup finds the rule of a service for a client: of the client's namespace, else of the
// service's, else of the root's. nil means that there is none.
func (x *ruleIndex) lookup(client string, labels map[string]string, host mesh.Hostname, svcNS string) *rule {
	own := x.rootOnly
	if client != x.root {
		own = x.local[client]
	}
	if list := own.find(host); len(list) > 0 {
		return choose(list, client, labels, func(*rule) bool { return true })
	}
	visible := func(r *rule) bool { return r.exportTo.To(client) }
	list := x.exported[svcNS].find(host)
	if !slices.ContainsFunc(list, visible) {
		list = x.exported[x.root].find(host)
	}
	return choose(list, client, labels, visible)
}

// choose returns the first rule that selects the client, else the last one without a
// selector.
func choose(list []*rule, client string, labels map[string]string, visible func(*rule) bool) *rule {
	var all *rule
	for _, r := range list {
		if !visible(r) {
			continue
		}
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

// sameRouteSettings reports whether two rules, which may be nil, make no difference to
// routes and TCP filter chains.
func sameRouteSettings(a, b *rule) bool {
	if a == b {
		return true
	}
	if !a.hasRouteSettings() && !b.hasRouteSettings() {
		return true
	}
	return a != nil && b != nil && proto.Equal(a.routeSettings(), b.routeSettings())
}

// hasRouteSettings reports whether a rule has any settings that routes use.
func (r *rule) hasRouteSettings() bool {
	if r == nil {
		return false
	}
	if tcp := r.spec.GetTrafficPolicy().GetConnectionPool().GetTcp(); tcp.GetIdleTimeout() != nil || tcp.GetMaxConnectionDuration() != nil {
		return true
	}
	return affectsRoutes(r.spec.GetTrafficPolicy()) ||
		slices.ContainsFunc(r.spec.GetSubsets(), func(s *networking.Subset) bool { return affectsRoutes(s.GetTrafficPolicy()) })
}

func affectsRoutes(p *networking.TrafficPolicy) bool {
	return p.GetLoadBalancer().GetConsistentHash() != nil || p.GetTls() != nil || p.GetTunnel() != nil ||
		slices.ContainsFunc(p.GetPortLevelSettings(), func(s *networking.TrafficPolicy_PortTrafficPolicy) bool {
			return s.GetLoadBalancer().GetConsistentHash() != nil || s.GetTls() != nil
		})
}

// routeSettings are the settings of a rule that routes use.
func (r *rule) routeSettings() *networking.DestinationRule {
	mode := func(tls *networking.ClientTLSSettings) *networking.ClientTLSSettings {
		if tls == nil {
			return nil
		}
		return &networking.ClientTLSSettings{Mode: tls.Mode}
	}
	part := func(p *networking.TrafficPolicy) *networking.TrafficPolicy {
		if p == nil {
			return nil
		}
		tcp := p.GetConnectionPool().GetTcp()
		out := &networking.TrafficPolicy{
			LoadBalancer: p.LoadBalancer, Tls: mode(p.Tls), Tunnel: p.Tunnel,
			ConnectionPool: &networking.ConnectionPoolSettings{Tcp: &networking.ConnectionPoolSettings_TCPSettings{
				IdleTimeout: tcp.GetIdleTimeout(), MaxConnectionDuration: tcp.GetMaxConnectionDuration(),
			}},
		}
		for _, s := range p.GetPortLevelSettings() {
			out.PortLevelSettings = append(out.PortLevelSettings, &networking.TrafficPolicy_PortTrafficPolicy{
				Port: s.Port, LoadBalancer: s.LoadBalancer, Tls: mode(s.Tls),
			})
		}
		return out
	}
	out := &networking.DestinationRule{TrafficPolicy: part(r.spec.GetTrafficPolicy())}
	for _, s := range r.spec.GetSubsets() {
		out.Subsets = append(out.Subsets, &networking.Subset{Name: s.GetName(), TrafficPolicy: part(s.GetTrafficPolicy())})
	}
	return out
}

// subset is the subset of a name; or nil.
func (r *rule) subset(name string) *networking.Subset {
	if r != nil && name != "" {
		for _, s := range r.spec.GetSubsets() {
			if s.GetName() == name {
				return s
			}
		}
	}
	return nil
}

// policyFor is the traffic policy of a port, and of a subset. Settings of a port replace
// those of the whole rule; a subset overrides field by field.
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
	if over.ProxyProtocol != nil {
		out.ProxyProtocol = over.ProxyProtocol
	}
	return out
}

// tlsModeFor is the TLS mode that decides whether endpoints take mTLS; nil if the rule has none.
// As in Istio, settings of a port without one do not replace that of the whole policy here,
// although they do for the cluster.
func (r *rule) tlsModeFor(port uint32, subset *networking.Subset) *networking.ClientTLSSettings_TLSmode {
	if r == nil {
		return nil
	}
	for _, p := range []*networking.TrafficPolicy{subset.GetTrafficPolicy(), r.spec.GetTrafficPolicy()} {
		tls := p.GetTls()
		if over, byPort := portPolicy(p, port); byPort && over.GetTls() != nil {
			tls = over.GetTls()
		}
		if tls != nil {
			return tls.GetMode().Enum()
		}
	}
	return nil
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
		OutlierDetection: p.OutlierDetection, Tls: p.Tls, RetryBudget: p.RetryBudget, ProxyProtocol: p.ProxyProtocol,
	}
}

// hashFor is the consistent hash of a destination, as Istio finds it for routes: port
// settings apply only to a destination that names its port.
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
