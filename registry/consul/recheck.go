package consul

import (
	"math/rand/v2"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// recheckEvery is the time between rechecks while the receiver holds removals back.
	// There are recheckMax of them for a fragment: then it has its second reading, and a person has to
	// decide.
	recheckEvery = 5 * time.Second
	recheckMax   = 4
	// rereadHiddenEvery is the time between readings of what the token could read before;
	// rereadHiddenEach is added for each such service.
	rereadHiddenEvery = 5 * time.Second
	rereadHiddenEach  = 10 * time.Millisecond
	// countHeldEvery is the time between two counts, which walk over all services.
	countHeldEvery = time.Second
)

// rechecker decides when all services are read again.
type rechecker struct {
	recheckAt time.Time // when all are read, or zero
	// heldBack is how many removals the receiver holds back, and recheckCount how many
	// rechecks that caused.
	heldBack, recheckCount int
	heldOf                 *mesh.Fragment // the fragment with these removals, or nil
	// hiddenServices counts the services with entries that the token cannot read any
	// more; they are read at rereadHiddenAt.
	hiddenServices int
	rereadHiddenAt time.Time
	countedAt      time.Time // of heldBack and hiddenServices
	// rechecking says that a recheck runs; relist that it has to read the list of
	// services, and relisting that this is in flight.
	rechecking, relist, relisting bool
}

// rechecks starts a recheck when one is due. After it, the same fragment is sent once
// more: removals that are held back wait for that.
func (l *loop) rechecks(now time.Time) time.Time {
	if !l.live {
		return time.Time{}
	}
	if now.Sub(l.countedAt) >= countHeldEvery {
		l.countedAt = now
		l.countHeld()
	}
	return soonest(l.recheckDue(now), l.rereadHiddenDue(now))
}

func (l *loop) recheckDue(now time.Time) time.Time {
	every := l.s.cfg.SweepEvery
	soon := l.heldBack > 0 && l.recheckCount < recheckMax
	if soon {
		every = min(every, recheckEvery)
	}
	if l.recheckAt.IsZero() || l.recheckAt.After(now.Add(every)) {
		l.recheckAt = now.Add(every)
	}
	if l.recheckAt.After(now) {
		return l.recheckAt
	}
	if soon {
		if l.recheckCount++; l.recheckCount == recheckMax {
			every = l.s.cfg.SweepEvery
		}
	}
	l.recheckAt = now.Add(every*4/5 + rand.N(every*2/5)) //nolint:gosec // no secret
	l.recheckAll()
	return l.recheckAt
}

// rereadHiddenDue reads services with hidden entries when it is time to.
func (l *loop) rereadHiddenDue(now time.Time) time.Time {
	if l.hiddenServices == 0 {
		l.rereadHiddenAt = time.Time{}
		return time.Time{}
	}
	every := rereadHiddenEvery + time.Duration(l.hiddenServices)*rereadHiddenEach
	if l.rereadHiddenAt.IsZero() {
		l.rereadHiddenAt = now.Add(every)
	}
	if l.rereadHiddenAt.After(now) {
		return l.rereadHiddenAt
	}
	l.rereadHiddenAt = now.Add(every*4/5 + rand.N(every*2/5)) //nolint:gosec // no secret
	l.rereadHidden()
	l.relist = true
	return l.rereadHiddenAt
}

func (l *loop) rereadHidden() {
	for name, svc := range l.services {
		if len(svc.held) > 0 || svc.denied {
			l.read(name, readFull)
		}
	}
}

// countHeld counts what the receiver holds back, and the services with hidden entries.
func (l *loop) countHeld() {
	if decided, held := l.s.decision.Last(); decided != nil && decided == l.last {
		if held != l.heldBack || decided != l.heldOf {
			l.heldBack, l.heldOf, l.recheckCount = held, decided, 0
		}
		if held == 0 && len(l.changed) == 0 {
			clear(l.reduced)
		}
	}
	l.hiddenServices = 0
	for _, svc := range l.services {
		if len(svc.held) > 0 || svc.denied && svc.raw != nil {
			l.hiddenServices++
		}
	}
}

// recheckAll reads the list and sweeps the services. While the receiver holds removals
// back, it reads those with removals, and sweeps those with a watch, too: a watch does
// not answer without a change.
func (l *loop) recheckAll() {
	l.rereadHidden()
	if l.heldBack > 0 {
		for name := range l.reduced {
			l.read(name, readFull)
		}
		l.sweepAll = true
	}
	l.sweepDue = l.watchingTables || l.sweepAll
	l.relist, l.rechecking = true, true
}

// recheckDone sends the same fragment again at the end of a recheck.
func (l *loop) recheckDone() {
	if l.rechecking && l.live && !l.relist && !l.relisting && !l.sweepDue && !l.sweeping() && l.out == nil {
		l.rechecking = false
		l.out = l.last
	}
}
