package metrics

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Envoy drops requests from its counters at its limits of series, and without a word; entries of
// access logs are lost while nobody reads them. But its connection managers and TCP proxies have
// totals of everything that they took on. What is in their totals and was never reported is
// published in the overflow series, as what finds no place in the store.
//
// The difference must never be wrong upwards, because counters cannot be lowered. So a total
// is read before what it is compared with: what had ended then must have been reported by now. Of
// requests those are left out that are under way, which is read after the total. What comes by
// access log is reported a little later, so an older total is used.

// What is compared.
type quantity int

const (
	requestsEnded quantity = iota
	connectionsBegun
	quantities
)

// amounts are numbers by side and quantity.
type amounts [sides][quantities]int64

// sides is how many reporters there are.
const sides = 2

func reporters() [sides]reporter { return [sides]reporter{source, destination} }

func (r reporter) index() int {
	if r == destination {
		return 1
	}
	return 0
}

// known is r, or empty if it is none.
func (r reporter) known() reporter {
	if r == source || r == destination {
		return r
	}
	return ""
}

// How long it may take until the agent has what happened: entries of requests, and, beyond the
// interval of their reports, those of connections.
const (
	requestDelay    = 5 * time.Second
	connectionDelay = 15 * time.Second
)

// maxManagers is how many connection managers and TCP proxies are followed.
const maxManagers = 65536

// totals are statistics of one reading.
type totals struct {
	of Process
	// reported is what had been reported before.
	reported amounts
	taken    map[manager]uint64 // requests or connections since Envoy's start
	active   map[manager]uint64 // requests under way, read after taken
}

// checkpoint is what had happened at a time, at least.
type checkpoint struct {
	at   time.Time
	done amounts
}

// uncounted finds what was not reported. The store's mu guards it.
type uncounted struct {
	store *store

	envoy     Process // whose numbers these are
	listeners uint64  // that reporting was read from
	reporting *reporting
	drain     time.Duration

	last     map[manager]uint64 // totals as they were read last
	sum      amounts            // of all totals, also of managers that are gone
	reported amounts            // to the store
	base     amounts            // differences that mean nothing
	lost     amounts            // published so far
	// history are earlier readings, oldest first.
	history []checkpoint
	// skip is for how many readings, and until for how long, differences mean nothing.
	skip  int
	until time.Time
	// unfollowed means that connections are open that count when they end.
	unfollowed bool
	// saved is what an agent before this one knew of its Envoy, until one runs; or nil.
	saved *stateUncounted
}

