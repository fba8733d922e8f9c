package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	wildcard  = "0.0.0.0"
	localhost = "127.0.0.1"
	transTLS  = "tls"
	transRaw  = "raw_buffer"
)

// plainALPN is what Envoy's HTTP inspector reports.
func plainALPN() []string { return []string{"http/1.1", "h2c"} }

// listenerKey is the address at which a listener would be.
type listenerKey struct {
	Bind string
	Port uint32
}

// entry is an outbound listener in the making.
type entry struct {
	key        listenerKey
	extra      []string // further addresses
	bindToPort bool
	// protocol of what is in it; Undeclared when HTTP and TCP are told apart by
	// looking at the first bytes.
	protocol mesh.Protocol
	locked   bool
	chains   []*Chain
	origins  []*mesh.Origin
}

// outbound collects the outbound listeners of one proxy.
type outbound struct {
	sc       *scope
	taken    []listenerKey        // what outbound listeners must leave free
	prev     map[string]*Listener // what was there before, by name
	entries  map[listenerKey]*entry
	layer4   map[*egress][]*virtualService // those that route connections
	warnings []Warning
}

// target is a service's port on its way into a listener.
type target struct {
	e    *egress
	svc  *service
	port mesh.Port
	// bind is empty where the service's own addresses decide.
	bind       string
	bindToPort bool
	extra      []string
	cidrs      []string
}

// listeners are those of the proxy for its own requests, and
// the names of the route tables that they ask for.
func (o *outbound) listeners() ([]Part, []string) {
	sc := o.sc
	o.entries, o.layer4 = map[listenerKey]*entry{}, map[*egress][]*virtualService{}
	for _, e := range sc.egress {
		o.addEgress(e)
	}
	keys := make([]listenerKey, 0, len(o.entries))
	for k := range o.entries {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b listenerKey) int { return cmp.Or(cmp.Compare(a.Bind, b.Bind), cmp.Compare(a.Port, b.Port)) })
	o.dropSharedAddresses(keys)
	parts := make([]Part, 0, len(keys)+1)
	var names []string
	for _, k := range keys {
		l := o.finish(o.entries[k])
		for _, c := range append(slices.Clone(l.Chains), l.Default) {
			if c != nil && c.HTTP != nil {
				names = append(names, c.HTTP.RouteName)
			}
		}
		parts = append(parts, l)
	}
	if sc.proxy.Interception != InterceptNone {
		parts = append(parts, o.virtualOutbound())
	}
	slices.Sort(names)
	return parts, slices.Compact(names)
}

// dropSharedAddresses leaves each address to one listener: the one that has it
// first among its own, else the first that has it at all.
func (o *outbound) dropSharedAddresses(keys []listenerKey) {
	used := map[listenerKey]bool{}
	for _, k := range keys {
		used[k] = true
	}
	for _, k := range keys {
		en := o.entries[k]
		en.extra = slices.DeleteFunc(slices.Clone(en.extra), func(a string) bool {
			at := listenerKey{Bind: a, Port: k.Port}
			taken := used[at]
			used[at] = true
			return taken
		})
	}
}

func (o *outbound) addEgress(e *egress) {
	t := target{e: e, bind: e.listener.GetBind(), bindToPort: o.sc.proxy.Interception == InterceptNone}
	switch e.listener.GetCaptureMode() {
	case networking.CaptureMode_NONE:
		t.bindToPort = true
	case networking.CaptureMode_IPTABLES:
		t.bindToPort = o.sc.proxy.Interception == InterceptNone
	case networking.CaptureMode_DEFAULT:
	}
	if t.bind == "" && t.bindToPort {
		t.bind = localhost
	}
	if e.hasPort() {
		p := e.listener.GetPort()
		t.port = mesh.Port{Name: p.GetName(), Number: p.GetNumber(), Protocol: parseProtocol(p.GetProtocol())}
	} else {
		for _, en := range o.entries { // ports that have a listener of their own stay as they are
			en.locked = true
		}
	}
	for turn := range turns {
		for _, svc := range e.services {
			t.svc = svc
			if e.hasPort() {
				if o.turn(svc, t.port.Number) == turn {
					o.add(t)
				}
				continue
			}
			for _, p := range svc.Ports {
				if o.turn(svc, p.Number) == turn {
					t.port = p
					o.add(t)
				}
			}
		}
	}
}

