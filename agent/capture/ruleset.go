package capture

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
)

// Table is the name of the table; its family is inet.
const Table = "fairlead"

// Owner is the comment of every first rule of a chain of ours. A table of this name without it
// belongs to somebody else.
const Owner = "owner=fairlead-capture"

// OpenTimeout is how long a workload's connections are captured in open mode after it was known
// last that its Envoy is alive.
const OpenTimeout = 10 * time.Second

// natPriority puts our chains before those of Docker and of kube-proxy (-100), whichever is
// loaded first.
const natPriority = -105

// rawPriority is before conntrack.
const rawPriority = -300

// highestUser is what it says: one more means no user.
const highestUser = noUser - 1

const highestPort = 1<<16 - 1

// Ruleset is the whole table.
type Ruleset struct {
	counters []string
	sets     []set
	chains   []chain
	// ranges are what the host needs routes for.
	ranges []netip.Prefix
	// envoys are the ports that connections are redirected to.
	envoys []uint16
	// inbound are the captured ports.
	inbound []captured
}

// captured are ports, and the port of the Envoy that their connections go to.
type captured struct {
	interval
	to uint16
}

// keyType is the type of the keys of a set.
type keyType string

const (
	keyProto keyType = "inet_proto"
	keyUID   keyType = "uid"
	keyPort  keyType = "inet_service"
	keyIP4   keyType = "ipv4_addr"
	keyIP6   keyType = "ipv6_addr"
)

// set is a set. The table has no maps: while the kernel replaces a table, a packet that is in the
// middle of the rules of the old one finds its sets as they were, and its maps empty.
type set struct {
	name     string
	key      keyType
	timeouts bool
	comment  string
	// intervals are the elements of users, ports and protocols; prefixes those of addresses.
	intervals []interval
	prefixes  []netip.Prefix
	// timeout is that of the elements of a set with timeouts; 0 means for ever.
	timeout time.Duration
}

// chain is a chain; without a kind, one that others jump to.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     string // output, prerouting or input
	priority int32
	rules    []rule
}

// rule is one rule: all matches have to hold for what follows them.
type rule []statement

// The names of sets and chains.
const (
	setAlive, setProxies, setExcluded, setVIPs4, setVIPs6, setNever, setLocal4, setLocal6 = "alive", "proxies", "excluded", "vips4", "vips6", "never", "local4", "local6"
	usersOf, portsOf, aliveOf                                                             = "users_", "ports_", "alive_" // of the Envoy, or the agent's DNS, at a port
	counterOutbound, counterInbound, counterSelf, counterVIPs, counterDirect              = "outbound", "inbound", "self", "unanswered", "direct"
	chainOutput, chainToEnvoy, chainFromProxy, chainPrerouting                            = "output", "to_envoy", "from_proxy", "prerouting"
	chainUnanswered, chainDirect, chainZones, chainDNS, counterDNS                        = "unanswered", "direct", "dns_zones", "dns", "dns"
)

// Build makes the table for a host. It fails with all that is wrong with the settings. The same
// arguments give the same table; it does not look at the host.
func Build(s *Settings, f *Facts) (*Ruleset, error) {
	if err := s.check(f); err != nil {
		return nil, err
	}
	r := &Ruleset{
		counters: []string{counterOutbound, counterInbound, counterSelf, counterVIPs, counterDirect},
		ranges:   slices.SortedFunc(slices.Values(s.Ranges), netip.Prefix.Compare),
	}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		r.envoys = append(r.envoys, w.OutboundPort, w.InboundPort)
		for _, p := range s.ports(w, f) {
			r.inbound = append(r.inbound, captured{interval: p, to: w.InboundPort})
		}
	}
	slices.Sort(r.envoys)
	r.sets = s.sets(f, r)
	r.chains = []chain{s.output(), s.toEnvoy(), s.fromProxy(), s.prerouting(), unanswered(), direct(r.envoys)}
	if chains := s.dns(); len(chains) > 0 {
		r.chains, r.counters = append(r.chains, chains...), append(r.counters, counterDNS)
	}
	for i := range r.chains {
		r.chains[i].rules = mark(r.chains[i].rules)
	}
	return r, nil
}

