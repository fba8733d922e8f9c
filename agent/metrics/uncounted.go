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
	// unsettled are listeners that wait for their routes, or drain.
	unsettled uint64
	at        time.Time // when they had been read
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

	last     map[manager]uint64 // totals of all managers as they were read last
	sum      amounts            // of all totals, also of managers that are gone
	reported amounts            // to the store
	base     amounts            // differences that mean nothing
	lost     amounts            // published so far
	// history are earlier readings, oldest first.
	history []checkpoint
	// Differences mean nothing for skip readings, until a time, and while listeners are changing:
	// some were reported in another way before, and may still serve.
	skip     int
	until    time.Time
	changing bool
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
	// Skip, Until and Changing are for how long differences mean nothing.
	Skip     int       `json:"skip,omitempty"`
	Until    time.Time `json:"until,omitzero"`
	Changing bool      `json:"changing,omitempty"`
	// Managers are those of the listeners, and Interval is how often connections are reported.
	Managers []stateManager `json:"managers"`
	Interval time.Duration  `json:"interval"`
}

// stateManager is a manager, and who reports it, or its total.
type stateManager struct {
	TCP    bool     `json:"tcp,omitempty"`
	Prefix string   `json:"prefix"`
	Taken  uint64   `json:"taken,omitempty"`
	Side   reporter `json:"side,omitempty"`
}

// maxSkip and maxPause bound what a file may say.
const (
	maxSkip  = 2
	maxPause = time.Hour
)

// valid reports whether a file has numbers that can be.
func (s *stateUncounted) valid() bool {
	for i := range sides {
		for q := range quantities {
			if s.Sum[i][q] < 0 || s.Reported[i][q] < 0 || s.Lost[i][q] < 0 {
				return false
			}
		}
	}
	return s.Skip >= 0 && s.Skip <= maxSkip && s.Interval >= 0
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
	*u = uncounted{store: u.store, envoy: running, listeners: u.listeners, reporting: u.reporting, last: map[manager]uint64{}}
	switch {
	case !first || !running.Adopted:
	case saved != nil && saved.Envoy != "" && saved.Envoy == running.Birth && saved.valid():
		u.resume(saved)
	default:
		// What came before is not known, and the first reading only adds what is new.
		u.skip, u.changing = maxSkip, true
	}
}

// resume goes on with what another agent knew of the same Envoy.
func (u *uncounted) resume(s *stateUncounted) {
	u.sum, u.reported, u.base, u.lost, u.skip, u.changing = s.Sum, s.Reported, s.Base, s.Lost, s.Skip, s.Changing
	if latest := time.Now().Add(maxPause); s.Until.Before(latest) {
		u.until = s.Until
	} else {
		u.until = latest
	}
	for _, m := range s.Last {
		u.last[manager{m.TCP, m.Prefix}] = m.Taken
	}
	if u.reporting == nil {
		u.reporting = &reporting{side: map[manager]reporter{}, byLog: map[reporter]bool{}, interval: s.Interval}
		for _, m := range s.Managers {
			u.reporting.side[manager{m.TCP, m.Prefix}] = m.Side.known()
		}
	}
}

func (u *uncounted) state(birth string) *stateUncounted {
	if u.envoy.PID == 0 {
		return nil
	}
	out := &stateUncounted{
		Envoy: birth, Sum: u.sum, Reported: u.reported, Base: u.base, Lost: u.lost, Skip: u.skip, Until: u.until, Changing: u.changing,
	}
	for m, n := range u.last {
		out.Last = append(out.Last, stateManager{TCP: m.tcp, Prefix: m.prefix, Taken: n})
	}
	if u.reporting != nil {
		out.Interval = u.reporting.interval
		for m, side := range u.reporting.side {
			out.Managers = append(out.Managers, stateManager{TCP: m.tcp, Prefix: m.prefix, Side: side})
		}
	}
	return out
}

