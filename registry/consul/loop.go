package consul

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// readers is how many questions about services are asked at the same time.
	readers = 16
	// drainMost bounds what is taken in before the next fragment is made.
	drainMost = 512
	// streams is what a server carries over one connection of HTTP/2. spare are the
	// connections that are left for other questions than watches, and others how
	// many of these there may be at a time.
	streams = 250
	spare   = 4
	others  = readers + 8
	// filterPause is for how long nothing is read when Consul takes no filter.
	filterPause = 5 * time.Second
	// stampEvery is how often the status is made anew by itself.
	stampEvery = 2 * time.Second
	// pauseFor is for how long no service is read after one could not be, at least.
	pauseFor = 200 * time.Millisecond
)

// want is how a service is to be read.
type want uint8

const (
	no   want = iota
	peek      // whether its index is another one
	full
)

// loop owns the picture: it takes answers, decides what to ask, and hands out
// fragments.
type loop struct {
	s   *Source
	log *slog.Logger
	*picture
	group *errgroup.Group

	inbox chan func(now time.Time)
	tasks chan task

	// urgent and queue are services to read, in order; a name may be there twice.
	urgent, queue []string
	reads         int       // on their way
	pausedTill    time.Time // nothing is read until then
	counted       time.Time // when overdue was looked for last, or zero
	retryAt       time.Time // when what could not be read is asked for again
	began         time.Time

	doorbells
	sweep

	defaults                  protocols // as far as they are known
	defaultsKnown, proxyKnown bool
	faults                    map[string]error // of the questions that are followed, by name

	delivered bool           // out or last is the whole of something
	live      bool           // everything was read in this turn
	liveEver  bool           // at least once
	told      uint64         // the turn of which it was logged
	out       *mesh.Fragment // what waits to be sent, or nil
	last      *mesh.Fragment // the one made last for sending, or nil
	stamped   time.Time
	saver
	teller
	looker
}

// task is a service to be read; with an index, only if it is another one.
type task struct {
	name  string
	known uint64
}

func newLoop(s *Source, g *errgroup.Group) *loop {
	return &loop{
		s: s, log: s.log, picture: newPicture(s), group: g, inbox: make(chan func(time.Time)), tasks: make(chan task),
		faults: map[string]error{}, doorbells: newDoorbells(), began: time.Now(),
	}
}

// post hands something to the loop; it is dropped when ctx is done.
func (l *loop) post(ctx context.Context, f func(now time.Time)) {
	select {
	case l.inbox <- f:
	case <-ctx.Done():
	}
}

// run asks, and hands out, until ctx is done.
func (l *loop) run(ctx context.Context, out chan<- *mesh.Fragment) {
	l.restore()
	for range readers {
		l.group.Go(func() error {
			l.reader(ctx)
			return nil
		})
	}
	follow(ctx, l, question[listing]{name: questionNames, ask: askNames, got: l.gotNames, every: 200 * time.Millisecond})
	follow(ctx, l, question[map[string]string]{name: questionDefaults, ask: askServiceDefaults, got: l.gotServiceDefaults})
	follow(ctx, l, question[string]{name: questionProxy, ask: askProxyDefaults, got: l.gotProxyDefaults})
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		now := time.Now()
		next := l.act(ctx, now)
		if next.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(time.Until(next))
		}
		t, tasks := l.nextTask(now)
		send := out
		if l.out == nil {
			send = nil
		}
		select {
		case <-ctx.Done():
			l.save(time.Now(), true)
			return
		case f := <-l.inbox:
			l.drain(f)
		case tasks <- t:
			l.started(t)
		case <-wake.C:
		case <-l.s.verdict.Told():
		case send <- l.out:
			l.out = nil
		}
	}
}

// drain takes what is there already.
func (l *loop) drain(f func(now time.Time)) {
	now := time.Now()
	for range drainMost {
		f(now)
		select {
		case f = <-l.inbox:
		default:
			return
		}
	}
}

