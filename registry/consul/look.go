package consul

import (
	"math/rand/v2"
	"time"
)

const (
	// recheckEvery is how often all is looked at again while the receiver holds a
	// removal back, recheckMost times at most: then it knows of a second reading, and
	// only a person can tell it more.
	recheckEvery = 5 * time.Second
	recheckMost  = 4
	// unhideEvery is how often it is looked whether the token may see again what it
	// could see before; by unhideEach later for each service.
	unhideEvery = 5 * time.Second
	unhideEach  = 10 * time.Millisecond
	// heldEvery is how often that is found out: it takes a walk over all services.
	heldEvery = time.Second
)

// looker decides when all is looked at again.
type looker struct {
	recheck time.Time // when all is looked at, or zero
	// kept is what the receiver holds back, and rechecks how often that had all
	// looked at.
	kept, rechecks int
	// unseen counts the services of which something stands that the token cannot
	// see any more; unhideAt is when those are looked at.
	unseen   int
	unhideAt time.Time
	heldAt   time.Time // when both were found out
	// looking says that everything is looked at again; relist that the list is to
	// be read for it, and relisting that it is being read.
	looking, relist, relisting bool
}

// again looks at everything when it is time to, so that the present fragment is
// sent once more: what the receiver holds back waits for that.
func (l *loop) again(now time.Time) time.Time {
	if !l.live {
		return time.Time{}
	}
	if now.Sub(l.heldAt) >= heldEvery {
		l.heldAt = now
		l.holding()
	}
	return soonest(l.lookAgain(now), l.unhide(now))
}

func (l *loop) lookAgain(now time.Time) time.Time {
	every := l.s.cfg.SweepEvery
	soon := l.kept > 0 && l.rechecks < recheckMost
	if soon {
		every = min(every, recheckEvery)
	}
	if l.recheck.IsZero() || l.recheck.After(now.Add(every)) {
		l.recheck = now.Add(every)
	}
	if l.recheck.After(now) {
		return l.recheck
	}
	if soon {
		if l.rechecks++; l.rechecks == recheckMost {
			every = l.s.cfg.SweepEvery
		}
	}
	l.recheck = now.Add(every*4/5 + rand.N(every*2/5)) //nolint:gosec // no secret
	l.look()
	return l.recheck
}

// unhide has read what the token could not see.
func (l *loop) unhide(now time.Time) time.Time {
	if l.unseen == 0 {
		l.unhideAt = time.Time{}
		return time.Time{}
	}
	every := unhideEvery + time.Duration(l.unseen)*unhideEach
	if l.unhideAt.IsZero() {
		l.unhideAt = now.Add(every)
	}
	if l.unhideAt.After(now) {
		return l.unhideAt
	}
	l.unhideAt = now.Add(every*4/5 + rand.N(every*2/5)) //nolint:gosec // no secret
	l.readHidden()
	l.relist = true
	return l.unhideAt
}

func (l *loop) readHidden() {
	for name, svc := range l.services {
		if len(svc.held) > 0 || svc.denied {
			l.read(name, full)
		}
	}
}

// holding finds out what the receiver holds back, and what stands that the token
// cannot see any more.
func (l *loop) holding() {
	if judged, held := l.s.verdict.Last(); judged != nil && judged == l.last {
		if held != l.kept {
			l.kept, l.rechecks = held, 0
		}
		if held == 0 && len(l.changed) == 0 {
			clear(l.cut)
		}
	}
	l.unseen = 0
	for _, svc := range l.services {
		if len(svc.held) > 0 || svc.denied && svc.raw != nil {
			l.unseen++
		}
	}
}

// look reads the list again and looks at the services: at those with a watch, too,
// while the receiver holds something back, since a watch says nothing where
// nothing changes; and it reads those that lost something.
func (l *loop) look() {
	l.readHidden()
	if l.kept > 0 {
		for name := range l.cut {
			l.read(name, full)
		}
		l.sweepAll = true
	}
	l.sweepDue = l.ringing || l.sweepAll
	l.relist, l.looking = true, true
}

// looked sends the present fragment again when looking is over.
func (l *loop) looked() {
	if l.looking && l.live && !l.relist && !l.relisting && !l.sweepDue && !l.sweeping() && l.out == nil {
		l.looking = false
		l.out = l.last
	}
}
