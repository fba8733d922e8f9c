package xds

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/wire"
)

// hostQuota limits what one host uses, over all its streams and across reconnects:
// streams, requests, and bytes in memory. The host is the authenticated one, not the
// address.
type hostQuota struct {
	host   string
	limits quotaLimits

	// receiveSlots and admissionSlots are the host's share of the slots of the Server; nil
	// for unauthenticated peers, which have no share of their own.
	receiveSlots, admissionSlots chan struct{}
	// decoding is held while a large request is handled: one at a time.
	decoding sync.Mutex

	// logLines limits the log lines about the host's streams.
	logLines loglimit.Limiter

	mu       sync.Mutex // guards all following fields
	streams  int
	kept     int
	requests *rate.Limiter // limits requests, in thousandths
}

// quotaLimits are the limits of a hostQuota.
type quotaLimits struct {
	streams int
	rate    float64 // requests a second; 0 means unlimited
	kept    int
}

// What counts as how many requests: opening a stream costs much more than a small request,
// and large messages cost time to read, compare and write.
const (
	requestBurst           = 10 * time.Second // how much of the rate may be used at once
	streamOpenCost         = 20
	bytesReadPerRequest    = 8 << 10   // bytes
	bytesWrittenPerRequest = 256 << 10 // bytes
	largeRequest           = 256 << 10 // bytes of a request that is handled alone
	maxThrottle            = 5 * time.Second
)

func newHostQuota(host string, limits quotaLimits) *hostQuota {
	tokens := limits.rate * tokensPerRequest
	return &hostQuota{
		host: host, limits: limits, requests: rate.NewLimiter(rate.Limit(tokens), int(tokens*requestBurst.Seconds())),
		logLines: loglimit.Limiter{Burst: hostLogBurst, Every: hostLogInterval},
	}
}

// reserve takes requests from the quota, and returns how long the host must be throttled
// until the quota allows them.
func (q *hostQuota) reserve(now time.Time, requests float64) time.Duration {
	if q.limits.rate == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for left := int(requests * tokensPerRequest); left > 0; left -= q.requests.Burst() { // a larger reservation fails
		q.requests.ReserveN(now, min(left, q.requests.Burst()))
	}
	return max(0, time.Duration(-q.requests.TokensAt(now)/float64(q.requests.Limit())*float64(time.Second)))
}

// tokensPerRequest makes the quota exact for fractions of a request: large requests do not
// count as whole numbers.
const tokensPerRequest = 1000

// addStream counts a stream, unless the limit is reached.
func (q *hostQuota) addStream() (before int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.streams >= q.limits.streams {
		return q.streams, false
	}
	q.streams++
	return q.streams - 1, true
}

func (q *hostQuota) removeStream() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.streams--
}

// idle reports whether the quota can be forgotten without losing anything.
func (q *hostQuota) idle(now time.Time) bool {
	if !q.logLines.Idle(now) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.streams == 0 && q.requests.TokensAt(now) >= float64(q.requests.Burst())
}

// keptBytes is how many bytes are kept for the host.
func (q *hostQuota) keptBytes() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.kept
}

func (q *hostQuota) addKept(more int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.kept += more
	return q.kept
}