// stateUncounted is what a restart must not lose of an Envoy that goes on.
type stateUncounted struct {
	Envoy    string         `json:"envoy"` // the process
	Sum      amounts        `json:"sum"`
	Reported amounts        `json:"reported"`
	Base     amounts        `json:"base"`
	Lost     amounts        `json:"lost"`
	Last     []stateManager `json:"last"`
	// Skip and Until are for how long differences mean nothing.
	Skip  int       `json:"skip,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

type stateManager struct {
	TCP    bool   `json:"tcp,omitempty"`
	Prefix string `json:"prefix"`
	Taken  uint64 `json:"taken"`
}

func newUncounted(s *store) *uncounted { return &uncounted{store: s, last: map[manager]uint64{}} }

// report notes that n of something was reported.
func (u *uncounted) report(side reporter, q quantity, n uint64) {
	u.reported[side.index()][q] += int64(n)
}

// follow notices another Envoy. What is reported belongs to the one that runs: an entry of the one
// before may come late, and makes a difference too small.
func (u *uncounted) follow(running Process) {
	if running.PID == 0 || running.is(u.envoy) {
		return
	}
	first, saved := u.envoy == Process{}, u.saved
	*u = uncounted{store: u.store, envoy: running, listeners: u.listeners, reporting: u.reporting, drain: u.drain, last: map[manager]uint64{}}
	switch {
	case !first || !running.Adopted:
	case saved != nil && saved.Envoy != "" && saved.Envoy == running.Birth:
		u.sum, u.reported, u.base, u.lost, u.skip, u.until = saved.Sum, saved.Reported, saved.Base, saved.Lost, saved.Skip, saved.Until
		for _, m := range saved.Last {
			u.last[manager{m.TCP, m.Prefix}] = m.Taken
		}
	default:
		u.skip = 2 // what came before is not known, and the first reading only adds what is new
	}
}

func (u *uncounted) state(birth string) *stateUncounted {
	if u.envoy.PID == 0 {
		return nil
	}
	out := &stateUncounted{Envoy: birth, Sum: u.sum, Reported: u.reported, Base: u.base, Lost: u.lost, Skip: u.skip, Until: u.until}
	for m, n := range u.last {
		out.Last = append(out.Last, stateManager{m.tcp, m.prefix, n})
	}
	return out
}

// configured takes the listeners that Envoy has. While one drains that is reported otherwise now,
// its statistics mix both.
func (u *uncounted) configured(now time.Time, l Listeners) error {
	if l.Number == u.listeners {
		return nil
	}
	next, err := reportingOf(l.Bodies)
	if err != nil {
		return err
	}
	if u.reporting != nil {
		for m, side := range u.reporting.side {
			if s, ok := next.side[m]; !ok || s != side {
				u.until = now.Add(l.Drain + requestDelay)
				break
			}
		}
		if next.interval > u.reporting.interval {
			u.until = now.Add(l.Drain + next.interval)
		}
	}
	u.reporting, u.listeners = next, l.Number
	return nil
}

// settle compares totals with what was reported, and publishes what was not. It is called after a
// whole reading of Envoy's counters that began after the totals were read.
func (u *uncounted) settle(now time.Time, t *totals) {
	if !t.of.is(u.envoy) {
		return // an entry of another Envoy came meanwhile
	}
	u.add(t)
	done := u.sum
	for m, n := range t.active {
		if side := u.reporting.side[m]; side != "" {
			done[side.index()][requestsEnded] -= int64(n)
		}
	}
	u.remember(checkpoint{now, done})
	if u.skip > 0 || now.Before(u.until) {
		u.skip = max(u.skip-1, 0)
		u.rebase(t, requestsEnded)
		u.rebase(t, connectionsBegun)
		return
	}
	if u.unfollowed {
		u.unfollowed = false
		u.rebase(t, connectionsBegun)
	}
	for _, side := range reporters() {
		then := &done
		if u.reporting.byLog[side] {
			then = u.before(now.Add(-requestDelay))
		}
		u.publish(now, side, requestsEnded, then, requests)
		u.publish(now, side, connectionsBegun, u.before(now.Add(-connectionDelay-u.reporting.interval)), opened, closed)
	}
}

// publish adds to the overflow series what was done and not reported.
func (u *uncounted) publish(now time.Time, side reporter, q quantity, done *amounts, to ...counter) {
	if done == nil {
		return
	}
	i := side.index()
	missing := done[i][q] - u.reported[i][q] - u.base[i][q]
	if missing <= u.lost[i][q] {
		return
	}
	for _, c := range to {
		u.store.overflowRow(side).add(now, c, uint64(missing-u.lost[i][q]))
	}
	u.lost[i][q] = missing
}

// rebase has differences begin at what they are now, at the most: all that had begun counts as done,
// and what was reported since the totals were read does not count.
func (u *uncounted) rebase(t *totals, q quantity) {
	for i := range sides {
		u.base[i][q] = u.sum[i][q] - t.reported[i][q] - u.lost[i][q]
	}
}

// add adds what managers have taken on since the reading before. Totals of a manager that is gone
// begin with 0 when it is back.
func (u *uncounted) add(t *totals) {
	for m := range u.last {
		if _, ok := t.taken[m]; !ok {
			delete(u.last, m)
		}
	}
	for m, n := range t.taken {
		side := u.reporting.side[m]
		if side == "" {
			delete(u.last, m)
			continue
		}
		before := u.last[m]
		if n < before {
			before = 0
		}
		q := requestsEnded
		if m.tcp {
			q = connectionsBegun
		}
		u.sum[side.index()][q] += int64(n - before)
		u.last[m] = n
	}
}

// remember adds a checkpoint. Those that nobody will ask for are dropped, and there are never many.
func (u *uncounted) remember(c checkpoint) {
	longest := connectionDelay + u.reporting.interval
	if n := len(u.history); n > 1 && u.history[n-1].at.Sub(u.history[n-2].at) < longest/16 {
		u.history = u.history[:n-1]
	}
	u.history = append(u.history, c)
	first := 0
	for first+1 < len(u.history) && !u.history[first+1].at.After(c.at.Add(-longest)) {
		first++
	}
	u.history = slices.Delete(u.history, 0, first)
}

// before is the newest checkpoint that is not younger than a time; or nil.
func (u *uncounted) before(at time.Time) *amounts {
	for i := len(u.history) - 1; i >= 0; i-- {
		if !u.history[i].at.After(at) {
			return &u.history[i].done
		}
	}
	return nil
}

// totalsPath has Envoy write the totals: counters before gauges. A plus is %2B in a query.
const totalsPath = "/stats/prometheus?filter=" + `^(?:http\..%2B\.downstream_rq_(?:total|active)|tcp\..%2B\.downstream_cx_total)$`

// readTotals reads the totals of Envoy; nil if nothing is reported.
func (c *Collector) readTotals(ctx context.Context, now time.Time) (*totals, error) {
	if c.c.Listeners == nil {
		return nil, nil
	}
	l := c.c.Listeners()
	if l.Number == 0 {
		return nil, nil
	}
	c.store.mu.Lock()
	err := c.uncounted.configured(now, l)
	asked := err == nil && c.uncounted.reporting.anything()
	out := &totals{of: c.uncounted.envoy, reported: c.uncounted.reported, taken: map[manager]uint64{}, active: map[manager]uint64{}}
	c.store.mu.Unlock()
	if !asked {
		return nil, err
	}
	body, err := c.c.Open(ctx, totalsPath)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	if _, err := eachLine(body, maxEnvoy, out.take); err != nil {
		return nil, err
	}
	if len(out.taken) > maxManagers {
		return nil, fmt.Errorf("%w: more than %d connection managers and TCP proxies", errTooLarge, maxManagers)
	}
	return out, nil
}

// take takes a line if it is a total.
func (t *totals) take(line []byte) {
	if len(line) == 0 || line[0] == '#' || len(t.taken) > maxManagers {
		return
	}
	s, ok := parseSample(line)
	if !ok {
		return
	}
	to, of, name := t.taken, manager{}, "http_conn_manager_prefix"
	switch string(s.name) {
	case "envoy_http_downstream_rq_total":
	case "envoy_http_downstream_rq_active":
		to = t.active
	case "envoy_tcp_downstream_cx_total":
		name, of.tcp = "tcp_prefix", true
	default:
		return
	}
	n, err := strconv.ParseUint(string(s.value), 10, 63)
	labels, ok := parseLabels(s.labels)
	if err != nil || !ok {
		return
	}
	for _, l := range labels {
		if l.name == name {
			of.prefix = l.value
			to[of] += n
		}
	}
}
