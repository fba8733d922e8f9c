package capture

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// nameserver answers DNS queries at addresses of a host; sockets are those of a user.
func nameserver(t *testing.T, on *nethost.Host, uid int, answer func(q *mdns.Msg) *mdns.Msg, addresses ...string) {
	t.Helper()
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		if r := answer(q); r != nil {
			_ = w.WriteMsg(r)
		}
	})
	for _, at := range addresses {
		var p net.PacketConn
		var l net.Listener
		on.As(uid, func() {
			var lc net.ListenConfig
			var err, err2 error
			p, err = lc.ListenPacket(t.Context(), "udp", at)
			l, err2 = lc.Listen(t.Context(), "tcp", at)
			if err := errors.Join(err, err2); err != nil {
				t.Error(err)
			}
		})
		if p == nil || l == nil {
			t.FailNow()
		}
		for _, s := range []*mdns.Server{{PacketConn: p, Handler: handler}, {Listener: l, Handler: handler}} {
			ended := make(chan struct{})
			go func() { defer close(ended); _ = s.ActivateAndServe() }()
			t.Cleanup(func() { _, _ = p.Close(), l.Close(); <-ended })
		}
	}
}

// ask asks a nameserver for the IPv4 address of a name, as a user of the host.
func (h *host) ask(uid int, network, at, name string) (r *mdns.Msg, err error) {
	h.As(uid, func() {
		const patience = 6 * time.Second // longer than the agent takes, and a nameserver before it
		var conn net.Conn
		if conn, err = (&net.Dialer{Timeout: patience}).Dial(network, at); err != nil {
			return
		}
		c := &mdns.Conn{Conn: conn}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		m := new(mdns.Msg)
		m.SetQuestion(name, mdns.TypeA)
		if err = c.WriteMsg(m); err == nil {
			r, err = c.ReadMsg()
		}
	})
	return r, err
}

// address is what ask returns, as text.
func (h *host) address(uid int, network, at, name string) string {
	r, err := h.ask(uid, network, at, name)
	switch {
	case err != nil:
		return "error: " + err.Error()
	case len(r.Answer) != 1:
		return mdns.RcodeToString[r.Rcode]
	}
	if a, ok := r.Answer[0].(*mdns.A); ok {
		return a.A.String()
	}
	return r.Answer[0].String()
}

// TestDNSIsCaptured: queries of the declared user are answered by its agent, for whatever nameserver
// they are: names of the mesh, and all others as the host's nameserver answers them, although another
// nameserver sends all that it is asked back to the agent. When the agent is killed, the host's names go
// on without it.
func TestDNSIsCaptured(t *testing.T) {
	h := newHost(t)
	outside := "192.0.2.1"
	nameserver(t, h.peer, 0, func(q *mdns.Msg) *mdns.Msg {
		r := new(mdns.Msg)
		r.SetReply(q)
		if q.Question[0].Qtype == mdns.TypeA {
			r.Answer = []mdns.RR{&mdns.A{Hdr: mdns.RR_Header{Name: q.Question[0].Name, Rrtype: mdns.TypeA, Class: mdns.ClassINET}, A: net.ParseIP(outside)}}
		}
		return r
	}, h.ip(2)+":53", fmt.Sprintf("[fd00:%d::2]:53", h.net))
	at := h.ip(2) + ":53"
	var looped atomic.Int64
	const loop = 3 * time.Second                               // ends a loop of questions, if there is one
	nameserver(t, h.Host, 0, func(q *mdns.Msg) (r *mdns.Msg) { // forwards as the declared user
		looped.Add(1)
		h.As(appUser, func() {
			c := &mdns.Client{Timeout: loop}
			r, _, _ = c.Exchange(q, at)
		})
		return r
	}, "127.0.0.99:53")
	conf := h.dir("resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 127.0.0.99\nnameserver "+h.ip(2)+"\n"), 0o644); err != nil { // the agent's user reads it
		t.Fatal(err)
	}
	h.service()
	h.declare(capture.Closed, "dns-port: 15053")
	const name, virtual = "orders.shop.internal.", "240.240.0.9"
	want := func(uid int, network, at, name, want string) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if got := h.address(uid, network, at, name); got != want {
				return fmt.Errorf("user %d asks %s for %s: %q, want %q", uid, at, name, got, want)
			}
			return nil
		})
	}
	want(appUser, "udp", at, name, outside)
	if out, code := h.status(); code != 1 || !strings.Contains(out, "workload web: DNS queries go directly") {
		t.Errorf("%d %s", code, out)
	}
	agent := []string{"--dns", "--dns-resolv-conf", conf}
	h.startAgent(agent...)
	for _, to := range []string{at, fmt.Sprintf("[fd00:%d::2]:53", h.net), h.ip(99) + ":53", "127.0.0.53:53"} {
		for _, network := range []string{"udp", "tcp"} {
			want(appUser, network, to, name, virtual)
			want(appUser, network, to, "elsewhere.example.", outside)
		}
	}
	want(otherUser, "udp", at, name, outside)
	want(proxyUser, "udp", at, name, outside)
	h.Want(appUser, virtual+":80", orders)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := h.Admin("web", "/v1/problems")
		if err == nil && !strings.Contains(out, "DNS loop: the nameserver 127.0.0.99") {
			err = errors.New(out)
		}
		return err
	})
	if n := looped.Load(); n == 0 || n > 100 {
		t.Errorf("%d queries to the nameserver that sends them back", n)
	}
	h.awaitWell()

	h.killAgent()
	want(appUser, "udp", at, name, outside)
	want(appUser, "tcp", at, "elsewhere.example.", outside)
	h.startAgent(agent...)
	want(appUser, "udp", at, name, virtual)
	h.awaitWell()
	if out, code := h.cli(h.flags("remove", "--wait", "0s")...); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	want(appUser, "udp", at, name, outside)
	if _, err := os.Stat(filepath.Join(h.dir("state"), "confirmed")); err == nil {
		t.Error("it was removed, and is still confirmed")
	}
}
