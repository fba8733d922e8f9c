package dns

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
)

// Limits of queries that are forwarded.
const (
	maxForwarded = 256  // at one time; they differ
	maxWaiting   = 4096 // clients that wait for an answer
	downAfter    = 3    // queries in a row without an answer
)

// upstream is a nameserver.
type upstream struct {
	address netip.AddrPort
	// loops means that queries to it come back here.
	loops atomic.Bool
	// silent counts queries in a row without an answer.
	silent atomic.Int64
	// failures counts all of them.
	failures atomic.Uint64
	lastErr  atomic.Pointer[string]
}

// forwarder asks others.
type forwarder struct {
	s *Server
	// upstreams are in the order of resolv.conf. Immutable.
	upstreams atomic.Pointer[[]*upstream]
	patience  atomic.Pointer[patience] // nil means glibc's defaults
	turn      atomic.Uint32            // of the upstream that is asked first, with rotate
	problem   atomic.Pointer[string]   // why there are none, or nil
	waiting   atomic.Int64
	full      atomic.Uint64 // queries for which there was no room
	looped    atomic.Uint64 // probes that came back
	reprobe   chan struct{}
	// nextAfter is how long one upstream is waited for before the next one is asked as well. Constant.
	nextAfter time.Duration
	ended     context.Context //nolint:containedctx // of Run: queries end with it
	stop      context.CancelFunc

	mu     sync.Mutex           // guards all following fields
	flying map[flight]*exchange // queries that are asked now
	probes map[string]*upstream // names that were sent, and to whom
	quick  quickest
}

// quickest is the shortest time that an answer needed lately.
type quickest struct {
	began         time.Time
	before, since time.Duration // in the window before, and in the one that began; 0 without answers
}

// quickWindow is what "lately" means for quickest: one to two of these.
const quickWindow = 10 * time.Second

// note notes the time that an answer needed.
func (q *quickest) note(now time.Time, took time.Duration) {
	q.turn(now)
	if q.since == 0 || took < q.since {
		q.since = max(took, 1)
	}
}

// turn begins a new window when the last one is over.
func (q *quickest) turn(now time.Time) {
	switch past := now.Sub(q.began); {
	case past >= 2*quickWindow:
		*q = quickest{began: now}
	case past >= quickWindow:
		*q = quickest{began: now, before: q.since}
	}
}

// slow is how long an exchange has waited that is not worth its place: twice as long as a good answer
// needs, or as long as one nameserver is waited for if there were no answers.
func (q *quickest) slow(now time.Time, timeout time.Duration) time.Duration {
	q.turn(now)
	switch {
	case q.since == 0 && q.before == 0:
		return timeout
	case q.since == 0 || q.before > 0 && q.before < q.since:
		return 2 * q.before
	default:
		return 2 * q.since
	}
}

// flight is what makes two queries the same.
type flight struct {
	name          string // lower case
	qtype         uint16
	udp           bool
	do, cd, ad    bool
	edns, recurse bool
}

// exchange is one query to the upstreams, for all clients that ask the same.
type exchange struct {
	ctx    context.Context //nolint:containedctx // ends with the forwarder, and when the exchange makes room
	cancel context.CancelFunc
	began  time.Time
	done   chan struct{}
	reply  *mdns.Msg // set before done is closed; nil if nobody answers. Read-only.

	waiters int // guarded by the mutex of the forwarder; 0 once it has made room
}

func newForwarder(s *Server) *forwarder {
	f := &forwarder{s: s, nextAfter: defaultNextAfter, reprobe: make(chan struct{}, 1), flying: map[flight]*exchange{}, probes: map[string]*upstream{}}
	f.ended, f.stop = context.WithCancel(context.Background()) //nolint:forbidigo // ends with Run
	return f
}

