package jwks

import (
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/internal/wallclock"
)

// sweepEvery is how often files are removed from the cache that nobody wants.
const sweepEvery = time.Hour

// expireEvery is how often ages are looked at.
const expireEvery = time.Minute

// entry is one key set that is followed.
type entry struct {
	location

	digest, host string

	// The following are owned by the loop.
	wish      *wish
	since     time.Time // when it was wanted first
	unsettled bool      // counted in loop.unsettled
	set       *Set      // or nil
	good      time.Time
	confirmed time.Time // good by the wall clock
	from      string
	unusable  []Unusable
	hash      [sha256.Size]byte
	failures  int
	err       string
	tried     bool
	attempted time.Time
	running   bool
	next      time.Time
	saved     time.Time // when the file was last offered

	status atomic.Pointer[Status] // written by the loop
}

// done is a job that has ended.
type done struct {
	entry  *entry
	owner  string
	answer answer
}

// loop owns the state of a Store.
type loop struct {
	s       *Store
	g       *errgroup.Group
	results chan done
	entries map[location]*entry
	order   []*entry
	over    map[location]struct{}
	of      *[]Source // what is followed; nil before the first Want
	logs    loglimit.ByKey

	queue     *queue
	unsettled int  // entries without keys that were not asked for
	dirty     bool // other keys are in force than the published ones
	published time.Time
	expired   time.Time // when expire was called last
	swept     time.Time
}

func newLoop(s *Store, g *errgroup.Group) *loop {
	return &loop{
		s: s, g: g, results: make(chan done, maxFetches), entries: map[location]*entry{},
		queue: newQueue(), expired: time.Now(), swept: time.Now(),
		logs: loglimit.ByKey{Each: loglimit.Allowance{Burst: 10, Every: time.Minute}, All: loglimit.Allowance{Burst: 60, Every: 5 * time.Second}},
	}
}

// run decides at each event what is due, until ctx is done.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.s.wanted:
			l.replan(time.Now())
		case d := <-l.results:
			l.finish(d, time.Now())
			for len(l.results) > 0 {
				l.finish(<-l.results, time.Now())
			}
		case <-timer.C:
		}
		now := time.Now()
		l.expire(now)
		l.start(ctx, now)
		l.publish(now)
		l.sweep(now)
		timer.Reset(l.wait(now))
	}
}

// replan follows what is wanted now.
func (l *loop) replan(now time.Time) {
	l.of = l.s.sources.Load()
	wishes, over := plan(*l.of, l.s.cfg.MaxSources)
	if len(over) > 0 && len(l.over) == 0 {
		l.s.log.Error("too many key sets are wanted; tokens of the issuers that are left out are refused",
			"count", len(over), "limit", l.s.cfg.MaxSources)
	}
	l.over = over
	for loc, e := range l.entries {
		if wishes[loc] == nil {
			delete(l.entries, loc)
			l.dirty = l.dirty || e.set != nil
			l.settle(e, true)
		}
	}
	for loc, w := range wishes {
		e := l.entries[loc]
		if e == nil {
			e = &entry{location: loc, digest: l.s.cache.digest(loc), host: l.s.fetcher.host(loc), since: now, next: now}
			l.entries[loc] = e
			l.load(e, w, now)
			l.dirty = l.dirty || e.set != nil
			l.settle(e, e.inForce() != nil)
		}
		e.wish = w
		l.report(e)
	}
	l.order = make([]*entry, 0, len(l.entries))
	for _, e := range l.entries {
		l.order = append(l.order, e)
	}
	slices.SortFunc(l.order, func(a, b *entry) int { return compareLocations(a.location, b.location) })
	l.queue.reset(l.order)
	l.s.followed.Store(&followed{maps.Clone(l.entries), l.order, over})
}

// load takes what the disk has of a key set. It is in force until its age is too high, and is
// fetched at once.
func (l *loop) load(e *entry, w *wish, now time.Time) {
	set, file, err := l.s.cache.load(e.location)
	if err != nil {
		if left, ok := l.logs.Allow(w.owners[0], now); ok {
			l.s.log.Warn("cached keys cannot be used; they are fetched again", "name", shortURI(e.uri), "err", err, "left_out", left)
		}
		return
	}
	if set == nil {
		return
	}
	// A time to come was written by a clock that was wrong, or is read by one.
	age := max(0, wallclock.Now().Sub(file.Confirmed))
	if age >= l.s.cfg.MaxAge {
		return
	}
	e.set, e.from, e.good, e.confirmed, e.saved = set, file.From, now.Add(-age), file.Confirmed, now
}

