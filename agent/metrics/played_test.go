package metrics

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reportInterval is how often open connections are reported.
const reportInterval = 5 * time.Second

// played is an Envoy of which everything is known: what it took on, what it reported, and what it
// lost. It stands in for a real one where a test needs losses, restarts and readings at chosen
// moments.
type played struct {
	rnd   *rand.Rand
	now   time.Time
	u     *uncounted
	run   Process
	byLog bool
	all   map[manager]uint64
	open  map[manager]uint64 // requests under way
	// late are what will be reported, with the time.
	late []lateReport
	// lost are by side and quantity, of all Envoys.
	lost amounts
	// changes are changes of listeners while an agent starts.
	changes bool
	// number is that of the listeners. Those from before serve until drained: of their requests some
	// are reported, and some are not.
	number  uint64
	drained time.Time
	sides   map[manager]reporter
}

type lateReport struct {
	at   time.Time
	side reporter
	q    quantity
}

func managersOf() map[manager]reporter {
	return map[manager]reporter{
		{false, "outbound_1"}: source, {false, "outbound_2"}: source, {false, "inbound_1"}: destination,
		{true, "outbound|1"}: source, {true, "inbound|1"}: destination,
	}
}

func newPlayed(seed uint64, byLog bool) *played {
	p := &played{
		rnd: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1e9, 0), u: newUncounted(newStore(100)),
		all: map[manager]uint64{}, open: map[manager]uint64{}, sides: managersOf(), byLog: byLog,
	}
	p.listen(1)
	p.restart()
	return p
}

// restart is another Envoy. What was not reported yet never will be.
func (p *played) restart() {
	for _, l := range p.late {
		p.lost[l.side.index()][l.q]++
	}
	p.late, p.drained = nil, time.Time{}
	clear(p.all)
	clear(p.open)
	p.run = Process{PID: p.run.PID + 1, Since: p.now, Birth: strconv.Itoa(p.run.PID + 1)}
	p.u.follow(p.run)
}

// act is some traffic in some time.
func (p *played) act(events int, lossy bool) {
	for range events {
		p.now = p.now.Add(time.Duration(p.rnd.IntN(200)) * time.Millisecond)
		p.deliver()
		sides := managersOf()
		for _, m := range slices.SortedFunc(maps.Keys(sides), func(a, b manager) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
			side := sides[m]
			switch {
			case p.rnd.IntN(3) != 0:
			case m.tcp:
				p.all[m]++
				p.report(m, side, connectionsBegun, lossy, connectionDelay+reportInterval)
			case p.rnd.IntN(2) == 0:
				p.all[m]++
				p.open[m]++
			case p.open[m] > 0:
				p.open[m]--
				delay := time.Duration(0)
				if p.byLog {
					delay = requestDelay
				}
				p.report(m, side, requestsEnded, lossy, delay)
			}
		}
	}
}

func (p *played) report(m manager, side reporter, q quantity, lossy bool, within time.Duration) {
	draining := p.now.Before(p.drained) && p.rnd.IntN(2) == 0
	switch {
	case draining || p.sides[m] == "":
	case lossy && p.rnd.IntN(4) == 0:
		p.lost[side.index()][q]++
	case within == 0:
		p.u.report(side, q, 1)
	default:
		p.late = append(p.late, lateReport{p.now.Add(time.Duration(p.rnd.Int64N(int64(within)))), side, q})
	}
}

func (p *played) deliver() {
	left := p.late[:0]
	for _, l := range p.late {
		if l.at.After(p.now) {
			left = append(left, l)
		} else {
			p.u.report(l.side, l.q, 1)
		}
	}
	p.late = left
}

// read is a reading: traffic goes on between its parts.
func (p *played) read(lossy bool) {
	p.deliver()
	began := p.now
	t := &totals{of: p.run, reported: p.u.reported, taken: maps.Clone(p.all)}
	p.act(p.rnd.IntN(3), lossy)
	t.active = maps.Clone(p.open)
	p.act(p.rnd.IntN(3), lossy)
	if t.at = p.now; began.Before(p.drained) {
		t.unsettled = 1
	}
	if p.rnd.IntN(8) != 0 { // else the reading fails
		p.u.settle(p.now, t)
	}
}

// listen has the agent see listeners after so many changes of them.
func (p *played) listen(changes uint64) {
	p.number += changes
	p.u.configured(p.now, p.number, &reporting{side: maps.Clone(p.sides), byLog: map[reporter]bool{source: p.byLog, destination: p.byLog}, interval: reportInterval})
}

func (p *played) published() amounts {
	var out amounts
	for side, r := range p.u.store.overflow {
		out[side.index()] = [quantities]int64{int64(r.values[requests]), int64(r.values[opened])}
	}
	return out
}

// tooMany says whether more was published than was lost.
func (p *played) tooMany() bool {
	have := p.published()
	for i := range sides {
		for q := range quantities {
			if have[i][q] > p.lost[i][q] {
				return true
			}
		}
	}
	return false
}

// handOver is a restart of the agent beside its Envoy, or without what it knew.
func (p *played) handOver(planned bool) {
	before := p.u
	p.u = newUncounted(before.store)
	if planned {
		p.u.saved = before.state(p.run.Birth)
	}
	p.run.Adopted, p.run.Since = true, p.now
	p.u.follow(p.run)
	p.number = 0
	if p.changes && p.rnd.IntN(2) == 0 { // and other listeners, before it has seen the first
		p.change()
		p.listen(2)
		return
	}
	p.listen(1)
}

// flip has Envoy report a manager that it did not report, or the other way, perhaps twice before the
// agent sees it.
func (p *played) flip() {
	p.change()
	changes := uint64(1)
	if p.rnd.IntN(3) == 0 {
		p.act(p.rnd.IntN(10), true)
		p.change()
		changes++
	}
	p.listen(changes)
}

func (p *played) change() {
	m := manager{false, "outbound_2"}
	if _, has := p.sides[m]; has || p.all[m] > 0 { // else it is new to this Envoy: nothing of it drains
		p.drained = p.now.Add(time.Duration(p.rnd.IntN(90)) * time.Second)
	}
	switch side, ok := p.sides[m]; {
	case !ok:
		p.sides[m] = source // is back
	case side != "" && p.rnd.IntN(2) == 0:
		delete(p.sides, m) // is removed
	case side != "":
		p.sides[m] = ""
	default:
		p.sides[m] = source
	}
}

// remove removes a listener, after its requests have ended, and adds one with the same name: its
// totals begin with 0.
func (p *played) remove() {
	m := manager{false, "inbound_1"}
	for range p.open[m] {
		p.report(m, destination, requestsEnded, true, 0)
	}
	delete(p.open, m)
	delete(p.all, m)
	delete(p.sides, m)
	p.listen(1)
	p.sides[m] = destination
	p.listen(1)
}