// quotaOf returns the quota of a peer, or a new one.
func (s *Server) quotaOf(p Peer) *hostQuota {
	host := p.Host
	if p.Anonymous {
		host = ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.quotas[host]; q != nil {
		return q
	}
	q := newHostQuota(host, quotaLimits{streams: s.cfg.MaxPerHost, rate: float64(s.cfg.MaxRequests), kept: s.cfg.MaxKeptPerHost})
	if p.Anonymous { // plaintext peers on this machine must leave room for the hosts
		q.limits = quotaLimits{streams: max(1, s.cfg.MaxStreams/2), kept: max(s.cfg.MaxKept/2, s.cfg.MaxKeptPerHost)}
	} else {
		q.receiveSlots = make(chan struct{}, max(1, cap(s.receiveSlots)/hostShare))
		q.admissionSlots = make(chan struct{}, max(1, cap(s.admissionSlots)/hostShare))
	}
	s.quotas[host] = q
	return q
}

// hostShare divides the slots for admission and for receiving: one host gets at most one
// part.
const hostShare = 8

// forgetIdle drops the quotas of hosts that are idle. It also logs how many log lines were
// suppressed.
func (s *Server) forgetIdle(now time.Time) {
	for host, n := range s.suppressedLines(now) {
		s.log.Warn("log lines about a host's streams suppressed", "host", host, "left_out", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for host, q := range s.quotas {
		if q.idle(now) {
			delete(s.quotas, host)
		}
	}
}

func (s *Server) suppressedLines(now time.Time) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	suppressed := map[string]int{}
	for host, q := range s.quotas {
		if n, ok := q.logLines.TakeOmitted(now); ok {
			suppressed[host] = n
		}
	}
	return suppressed
}

// reserveStream counts a stream for its host before anything is received from it: one host
// must not take all slots.
func (s *Server) reserveStream(ctx context.Context, p Peer) (q *hostQuota, release func(), err error) {
	now := time.Now()
	q = s.quotaOf(p)
	n, ok := q.addStream()
	if !ok {
		err = s.streamLimitReached(p, n)
		s.delayRejection(q.reserve(now, 1))
		return nil, nil, err
	}
	delay := q.reserve(now, streamOpenCost)
	if delay > maxThrottle {
		err = s.rejectAtLimit(delay, "host %q exceeds --max-requests-per-host (%d a second): look for a process on it that opens streams in a loop",
			p.Host, s.cfg.MaxRequests)
	}
	if err == nil && q.keptBytes() > q.limits.kept {
		err = s.keptLimitReached(q)
	}
	if err == nil {
		err = s.throttle(ctx, delay)
	} else {
		s.delayRejection(delay)
	}
	if err != nil {
		q.removeStream()
		return nil, nil, err
	}
	return q, q.removeStream, nil
}

func (s *Server) streamLimitReached(p Peer, n int) error {
	if p.Anonymous {
		return s.rejectAtLimit(0, "limit of streams without TLS reached (%d, half of --max-streams)", n)
	}
	return s.rejectAtLimit(0, "host %q reached --max-streams-per-host (%d)", p.Host, n)
}

// throttle waits for a delay.
func (s *Server) throttle(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return nil
	}
	wait := time.NewTimer(delay)
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

// delayRejection delays the rejection of a host that exceeds its quota, whether or not it
// still waits for it: a host that retries at once must not be able to do so as fast as it
// is rejected. The transport stops reading from a connection when too many of its streams
// wait.
func (s *Server) delayRejection(delay time.Duration) {
	if delay <= 0 {
		return
	}
	wait := time.NewTimer(min(delay, maxRejectionDelay))
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-s.stopped:
	}
}

// maxRejectionDelay is how long a rejection is delayed at most.
const maxRejectionDelay = time.Second

// memoryTotal is what is kept for all hosts, in bytes. Shared sets count once.
type memoryTotal struct {
	mu    sync.Mutex               // guards all following fields
	sets  map[stream.SharedSet]int // how many streams have each
	total int                      // what streams keep alone, and all sets
}

// update replaces the footprint of a stream, and returns the total.
func (l *memoryTotal) update(before, now stream.Footprint) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sets == nil {
		l.sets = map[stream.SharedSet]int{}
	}
	l.total += now.Own - before.Own
	for _, s := range now.Sets {
		if l.sets[s]++; l.sets[s] == 1 {
			l.total += s.Size()
		}
	}
	for _, s := range before.Sets {
		if l.sets[s]--; l.sets[s] == 0 {
			delete(l.sets, s)
			l.total -= s.Size()
		}
	}
	return l.total
}

// keptLimitReached rejects a host that exceeds its memory limit.
func (s *Server) keptLimitReached(q *hostQuota) error {
	return s.rejectAtLimit(0, "host %q uses %d MiB for names, versions and error messages, more than --max-mib-per-host (%d): "+
		"narrow egress in its Sidecars, or raise the limit", q.host, q.keptBytes()>>20, q.limits.kept>>20)
}

// guaranteedKept is how many bytes a host may always use, even if all hosts together
// exceed their limit.
const guaranteedKept = 1 << 20

// minUncounted is the least number of bytes that is worth counting.
const minUncounted = 64 << 10

// countMemory updates the footprint if it may have grown much; an error ends the stream.
func (c *conn) countMemory() error {
	if c.uncounted < minUncounted+footprintSize(c.footprint)/4 {
		return nil
	}
	c.uncounted = 0
	f := c.core.Footprint()
	s := c.server
	host := c.quota.addKept(footprintSize(f) - footprintSize(c.footprint))
	all := s.kept.update(c.footprint, f)
	c.footprint = f
	switch {
	case host > c.quota.limits.kept:
		return s.keptLimitReached(c.quota)
	case all > s.cfg.MaxKept && host > guaranteedKept:
		return s.rejectAtLimit(0, "all hosts use %d MiB for names, versions and error messages, more than --max-mib (%d), "+
			"and host %q uses %d KiB: raise the limit if there is memory for it", all>>20, s.cfg.MaxKept>>20, c.quota.host, host>>10)
	}
	return nil
}

// footprintSize is what a stream keeps, as if it shared nothing.
func footprintSize(f stream.Footprint) int {
	n := f.Own
	for _, s := range f.Sets {
		n += s.Size()
	}
	return n
}

// releaseMemory removes the footprint of a stream that has ended.
func (c *conn) releaseMemory() {
	c.quota.addKept(-footprintSize(c.footprint))
	c.server.kept.update(c.footprint, stream.Footprint{})
	c.footprint = stream.Footprint{}
}

// receive handles a request within the quota of the host.
func (c *conn) receive(frame wire.Frame) error {
	size := frame.Len()
	if size >= largeRequest {
		if c.quota.keptBytes()+size > c.quota.limits.kept {
			return c.server.keptLimitReached(c.quota)
		}
		c.quota.decoding.Lock()
		defer c.quota.decoding.Unlock()
	}
	if err := c.handleRequest(frame); err != nil {
		return err
	}
	c.uncounted += size * keptPerRequestByte
	return c.countMemory()
}

// keptPerRequestByte is how many bytes can be kept for one byte of a request. The worst
// case is a name of one letter: three bytes on the wire, and a map entry.
const keptPerRequestByte = 108
