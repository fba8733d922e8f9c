package dns

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"

	mdns "github.com/miekg/dns"
)

// maxRecords bounds the records of one answer: whatever is more is left out, in another order each
// time.
const maxRecords = 256

// answer fills the reply with what the table says; false means that the name is not in it.
func (t *Table) answer(reply *mdns.Msg, q mdns.Question) bool {
	name := mdns.CanonicalName(q.Name)
	if strings.HasPrefix(name, "_") {
		return t.answerService(reply, q, name)
	}
	if q.Qtype == mdns.TypePTR {
		if a, ok := reverse(name); ok {
			return t.answerPointer(reply, q, a)
		}
	}
	h := t.find(name)
	if h == nil {
		return false
	}
	switch q.Qtype {
	case mdns.TypeA, mdns.TypeAAAA:
		reply.Answer = h.records(reply.Answer, q.Name, q.Qtype)
	case mdns.TypeSRV: // as Consul: all ports of the name
		for _, s := range h.services {
			reply.Answer = append(reply.Answer, h.srv(q.Name, s, q.Name))
		}
		reply.Extra = h.additional(reply.Extra, q.Name, len(reply.Answer))
	case mdns.TypeANY: // RFC 8482
		reply.Answer = append(reply.Answer, &mdns.HINFO{Hdr: header(q.Name, mdns.TypeHINFO, h.ttl), Cpu: "RFC8482"})
	default: // nothing of that type; others must not say otherwise
	}
	return true
}

// answerService answers _SERVICE._PROTOCOL.HOST.
func (t *Table) answerService(reply *mdns.Msg, q mdns.Question, name string) bool {
	at, end := mdns.NextLabel(name, 0)
	if end {
		return false
	}
	rest, end := mdns.NextLabel(name, at)
	if end || name[at] != '_' {
		return false
	}
	label, parent := name[:rest], name[rest:]
	target := q.Name[rest:]
	h := t.find(parent)
	has := func(s service) bool { return s.label == label }
	if h == nil { // as Consul: _web._tcp.service.consul is web.service.consul
		first, protocol := name[1:at-1], name[at:rest]
		if h = t.find(first + "." + parent); h == nil || strings.HasPrefix(first, "*") {
			return false
		}
		target = q.Name[1:at] + target
		has = func(s service) bool { return strings.HasSuffix(s.label, "."+protocol) }
	}
	found := false
	for _, s := range h.services {
		if !has(s) {
			continue
		}
		found = true
		if q.Qtype == mdns.TypeSRV {
			reply.Answer = append(reply.Answer, h.srv(q.Name, s, target))
		}
	}
	reply.Extra = h.additional(reply.Extra, target, len(reply.Answer))
	return found
}

// answerPointer answers with the names of an address.
func (t *Table) answerPointer(reply *mdns.Msg, q mdns.Question, a netip.Addr) bool {
	names := t.namesOf(a)
	for _, n := range names[:min(len(names), maxRecords)] {
		reply.Answer = append(reply.Answer, &mdns.PTR{Hdr: header(q.Name, mdns.TypePTR, uint32(defaultTTL.Seconds())), Ptr: n})
	}
	return len(names) > 0
}

func header(name string, typ uint16, ttl uint32) mdns.RR_Header {
	return mdns.RR_Header{Name: name, Rrtype: typ, Class: mdns.ClassINET, Ttl: ttl}
}

func (h *host) srv(name string, s service, target string) mdns.RR {
	return &mdns.SRV{Hdr: header(name, mdns.TypeSRV, h.ttl), Priority: 1, Weight: 1, Port: s.port, Target: target}
}

// additional are the addresses of the target of n SRV records.
func (h *host) additional(to []mdns.RR, target string, n int) []mdns.RR {
	if n == 0 {
		return to
	}
	return h.records(h.records(to, target, mdns.TypeA), target, mdns.TypeAAAA)
}

// records adds the addresses of a family, in random order.
func (h *host) records(to []mdns.RR, name string, typ uint16) []mdns.RR {
	list := h.v4
	if typ == mdns.TypeAAAA {
		list = h.v6
	}
	first := 0
	if len(list) > 1 {
		first = rand.IntN(len(list)) //nolint:gosec // G404: spreads connections, and protects nothing
	}
	n := min(len(list), maxRecords)
	at := len(to)
	for i := range n {
		a := list[(first+i)%len(list)]
		if typ == mdns.TypeAAAA {
			to = append(to, &mdns.AAAA{Hdr: header(name, typ, h.ttl), AAAA: net.IP(a.AsSlice())})
		} else {
			to = append(to, &mdns.A{Hdr: header(name, typ, h.ttl), A: net.IP(a.AsSlice())})
		}
	}
	if added := to[at:]; len(added) > 1 {
		rand.Shuffle(len(added), func(i, j int) { added[i], added[j] = added[j], added[i] }) //nolint:gosec // G404: as above
	}
	return to
}

// reverse reads the name of a PTR query.
func reverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		parts := strings.Split(rest, ".")
		if len(parts) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
		return a, err == nil && a.Is4()
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	const nibbles = 32
	if !ok || len(rest) != 2*nibbles-1 {
		return netip.Addr{}, false
	}
	var b [16]byte
	for i := range nibbles {
		c := rest[2*i]
		if i < nibbles-1 && rest[2*i+1] != '.' {
			return netip.Addr{}, false
		}
		v := strings.IndexByte("0123456789abcdef", c)
		if v < 0 {
			return netip.Addr{}, false
		}
		at := nibbles - 1 - i
		if at%2 == 0 {
			v <<= 4
		}
		b[at/2] |= byte(v)
	}
	return netip.AddrFrom16(b), true
}