// mark puts the owner's mark on the first rule.
func mark(rules []rule) []rule {
	rules[0] = append(slices.Clone(rules[0]), comment(Owner))
	return rules
}

// drained is the table of the first step of a removal: new connections go directly, and those
// that were captured go on. Without an expression of conntrack the kernel would turn its
// tracking off together with the last one, and with it all captured connections.
func drained() *Ruleset {
	established := []rule{{established{}, verdict{kind: accept}}}
	return &Ruleset{chains: []chain{
		{name: chainOutput, kind: nftables.ChainTypeNAT, hook: "output", priority: natPriority, rules: mark(slices.Clone(established))},
		{name: chainPrerouting, kind: nftables.ChainTypeNAT, hook: "prerouting", priority: natPriority, rules: mark(slices.Clone(established))},
	}}
}

func (s *Settings) sets(f *Facts, r *Ruleset) []set {
	var v4, v6 []netip.Prefix
	for _, p := range r.ranges {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	out := []set{
		{name: setAlive, key: keyProto, timeouts: true, comment: Owner, intervals: []interval{{tcp, tcp}}},
		{name: setProxies, key: keyUID, intervals: singles(s.Proxies)},
		{name: setExcluded, key: keyUID, intervals: singles(s.ExcludeUsers)},
		{name: setVIPs4, key: keyIP4, prefixes: v4},
		{name: setVIPs6, key: keyIP6, prefixes: v6},
	}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		out = append(out, set{name: usersOf + portText(w.OutboundPort), key: keyUID, intervals: s.users(w)},
			set{name: portsOf + portText(w.InboundPort), key: keyPort, intervals: s.ports(w, f)})
		if s.Mode == Open { // nobody has said yet that the Envoy is alive
			out = append(out, set{name: aliveOf + portText(w.OutboundPort), key: keyProto, timeouts: true})
		}
		if w.DNSPort != 0 {
			out = append(out, set{name: aliveOf + portText(w.DNSPort), key: keyProto, timeouts: true})
		}
	}
	if s.Outbound == OutboundVIP {
		return out
	}
	var local4, local6 []netip.Prefix
	for _, p := range []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32"} {
		local4 = append(local4, netip.MustParsePrefix(p))
	}
	for _, p := range []string{"::1/128", "fe80::/10", "ff00::/8"} {
		local6 = append(local6, netip.MustParsePrefix(p))
	}
	return append(out,
		set{name: setNever, key: keyPort, intervals: singles(s.excludes(f))},
		set{name: setLocal4, key: keyIP4, prefixes: local4},
		set{name: setLocal6, key: keyIP6, prefixes: local6})
}

// whileAlive are the matches for connections of a workload: in open mode, that its Envoy is alive.
func (s *Settings) whileAlive(w *Workload) rule {
	if s.Mode != Open {
		return nil
	}
	return rule{lookup{field: fieldL4Proto, set: aliveOf + portText(w.OutboundPort)}}
}

// users are those whose connections go to the Envoy of a workload.
func (s *Settings) users(w *Workload) []interval {
	if s.Outbound == OutboundAll {
		return without(0, highestUser, slices.Concat(s.Proxies, s.ExcludeUsers))
	}
	return singles(w.Users)
}

// ports are those whose connections go to the Envoy of a workload.
func (s *Settings) ports(w *Workload, f *Facts) []interval {
	if s.Inbound == InboundAll {
		return without(1, highestPort, s.excludes(f))
	}
	return singles(w.Ports)
}

// onlyNew are the first rules of each nat chain: TCP, connections that begin, while capture is
// on. Packets in the middle of a connection that conntrack does not know count as new, too, and
// to redirect them would reset all connections of a host where nothing tracked them before.
func onlyNew() []rule {
	return []rule{
		{l4proto{not: true}, verdict{kind: ret}},
		{syn{not: true}, verdict{kind: ret}},
		{lookup{field: fieldL4Proto, set: setAlive, not: true}, verdict{kind: ret}},
	}
}

