package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// statement is a match or an action of a rule: as nft lists it, and as the kernel gets it.
type statement interface {
	text() string
	exprs(sets map[string]*nftables.Set) []expr.Any
}

// The numbers of the protocols.
const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP

// register is the kernel's register that every match uses.
const register = 1

func equal(not bool, data []byte) expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register, Data: data}
}

func isTCP() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal(false, []byte{tcp})}
}

// l4proto matches TCP.
type l4proto struct{ not bool }

func (m l4proto) text() string {
	if m.not {
		return "meta l4proto != tcp"
	}
	return "meta l4proto tcp"
}

func (m l4proto) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal(m.not, []byte{tcp})}
}

// syn matches packets that begin a connection.
type syn struct{ not bool }

// Of the byte with TCP's flags.
const (
	offsetFlags          = 13
	flagFin, flagSyn     = 0x01, 0x02
	flagRst, flagAck     = 0x04, 0x10
	beginning, mattering = flagSyn, flagFin | flagSyn | flagRst | flagAck
)

func (m syn) text() string {
	if m.not {
		return "tcp flags != syn / fin,syn,rst,ack"
	}
	return "tcp flags syn / fin,syn,rst,ack"
}

func (m syn) exprs(map[string]*nftables.Set) []expr.Any {
	return append(isTCP(),
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetFlags, Len: 1},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{mattering}, Xor: []byte{0}},
		equal(m.not, []byte{beginning}))
}

// field is something of a packet, or of its socket.
type field int

const (
	fieldL4Proto field = iota
	fieldUID
	fieldPort
	fieldDst4
	fieldDst6
	fieldSrc4
	fieldSrc6
)

func (f field) text() string {
	return [...]string{"meta l4proto", "meta skuid", "tcp dport", "ip daddr", "ip6 daddr", "ip saddr", "ip6 saddr"}[f]
}

// Offsets of addresses in the headers of IPv4 and IPv6, and of the port in TCP's.
const (
	offsetDst4, offsetDst6 = 16, 24
	offsetSrc4, offsetSrc6 = 12, 8
	size4, size6           = 4, 16
	offsetPort, sizePort   = 2, 2
)

// load puts the field into the register.
func (f field) load() []expr.Any {
	header := func(family byte, offset, size uint32) []expr.Any {
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, equal(false, []byte{family}),
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		}
	}
	switch f {
	case fieldL4Proto:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}}
	case fieldUID:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeySKUID, Register: register},
			&expr.Byteorder{SourceRegister: register, DestRegister: register, Op: expr.ByteorderHton, Len: 4, Size: 4}, // intervals are compared as bytes
		}
	case fieldPort:
		return append(isTCP(), &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetPort, Len: sizePort})
	case fieldDst4:
		return header(unix.NFPROTO_IPV4, offsetDst4, size4)
	case fieldDst6:
		return header(unix.NFPROTO_IPV6, offsetDst6, size6)
	case fieldSrc4:
		return header(unix.NFPROTO_IPV4, offsetSrc4, size4)
	default:
		return header(unix.NFPROTO_IPV6, offsetSrc6, size6)
	}
}

// lookup matches a field that is in a set.
type lookup struct {
	field field
	set   string
	not   bool
}

func (m lookup) text() string {
	if m.not {
		return m.field.text() + " != @" + m.set
	}
	return m.field.text() + " @" + m.set
}

func (m lookup) exprs(sets map[string]*nftables.Set) []expr.Any {
	s := sets[m.set]
	return append(m.field.load(), &expr.Lookup{SourceRegister: register, SetName: s.Name, SetID: s.ID, Invert: m.not})
}

// portOf matches the destination port, or the source port, of a protocol.
type portOf struct {
	proto  byte // tcp or udp
	source bool
	port   uint16
}

func (m portOf) text() string {
	proto, end := "tcp", "dport"
	if m.proto == udp {
		proto = "udp"
	}
	if m.source {
		end = "sport"
	}
	return fmt.Sprintf("%s %s %d", proto, end, m.port)
}

func (m portOf) exprs(map[string]*nftables.Set) []expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offsetPort, Len: sizePort}
	if m.source {
		p.Offset = 0
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, equal(false, []byte{m.proto}),
		p, equal(false, keyBytes(keyPort, uint32(m.port))),
	}
}

// setZone has conntrack keep a packet's connection apart from those of other zones, of which some may
// have the same addresses and ports.
type setZone uint16

func (m setZone) text() string { return fmt.Sprintf("ct zone set %d", uint16(m)) }

