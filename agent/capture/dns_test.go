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
func (h *host) nameserver(name string, addresses ...string) {
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
		h.As(0, func() {
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
	h.As(uid, func() {
		const patience = 3 * time.Second
		answer = "error"
		conn, err := (&net.Dialer{Timeout: patience}).DialContext(context.WithoutCancel(h.t.Context()), network, at)
		if err != nil {
			return
		}
		c := &mdns.Conn{Conn: conn}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		m := new(mdns.Msg)
		m.SetQuestion("api.lab.", mdns.TypeTXT)
		if c.WriteMsg(m) != nil {
			return
		}
		r, err := c.ReadMsg()
		if err != nil || len(r.Answer) != 1 || r.Id != m.Id {
			return
		}
		if txt, ok := r.Answer[0].(*mdns.TXT); ok {
			answer = txt.Txt[0]
		}
	})
	return answer
}

// TestCapturesDNS: queries of declared users go to their agent while it answers, for whatever
// nameserver they are, the stub of the host and one that does not exist included. Those of all others
// never do, nor of anybody while the agent is dead.
func TestCapturesDNS(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 88)
	h.nameserver("agent", "127.0.0.1:15053", "[::1]:15053")
	h.nameserver("other agent", "127.0.0.1:15054", "[::1]:15054")
	h.nameserver("stub", "127.0.0.53:53")
	peer.nameserver("peer", "10.88.0.2:53", "[fd00:88::2]:53", "10.88.0.2:54")
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