// expire drops keys that nobody has confirmed for too long.
func (l *loop) expire(now time.Time) {
	if now.Sub(l.expired) < expireEvery {
		return
	}
	l.expired = now
	for _, e := range l.order {
		if e.set == nil || now.Sub(e.good) < l.s.cfg.MaxAge {
			continue
		}
		had := e.inForce() != nil
		e.set, e.hash, l.dirty = nil, [sha256.Size]byte{}, true
		l.settle(e, e.tried)
		if !had {
			continue
		}
		if left, ok := l.logs.Allow(e.wish.owners[0], now); ok {
			l.s.log.Error("the keys of an issuer are too old; its tokens are refused", "name", shortURI(e.uri), "lasted", l.s.cfg.MaxAge, "err", e.err, "left_out", left)
		}
		l.report(e)
	}
}

// start begins the requests that are due.
func (l *loop) start(ctx context.Context, now time.Time) {
	for ctx.Err() == nil {
		e, owner := l.queue.take(now)
		if e == nil {
			return
		}
		j := job{e.location, e.wish.timeout, e.hash}
		l.g.Go(func() error {
			l.results <- done{e, owner, l.s.fetcher.fetch(ctx, j)} // there is room for all
			return nil
		})
	}
}

// finish takes what came of a request.
func (l *loop) finish(d done, now time.Time) {
	e := d.entry
	l.queue.release(e, d.owner)
	l.s.metrics.fetched(d.answer.err)
	if l.entries[e.location] != e {
		return // nobody wants it any more
	}
	e.tried, e.attempted = true, wallclock.Now()
	if d.answer.err != nil {
		l.fail(e, d.answer, now)
	} else {
		l.succeed(e, d.answer, now)
	}
	l.settle(e, true)
	l.queue.add(e)
	l.report(e)
}

// settle counts an entry that was, or was not, asked for.
func (l *loop) settle(e *entry, settled bool) {
	if e.unsettled == settled {
		if e.unsettled = !settled; e.unsettled {
			l.unsettled++
		} else {
			l.unsettled--
		}
	}
}

func (l *loop) fail(e *entry, a answer, now time.Time) {
	was, had := e.err, e.inForce() != nil
	e.err = safetext.Sanitize(a.err.Error(), maxError)
	withdraws := errors.Is(a.err, ErrNoKeys)
	if withdraws {
		l.withdraw(e, a, now)
	}
	e.hash = [sha256.Size]byte{} // the same bytes as before the failure are read again
	if a.hash != e.hash {
		e.unusable = a.unusable
	}
	e.failures++
	_, first, last := l.s.fetcher.every()
	pause := last
	if n := e.failures - 1; n < 16 && first<<n < last {
		pause = first << n
	}
	e.next = now.Add(jitter(pause))
	if was == e.err {
		return
	}
	left, ok := l.logs.Allow(e.wish.owners[0], now)
	switch {
	case !ok:
	case withdraws && had:
		l.s.log.Error("an issuer has no key that can be used any more; its tokens are refused", "name", shortURI(e.uri), "err", e.err, "left_out", left)
	case e.inForce() == nil:
		l.s.log.Warn("fetching the keys of an issuer failed; its tokens are refused", "name", shortURI(e.uri), "err", e.err, "left_out", left)
	default:
		l.s.log.Warn("fetching the keys of an issuer failed; the last good keys stay in force", "name", shortURI(e.uri), "err", e.err, "left_out", left)
	}
}

// withdraw takes the keys of an issuer out of force that says that it has none. What is no key
// set says nothing, and takes nothing out.
func (l *loop) withdraw(e *entry, a answer, now time.Time) {
	changed := e.set == nil || len(e.set.Keys) > 0
	l.dirty = l.dirty || e.inForce() != nil
	e.set, e.from, e.good, e.confirmed = withdrawn(), a.from, now, wallclock.Now()
	l.save(e, changed, now)
}

// save offers a set to the disk that differs from the one there, or was confirmed long after it.
func (l *loop) save(e *entry, changed bool, now time.Time) {
	if changed || now.Sub(e.saved) >= saveEvery {
		e.saved = now
		l.s.saver.put(e.digest, record{shortURI(e.from), e.set, e.confirmed})
	}
}

