package xds

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/xds/stream"
)

// account is what one host takes, over all its streams and from one to the next:
// its streams, the work that it makes, and the bytes that are kept for it. What
// counts is who was authenticated, not where it comes from.
type account struct {
	host string
	most limits

	// heard and turns have room for the host's share of those whose first request
	// is read, and of those that are new; nil for everybody's.
	heard, turns chan struct{}
	// decoding is held while a large request is taken: one at a time.
	decoding sync.Mutex

	// lines bounds what the log gets of the host's streams.
	lines loglimit.Limiter

	mu      sync.Mutex // guards all following fields
	streams int
	kept    int
	asks    *rate.Limiter // in thousandths of requests
}

// limits are those of an account.
type limits struct {
	streams int
	rate    float64 // of requests a second; 0 means any
	kept    int
}

// What things count as requests: a stream is opened with a good deal of work, and
// what is large is read, compared and written as long as some small ones.
const (
	burst       = 10 * time.Second // of its rate may come at once
	costOfOpen  = 20
	readAsOne   = 8 << 10   // bytes
	writtenAs1  = 256 << 10 // bytes
	large       = 256 << 10 // bytes of a request that is taken by itself
	longestDebt = 5 * time.Second
)

func newAccount(host string, most limits) *account {
	thousandths := most.rate * thousand
	return &account{
		host: host, most: most, asks: rate.NewLimiter(rate.Limit(thousandths), int(thousandths*burst.Seconds())),
		lines: loglimit.Limiter{Burst: linesAtOnce, Every: linesEvery},
	}
}

// charge takes some work from what the host may ask for, and says how long it is
// until the host has paid: who asks for more is read more slowly.
func (a *account) charge(now time.Time, requests float64) time.Duration {
	if a.most.rate == 0 {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for left := int(requests * thousand); left > 0; left -= a.asks.Burst() { // no more can be reserved at once
		a.asks.ReserveN(now, min(left, a.asks.Burst()))
	}
	return max(0, time.Duration(-a.asks.TokensAt(now)/float64(a.asks.Limit())*float64(time.Second)))
}

// thousand is how finely requests are counted: large ones count as more than one.
const thousand = 1000

// enter counts a stream, if there is room for it.
func (a *account) enter() (before int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.streams >= a.most.streams {
		return a.streams, false
	}
	a.streams++
	return a.streams - 1, true
}

func (a *account) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.streams--
}

// idle reports whether nothing would be lost if the account was forgotten.
func (a *account) idle(now time.Time) bool {
	if !a.lines.Idle(now) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.streams == 0 && a.asks.TokensAt(now) >= float64(a.asks.Burst())
}

// keeps is how many bytes are kept for the host.
func (a *account) keeps() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept
}

func (a *account) keep(more int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept += more
	return a.kept
}

// account gives that of a peer, or a new one.
func (s *Server) account(p Peer) *account {
	host := p.Host
	if p.Anonymous {
		host = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if a := s.hosts[host]; a != nil {
		return a
	}
	a := newAccount(host, limits{streams: s.cfg.MaxPerHost, rate: float64(s.cfg.MaxRequests), kept: s.cfg.MaxKeptPerHost})
	if p.Anonymous { // whoever is on this machine must leave room for the hosts
		a.most = limits{streams: max(1, s.cfg.MaxStreams/2), kept: max(s.cfg.MaxKept/2, s.cfg.MaxKeptPerHost)}
	} else {
		a.heard = make(chan struct{}, max(1, cap(s.heard)/shareOfHost))
		a.turns = make(chan struct{}, max(1, cap(s.fresh)/shareOfHost))
	}
	s.hosts[host] = a
	return a
}

// shareOfHost is by which part of the turns one host may have at a time, and of
// the room for those that wait for theirs.
const shareOfHost = 8

// forgetIdle drops the accounts of hosts that have gone and owe nothing. It tells of
// lines that were left out.
func (s *Server) forgetIdle(now time.Time) {
	for host, n := range s.owedLines(now) {
		s.log.Warn("log lines about a host's streams suppressed", "host", host, "left_out", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for host, a := range s.hosts {
		if a.idle(now) {
			delete(s.hosts, host)
		}
	}
}

func (s *Server) owedLines(now time.Time) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	owed := map[string]int{}
	for host, a := range s.hosts {
		if n, ok := a.lines.Owed(now); ok {
			owed[host] = n
		}
	}
	return owed
}

// reserve counts a stream for its host, before anything is awaited from it: one
// host must not take the room of all.
func (s *Server) reserve(ctx context.Context, p Peer) (a *account, release func(), err error) {
	now := time.Now()
	a = s.account(p)
	n, ok := a.enter()
	if !ok {
		err = s.full(p, n)
		s.dawdle(a.charge(now, 1))
		return nil, nil, err
	}
	debt := a.charge(now, costOfOpen)
	if debt > longestDebt {
		err = s.exhausted(debt, "host %q asks for more than the %d requests a second that --max-requests-per-host lets it: look for a process that opens streams without end",
			p.Host, s.cfg.MaxRequests)
	}
	if err == nil && a.keeps() > a.most.kept {
		err = s.tooMuch(a)
	}
	if err == nil {
		err = s.pay(ctx, debt)
	} else {
		s.dawdle(debt)
	}
	if err != nil {
		a.leave()
		return nil, nil, err
	}
	return a, a.leave, nil
}

func (s *Server) full(p Peer, n int) error {
	if p.Anonymous {
		return s.exhausted(0, "limit of streams without TLS reached (%d, half of --max-streams)", n)
	}
	return s.exhausted(0, "host %q reached --max-streams-per-host (%d)", p.Host, n)
}

// pay waits until a debt is paid.
func (s *Server) pay(ctx context.Context, debt time.Duration) error {
	if debt <= 0 {
		return nil
	}
	wait := time.NewTimer(debt)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-s.stopped:
		return errStopping
	}
}

// dawdle lets a host that is in debt wait for its refusal, whether or not it still
// wants to hear it: who asks again at once shall not ask as fast as it is refused.
// The transport reads no further when so many of a connection wait.
func (s *Server) dawdle(debt time.Duration) {
	if debt <= 0 {
		return
	}
	wait := time.NewTimer(min(debt, longestRefusal))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.stopped:
	}
}

