package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Limits of the tables that an Envoy makes for consistentHash, for sources that are bound to namespaces. An entry
// costs a proxy 24 bytes.
const (
	// MaxHashTable is the largest table of one cluster: that of Maglev by default.
	MaxHashTable = 65_537
	// MaxHashTables is the sum of all tables of one source.
	MaxHashTables = 1 << 20
)

// Envoy's own sizes.
const (
	defaultRing   = 1024
	defaultMaglev = 65_537
)

// HashTable is the number of entries of the table that an Envoy makes for a cluster with these settings;
// 0 if it makes none.
func HashTable(lb *networking.LoadBalancerSettings) uint64 {
	h := lb.GetConsistentHash()
	switch {
	case h == nil:
		return 0
	case h.GetMaglev() != nil:
		return cmp.Or(h.GetMaglev().GetTableSize(), defaultMaglev)
	case h.GetRingHash() != nil:
		return cmp.Or(h.GetRingHash().GetMinimumRingSize(), defaultRing)
	default:
		return cmp.Or(h.GetMinimumRingSize(), defaultRing) //nolint:staticcheck // SA1019: people still write it
	}
}

// hashTables are the entries for one cluster: there is a table for each priority of endpoints, of which
// failoverPriority makes one for each label.
func hashTables(lb *networking.LoadBalancerSettings) uint64 {
	return HashTable(lb) * uint64(1+len(lb.GetLocalityLbSetting().GetFailoverPriority()))
}

// hasHashTables reports whether some cluster of a rule has a table.
func hasHashTables(spec *networking.DestinationRule) bool {
	for range loadBalancers(spec) {
		return true
	}
	return false
}

// loadBalancers yields the settings of a rule with a table, and their paths.
func loadBalancers(spec *networking.DestinationRule) func(func(string, *networking.LoadBalancerSettings) bool) {
	return func(yield func(string, *networking.LoadBalancerSettings) bool) {
		for at, p := range trafficPolicies(spec) {
			if HashTable(p.GetLoadBalancer()) > 0 && !yield(at+".loadBalancer", p.GetLoadBalancer()) {
				return
			}
			for i, s := range p.GetPortLevelSettings() {
				if HashTable(s.GetLoadBalancer()) > 0 && !yield(fmt.Sprintf("%s.portLevelSettings[%d].loadBalancer", at, i), s.GetLoadBalancer()) {
					return
				}
			}
		}
	}
}

// LargestHashTable is the largest table that a rule asks for, and its path; 0 if it asks for none.
func LargestHashTable(spec *networking.DestinationRule) (entries uint64, field string) {
	for at, lb := range loadBalancers(spec) {
		if n := HashTable(lb); n > entries {
			entries, field = n, at
		}
	}
	return entries, field
}

// BalancerOf is the load balancer of a port and a subset: what is set for a port replaces what is set for all, and a
// subset replaces what it sets.
func BalancerOf(spec *networking.DestinationRule, port uint32, subset *networking.Subset) *networking.LoadBalancerSettings {
	at := func(p *networking.TrafficPolicy) (*networking.LoadBalancerSettings, bool) {
		for _, s := range p.GetPortLevelSettings() {
			if s.GetPort().GetNumber() == port {
				return s.GetLoadBalancer(), true
			}
		}
		return p.GetLoadBalancer(), false
	}
	lb, _ := at(spec.GetTrafficPolicy())
	if over, byPort := at(subset.GetTrafficPolicy()); over != nil || byPort {
		return over
	}
	return lb
}

// portCounts are the ports of the services that a host of a rule covers.
type portCounts struct {
	all    uint64
	byPort map[uint32]uint64
}

// tableEntries are the entries of all tables that clients make for a rule.
func (c portCounts) tableEntries(spec *networking.DestinationRule) uint64 {
	special := map[uint32]bool{}
	for _, p := range trafficPolicies(spec) {
		for _, s := range p.GetPortLevelSettings() {
			special[s.GetPort().GetNumber()] = true
		}
	}
	sum := uint64(0)
	for i := -1; i < len(spec.GetSubsets()); i++ {
		var subset *networking.Subset
		if i >= 0 {
			subset = spec.GetSubsets()[i]
		}
		others := c.all
		for port := range special {
			others -= c.byPort[port]
			sum += c.byPort[port] * hashTables(BalancerOf(spec, port, subset))
		}
		sum += others * hashTables(BalancerOf(spec, 0, subset))
	}
	return sum
}

// servicePorts finds the ports of services by the hosts of rules. A rule counts those of its own namespace, and
// those of sources that are bound to none: what other tenants declare does not count against it.
type servicePorts struct {
	wanted map[Hostname]bool
	counts map[rulePlace]portCounts
	seen   map[servicePort]bool
}

// rulePlace is a host of rules; namespace is empty for services of unbound sources.
type rulePlace struct {
	namespace string
	host      Hostname
}

type servicePort struct {
	namespace string
	host      Hostname
	port      uint32
}