func (l *loop) succeed(e *entry, a answer, now time.Time) {
	was := e.err
	e.err, e.failures = "", 0
	refresh, _, _ := l.s.fetcher.every()
	e.next = now.Add(refresh - rand.N(refresh/10)) //nolint:gosec // spreads load
	e.good, e.confirmed = now, wallclock.Now()
	changed := !a.unchanged && (e.set == nil || e.set.JSON != a.set.JSON)
	if !a.unchanged {
		l.tellUnusable(e, a, now)
		e.hash, e.from, e.unusable = a.hash, a.from, a.unusable
	}
	if changed {
		e.set, l.dirty = a.set, true
		if left, ok := l.logs.Allow(e.wish.owners[0], now); ok {
			l.s.log.Info("the keys of an issuer changed", "name", shortURI(e.uri), "count", len(e.set.Keys), "left_out", left)
		}
	} else if was != "" {
		if left, ok := l.logs.Allow(e.wish.owners[0], now); ok {
			l.s.log.Info("fetching the keys of an issuer works again", "name", shortURI(e.uri), "left_out", left)
		}
	}
	l.save(e, changed, now)
}

func (l *loop) tellUnusable(e *entry, a answer, now time.Time) {
	if len(a.unusable) == 0 || slices.Equal(a.unusable, e.unusable) {
		return
	}
	if left, ok := l.logs.Allow(e.wish.owners[0], now); ok {
		reasons := make([]string, len(a.unusable))
		for i, u := range a.unusable {
			reasons[i] = u.String()
		}
		l.s.log.Warn("some keys of an issuer are left out", "name", shortURI(e.uri), "reasons", reasons, "left_out", left)
	}
}

// jitter spreads what would happen at one time.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1) //nolint:gosec // spreads load
}

// inForce is the set that proxies get, or nil.
func (e *entry) inForce() *Set {
	if e.set == nil || len(e.set.Keys) == 0 {
		return nil
	}
	return e.set
}

// report makes the status of an entry.
func (l *loop) report(e *entry) {
	st := &Status{
		URI: shortURI(e.uri), Discovery: e.discovery, Private: e.private, Issuers: e.wish.issuers,
		Owners: e.wish.owners[:min(len(e.wish.owners), maxNames)], Attempted: e.attempted, Err: e.err, Unusable: e.unusable,
		File: l.s.cfg.Dir != "",
	}
	switch {
	case e.inForce() != nil && e.err == "":
		st.State = StateCurrent
	case e.inForce() != nil:
		st.State = StateStale
	case e.tried:
		st.State = StateNone
	default:
		st.State, st.since = StatePending, e.since
	}
	if e.set != nil {
		st.From, st.Keys, st.Confirmed, st.good = e.from, e.set.Keys, e.confirmed, e.good
	}
	e.status.Store(st)
}

// publish makes new Keys if they differ.
func (l *loop) publish(now time.Time) {
	if !l.due() || now.Sub(l.published) < publishEvery {
		return
	}
	sets := map[location]*Set{}
	for _, e := range l.order {
		if set := e.inForce(); set != nil {
			sets[e.location] = set
		}
	}
	l.s.keys.Store(&Keys{sets, l.of, l.unsettled == 0})
	l.dirty, l.published = false, now
	ring(l.s.changed)
}

// due reports whether the published Keys are not what is in force.
func (l *loop) due() bool {
	k := l.s.keys.Load()
	return l.of != nil && (l.dirty || k.of != l.of || k.settled != (l.unsettled == 0))
}

func (l *loop) sweep(now time.Time) {
	if now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = now
	wanted := make(map[string]struct{}, len(l.entries))
	for _, e := range l.order {
		wanted[e.digest] = struct{}{}
	}
	l.s.saver.sweep(wanted, l.s.cfg.MaxSources)
}

// wait is the time until something is due.
func (l *loop) wait(now time.Time) time.Duration {
	next := l.expired.Add(expireEvery)
	if at, ok := l.queue.next(); ok && at.Before(next) {
		next = at
	}
	if at := l.published.Add(publishEvery); l.due() && at.Before(next) {
		next = at
	}
	return max(next.Sub(now), time.Millisecond)
}
