package dns

import (
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"
)

// seeds are packets that have broken servers: names of 255 bytes, pointers that lead to themselves and
// in circles, counts without records, and what clients send.
func seeds(t testing.TB) [][]byte {
	t.Helper()
	header := func(qd, an, ns, ar uint16) []byte {
		var b []byte
		for _, n := range []uint16{4711, 0x0100, qd, an, ns, ar} {
			b = binary.BigEndian.AppendUint16(b, n)
		}
		return b
	}
	question := []byte{0, 1, 0, 1}
	longest := strings.Repeat("\x3f"+strings.Repeat("a", 63), 3) + "\x3d" + strings.Repeat("a", 61) + "\x00"
	tooLong := strings.Repeat("\x3f"+strings.Repeat("a", 63), 4) + "\x00"
	out := [][]byte{
		nil,
		{0},
		header(1, 0, 0, 0),
		append(append(header(1, 0, 0, 0), longest...), question...),
		append(append(header(1, 0, 0, 0), tooLong...), question...),
		append(append(header(1, 0, 0, 0), 0xc0, 12), question...),
		append(append(header(1, 0, 0, 0), 1, 'a', 0xc0, 14, 0xc0, 12), question...),
		append(append(header(1, 0, 0, 0), 0xff, 0xff), question...),
		append(header(65535, 65535, 65535, 65535), question...),
		append(append(header(1, 0, 0, 2), "\x03api\x03lab\x00"...), question...),
	}
	for _, name := range []string{"api.lab.", "*.wild.lab.", "a.b.wild.lab.", "_http._tcp.api.lab.", "_._.", "__.", "_a.", "cart.", "..", "1.0.240.240.in-addr.arpa.", reverseOf(t, "2001:2::1"), strings.Repeat("a.", 127)} {
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypeSRV, mdns.TypePTR, mdns.TypeANY, mdns.TypeHINFO, mdns.TypeOPT, 0} {
			m := new(mdns.Msg)
			m.SetQuestion(name, typ)
			m.SetEdns0(uint16(len(out)*97), true)
			if b, err := m.Pack(); err == nil {
				out = append(out, b)
			}
		}
	}
	return out
}

// newPacketServer is a server that asks nobody.
func newPacketServer(t testing.TB) *Server {
	t.Helper()
	s, err := New(Config{Logger: quiet(), Table: shop(t)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// take does what the server does with a packet by UDP or TCP.
func (s *Server) take(t testing.TB, packet []byte, udp bool) {
	t.Helper()
	q := new(mdns.Msg)
	const headerSize = 12
	if len(packet) < headerSize {
		return
	}
	word := func(i int) uint16 { return binary.BigEndian.Uint16(packet[2*i:]) }
	if accept(mdns.Header{Id: word(0), Bits: word(1), Qdcount: word(2), Ancount: word(3), Nscount: word(4), Arcount: word(5)}) != mdns.MsgAccept || q.Unpack(packet) != nil {
		return
	}
	if len(q.Question) != 1 { // the message ends before
		return
	}
	r := s.reply(q, udp)
	if r == nil {
		t.Fatalf("no reply to %v", q)
	}
	b, err := r.Pack()
	if err != nil {
		t.Fatalf("the reply to %x cannot be sent: %v\n%v", packet, err, r)
	}
	most := mdns.MaxMsgSize
	if udp {
		most = mdns.MinMsgSize
		if e := q.IsEdns0(); e != nil {
			most = max(most, int(e.UDPSize()))
		}
	}
	if len(b) > most || !r.Response || r.Id != q.Id || r.Rcode == mdns.RcodeNameError {
		t.Fatalf("%d bytes of at most %d in reply to %x: %v", len(b), most, packet, r)
	}
}

func FuzzPacket(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b, true)
	}
	s := newPacketServer(f)
	f.Fuzz(func(t *testing.T, packet []byte, udp bool) { s.take(t, packet, udp) })
}

// TestPackets takes packets that differ from real ones by some bytes: a million, with -short fewer.
func TestPackets(t *testing.T) {
	t.Parallel()
	n := 1_000_000
	if testing.Short() {
		n = 20_000
	}
	s, all := newPacketServer(t), seeds(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		packet := append([]byte(nil), all[rng.IntN(len(all))]...)
		for range rng.IntN(4) {
			if len(packet) == 0 {
				break
			}
			switch at := rng.IntN(len(packet)); rng.IntN(4) {
			case 0:
				packet = packet[:at]
			case 1:
				packet = append(packet, packet[at:]...)
			default:
				packet[at] = byte(rng.IntN(256))
			}
		}
		s.take(t, packet, i%2 == 0)
	}
	if st := s.Status(); st.Mesh == 0 || st.Failed == 0 || st.Refused == 0 {
		t.Errorf("the packets do not reach everything: %+v", st)
	}
}
