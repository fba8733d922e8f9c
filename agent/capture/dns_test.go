package capture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// nameserver answers DNS queries at addresses of the host, by UDP and TCP: with its name.
func (h *host) nameserver(name string, uid int, addresses ...string) {
	h.t.Helper()
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		m := new(mdns.Msg)
		m.SetReply(q)
		m.Answer = []mdns.RR{&mdns.TXT{Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeTXT, Class: mdns.ClassINET}, Txt: []string{name}}}
		_ = w.WriteMsg(m)
	})
	for _, at := range addresses {
		var p net.PacketConn
		var l net.Listener
		h.As(uid, func() {
			var lc net.ListenConfig
			var err, err2 error
			p, err = lc.ListenPacket(h.t.Context(), "udp", at)
			l, err2 = lc.Listen(h.t.Context(), "tcp", at)
			if err := errors.Join(err, err2); err != nil {
				h.t.Error(err)
			}
		})
		if p == nil || l == nil {
			h.t.FailNow()
		}
		for _, s := range []*mdns.Server{{PacketConn: p, Handler: handler}, {Listener: l, Handler: handler}} {
			ended := make(chan struct{})
			go func() { defer close(ended); _ = s.ActivateAndServe() }()
			h.t.Cleanup(func() { _, _ = p.Close(), l.Close(); <-ended })
		}
	}
}

// resolve asks a nameserver, by UDP or TCP, and returns who answers.
func (h *host) resolve(uid int, network, at string) (answer string) {
	c := h.dial(uid, network, at, nil)
	if c == nil {
		return "error"
	}
	defer func() { _ = c.Close() }()
	return who(c)
}

// dropped is after what time a packet counts as dropped: the kernel answers and refuses at once.
const dropped = time.Second

// dial connects to a nameserver, from an address, which may be nil.
func (h *host) dial(uid int, network, at string, from net.Addr) (c *mdns.Conn) {
	h.As(uid, func() {
		if conn, err := (&net.Dialer{Timeout: dropped, LocalAddr: from}).DialContext(context.WithoutCancel(h.t.Context()), network, at); err == nil {
			c = &mdns.Conn{Conn: conn}
		}
	})
	return c
}

// who asks who answers.
func who(c *mdns.Conn) string {
	const patience = 3 * time.Second
	_ = c.SetDeadline(time.Now().Add(patience))
	m := new(mdns.Msg)
	m.SetQuestion("api.lab.", mdns.TypeTXT)
	if c.WriteMsg(m) != nil {
		return "error"
	}
	r, err := c.ReadMsg()
	if err != nil || len(r.Answer) != 1 || r.Id != m.Id {
		return "error"
	}
	if txt, ok := r.Answer[0].(*mdns.TXT); ok {
		return txt.Txt[0]
	}
	return "no text"
}

// TestSocketsOfDNSAreToldApart: the kernel remembers for a while where the queries of a port went. A
// socket with the same port goes where it shall nevertheless: one of another user, or once the agent
// answers or is dead. So does a socket that stays open.
func TestSocketsOfDNSAreToldApart(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 89)
	h.nameserver("agent", proxyUser, "127.0.0.1:15053", "[::1]:15053")
	h.nameserver("other agent", proxyUser, "127.0.0.1:15054", "[::1]:15054")
	peer.nameserver("peer", 0, "10.89.0.2:53", "[fd00:89::2]:53")
	h.capture(build(t, func(s *Settings) {
		s.Workloads[0].DNSPort = 15053
		s.Workloads = append(s.Workloads, Workload{Name: "db", Users: []uint32{22002}, OutboundPort: 15011, InboundPort: 15016, DNSPort: 15054})
	}))
	for at, from := range map[string]string{"10.89.0.2:53": "10.89.0.1:40053", "[fd00:89::2]:53": "[fd00:89::1]:40053"} {
		own, err := net.ResolveUDPAddr("udp", from)
		if err != nil {
			t.Fatal(err)
		}
		once := func(uid int, want string) {
			t.Helper()
			var c *mdns.Conn
			envoytest.Eventually(t, envoytest.Patience, func() error { // a process that begins has the last socket for a moment
				if c = h.dial(uid, "udp", at, own); c == nil {
					return fmt.Errorf("no socket at %s", own)
				}
				return nil
			})
			defer func() { _ = c.Close() }()
			if got := who(c); got != want {
				t.Errorf("user %d asks %s: %q answers, want %q", uid, at, got, want)
			}
		}
		switchTo := func(on bool) {
			t.Helper()
			for _, port := range []uint16{15053, 15054} {
				if !on {
					h.NFT("", "flush", "set", "inet", Table, aliveOf+portText(port))
				} else if err := h.kernel().Beat(map[uint16]time.Duration{port: time.Hour}); err != nil {
					t.Fatal(err)
				}
			}
		}
		kept := h.dial(appUser, "udp", at, nil)
		for range 2 {
			switchTo(false)
			once(appUser, "peer")
			once(otherUser, "peer")
			if got := who(kept); got != "peer" {
				t.Errorf("the open socket: %q", got)
			}
			switchTo(true)
			once(appUser, "agent")
			once(22002, "other agent")
			once(otherUser, "peer")
			once(appUser, "agent")
			if got := who(kept); got != "agent" {
				t.Errorf("the open socket: %q", got)
			}
		}
		_ = kept.Close()
	}
}

