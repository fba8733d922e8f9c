package registry

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// healthAfter is how long a change of health, or the first of endpoints after a
	// rest, waits for others that belong to the same event.
	healthAfter = 5 * time.Millisecond
	// healthBurst is how many of these pushes may follow one another at once.
	healthBurst = 5
	// endpointsAfter is the debounce of endpoints: however long that of configuration
	// is, they do not wait for it.
	endpointsAfter = 100 * time.Millisecond
	// minInterval is the least time between two pushes of configuration, and of
	// endpoints that change without a pause.
	minInterval = 200 * time.Millisecond
	// checkoutFiles is how many files may change within checkoutTime before they
	// count as a checkout. Pushes of a checkout are checkoutTime apart, so there are
	// at most two of its changes within that time. Single edits do not wait for one
	// another.
	checkoutFiles = 10
	checkoutTime  = time.Second
)

// change is what a reading changes.
type change struct {
	// config says that configuration, or an origin, is among it; endpoints and
	// health, that these are.
	config, endpoints, health bool
	// files is in how many files configuration changed, up to checkoutFiles+1.
	files int
}

// debouncer decides when to push changes: when nothing has changed for the time after, when
// the oldest change has waited for the time max, and not before the interval since the last
// push has passed. It is a value without a clock.
type debouncer struct {
	after, max, interval time.Duration

	first, last time.Time // the oldest change that was not pushed, or zero; the latest one
	pushed      time.Time
}

// note adds a change. The changes have waited since the time first.
func (d *debouncer) note(first, now time.Time) {
	d.last = now
	if d.first.IsZero() {
		d.first = first
	}
}

// due is when to push; zero means that there is no change.
func (d *debouncer) due() time.Time {
	if d.first.IsZero() {
		return time.Time{}
	}
	return later(sooner(d.last.Add(d.after), d.first.Add(d.max)), d.pushed.Add(d.interval))
}

// push notes that everything was pushed.
func (d *debouncer) push(now time.Time) { d.first, d.pushed = time.Time{}, now }

// pushes decides when to push changes of each kind.
type pushes struct {
	config, endpoints debouncer
	// mixed are endpoints that came in one reading with configuration: they go with
	// it, unless that takes too long.
	mixed debouncer
	// health is when a change of health is due, or zero; limit is for these.
	health time.Time
	limit  *rate.Limiter

	burst time.Time // since when endpoints change without a rest
	// files is when the last files of configuration changed, the oldest first.
	files [checkoutFiles + 1]time.Time
	// checkout says that all of these changed within checkoutTime.
	checkout bool
	// hold is until when configuration is not pushed; zero means that it is.
	hold time.Time
}

// newPushes has the settings --debounce-after and --debounce-max.
func newPushes(after, longest time.Duration) *pushes {
	rest := min(after, endpointsAfter)
	long := checkoutTime + rest
	return &pushes{
		config:    debouncer{after: after, max: longest, interval: minInterval},
		endpoints: debouncer{after: rest, max: long, interval: minInterval},
		mixed:     debouncer{after: long, max: long},
		limit:     rate.NewLimiter(rate.Every(minInterval), healthBurst),
	}
}

// note takes a change into account.
func (p *pushes) note(c change, now time.Time) {
	e := &p.endpoints
	rested := e.last.IsZero() || now.Sub(e.last) >= e.after
	if c.config || c.endpoints {
		if e.last = now; rested {
			p.burst = now
		}
	}
	if c.config {
		p.config.note(now, now)
		p.noteFiles(c.files, now)
	}
	switch {
	case c.endpoints && c.config:
		p.mixed.note(now, now)
	case c.endpoints && !rested:
		e.note(p.burst, now)
	}
	if (c.health || c.endpoints && !c.config && rested) && p.health.IsZero() {
		p.health = now.Add(max(healthAfter, p.limit.ReserveN(now, 1).DelayFrom(now)))
	}
}

// noteFiles takes into account that files of configuration changed. It looks back
// from the latest change: a second counted from an earlier one could end amid a
// checkout, and each half would make pushes of its own.
func (p *pushes) noteFiles(n int, now time.Time) {
	n = min(n, len(p.files))
	copy(p.files[:], p.files[n:])
	for i := range n {
		p.files[len(p.files)-1-i] = now
	}
	p.checkout = now.Sub(p.files[0]) <= checkoutTime
}

// due returns when to push, and whether configuration is to go out then; zero
// means that nothing waits.
func (p *pushes) due() (at time.Time, config bool) {
	at = p.config.due()
	if config = !at.IsZero(); config && p.checkout {
		at = later(at, sooner(p.config.pushed.Add(checkoutTime), p.config.first.Add(p.config.max)))
	}
	if config {
		at = later(at, p.hold)
	}
	for _, end := range []time.Time{p.endpoints.due(), p.mixed.due(), p.health} {
		if !end.IsZero() && (at.IsZero() || end.Before(at)) {
			at, config = end, false
		}
	}
	return at, config
}

// pushed forgets what went out.
func (p *pushes) pushed(config bool, now time.Time) {
	p.health = time.Time{}
	p.endpoints.push(now)
	p.mixed.push(now)
	if config {
		p.config.push(now)
	}
}

// reached is the kind of change that a difference is.
func reached(d *mesh.Difference) change {
	c := change{config: d.Reach() == mesh.ReachNone}
	switch d.ConfigReach() {
	case mesh.ReachConfig:
		c.config = true
	case mesh.ReachEndpoints:
		c.endpoints = true
	case mesh.ReachHealth:
		c.health = true
	case mesh.ReachNone:
	}
	switch d.EndpointsReach() {
	case mesh.ReachEndpoints, mesh.ReachConfig:
		c.endpoints = true
	case mesh.ReachHealth:
		c.health = true
	case mesh.ReachNone:
	}
	if c.config {
		c.files = d.Files(checkoutFiles + 1)
	}
	return c
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