func (m setZone) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register, Data: binary.NativeEndian.AppendUint16(nil, uint16(m))},
		&expr.Ct{Key: expr.CtKeyZONE, Register: register, SourceRegister: true},
	}
}

// address matches an address of a range.
type address struct {
	field field
	of    netip.Prefix
}

func (m address) text() string { return m.field.text() + " " + prefixText(m.of) }

func (m address) exprs(map[string]*nftables.Set) []expr.Any {
	const byteBits = 8
	out, n := m.field.load(), m.of.Bits()/byteBits
	if p, ok := out[len(out)-1].(*expr.Payload); ok {
		p.Len = uint32(n) // ranges here end at a byte
	}
	return append(out, equal(false, m.of.Addr().AsSlice()[:n]))
}

// ifname matches the loopback interface.
type ifname struct{ out, not bool }

// nameSize is the size of an interface's name, IFNAMSIZ.
const nameSize = 16

func (m ifname) text() string {
	name := "iifname"
	if m.out {
		name = "oifname"
	}
	if m.not {
		name += " !="
	}
	return name + ` "lo"`
}

func (m ifname) exprs(map[string]*nftables.Set) []expr.Any {
	key := expr.MetaKeyIIFNAME
	if m.out {
		key = expr.MetaKeyOIFNAME
	}
	name := make([]byte, nameSize)
	copy(name, "lo")
	return []expr.Any{&expr.Meta{Key: key, Register: register}, equal(m.not, name)}
}

// notLocal matches a destination that is no address of this host.
type notLocal struct{}

func (notLocal) text() string { return "fib daddr type != local" }

func (notLocal) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: register, ResultADDRTYPE: true, FlagDADDR: true},
		equal(true, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	}
}

// originalPort matches the port that the client called.
type originalPort uint16

func (m originalPort) text() string { return fmt.Sprintf("ct original proto-dst %d", uint16(m)) }

func (m originalPort) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: register, Direction: 0}, // of the client
		equal(false, binary.BigEndian.AppendUint16(nil, uint16(m))),
	}
}

// established matches packets of connections that conntrack knows.
type established struct{}

func (established) text() string { return "ct state established" }

func (established) exprs(map[string]*nftables.Set) []expr.Any {
	const size = 4
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: register},
		&expr.Bitwise{
			SourceRegister: register, DestRegister: register, Len: size,
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED), Xor: make([]byte, size),
		},
		equal(true, make([]byte, size)),
	}
}

// counter counts.
type counter string

func (m counter) text() string { return fmt.Sprintf("counter name %q", string(m)) }

func (m counter) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{&expr.Objref{Type: int(nftables.ObjTypeCounter), Name: string(m)}}
}

// redirect sends a connection to a port of this host.
type redirect uint16

func (m redirect) text() string { return fmt.Sprintf("redirect to :%d", uint16(m)) }

func (m redirect) exprs(map[string]*nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register, Data: keyBytes(keyPort, uint32(m))},
		&expr.Redir{RegisterProtoMin: register, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}
}

// reject refuses: a TCP connection by a reset, else by ICMP.
type reject struct{ reset, v6 bool }

// ICMP's codes of an unreachable port.
const (
	portUnreachable4 = 3
	portUnreachable6 = 4
)

func (m reject) text() string {
	switch {
	case m.reset:
		return "reject with tcp reset"
	case m.v6:
		return "reject with icmpv6 port-unreachable"
	default:
		return "reject with icmp port-unreachable"
	}
}

func (m reject) exprs(map[string]*nftables.Set) []expr.Any {
	switch {
	case m.reset:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
	case m.v6:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: portUnreachable6}}
	default:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: portUnreachable4}}
	}
}

// verdictKind is what a rule ends with.
type verdictKind int

const (
	ret verdictKind = iota
	accept
	jump
)

// verdict ends a rule.
type verdict struct {
	kind verdictKind
	to   string // of jump
	// final is a jump that does not come back, which nft calls goto.
	final bool
}

func (m verdict) text() string {
	switch {
	case m.kind == ret:
		return "return"
	case m.kind == accept:
		return "accept"
	case m.final:
		return "goto " + m.to
	default:
		return "jump " + m.to
	}
}

func (m verdict) exprs(map[string]*nftables.Set) []expr.Any {
	switch {
	case m.kind == ret:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	case m.kind == accept:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	case m.final:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: m.to}}
	default:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: m.to}}
	}
}

// comment is a rule's.
type comment string

func (m comment) text() string { return fmt.Sprintf("comment %q", string(m)) }

func (comment) exprs(map[string]*nftables.Set) []expr.Any { return nil }