// longestRefusal is how long somebody who is refused may have to wait for that.
const longestRefusal = time.Second

// ledger is what is kept for all hosts, in bytes. What several share counts once.
type ledger struct {
	mu   sync.Mutex               // guards all following fields
	sets map[stream.SharedSet]int // how many streams have each
	all  int                      // what streams have by themselves, and all sets
}

// change puts what a stream keeps now in the place of what it kept before, and
// gives the sum of all.
func (l *ledger) change(before, now stream.Footprint) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sets == nil {
		l.sets = map[stream.SharedSet]int{}
	}
	l.all += now.Own - before.Own
	for _, s := range now.Sets {
		if l.sets[s]++; l.sets[s] == 1 {
			l.all += s.Size()
		}
	}
	for _, s := range before.Sets {
		if l.sets[s]--; l.sets[s] == 0 {
			delete(l.sets, s)
			l.all -= s.Size()
		}
	}
	return l.all
}

// tooMuch refuses a host for what is kept for it.
func (s *Server) tooMuch(a *account) error {
	return s.exhausted(0, "%d MiB are kept for host %q of names, versions and refusals, more than the %d that --max-mib-per-host lets it: "+
		"narrow egress in its Sidecars, or raise that if it has to see so much", a.keeps()>>20, a.host, a.most.kept>>20)
}

// always is what may be kept for a host in bytes although too much is kept for all:
// it is others that take the room.
const always = 1 << 20

// leastWeighed is from how many bytes on it is worth counting.
const leastWeighed = 64 << 10

// weigh counts what is kept for the peer, when it may have become much more; an
// error ends the stream.
func (c *conn) weigh() error {
	if c.unweighed < leastWeighed+weight(c.kept)/4 {
		return nil
	}
	c.unweighed = 0
	f := c.core.Footprint()
	s := c.server
	host := c.account.keep(weight(f) - weight(c.kept))
	all := s.kept.change(c.kept, f)
	c.kept = f
	switch {
	case host > c.account.most.kept:
		return s.tooMuch(c.account)
	case all > s.cfg.MaxKept && host > always:
		return s.exhausted(0, "%d MiB are kept of names, versions and refusals of all hosts, more than the %d that --max-mib lets them, "+
			"and %d KiB for host %q: raise that if there is memory for it", all>>20, s.cfg.MaxKept>>20, host>>10, c.account.host)
	}
	return nil
}

// weight is what a stream keeps, as if nobody shared it.
func weight(f stream.Footprint) int {
	n := f.Own
	for _, s := range f.Sets {
		n += s.Size()
	}
	return n
}

// weighNothing takes off what was kept for a stream that has ended.
func (c *conn) weighNothing() {
	c.account.keep(-weight(c.kept))
	c.server.kept.change(c.kept, stream.Footprint{})
	c.kept = stream.Footprint{}
}

// hearOut takes a request within what the host may take.
func (c *conn) hearOut(frame string) error {
	if len(frame) >= large {
		if c.account.keeps()+len(frame) > c.account.most.kept {
			return c.server.tooMuch(c.account)
		}
		c.account.decoding.Lock()
		defer c.account.decoding.Unlock()
	}
	if err := c.take(frame); err != nil {
		return err
	}
	c.unweighed += len(frame) * perByte
	return c.weigh()
}

// perByte is how many bytes may be kept for one of a request: of a name of a
// letter, three on the wire, an entry.
const perByte = 108
