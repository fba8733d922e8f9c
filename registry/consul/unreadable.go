package consul

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
)

const (
	// failingMax is how long others wait for a service that cannot be read while they
	// can; overdueCheckEvery is how often this is checked, and retryUnreadableEvery how
	// often the service is read after that.
	failingMax           = 10 * time.Second
	overdueCheckEvery    = time.Second
	retryUnreadableEvery = 5 * time.Second
)

// isGeneral reports whether an error is not about one service, but about Consul, the
// network, the token or the filter.
func isGeneral(err error) bool {
	_, denied := errors.AsType[*client.Denied](err)
	return denied || errors.Is(err, client.ErrUnavailable) || errors.Is(err, client.ErrThrottled) || errors.Is(err, client.ErrFilter)
}

// readFailed notes that a service cannot be read. Its last state stays. If the service
// itself is the reason, the others do not wait for it; this may show only after they
// were read.
func (p *catalog) readFailed(svc *service, r *reading) {
	svc.fault = r.err.Error()
	if errors.Is(r.err, client.ErrFilter) {
		if p.filterFault == nil {
			p.filterFault = r.err
			p.s.log.Warn("no usable answer from Consul", "err", r.err, "filter", p.s.cfg.Filter)
		}
		return
	}
	if isGeneral(r.err) {
		if !p.unreadable[svc.name] {
			p.failing[svc.name] = true
		}
		return
	}
	p.giveUp(svc, false)
}

// giveUp lets nothing wait for a service any more.
func (p *catalog) giveUp(svc *service, again bool) {
	svc.generation, svc.index = max(svc.generation, p.generation), 0
	p.unreadable[svc.name] = again
	delete(p.stale, svc.name)
	delete(p.unconfirmed, svc.name)
	delete(p.failing, svc.name)
}

// giveUpOverdue gives up services that fail for long while others can be read. It
// returns when to check again.
func (l *loop) giveUpOverdue(now time.Time) time.Time {
	since := now.Sub(l.overdueCheckedAt)
	switch {
	case len(l.failing) == 0:
		l.overdueCheckedAt = time.Time{}
		return time.Time{}
	case l.overdueCheckedAt.IsZero():
		l.overdueCheckedAt = now
		return now.Add(overdueCheckEvery)
	case since < overdueCheckEvery:
		return l.overdueCheckedAt.Add(overdueCheckEvery)
	}
	unread := len(l.stale) + len(l.unreadable)
	for name := range l.failing {
		if !l.stale[name] {
			unread++
		}
	}
	others := 2*unread <= len(l.listed) || l.answeredAt.After(l.overdueCheckedAt)
	down := l.s.client.Stats().Down
	l.overdueCheckedAt = now
	for name := range l.failing {
		svc := l.services[name]
		switch {
		case svc == nil:
			delete(l.failing, name)
		case down:
			svc.failedFor = 0
		case others:
			if svc.failedFor += min(since, 2*overdueCheckEvery); svc.failedFor >= failingMax {
				l.giveUp(svc, true)
			}
		}
	}
	return now.Add(overdueCheckEvery)
}

// retryUnreadable reads services again that could not be read.
func (l *loop) retryUnreadable(now time.Time) time.Time {
	again := false
	due := !l.retryAt.After(now)
	for name, mayHelp := range l.unreadable {
		if svc := l.services[name]; mayHelp && svc != nil && !svc.watched {
			again = true
			if due {
				l.read(name, readFull)
			}
		}
	}
	if !again {
		return time.Time{}
	}
	if due {
		l.retryAt = now.Add(retryUnreadableEvery + rand.N(retryUnreadableEvery/4)) //nolint:gosec // no secret
	}
	return l.retryAt
}

// nothingReadable reports whether no listed service can be read: then there is no
// catalog. A part of them is not enough: anybody may register what cannot be read.
func (l *loop) nothingReadable() bool {
	return len(l.listed) > 0 && len(l.unreadable) >= len(l.listed)
}

// errNothingReadable is why nothing can be read, or nil.
func (l *loop) errNothingReadable() error {
	if !l.nothingReadable() {
		return nil
	}
	first := ""
	for name := range l.unreadable {
		if first == "" || name < first {
			first = name
		}
	}
	fault := ""
	if svc := l.services[first]; svc != nil {
		fault = svc.fault
	}
	return fmt.Errorf("%d of %d services cannot be read, such as %.100q: %s", len(l.unreadable), len(l.listed), first, fault)
}