// add puts a service's port into the listener that it belongs to.
func (o *outbound) add(t target) {
	if t.port.Protocol == mesh.UDP || t.svc.Resolution == mesh.ResolutionDynamicDNS {
		return
	}
	if t.port.Protocol.IsHTTP() {
		t.bind = cmp.Or(t.bind, wildcard)
		o.place(t)
		return
	}
	if t.bind != "" {
		o.place(t)
		return
	}
	var ips, cidrs []string
	for _, a := range t.svc.Addresses {
		if p, err := netip.ParsePrefix(a); err == nil && !p.IsSingleIP() {
			cidrs = append(cidrs, a)
		} else if err == nil {
			ips = append(ips, p.Addr().String())
		} else if isIP(a) {
			ips = append(ips, a)
		}
	}
	if len(ips) > 0 {
		vip := t
		vip.bind, vip.extra = ips[0], ips[1:]
		o.place(vip)
	}
	if len(cidrs) > 0 || len(ips) == 0 {
		t.bind, t.cidrs = wildcard, cidrs
		o.place(t)
	}
}

func (o *outbound) place(t target) {
	key := listenerKey{Bind: t.bind, Port: t.port.Number}
	if !o.free(key, t) {
		return
	}
	cur := o.entries[key]
	if cur != nil && cur.locked {
		return
	}
	http := t.port.Protocol.IsHTTP()
	if cur != nil && http && (cur.protocol.IsHTTP() || cur.protocol == mesh.Undeclared) {
		return // its routes are in the table that is there
	}
	if cur != nil && cur.protocol != t.port.Protocol && (ownProtocol(cur.protocol) || ownProtocol(t.port.Protocol)) {
		o.conflict(key, t)
		return
	}
	turn := o.turn(t.svc, t.port.Number)
	named := turn == yielding && t.port.Protocol.IsTLS() // by the server's name
	if cur != nil && turn > 0 && (!named && cur.takesAll() || turn == yielding && cur.protocol.IsHTTP() && !http) {
		o.conflict(key, t)
		return
	}
	chains, protocol := o.chains(t)
	if chains = t.named(chains); len(chains) == 0 {
		if t.e.hasPort() {
			o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: it is of a catalog, and takes a whole port only where a Sidecar names it without a wildcard",
				t.svc.Hostname, key.Bind, key.Port))
		}
		return
	}
	if cur == nil || (t.port.Protocol == mesh.Undeclared && cur.protocol.IsHTTP()) {
		en := &entry{
			key: key, extra: t.extra, bindToPort: t.bindToPort, protocol: protocol,
			origins: []*mesh.Origin{t.svc.Origin},
		}
		for _, c := range chains {
			if !en.take(c) {
				o.conflict(key, t)
			}
		}
		o.entries[key] = en
		return
	}
	if cur.protocol == mesh.Undeclared && t.port.Protocol == mesh.Undeclared {
		chains = slices.DeleteFunc(chains, func(c *Chain) bool { return c.HTTP != nil })
	}
	if http != cur.protocol.IsHTTP() {
		cur.protocol = mesh.Undeclared
	}
	for _, c := range chains {
		if !cur.take(c) {
			o.conflict(key, t)
		}
	}
	cur.origins = append(cur.origins, t.svc.Origin)
}

// take adds a chain for the connections that no other chain of the entry takes;
// Envoy refuses two for one. It reports whether there were any.
func (en *entry) take(c *Chain) bool {
	for _, have := range en.chains {
		if !sameMatch(&have.Match, &c.Match) {
			continue
		}
		left := slices.DeleteFunc(slices.Clone(names(&c.Match)), func(n string) bool { return slices.Contains(have.Match.ServerNames, n) })
		if len(left) == 0 {
			return false
		}
		trimmed := *c
		trimmed.Match.ServerNames = left
		c = &trimmed
	}
	en.chains = append(en.chains, c)
	return true
}

