package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	mdns "github.com/miekg/dns"
)

// How long upstreams are waited for. The total is what glibc waits for the same nameservers, with the
// options of resolv.conf; but the next upstream is asked sooner, while the earlier ones may still
// answer.
const (
	defaultNextAfter = 1500 * time.Millisecond
	downNextAfter    = 500 * time.Millisecond // if one that is asked did not answer lately
	maxQueryTime     = 30 * time.Second
)

// outcome is what one upstream of an exchange said.
type outcome struct {
	from  *upstream
	reply *mdns.Msg
	err   error
}

// do does an exchange: it asks one upstream after the other, and takes the first good answer.
func (f *forwarder) do(x *exchange, k flight, q *mdns.Msg) {
	defer func() {
		x.cancel()
		f.mu.Lock()
		if f.flying[k] == x {
			delete(f.flying, k)
		}
		f.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(x.ctx, maxQueryTime)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	order, wait := f.order(), f.waits()
	outcomes := make(chan outcome, len(order))
	next := time.NewTimer(0) // fires when the next upstream is to be asked
	defer next.Stop()
	var last *mdns.Msg
	begun, ended := 0, 0
	for ended < len(order) {
		select {
		case <-ctx.Done():
			if x.ctx.Err() != nil {
				return
			}
			ended = len(order)
		case <-next.C:
			if begun < len(order) {
				u := order[begun]
				begun++
				asked.Go(func() { outcomes <- f.askOne(ctx, u, query(q, k), k.udp && !wait.tcp, wait.rounds(len(order))) })
				next.Reset(f.pause(u))
			}
		case o := <-outcomes:
			ended++
			next.Reset(0)
			switch {
			case o.err != nil || o.from.loops.Load():
			case o.reply.Rcode == mdns.RcodeServerFailure || o.reply.Rcode == mdns.RcodeRefused || o.reply.Rcode == mdns.RcodeNotImplemented:
				last = o.reply
			default:
				last, ended = o.reply, len(order)
			}
		}
	}
	if x.reply = last; last != nil {
		now := time.Now()
		f.mu.Lock()
		f.quick.note(now, now.Sub(x.began))
		f.mu.Unlock()
	}
	close(x.done)
}

// pause is how long an upstream is waited for before the next one is asked as well.
func (f *forwarder) pause(u *upstream) time.Duration {
	if u.silent.Load() >= downAfter {
		return min(f.nextAfter, downNextAfter)
	}
	return f.nextAfter
}

// askOne asks one upstream, and counts how it answers. It counts as silent when it does not answer
// within the time of the first round, or when another one, which was asked later, answers first.
func (f *forwarder) askOne(ctx context.Context, u *upstream, m *mdns.Msg, udp bool, rounds []time.Duration) outcome {
	began := time.Now()
	counted := false
	fails := func(err error) {
		if counted {
			return
		}
		counted = true
		u.failures.Add(1)
		u.silent.Add(1)
		text := err.Error()
		u.lastErr.Store(&text)
	}
	reply, err := exchangeWith(ctx, u.address, m, udp, rounds, func(err error) {
		fails(err)
		f.probeSoon() // does it send queries back?
	})
	switch {
	case err == nil:
		u.silent.Store(0)
	case ctx.Err() == nil:
		fails(err)
	case f.ended.Err() == nil && time.Since(began) >= f.pause(u):
		fails(fmt.Errorf("%s: no answer within %s", u.address, time.Since(began).Round(time.Millisecond)))
	}
	return outcome{from: u, reply: reply, err: err}
}

// order are the upstreams that do not loop: first those that answered last.
func (f *forwarder) order() []*upstream {
	var up, down []*upstream
	for _, u := range f.current() {
		switch {
		case u.loops.Load():
		case u.silent.Load() >= downAfter:
			down = append(down, u)
		default:
			up = append(up, u)
		}
	}
	if f.waits().rotate && len(up) > 1 {
		first := int(f.turn.Add(1)-1) % len(up)
		up = append(up[first:len(up):len(up)], up[:first]...)
	}
	return append(up, down...)
}

func (f *forwarder) current() []*upstream {
	if list := f.upstreams.Load(); list != nil {
		return *list
	}
	return nil
}

func (f *forwarder) waits() patience {
	if p := f.patience.Load(); p != nil {
		return *p
	}
	return defaultPatience()
}

// errForeign means that an upstream sends what is no answer.
var errForeign = errors.New("answers that are not to the query")

// maxForeign bounds the messages that are read while waiting for the answer.
const maxForeign = 64

// exchangeWith asks one upstream until it answers, ctx ends or all rounds are over. By UDP, each round
// begins with the query: the one before may be lost. late is called when the first round is over.
func exchangeWith(ctx context.Context, to netip.AddrPort, m *mdns.Msg, udp bool, rounds []time.Duration, late func(error)) (*mdns.Msg, error) {
	network := "udp" // connected: the kernel drops what others send
	if !udp {
		network = "tcp"
		var all time.Duration
		for _, r := range rounds {
			all += r
		}
		rounds = []time.Duration{all}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := net.Dialer{Timeout: rounds[0]}
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	co := &mdns.Conn{Conn: conn, UDPSize: mdns.MaxMsgSize - 1}
	defer func() { _ = co.Close() }()
	defer context.AfterFunc(ctx, func() { _ = co.Close() })()
	foreign := 0
	for _, limit := range rounds {
		if err := errors.Join(conn.SetDeadline(time.Now().Add(limit)), co.WriteMsg(m)); err != nil {
			return nil, err
		}
		reply, err := answerTo(co, m, udp, &foreign)
		var timeout net.Error
		if err == nil || ctx.Err() != nil || !errors.As(err, &timeout) || !timeout.Timeout() {
			return reply, err
		}
		late(err)
	}
	return nil, fmt.Errorf("%s: %w", to, errSilent)
}

// errSilent means that an upstream does not answer.
var errSilent = errors.New("no answer")

// answerTo reads until the answer to a query is there. Messages that are not are not taken for it.
func answerTo(co *mdns.Conn, m *mdns.Msg, udp bool, foreign *int) (*mdns.Msg, error) {
	for ; *foreign < maxForeign; *foreign++ {
		r, err := co.ReadMsg()
		if r == nil || err != nil {
			var broken *mdns.Error
			if udp && errors.As(err, &broken) { // not a message at all
				continue
			}
			return nil, err
		}
		if !isAnswer(m, r) {
			continue
		}
		clean(r)
		return r, nil
	}
	return nil, fmt.Errorf("%s: %w", co.RemoteAddr(), errForeign)
}

func isAnswer(m, r *mdns.Msg) bool {
	if r.Id != m.Id || !r.Response || r.Opcode != mdns.OpcodeQuery || len(r.Question) != 1 {
		return false
	}
	a, b := m.Question[0], r.Question[0]
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}

// clean takes out what is between an upstream and its client: EDNS, and signatures of messages.
func clean(r *mdns.Msg) {
	extra := r.Extra[:0]
	for _, rr := range r.Extra {
		switch rr.Header().Rrtype {
		case mdns.TypeOPT, mdns.TypeTSIG, mdns.TypeSIG:
		default:
			extra = append(extra, rr)
		}
	}
	r.Extra = extra
}