// act does what is due, and returns when to act again; zero means not before
// something happens.
func (l *loop) act(ctx context.Context, now time.Time) time.Time {
	l.equip(ctx)
	at := soonest(l.swept(now), l.settle(now, l.ready(), l.sweeping()), l.pausedTill, l.retry(now), l.overdue(now))
	if l.pausedTill.Before(now) {
		l.pausedTill = time.Time{}
	}
	l.judge(now)
	l.hand(now)
	l.looked()
	at = soonest(at, l.again(now), l.save(now, false))
	if now.Sub(l.stamped) > stampEvery {
		l.stamp(now)
	}
	return soonest(at, l.stamped.Add(stampEvery))
}

// ready reports whether enough is known to read services.
func (l *loop) ready() bool {
	return l.listed != nil && l.defaultsKnown && l.proxyKnown && (!l.ringing || l.answered(l.turn))
}

// judge finds out whether everything has been read.
func (l *loop) judge(now time.Time) {
	live := l.ready() && len(l.behind)+len(l.doubted)+len(l.deferred) == 0 && l.fault() == nil && !l.tooFew()
	if live == l.live {
		return
	}
	l.live = live
	if live {
		if l.told != l.turn {
			l.told = l.turn
			l.log.Info("catalog loaded", "services", len(l.listed), "instances", l.instances, "took", now.Sub(l.began).String())
		}
		if !l.liveEver {
			l.liveEver = true
			l.recheck = now.Add(l.s.cfg.SweepEvery)
		}
		l.delivered = true
	} else {
		l.began = now
	}
	l.stamp(now)
}

// fault is what keeps the datacenter from being read, or nil.
func (l *loop) fault() error {
	if err := l.faults[questionNames]; err != nil {
		return err
	}
	return l.filterFault
}

// hand makes a fragment of what changed, if there is a whole one already.
func (l *loop) hand(now time.Time) {
	if !l.delivered {
		return
	}
	if f := l.compose(); f != l.last {
		l.last, l.out = f, f
		l.s.fragments.Add(1)
		if now.Sub(l.stamped) > stampEvery/10 {
			l.stamp(now)
		}
	}
}

// nextTask is the next service to read, and where to send it; a nil channel where
// there is none.
func (l *loop) nextTask(now time.Time) (task, chan<- task) {
	if !l.ready() || l.pausedTill.After(now) {
		return task{}, nil
	}
	if l.relist && !l.relisting {
		return task{}, l.tasks
	}
	for _, q := range []*[]string{&l.urgent, &l.queue} {
		for len(*q) > 0 {
			name := (*q)[0]
			svc := l.services[name]
			if svc == nil || svc.wanted == no || svc.reading {
				*q = (*q)[1:] // done with another turn of it, or asked for when it is read
				continue
			}
			t := task{name: name}
			if svc.wanted == peek {
				t.known = svc.index
			}
			return t, l.tasks
		}
		*q = nil
	}
	return task{}, nil
}

// started notes that a reader has taken a task.
func (l *loop) started(t task) {
	if t.name == "" {
		l.relist, l.relisting = false, true
		return
	}
	l.reads++
	svc := l.services[t.name]
	svc.reading, svc.wanted = true, no
}

// read has a service read: soon, or, for a peek, in its turn.
func (l *loop) read(name string, how want) {
	svc := l.services[name]
	if svc == nil || svc.wanted >= how {
		return
	}
	svc.wanted = how
	if svc.reading {
		return
	}
	if how == full {
		l.urgent = append(l.urgent, name)
	} else {
		l.queue = append(l.queue, name)
	}
}

// reader reads services one after the other.
func (l *loop) reader(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case t := <-l.tasks:
			if t.name == "" {
				names, m, err := client.GetLong(ctx, l.s.client, whole(l.s, askNames))
				l.post(ctx, func(now time.Time) { l.wasListed(names, m, err, now) })
				continue
			}
			r := l.s.readService(ctx, t.name, t.known)
			l.post(ctx, func(now time.Time) { l.wasRead(t, r, now) })
		}
	}
}

// wasListed takes the list of services that was read by the way.
func (l *loop) wasListed(names listing, m client.Meta, err error, now time.Time) {
	l.relisting = false
	if err != nil {
		l.looking = false // until the next time
		return
	}
	l.gotNames(names, m, now)
}

