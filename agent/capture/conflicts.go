package capture

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// Findings are what the other tables of a host mean for a table of ours.
type Findings struct {
	// Refused says why the table must not be applied: somebody else redirects a captured port.
	Refused []string `json:"refused,omitempty"`
	// Remarks say what firewalls will do with captured connections.
	Remarks []string `json:"remarks,omitempty"`
}

// Inspect reads all other tables of the kernel. It changes nothing.
func (k Kernel) Inspect(r *Ruleset) (Findings, error) {
	var f Findings
	c, err := k.conn()
	if err != nil {
		return f, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return f, fmt.Errorf("listing the chains of the kernel: %w", explainErrno(err))
	}
	nat := natTables(chains)
	for _, ch := range chains {
		if ours(ch.Table) {
			continue
		}
		if ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop && ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookInput {
			f.Remarks = append(f.Remarks, dropRemark(place(ch.Table, ch.Name), r))
		}
	}
	rules, err := k.listRules(false)
	if err != nil {
		return f, err
	}
	for i := range rules {
		if !ours(rules[i].table) {
			f.judge(c, &rules[i], r, nat)
		}
	}
	f.Refused, f.Remarks = compact(f.Refused), compact(f.Remarks)
	return f, nil
}

// judge adds what a rule of another table means for ours.
func (f *Findings) judge(c *nftables.Conn, rl *foundRule, r *Ruleset, nat map[string]bool) {
	at := place(rl.table, rl.chain)
	if rl.status && len(r.inbound) > 0 {
		f.Remarks = append(f.Remarks, at+" looks at whether connections were redirected (ct status), as firewalld does to let them in: "+
			"captured ports may be open to the network, also where this firewall has them closed: restrict them with an AuthorizationPolicy")
	}
	if !nat[tableKey(rl.table)] || !redirects(rl) {
		return
	}
	ports, known := destinationPorts(c, rl)
	if !known {
		f.Remarks = append(f.Remarks, at+" redirects connections by a rule that names no port: captured ports come to Envoy, and no longer to that rule: check it with `nft list ruleset`")
		return
	}
	for _, p := range ports {
		for _, i := range r.inbound {
			if lo, hi := max(p.lo, i.lo), min(p.hi, i.hi); lo <= hi {
				f.Refused = append(f.Refused, fmt.Sprintf("port %s: %s redirects it already, such as to a container: "+
					"captured, it would break: remove it from ports (or write it into exclude-ports), or stop publishing it there", span(lo, hi), at))
			}
		}
	}
}

func place(t *nftables.Table, chain string) string {
	return fmt.Sprintf("table %s %s, chain %s", familyName(t.Family), t.Name, chain)
}

func compact(in []string) []string {
	slices.Sort(in)
	return slices.Compact(in)
}

func span(lo, hi uint32) string {
	if lo == hi {
		return strconv.FormatUint(uint64(lo), 10)
	}
	return fmt.Sprintf("%d-%d", lo, hi)
}

func ours(t *nftables.Table) bool { return t.Name == Table && t.Family == nftables.TableFamilyINet }

func tableKey(t *nftables.Table) string { return familyName(t.Family) + " " + t.Name }

func familyName(f nftables.TableFamily) string {
	names := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyARP: "arp",
		nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
	}
	return names[f]
}

// natTables are the tables with a chain that may redirect what comes in.
func natTables(chains []*nftables.Chain) map[string]bool {
	out := map[string]bool{}
	for _, ch := range chains {
		if ch.Type == nftables.ChainTypeNAT && ch.Hooknum != nil && *ch.Hooknum == *nftables.ChainHookPrerouting {
			out[tableKey(ch.Table)] = true
		}
	}
	return out
}

func dropRemark(at string, r *Ruleset) string {
	var ports []string
	for _, i := range r.inbound {
		ports = append(ports, fmt.Sprintf("tcp dport %d ct original proto-dst %s accept", i.to, span(i.lo, i.hi)))
	}
	const shown = 8
	if len(ports) > shown {
		ports = append(ports[:shown], "…")
	}
	if len(ports) == 0 {
		return at + " drops what it does not accept; nothing inbound is captured"
	}
	return at + " drops what it does not accept, and sees the port of Envoy instead of the captured one: captured connections time out unless it has these rules: " + strings.Join(ports, "; ")
}

// redirects reports whether a rule changes the destination of connections.
func redirects(r *foundRule) bool {
	return slices.ContainsFunc(r.exprs, func(e expr.Any) bool {
		switch e := e.(type) {
		case *expr.Redir:
			return true
		case *expr.NAT:
			return e.Type == expr.NATTypeDestNAT
		case *expr.Target: // of iptables-nft
			return e.Name == "DNAT" || e.Name == "REDIRECT"
		default:
			return false
		}
	})
}