// ownProtocol is a protocol that cannot share a port with another, as its
// server speaks first.
func ownProtocol(p mesh.Protocol) bool { return p == mesh.Mongo || p == mesh.MySQL }

func (o *outbound) conflict(key listenerKey, t target) {
	o.warn(t, fmt.Sprintf("port %d of %q has no listener of its own on %s: another service has that address first",
		t.port.Number, t.svc.Hostname, key.Bind))
}

func (o *outbound) warn(t target, text string) {
	o.warnings = append(o.warnings, Warning{Key: t.svc.Key, Origin: t.svc.Origin, Message: text})
}

// free reports whether an outbound listener may be there: not where the
// workload itself serves, nor on the ports of Envoy's own listeners.
func (o *outbound) free(key listenerKey, t target) bool {
	if key.Bind == wildcard {
		switch key.Port {
		case 15021, 15090:
			return false
		case o.sc.outPort(), o.sc.inPort():
			return false
		}
	}
	if !t.bindToPort {
		return true
	}
	for _, k := range o.taken {
		if k.Port == key.Port && (k.Bind == key.Bind || k.Bind == wildcard || key.Bind == wildcard) {
			o.warn(t, fmt.Sprintf("no listener for %q on %s:%d: the workload itself serves there", t.svc.Hostname, key.Bind, key.Port))
			return false
		}
	}
	return true
}

func (o *outbound) chains(t target) ([]*Chain, mesh.Protocol) {
	if t.port.Protocol.IsHTTP() {
		http := o.httpChain(t)
		if t.port.Protocol != mesh.HTTPProxy && t.bind == wildcard {
			http.Match = ChainMatch{Transport: transRaw, ALPN: plainALPN()}
			return []*Chain{http}, mesh.Undeclared
		}
		return []*Chain{http}, t.port.Protocol
	}
	var chains []*Chain
	if t.port.Protocol.IsTLS() {
		chains = o.tlsChains(t)
	} else {
		chains = o.tcpChains(t)
	}
	if t.port.Protocol == mesh.Undeclared {
		http := o.httpChain(t)
		http.Match = ChainMatch{Transport: transRaw, ALPN: plainALPN()}
		chains = append(chains, http)
	}
	return chains, t.port.Protocol
}

func (o *outbound) httpChain(t target) *Chain {
	name := strconv.FormatUint(uint64(t.port.Number), 10)
	switch {
	case t.port.Number == 0:
		name = t.bind
	case t.port.Protocol == mesh.Undeclared && t.bind != wildcard:
		name = string(t.svc.Hostname) + ":" + name
	}
	http := o.sc.httpChain("outbound_" + listenerName(t.bind, t.port.Number))
	http.RouteName = name
	http.AllowAbsoluteURL = t.port.Protocol == mesh.HTTPProxy
	http.GRPCWeb = t.port.Protocol == mesh.GRPCWeb
	return &Chain{HTTP: http}
}

func (e *epoch) httpChain(stat string) *HTTPChain {
	http := &HTTPChain{StatPrefix: stat + ";"}
	switch e.config.GetPathNormalization().GetNormalization().String() {
	case "NONE":
	case "MERGE_SLASHES":
		http.NormalizePath, http.MergeSlashes = true, true
	case "DECODE_AND_MERGE_SLASHES":
		http.NormalizePath, http.MergeSlashes, http.UnescapeSlashes = true, true, true
	default:
		http.NormalizePath = true
	}
	return http
}

func listenerName(bind string, port uint32) string {
	return bind + "_" + strconv.FormatUint(uint64(port), 10)
}

// sameMatch reports whether two matches share one of the pairs of address and
// server name that they stand for.
func sameMatch(a, b *ChainMatch) bool {
	return a.DestinationPort == b.DestinationPort && a.Transport == b.Transport && slices.Equal(a.ALPN, b.ALPN) &&
		shared(names(a), names(b)) && shared(masked(a.CIDRs), masked(b.CIDRs))
}

// shared reports whether two lists have something in common; an empty one is
// "any", which is one value among others.
func shared(a, b []string) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