// wasRead takes what a reader found.
func (l *loop) wasRead(t task, r *reading, now time.Time) {
	l.reads--
	l.peeked(t.name, r.err == nil || l.unread[t.name])
	svc := l.services[t.name]
	if svc == nil {
		return
	}
	svc.reading = false
	counts := l.accept(r, now)
	failed := r.err != nil && general(r.err) && !l.unread[t.name]
	switch {
	case errors.Is(r.err, client.ErrFilter):
		l.pausedTill = now.Add(filterPause)
	case failed:
		l.pausedTill = now.Add(pauseFor + rand.N(pauseFor)) //nolint:gosec // no secret
	}
	again := svc.wanted
	if !counts || failed || l.behind[t.name] || l.doubted[t.name] {
		again = full
	}
	svc.wanted = no
	l.read(t.name, again)
	l.disagree(svc)
}

// question is one that is followed.
type question[T any] struct {
	name  string
	ask   func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)
	got   func(T, client.Meta, time.Time)
	every time.Duration
}

// follow follows a question in a goroutine of its own.
func follow[T any](ctx context.Context, l *loop, q question[T]) {
	l.group.Go(func() error {
		client.Follow(ctx, l.s.client, client.Query[T]{
			Name: q.name, Read: whole(l.s, q.ask), MinInterval: q.every, Urgent: true, Long: true,
			OnError: func(err error) { l.post(ctx, func(now time.Time) { l.tell(q.name, err, now) }) },
		}, func(v T, m client.Meta) { l.post(ctx, func(now time.Time) { q.got(v, m, now) }) })
		return nil
	})
}

// tell takes what goes wrong with a question, or nil.
func (l *loop) tell(name string, err error, now time.Time) {
	was := l.faults[name]
	_, l.broken[name] = errors.AsType[client.Unusable](err)
	if err == nil {
		delete(l.faults, name)
	} else {
		l.faults[name] = err
	}
	// Connect's defaults are worth having, and nothing waits for them.
	if err != nil && !errors.Is(err, client.ErrUnavailable) && !errors.Is(err, client.ErrThrottled) {
		l.defaultsKnown = l.defaultsKnown || name == questionDefaults
		l.proxyKnown = l.proxyKnown || name == questionProxy
		l.unequipped = true
	}
	switch {
	case name != questionNames:
	case err != nil && was == nil && l.delivered:
		l.log.Warn("reading the Consul catalog failed: serving the last known one", "err", err)
	case err != nil && was == nil:
		l.log.Warn("reading the Consul catalog failed and none is stored", "err", err)
	case err == nil && was != nil:
		l.log.Info("Consul catalog is readable again")
	}
	l.stamp(now)
}

func (l *loop) gotServiceDefaults(of map[string]string, _ client.Meta, _ time.Time) {
	l.defaultsKnown, l.defaults.of = true, of
	l.gotDefaults()
}

func (l *loop) gotProxyDefaults(global string, _ client.Meta, _ time.Time) {
	l.proxyKnown, l.defaults.global = true, global
	l.gotDefaults()
}

// gotDefaults brings Connect's defaults into force, once all are known: what a
// stored picture was made with stands until then.
func (l *loop) gotDefaults() {
	l.unequipped = true
	if l.defaultsKnown && l.proxyKnown {
		next := l.defaults
		l.redefine(&next)
	}
}

func (l *loop) gotNames(names listing, m client.Meta, now time.Time) {
	delete(l.faults, questionNames)
	if l.listed != nil && older(m, l.turn, l.listedIndex, l.listedAt) {
		l.relist = true // another answer overtook it
		return
	}
	l.unequipped = true
	news, gone := l.list(names, m, now)
	for _, name := range gone {
		l.read(name, full)
	}
	for _, name := range news {
		if svc := l.services[name]; svc.empty || l.ringing && !svc.watched {
			l.read(name, full)
		}
	}
	l.sweepDue = l.sweepDue || l.ringing
}

// rereadAll has everything read that has not been in this turn. Watches do by
// themselves.
func (l *loop) rereadAll() {
	for name := range l.behind {
		if svc := l.services[name]; !svc.watched {
			l.read(name, full)
		}
	}
}

// soonest is the earliest of the times that are not zero.
func soonest(times ...time.Time) time.Time {
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(times, time.Time.Compare)
}