// destinationPorts are the ports that a rule is about; false if it names none that can be read. A
// rule about another protocol is about no port.
func destinationPorts(c *nftables.Conn, r *foundRule) (ports []interval, known bool) {
	// loaded is what the register has: a port of TCP, a protocol, or something else.
	const other, proto, port = 0, 1, 2
	loaded := other
	all := interval{lo: 0, hi: highestPort}
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Meta:
			loaded = other
			if e.Key == expr.MetaKeyL4PROTO {
				loaded = proto
			}
		case *expr.Payload:
			loaded = other
			if e.Base == expr.PayloadBaseTransportHeader && e.Offset == offsetPort && e.Len == sizePort {
				loaded = port
			}
		case *expr.Cmp:
			switch {
			case loaded == proto && e.Op == expr.CmpOpEq && len(e.Data) > 0 && e.Data[0] != tcp:
				return nil, true
			case loaded == port && len(e.Data) == sizePort:
				v := uint32(binary.BigEndian.Uint16(e.Data))
				ports, known = append(ports, cut(all, e.Op, v)...), true
				if len(ports) > 1 { // two comparisons are the ends of a range
					a, b := ports[0], ports[1]
					ports = []interval{{lo: max(a.lo, b.lo), hi: min(a.hi, b.hi)}}
				}
			}
		case *expr.Range:
			if loaded == port && len(e.FromData) == sizePort && len(e.ToData) == sizePort && e.Op == expr.CmpOpEq {
				ports, known = append(ports, interval{lo: uint32(binary.BigEndian.Uint16(e.FromData)), hi: uint32(binary.BigEndian.Uint16(e.ToData))}), true
			}
		case *expr.Lookup:
			if loaded == port && !e.Invert {
				if in, ok := portsOfSet(c, r.table, e.SetName); ok {
					ports, known = append(ports, in...), true
				}
			}
		case *expr.Match: // of iptables-nft
			switch info := e.Info.(type) {
			case *xt.Tcp:
				ports, known = append(ports, interval{lo: uint32(info.DstPorts[0]), hi: uint32(info.DstPorts[1])}), true
			case *xt.Udp:
				return nil, true
			case *xt.Unknown:
				if in, ok := multiport(e, []byte(*info)); ok {
					ports, known = append(ports, in...), true
				}
			}
		}
	}
	return ports, known
}

// multiport are the destination ports of iptables' match of several: the kernel's struct
// xt_multiport_v1.
func multiport(e *expr.Match, b []byte) (ports []interval, ok bool) {
	const (
		most   = 15
		source = 0 // of its flags
		size   = 1 + 1 + 2*most + most + 1
	)
	if e.Name != "multiport" || e.Rev != 1 || len(b) < size {
		return nil, false
	}
	flags, n, list, more, invert := b[0], int(b[1]), b[2:2+2*most], b[2+2*most:size-1], b[size-1]
	if flags == source || n > most || invert != 0 {
		return nil, false
	}
	for i := 0; i < n; i++ {
		p := interval{lo: uint32(binary.NativeEndian.Uint16(list[2*i:]))}
		if p.hi = p.lo; more[i] != 0 && i+1 < n { // it begins a range
			i++
			p.hi = uint32(binary.NativeEndian.Uint16(list[2*i:]))
		}
		ports = append(ports, p)
	}
	return ports, true
}

// cut is what a comparison leaves of an interval.
func cut(i interval, op expr.CmpOp, v uint32) []interval {
	switch op {
	case expr.CmpOpEq:
		return []interval{{lo: v, hi: v}}
	case expr.CmpOpGte, expr.CmpOpGt:
		return []interval{{lo: v, hi: i.hi}}
	case expr.CmpOpLte, expr.CmpOpLt:
		return []interval{{lo: i.lo, hi: v}}
	default:
		return []interval{i}
	}
}

// portsOfSet are the keys of a set or map of ports.
func portsOfSet(c *nftables.Conn, t *nftables.Table, name string) ([]interval, bool) {
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, false
	}
	i := slices.IndexFunc(sets, func(s *nftables.Set) bool { return s.Name == name })
	if i < 0 || sets[i].KeyType.Bytes != sizePort {
		return nil, false
	}
	elements, err := c.GetSetElements(sets[i])
	if err != nil {
		return nil, false
	}
	return intervalsOf(elements, sets[i].Interval), true
}

// intervalsOf are the elements of a set of ports.
func intervalsOf(elements []nftables.SetElement, ranges bool) []interval {
	keys := map[uint32]bool{} // whether an interval begins there
	for _, e := range elements {
		if len(e.Key) != sizePort {
			continue
		}
		k := uint32(binary.BigEndian.Uint16(e.Key))
		keys[k] = keys[k] || !e.IntervalEnd
	}
	sorted := slices.Sorted(maps.Keys(keys))
	var out []interval
	for i, k := range sorted {
		if !keys[k] {
			continue
		}
		hi := k
		if ranges {
			hi = highestPort
			if i+1 < len(sorted) {
				hi = sorted[i+1] - 1
			}
		}
		out = append(out, interval{lo: k, hi: hi})
	}
	return out
}