func countPorts(rules [][]*DestinationRule, services [][]*Service, bindings []*Binding) *servicePorts {
	p := &servicePorts{wanted: map[Hostname]bool{}, counts: map[rulePlace]portCounts{}, seen: map[servicePort]bool{}}
	for i, list := range rules {
		for _, r := range list {
			if bindings[i] != nil && hasHashTables(r.Spec) {
				p.wanted[Hostname(r.Spec.GetHost()).canonical().WholeLabels()] = true
			}
		}
	}
	for i, list := range services {
		for _, svc := range list {
			namespace := svc.Namespace
			if bindings[i] == nil {
				namespace = ""
			}
			p.add(namespace, svc)
		}
	}
	return p
}

func (p *servicePorts) add(namespace string, svc *Service) {
	if svc.Resolution == ResolutionNone || svc.Resolution == ResolutionDynamicDNS {
		return // Envoy has no endpoints to choose from
	}
	host := svc.Hostname.canonical()
	for covering, more := host.WholeLabels(), true; more; {
		if p.wanted[covering] {
			p.addTo(rulePlace{namespace, covering}, host, svc.Ports)
		}
		covering, more = covering.Wider()
	}
}

// Wider is the next wildcard that covers a host.
func (h Hostname) Wider() (Hostname, bool) {
	rest := strings.TrimPrefix(string(h), "*.")
	if _, above, found := strings.Cut(rest, "."); found {
		return Hostname("*." + above), true
	}
	return "*", h != "*"
}

// WholeLabels is the host, or for a wildcard that begins within a label, such as *a.example, the least one of whole
// labels that covers it: *.example. What is counted by it is counted too high, and never too low.
func (h Hostname) WholeLabels() Hostname {
	if !h.IsPartialWildcard() {
		return h
	}
	if _, above, found := strings.Cut(string(h), "."); found {
		return Hostname("*." + above)
	}
	return "*"
}

func (p *servicePorts) addTo(place rulePlace, host Hostname, ports []Port) {
	c, known := p.counts[place]
	if !known {
		c.byPort = map[uint32]uint64{}
	}
	for _, port := range ports {
		// A host in several catalogs makes one cluster. Each wildcard counts it.
		at := servicePort{place.namespace + "/" + string(place.host), host, port.Number}
		if port.Protocol == UDP || p.seen[at] {
			continue
		}
		p.seen[at] = true
		c.all++
		c.byPort[port.Number]++
	}
	p.counts[place] = c
}

// entries are those of all tables of a rule.
func (p *servicePorts) entries(r *DestinationRule) uint64 {
	host := Hostname(r.Spec.GetHost()).canonical().WholeLabels()
	return p.counts[rulePlace{"", host}].tableEntries(r.Spec) + p.counts[rulePlace{r.Namespace, host}].tableEntries(r.Spec)
}

// tooManyTables are the rules of a source whose tables are not made, the largest ones, so that the others
// are within the limit; by what they would have.
func (p *servicePorts) tooManyTables(list []*DestinationRule) (refused map[*DestinationRule]uint64, sum uint64) {
	entries := map[*DestinationRule]uint64{}
	for _, r := range list {
		if !hasHashTables(r.Spec) {
			continue
		}
		if n := p.entries(r); n > 0 {
			entries[r] = n
			sum += n
		}
	}
	refused = map[*DestinationRule]uint64{}
	left := sum
	for _, r := range slices.SortedFunc(maps.Keys(entries), func(a, b *DestinationRule) int {
		return cmp.Or(cmp.Compare(entries[b], entries[a]), a.Compare(b.Key))
	}) {
		if left <= MaxHashTables {
			break
		}
		refused[r] = entries[r]
		left -= entries[r]
	}
	return refused, sum
}

// refusedTables is the conflict of such a rule.
func refusedTables(r *DestinationRule, entries, sum uint64) Conflict {
	_, field := LargestHashTable(r.Spec)
	return Conflict{
		Key: r.Key, Dropped: r.Origin, Kind: ConflictTables, Refused: true, Field: field + ".consistentHash",
		Reason: fmt.Sprintf("refused: the tables of consistentHash have %d entries, a table for each subset and port of the services of %s, and all of this source have %d; "+
			"a source that is bound to namespaces may have %d. The largest rules are refused first: requests by this one are balanced without consistentHash. "+
			"Use smaller tables (ringHash.minimumRingSize, maglev.tableSize), fewer subsets, or a rule for fewer hosts", entries, r.Spec.GetHost(), sum, uint64(MaxHashTables)),
	}
}

// withoutTables is a rule without consistentHash. The rest stays in force: without its TLS settings and subsets, requests
// would leave in plaintext, or fail.
func withoutTables(spec *networking.DestinationRule) *networking.DestinationRule {
	out, _ := proto.Clone(spec).(*networking.DestinationRule)
	for _, lb := range loadBalancers(out) {
		lb.LbPolicy = nil
	}
	return out
}