func (s *Settings) output() chain {
	rules := append(onlyNew(),
		rule{lookup{field: fieldUID, set: setProxies}, verdict{kind: jump, to: chainFromProxy}},
		rule{lookup{field: fieldUID, set: setProxies}, verdict{kind: ret}},
		rule{lookup{field: fieldUID, set: setExcluded}, verdict{kind: ret}},
		rule{lookup{field: fieldDst4, set: setVIPs4}, verdict{kind: jump, to: chainToEnvoy, final: true}},
		rule{lookup{field: fieldDst6, set: setVIPs6}, verdict{kind: jump, to: chainToEnvoy, final: true}})
	if s.Outbound != OutboundVIP {
		rules = append(rules,
			rule{lookup{field: fieldDst4, set: setLocal4}, verdict{kind: ret}},
			rule{lookup{field: fieldDst6, set: setLocal6}, verdict{kind: ret}},
			rule{lookup{field: fieldPort, set: setNever}, verdict{kind: ret}},
			rule{verdict{kind: jump, to: chainToEnvoy, final: true}})
	}
	return chain{name: chainOutput, kind: nftables.ChainTypeNAT, hook: "output", priority: natPriority, rules: rules}
}

func (s *Settings) toEnvoy() chain {
	c := chain{name: chainToEnvoy}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		c.rules = append(c.rules, slices.Concat(rule{l4proto{}}, s.whileAlive(w),
			rule{lookup{field: fieldUID, set: usersOf + portText(w.OutboundPort)}, counter(counterOutbound), redirect(w.OutboundPort)}))
	}
	return c
}

// toInbound are the rules that send connections to captured ports to the Envoys.
func (s *Settings) toInbound(count counter) []rule {
	var out []rule
	for i := range s.Workloads {
		w := &s.Workloads[i]
		out = append(out, slices.Concat(s.whileAlive(w), rule{lookup{field: fieldPort, set: portsOf + portText(w.InboundPort)}, count, redirect(w.InboundPort)}))
	}
	return out
}

// fromProxy has a proxy's call to a workload of its own host go through the inbound of that
// workload's Envoy. Envoy's connections to its application come from 127.0.0.6 or ::6.
func (s *Settings) fromProxy() chain {
	return chain{name: chainFromProxy, rules: append([]rule{
		{ifname{out: true, not: true}, verdict{kind: ret}},
		{address{field: fieldSrc4, of: netip.MustParsePrefix("127.0.0.6/32")}, verdict{kind: ret}},
		{address{field: fieldSrc6, of: netip.MustParsePrefix("::6/128")}, verdict{kind: ret}},
		{address{field: fieldDst4, of: netip.MustParsePrefix("127.0.0.0/8")}, verdict{kind: ret}},
		{address{field: fieldDst6, of: netip.MustParsePrefix("::1/128")}, verdict{kind: ret}},
	}, s.toInbound(counterSelf)...)}
}

// prerouting captures connections from elsewhere to addresses of the host. What is forwarded,
// such as connections of containers to other hosts, is left alone.
func (s *Settings) prerouting() chain {
	all := onlyNew()
	rules := slices.Concat(all[:1], []rule{{ifname{}, verdict{kind: ret}}}, all[1:], []rule{{notLocal{}, verdict{kind: ret}}}, s.toInbound(counterInbound))
	return chain{name: chainPrerouting, kind: nftables.ChainTypeNAT, hook: "prerouting", priority: natPriority, rules: rules}
}

// unanswered refuses connections to virtual addresses that were not captured, at once. Nobody
// answers there, and nothing of them may reach the network.
func unanswered() chain {
	return chain{name: chainUnanswered, kind: nftables.ChainTypeFilter, hook: "output", rules: []rule{
		{lookup{field: fieldDst4, set: setVIPs4}, l4proto{}, counter(counterVIPs), reject{reset: true}},
		{lookup{field: fieldDst6, set: setVIPs6}, l4proto{}, counter(counterVIPs), reject{reset: true}},
		{lookup{field: fieldDst4, set: setVIPs4}, counter(counterVIPs), reject{}},
		{lookup{field: fieldDst6, set: setVIPs6}, counter(counterVIPs), reject{v6: true}},
	}}
}

// direct refuses connections from elsewhere that go to the ports of the Envoys themselves.
// Captured connections have another original port. Only connections that begin are looked at:
// conntrack may take the direction of older ones for the other one.
func direct(envoys []uint16) chain {
	c := chain{name: chainDirect, kind: nftables.ChainTypeFilter, hook: "input", rules: []rule{
		{l4proto{not: true}, verdict{kind: ret}},
		{ifname{}, verdict{kind: ret}},
		{syn{not: true}, verdict{kind: ret}},
	}}
	for _, p := range envoys {
		c.rules = append(c.rules, rule{l4proto{}, originalPort(p), counter(counterDirect), reject{reset: true}})
	}
	return c
}