func names(m *ChainMatch) []string {
	if slices.Contains(m.ServerNames, "*") {
		return nil
	}
	return m.ServerNames
}

func masked(cidrs []string) []string {
	out := make([]string, 0, len(cidrs))
	for _, c := range cidrs {
		if p, err := netip.ParsePrefix(c); err == nil {
			c = p.Masked().String()
		}
		out = append(out, c)
	}
	return out
}

// finish turns an entry into a part.
func (o *outbound) finish(en *entry) *Listener {
	l := &Listener{
		Name:       listenerName(en.key.Bind, en.key.Port),
		Addresses:  append([]string{en.key.Bind}, en.extra...),
		Port:       en.key.Port,
		BindToPort: en.bindToPort,
	}
	for _, c := range en.chains {
		if len(c.Match.ServerNames) > 0 {
			l.InspectTLS = true
		}
		if len(c.Match.ALPN) > 0 {
			l.InspectHTTP = true
		}
		if c.Match.matchesAll() {
			l.Default = c
		} else {
			l.Chains = append(l.Chains, c)
		}
	}
	switch {
	case l.Default != nil && len(l.Chains) == 0:
		l.Chains, l.Default = []*Chain{l.Default}, nil
	case l.Default == nil:
		l.Default = o.sc.fallthroughChain("PassthroughFilterChain")
	}
	if l.InspectHTTP {
		l.InspectTimeout = o.sc.config.GetProtocolDetectionTimeout().AsDuration()
	}
	if have := o.prev[l.Name]; have != nil && l.sameAs(have) {
		return have
	}
	l.origins = originsOf(en.origins...)
	return o.sc.listeners.of(l)
}

// fallthroughChain takes what is for no service.
func (sc *scope) fallthroughChain(name string) *Chain {
	ca := sc.catchAll()
	to := ca.Cluster
	if ca.Refuse {
		to = ClusterRef{Kind: BlackHoleCluster}
	}
	return &Chain{Name: name, TCP: &TCPChain{StatPrefix: statPrefix(to), Destinations: []WeightedCluster{{Cluster: to}}}}
}

// statPrefix is Istio's: the name of the cluster.
func statPrefix(c ClusterRef) string {
	switch c.Kind {
	case PassthroughCluster:
		return "PassthroughCluster"
	case BlackHoleCluster:
		return "BlackHoleCluster"
	case InboundPassthroughCluster:
		return "InboundPassthroughCluster"
	case InboundCluster:
		return strings.Join([]string{"inbound", strconv.FormatUint(uint64(c.Port), 10), "", ""}, "|")
	case OutboundCluster:
		return strings.Join([]string{"outbound", strconv.FormatUint(uint64(c.Port), 10), c.Subset, string(c.Host)}, "|")
	default:
		return ""
	}
}

// virtualOutbound receives what capture redirects, and hands it to the listener
// of the original destination.
func (o *outbound) virtualOutbound() *Listener {
	sc := o.sc
	black := ClusterRef{Kind: BlackHoleCluster}
	l := &Listener{
		Name:        "virtualOutbound",
		Addresses:   []string{wildcard},
		Port:        sc.outPort(),
		BindToPort:  true,
		HandsOver:   true,
		Transparent: sc.proxy.Interception == InterceptTPROXY,
		Chains: []*Chain{
			{
				Name:  "virtualOutbound-blackhole",
				Match: ChainMatch{DestinationPort: sc.outPort()},
				TCP:   &TCPChain{StatPrefix: statPrefix(black), Destinations: []WeightedCluster{{Cluster: black}}},
			},
			sc.fallthroughChain("virtualOutbound-catchall-tcp"),
		},
	}
	if have := o.prev[l.Name]; have != nil && l.sameAs(have) {
		return have
	}
	return sc.listeners.of(l)
}

func (e *epoch) outPort() uint32 {
	return uint32(cmp.Or(e.config.GetProxyListenPort(), 15001))
}

func (e *epoch) inPort() uint32 {
	return uint32(cmp.Or(e.config.GetProxyInboundListenPort(), 15006))
}