// ask returns the answer of the upstreams to a query, or SERVFAIL.
func (f *forwarder) ask(q, failure *mdns.Msg, udp bool) *mdns.Msg {
	failure.Rcode = mdns.RcodeServerFailure
	x, mine := f.join(q, udp)
	if x == nil {
		f.full.Add(1)
		f.s.failed.Add(1)
		return failure
	}
	defer f.leave(x)
	if mine != (flight{}) {
		f.do(x, mine, q)
	}
	select {
	case <-x.done:
	case <-x.ctx.Done(): // it made room, or all ends
	}
	select {
	case <-x.done:
	default:
		if f.ended.Err() == nil {
			f.full.Add(1)
			f.s.failed.Add(1)
		}
		return failure
	}
	if x.reply == nil || f.mayBeOurs(x.reply) {
		f.s.failed.Add(1)
		return failure
	}
	f.s.forwarded.Add(1)
	reply := x.reply.Copy()
	reply.Id, reply.Question = q.Id, q.Question
	reply.RecursionDesired, reply.RecursionAvailable = q.RecursionDesired, true
	return reply
}

// mayBeOurs reports whether an answer says that a name does not exist that may be one of the mesh:
// the control plane has not said yet which there are. Clients would keep it.
func (f *forwarder) mayBeOurs(reply *mdns.Msg) bool {
	negative := reply.Rcode == mdns.RcodeNameError || reply.Rcode == mdns.RcodeSuccess && len(reply.Answer) == 0 && !reply.Truncated
	return negative && f.s.c.Table.State() == StateNone
}

// join finds the exchange of a query. mine is set if the caller has to do it. If there are too many,
// the one that has waited longest makes room: so slow names, however many a program asks for, leave
// the others the time that a good nameserver needs. If that one is not slow beside the answers of
// late, there is no room, and the result is nil: where all answers are late, the next one would
// otherwise never come.
func (f *forwarder) join(q *mdns.Msg, udp bool) (x *exchange, mine flight) {
	k := flight{
		name: mdns.CanonicalName(q.Question[0].Name), qtype: q.Question[0].Qtype, udp: udp,
		cd: q.CheckingDisabled, ad: q.AuthenticatedData, recurse: q.RecursionDesired,
	}
	if o := q.IsEdns0(); o != nil {
		k.edns, k.do = true, o.Do()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting.Load() >= maxWaiting { // one name does not keep all others out
		f.drop(f.first(func(a, b *exchange) bool { return a.waiters > b.waiters }))
	}
	if x := f.flying[k]; x != nil {
		f.waiting.Add(1)
		x.waiters++
		return x, flight{}
	}
	now := time.Now()
	if len(f.flying) >= maxForwarded {
		f.probeSoon()
		oldest := f.oldest()
		if now.Sub(f.flying[oldest].began) < f.quick.slow(now, f.waits().timeout) {
			return nil, flight{}
		}
		f.drop(oldest)
	}
	f.waiting.Add(1)
	x = &exchange{began: now, done: make(chan struct{}), waiters: 1}
	x.ctx, x.cancel = context.WithCancel(f.ended)
	f.flying[k] = x
	return x, k
}

// leave ends the wait of one client.
func (f *forwarder) leave(x *exchange) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x.waiters > 0 {
		x.waiters--
		f.waiting.Add(-1)
	}
}

// first is the exchange that comes before all others. f.mu must be held.
func (f *forwarder) first(before func(a, b *exchange) bool) (first flight) {
	var of *exchange
	for k, x := range f.flying {
		if of == nil || before(x, of) {
			first, of = k, x
		}
	}
	return first
}

// oldest is the exchange that has waited longest. f.mu must be held.
func (f *forwarder) oldest() flight {
	return f.first(func(a, b *exchange) bool { return a.began.Before(b.began) })
}

// drop ends an exchange, if there is one. f.mu must be held.
func (f *forwarder) drop(k flight) {
	if x := f.flying[k]; x != nil {
		delete(f.flying, k)
		f.waiting.Add(-int64(x.waiters)) // they go at once
		x.waiters = 0
		x.cancel()
	}
}

// query is what an upstream is asked. The id is random, and so is the port of its socket.
func query(q *mdns.Msg, k flight) *mdns.Msg {
	m := new(mdns.Msg)
	m.Id = mdns.Id()
	m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = k.recurse, k.cd, k.ad
	m.Question = []mdns.Question{q.Question[0]}
	if k.edns {
		m.SetEdns0(maxUDPQuery, k.do)
	}
	return m
}