// configured takes the listeners that Envoy has, with their number.
func (u *uncounted) configured(now time.Time, number uint64, next *reporting) {
	was, expected := u.reporting, u.listeners+1
	u.reporting, u.listeners = next, number
	if number != expected || was != nil && !was.anything() {
		// There were others between that nobody saw; or totals were not read.
		u.changing = true
	}
	if was == nil {
		return
	}
	for m, side := range was.side {
		if s, ok := next.side[m]; !ok && side != "" || s != side {
			u.changing = true
		}
	}
	for m, side := range next.side {
		_, had := was.side[m]
		if _, served := u.last[m]; !had && side != "" && (served || len(u.last) == 0) {
			u.changing = true // it is back, or nobody knows, and may still drain
		}
	}
	if next.interval != was.interval {
		u.until = now.Add(max(next.interval, was.interval) + connectionDelay)
	}
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
	u.remember(checkpoint{t.at, done})
	if u.skip > 0 || u.changing || now.Before(u.until) {
		u.skip, u.changing = max(u.skip-1, 0), u.changing && t.unsettled > 0
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
		before := u.last[m]
		if n < before {
			before = 0
		}
		u.last[m] = n
		side := u.reporting.side[m]
		if side == "" {
			continue
		}
		q := requestsEnded
		if m.tcp {
			q = connectionsBegun
		}
		u.sum[side.index()][q] += int64(n - before)
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
const totalsPath = "/stats/prometheus?usedonly&filter=" +
	`^(?:http\..%2B\.downstream_rq_(?:total|active)|tcp\..%2B\.downstream_cx_total|listener_manager\.total_(?:listeners_warming|listeners_draining|filter_chains_draining))$`

// totalsTime is for how long the totals may hold up a reading.
const totalsTime = time.Second

// readTotals reads the totals of Envoy; nil if nothing is reported, or listeners are on their way.
func (c *Collector) readTotals(ctx context.Context, now time.Time) (*totals, error) {
	if c.c.Listeners == nil {
		return nil, nil
	}
	l := c.c.Listeners()
	if l.Number == 0 || l.Changing {
		return nil, nil
	}
	c.store.mu.Lock()
	known := c.uncounted.listeners == l.Number
	c.store.mu.Unlock()
	var next *reporting
	if !known {
		var err error
		if next, err = reportingOf(l.Bodies()); err != nil {
			return nil, err
		}
	}
	c.store.mu.Lock()
	if next != nil {
		c.uncounted.configured(now, l.Number, next)
	}
	asked := c.uncounted.reporting.anything()
	out := &totals{of: c.uncounted.envoy, reported: c.uncounted.reported, taken: map[manager]uint64{}, active: map[manager]uint64{}}
	c.store.mu.Unlock()
	if !asked {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, totalsTime)
	defer cancel()
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
	out.at = time.Now()
	return out, nil
}

// settle compares the totals with what was reported, unless listeners have changed since they were read.
func (c *Collector) settle(now time.Time, t *totals) {
	l := c.c.Listeners()
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	if !l.Changing && l.Number == c.uncounted.listeners {
		c.uncounted.settle(now, t)
	}
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
	n, err := strconv.ParseUint(string(s.value), 10, 63)
	if err != nil {
		return
	}
	to, of, name := t.taken, manager{}, "http_conn_manager_prefix"
	switch string(s.name) {
	case "envoy_http_downstream_rq_total":
	case "envoy_http_downstream_rq_active":
		to = t.active
	case "envoy_tcp_downstream_cx_total":
		name, of.tcp = "tcp_prefix", true
	case "envoy_listener_manager_total_listeners_warming", "envoy_listener_manager_total_listeners_draining", "envoy_listener_manager_total_filter_chains_draining":
		t.unsettled += n
		return
	default:
		return
	}
	labels, ok := parseLabels(s.labels)
	if !ok {
		return
	}
	for _, l := range labels {
		if l.name == name {
			of.prefix = l.value
			to[of] += n
		}
	}
}