// dns sends the DNS queries of workloads that want it to their agents, while these answer, whatever
// mode Envoys have: a dead agent must not take the names of its host away. It comes before the chain
// that captures connections, and has no exception for 127.0.0.0/8, where the stub of systemd-resolved
// is. It returns nothing if there is nothing to do.
//
// Queries by UDP are in a zone of conntrack of their own, and so are the agent's answers: a socket may
// have the port that another one had some seconds ago, of another user, or before the agent answered or
// was dead, and what conntrack remembers would decide where its query goes.
func (s *Settings) dns() []chain {
	notOurs := []rule{
		{lookup{field: fieldUID, set: setProxies}, verdict{kind: ret}},
		{lookup{field: fieldUID, set: setExcluded}, verdict{kind: ret}},
	}
	var zones, answers, redirects []rule
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if w.DNSPort == 0 {
			continue
		}
		query := func(proto byte) rule {
			return rule{
				lookup{field: fieldL4Proto, set: aliveOf + portText(w.DNSPort)}, lookup{field: fieldUID, set: usersOf + portText(w.OutboundPort)}, portOf{proto: proto, port: dnsPort},
			}
		}
		answers = append(answers, rule{portOf{proto: udp, source: true, port: w.DNSPort}, lookup{field: fieldUID, set: setProxies}, setZone(w.DNSPort)})
		zones = append(zones, append(query(udp), setZone(w.DNSPort)))
		for _, proto := range []byte{udp, tcp} {
			redirects = append(redirects, append(query(proto), counter(counterDNS), redirect(w.DNSPort)))
		}
	}
	if len(redirects) == 0 {
		return nil
	}
	return []chain{
		{name: chainZones, kind: nftables.ChainTypeFilter, hook: "output", priority: rawPriority, rules: slices.Concat(answers, notOurs, zones)},
		{name: chainDNS, kind: nftables.ChainTypeNAT, hook: "output", priority: natPriority - 1, rules: slices.Concat(notOurs, redirects)},
	}
}

// alive is the set that switches capture on and off.
func (r *Ruleset) alive() *set {
	for i := range r.sets {
		if r.sets[i].name == setAlive {
			return &r.sets[i]
		}
	}
	return nil
}

// With returns the table with another timeout of the element that switches capture on; 0 means
// that it stays on.
func (r *Ruleset) With(timeout time.Duration) *Ruleset {
	out := *r
	out.sets = slices.Clone(r.sets)
	if a := out.alive(); a != nil {
		a.timeout = timeout
	}
	return &out
}

// Alive returns the table with what is known of Envoys in open mode, and of the DNS of agents, by
// outbound port and port of DNS: left is for how long connections or queries still go there, unless
// it is reported as alive once more; 0 means that they go directly.
func (r *Ruleset) Alive(left func(port uint16) time.Duration) *Ruleset {
	out := *r
	out.sets = slices.Clone(r.sets)
	for i := range out.sets {
		s := &out.sets[i]
		if port, ok := alivePort(s.name); ok {
			s.intervals, s.timeout = nil, max(left(port), 0)
			if s.timeout > 0 {
				for _, proto := range switched(s.name) {
					s.intervals = append(s.intervals, interval{proto, proto})
				}
			}
		}
	}
	return &out
}

// switched are the protocols that the elements of a set with timeouts are about: that of a port may
// be of DNS.
func switched(set string) []uint32 {
	if set == setAlive {
		return []uint32{tcp}
	}
	return []uint32{tcp, udp}
}

// alivePort is the port of Envoy, or of an agent's DNS, that a set is about.
func alivePort(set string) (uint16, bool) {
	text, ok := strings.CutPrefix(set, aliveOf)
	port, err := strconv.ParseUint(text, 10, 16)
	return uint16(port), ok && err == nil
}

// Ranges are the virtual addresses, which the host needs routes for.
func (r *Ruleset) Ranges() []netip.Prefix { return slices.Clone(r.ranges) }
