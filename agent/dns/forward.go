package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mdns "github.com/miekg/dns"
)

// Limits of queries that are forwarded.
const (
	maxForwarded = 256                    // at one time; they differ
	maxWaiting   = 4096                   // clients that wait for an answer
	downTryTime  = 500 * time.Millisecond // at an upstream that did not answer lately
	downAfter    = 3                      // queries in a row without an answer
)

// defaultQueryTime is as glibc waits.
const (
	defaultQueryTime = 5 * time.Second
	defaultTryTime   = 1500 * time.Millisecond
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
	problem   atomic.Pointer[string] // why there are none, or nil
	waiting   atomic.Int64
	full      atomic.Uint64 // queries for which there was no room
	looped    atomic.Uint64 // probes that came back
	reprobe   chan struct{}
	// queryTime is how long a query takes at most, and tryTime how long one upstream has. Constant.
	queryTime, tryTime time.Duration
	ended              context.Context //nolint:containedctx // of Run: queries end with it
	stop               context.CancelFunc

	mu     sync.Mutex           // guards all following fields
	flying map[flight]*exchange // queries that are asked now
	probes map[string]*upstream // names that were sent, and to whom
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
	done  chan struct{}
	reply *mdns.Msg // set before done is closed; nil if nobody answers. Read-only.
}

func newForwarder(s *Server) *forwarder {
	f := &forwarder{s: s, queryTime: defaultQueryTime, tryTime: defaultTryTime, reprobe: make(chan struct{}, 1), flying: map[flight]*exchange{}, probes: map[string]*upstream{}}
	f.ended, f.stop = context.WithCancel(context.Background()) //nolint:forbidigo // ends with Run
	return f
}

// ask returns the answer of the upstreams to a query, or SERVFAIL.
func (f *forwarder) ask(q, failure *mdns.Msg, udp bool) *mdns.Msg {
	failure.Rcode = mdns.RcodeServerFailure
	if f.waiting.Add(1) > maxWaiting {
		f.waiting.Add(-1)
		f.full.Add(1)
		f.s.failed.Add(1)
		return failure
	}
	defer f.waiting.Add(-1)
	x, mine := f.join(q, udp)
	if x == nil {
		f.full.Add(1)
		f.s.failed.Add(1)
		f.probeSoon()
		return failure
	}
	if mine != (flight{}) {
		f.do(x, mine, q)
	}
	select {
	case <-x.done:
	case <-f.ended.Done():
	}
	select {
	case <-x.done:
	default:
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

// join finds the exchange of a query. mine is set if the caller has to do it. It returns nil if there
// are too many.
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
	if x := f.flying[k]; x != nil {
		return x, flight{}
	}
	if len(f.flying) >= maxForwarded {
		return nil, flight{}
	}
	x = &exchange{done: make(chan struct{})}
	f.flying[k] = x
	return x, k
}

// do does an exchange.
func (f *forwarder) do(x *exchange, k flight, q *mdns.Msg) {
	defer func() {
		f.mu.Lock()
		delete(f.flying, k)
		f.mu.Unlock()
		close(x.done)
	}()
	ctx, cancel := context.WithTimeout(f.ended, f.queryTime)
	defer cancel()
	var last *mdns.Msg
	for _, u := range f.order() {
		m := query(q, k)
		limit := f.tryTime
		if u.silent.Load() >= downAfter {
			limit = downTryTime
		}
		reply, err := exchangeWith(ctx, u.address, m, k.udp, limit)
		if f.ended.Err() != nil {
			return
		}
		if err != nil {
			u.failures.Add(1)
			u.silent.Add(1)
			text := err.Error()
			u.lastErr.Store(&text)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		u.silent.Store(0)
		if u.loops.Load() {
			continue
		}
		last = reply
		if reply.Rcode != mdns.RcodeServerFailure && reply.Rcode != mdns.RcodeRefused && reply.Rcode != mdns.RcodeNotImplemented {
			break
		}
	}
	x.reply = last
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
	return append(up, down...)
}

func (f *forwarder) current() []*upstream {
	if list := f.upstreams.Load(); list != nil {
		return *list
	}
	return nil
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

// errForeign means that an upstream sends what is no answer.
var errForeign = errors.New("answers that are not to the query")

// maxForeign bounds the messages that are read while waiting for the answer.
const maxForeign = 64

// exchangeWith asks one upstream. Messages that are not the answer to the query are not taken for
// one.
func exchangeWith(ctx context.Context, to netip.AddrPort, m *mdns.Msg, udp bool, limit time.Duration) (*mdns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	network := "tcp"
	if udp {
		network = "udp" // connected: the kernel drops what others send
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	co := &mdns.Conn{Conn: conn, UDPSize: mdns.MaxMsgSize - 1}
	defer func() { _ = co.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if err := co.WriteMsg(m); err != nil {
		return nil, err
	}
	for range maxForeign {
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
	return nil, fmt.Errorf("%s: %w", to, errForeign)
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
