package consul

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
)

const (
	// failMost is for how long others wait for a service that cannot be read while
	// they can, countEvery how often that is looked at, and retryUnread how often it
	// is asked for after that.
	failMost    = 10 * time.Second
	countEvery  = time.Second
	retryUnread = 5 * time.Second
)

// general reports whether an error is no matter of the service that was asked
// for: that of Consul, of the way to it, of the token, or of the filter.
func general(err error) bool {
	_, denied := errors.AsType[*client.Denied](err)
	return denied || errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrThrottled) || errors.Is(err, client.ErrFilter)
}

// refuse notes that a service cannot be read. What it had stands. Where the
// service itself is the reason, the others do not wait for it; that may show only
// after a while in which they are answered.
func (p *picture) refuse(svc *service, r *reading) {
	svc.fault = r.err.Error()
	if errors.Is(r.err, client.ErrFilter) {
		if p.filterFault == nil {
			p.filterFault = r.err
			p.s.log.Warn("no usable answer from Consul", "err", r.err, "filter", p.s.cfg.Filter)
		}
		return
	}
	if general(r.err) {
		if !p.unread[svc.name] {
			p.faulty[svc.name] = true
		}
		return
	}
	p.giveUp(svc, false)
}

// giveUp has nothing wait for a service any more.
func (p *picture) giveUp(svc *service, again bool) {
	svc.turn, svc.index = max(svc.turn, p.turn), 0
	p.unread[svc.name] = again
	delete(p.behind, svc.name)
	delete(p.doubted, svc.name)
	delete(p.faulty, svc.name)
}

// overdue gives up what fails for long while others can be read. It returns when
// to look again.
func (l *loop) overdue(now time.Time) time.Time {
	since := now.Sub(l.counted)
	switch {
	case len(l.faulty) == 0:
		l.counted = time.Time{}
		return time.Time{}
	case l.counted.IsZero():
		l.counted = now
		return now.Add(countEvery)
	case since < countEvery:
		return l.counted.Add(countEvery)
	}
	unread := len(l.behind) + len(l.unread)
	for name := range l.faulty {
		if !l.behind[name] {
			unread++
		}
	}
	others := 2*unread <= len(l.listed) || l.answeredAt.After(l.counted)
	down := l.s.client.Stats().Down
	l.counted = now
	for name := range l.faulty {
		svc := l.services[name]
		switch {
		case svc == nil:
			delete(l.faulty, name)
		case down:
			svc.failedFor = 0
		case others:
			if svc.failedFor += min(since, 2*countEvery); svc.failedFor >= failMost {
				l.giveUp(svc, true)
			}
		}
	}
	return now.Add(countEvery)
}

// retry has services read again that could not be.
func (l *loop) retry(now time.Time) time.Time {
	again := false
	due := !l.retryAt.After(now)
	for name, mayHelp := range l.unread {
		if svc := l.services[name]; mayHelp && svc != nil && !svc.watched {
			again = true
			if due {
				l.read(name, full)
			}
		}
	}
	if !again {
		return time.Time{}
	}
	if due {
		l.retryAt = now.Add(retryUnread + rand.N(retryUnread/4)) //nolint:gosec // no secret
	}
	return l.retryAt
}

// tooFew reports whether nothing can be read: then nothing is no picture. Less is no
// reason: anybody may register what cannot be read.
func (l *loop) tooFew() bool {
	return len(l.listed) > 0 && len(l.unread) >= len(l.listed)
}

// unreadable says why nothing can be read, or is
// nil.
func (l *loop) unreadable() error {
	if !l.tooFew() {
		return nil
	}
	first := ""
	for name := range l.unread {
		if first == "" || name < first {
			first = name
		}
	}
	fault := ""
	if svc := l.services[first]; svc != nil {
		fault = svc.fault
	}
	return fmt.Errorf("%d of %d services cannot be read, such as %.100q: %s", len(l.unread), len(l.listed), first, fault)
}