// TestCapturesDNS: queries of declared users go to their agent while it answers, for whatever
// nameserver they are, the stub of the host and one that does not exist included. Those of all others
// never do, nor of anybody while the agent is dead.
func TestCapturesDNS(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 88)
	h.nameserver("agent", proxyUser, "127.0.0.1:15053", "[::1]:15053")
	h.nameserver("other agent", proxyUser, "127.0.0.1:15054", "[::1]:15054")
	h.nameserver("stub", 0, "127.0.0.53:53")
	peer.nameserver("peer", 0, "10.88.0.2:53", "[fd00:88::2]:53", "10.88.0.2:54")
	r := build(t, func(s *Settings) {
		s.ExcludeUsers = []uint32{102}
		s.Workloads[0].DNSPort = 15053
		s.Workloads = append(s.Workloads, Workload{Name: "db", Users: []uint32{22002}, OutboundPort: 15011, InboundPort: 15016, DNSPort: 15054})
	})
	h.capture(r)
	want := func(when string, uid int, to map[string]string) {
		t.Helper()
		for at, want := range to {
			for _, network := range []string{"udp", "tcp"} {
				if got := h.resolve(uid, network, at); got != want {
					t.Errorf("%s: user %d asks %s by %s: %q answers, want %q", when, uid, at, network, got, want)
				}
			}
		}
	}
	direct := map[string]string{"10.88.0.2:53": "peer", "[fd00:88::2]:53": "peer", "127.0.0.53:53": "stub", "10.88.0.2:54": "peer"}
	captured := func(by string) map[string]string {
		return map[string]string{"10.88.0.2:53": by, "[fd00:88::2]:53": by, "127.0.0.53:53": by, "10.88.0.99:53": by, "[fd00:88::99]:53": by, "10.88.0.2:54": "peer"}
	}
	want("nobody answers yet", appUser, direct)
	beat := func(timeout time.Duration) {
		t.Helper()
		if err := h.kernel().Beat(map[uint16]time.Duration{15053: timeout, 15054: timeout}); err != nil {
			t.Fatal(err)
		}
	}
	beat(OpenTimeout)
	want("agents answer", appUser, captured("agent"))
	want("agents answer", 22002, captured("other agent"))
	for _, uid := range []int{0, 102, otherUser, proxyUser} {
		want("agents answer", uid, direct)
	}
	st, err := h.kernel().State()
	if err != nil || len(st.Alive) != 2 || st.Alive[15053] <= 0 || st.Alive[15053] > OpenTimeout || st.Counts[counterDNS] == 0 {
		t.Errorf("%+v %v", st, err)
	}
	// A table that is applied over it keeps what is known.
	h.capture(r.Alive(func(port uint16) time.Duration { return st.Alive[port] }))
	want("applied once more", appUser, captured("agent"))
	beat(time.Second)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if got := h.resolve(appUser, "udp", "10.88.0.2:53"); got != "peer" {
			return fmt.Errorf("the time is over, and %q answers", got)
		}
		return nil
	})
	want("agents are dead", appUser, direct)
	beat(OpenTimeout)
	want("agents are back", appUser, captured("agent"))
	if _, err := h.kernel().Remove(t.Context(), r.envoys, 0); err != nil {
		t.Error(err)
	}
	want("removed", appUser, direct)
}
