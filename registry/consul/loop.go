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
	// readers is how many services are read at the same time.
	readers = 16
	// drainMax bounds the answers that are taken before the next fragment is made.
	drainMax = 512
	// streamsPerConnection is how many queries share a connection by HTTP/2.
	// spareConnections are left for other queries than watches, and otherQueries is how
	// many of these there may be at a time.
	streamsPerConnection = 250
	spareConnections     = 4
	otherQueries         = readers + 8
	// filterPause is the pause after Consul refused the filter.
	filterPause = 5 * time.Second
	// statusInterval is the time between two updates of the status without a change.
	statusInterval = 2 * time.Second
	// failurePause is the least pause after a service could not be read.
	failurePause = 200 * time.Millisecond
)

// readMode is how a service is to be read.
type readMode uint8

const (
	readNone  readMode = iota
	readIndex          // in full if its index is another one
	readFull
)

// loop owns the catalog cache: it takes answers, decides what to read, and makes
// fragments.
type loop struct {
	s   *Source
	log *slog.Logger
	*catalog
	group *errgroup.Group

	inbox chan func(now time.Time)
	tasks chan task

	// urgent and queue are services to read, in order; a name may be there twice.
	urgent, queue    []string
	reads            int       // on their way
	pausedTill       time.Time // nothing is read until then
	overdueCheckedAt time.Time // by giveUpOverdue, or zero
	retryAt          time.Time // when unreadable services are read again
	readingSince     time.Time

	tableWatches
	sweep

	defaults                  protocols // as far as they are known
	defaultsKnown, proxyKnown bool
	faults                    map[string]error // of the queries that are followed, by name

	delivered        bool           // there is a whole fragment
	live             bool           // everything was read in this generation
	liveEver         bool           // at least once
	loggedGeneration uint64         // the last one that the log reports as loaded
	out              *mesh.Fragment // what waits to be sent, or nil
	last             *mesh.Fragment // the one made last for sending, or nil
	statusAt         time.Time
	savedState
	denialLog
	rechecker
}

// task is a service to be read; with an index, only if it is another one.
type task struct {
	name  string
	index uint64
}

func newLoop(s *Source, g *errgroup.Group) *loop {
	return &loop{
		s: s, log: s.log, catalog: newCatalog(s), group: g, inbox: make(chan func(time.Time)), tasks: make(chan task),
		faults: map[string]error{}, tableWatches: newTableWatches(), readingSince: time.Now(),
	}
}

// post has the loop call f, unless ctx is done.
func (l *loop) post(ctx context.Context, f func(now time.Time)) {
	select {
	case l.inbox <- f:
	case <-ctx.Done():
	}
}

// run reads, and sends fragments, until ctx is done.
func (l *loop) run(ctx context.Context, out chan<- *mesh.Fragment) {
	l.restore()
	for range readers {
		l.group.Go(func() error {
			l.reader(ctx)
			return nil
		})
	}
	follow(ctx, l, followed[listing]{name: queryNamesPath, ask: queryNames, got: l.gotNames, every: 200 * time.Millisecond})
	follow(ctx, l, followed[map[string]string]{name: queryDefaultsPath, ask: queryServiceDefaults, got: l.gotServiceDefaults})
	follow(ctx, l, followed[string]{name: queryProxyPath, ask: queryProxyDefaults, got: l.gotProxyDefaults})
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		now := time.Now()
		next := l.step(ctx, now)
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
		case <-l.s.decision.Changed():
		case send <- l.out:
			l.out = nil
		}
	}
}

// drain calls f, and what else waits in the inbox.
func (l *loop) drain(f func(now time.Time)) {
	now := time.Now()
	for range drainMax {
		f(now)
		select {
		case f = <-l.inbox:
		default:
			return
		}
	}
}

// step does what is due, and returns when the next step is due; zero means after the
// next event.
func (l *loop) step(ctx context.Context, now time.Time) time.Time {
	l.assignWatches(ctx)
	at := soonest(l.runSweeps(now), l.applyRemovals(now, l.ready(), l.sweeping()), l.pausedTill, l.retryUnreadable(now), l.giveUpOverdue(now))
	if l.pausedTill.Before(now) {
		l.pausedTill = time.Time{}
	}
	l.updateLive(now)
	l.makeFragment(now)
	l.recheckDone()
	at = soonest(at, l.rechecks(now), l.save(now, false))
	if now.Sub(l.statusAt) > statusInterval {
		l.publishStatus(now)
	}
	return soonest(at, l.statusAt.Add(statusInterval))
}

// ready reports whether enough is known to read services.
func (l *loop) ready() bool {
	return l.listed != nil && l.defaultsKnown && l.proxyKnown && (!l.watchingTables || l.answered(l.generation))
}

// updateLive finds out whether everything has been read.
func (l *loop) updateLive(now time.Time) {
	live := l.ready() && len(l.stale)+len(l.unconfirmed)+len(l.deferred) == 0 && l.fault() == nil && !l.nothingReadable()
	if live == l.live {
		return
	}
	l.live = live
	if live {
		if l.loggedGeneration != l.generation {
			l.loggedGeneration = l.generation
			l.log.Info("catalog loaded", "services", len(l.listed), "instances", l.instances, "took", now.Sub(l.readingSince).String())
		}
		if !l.liveEver {
			l.liveEver = true
			l.recheckAt = now.Add(l.s.cfg.SweepEvery)
		}
		l.delivered = true
	} else {
		l.readingSince = now
	}
	l.publishStatus(now)
}

// fault is what keeps the datacenter from being read, or nil.
func (l *loop) fault() error {
	if err := l.faults[queryNamesPath]; err != nil {
		return err
	}
	return l.filterFault
}

// makeFragment makes a fragment if something changed and there is a whole one.
func (l *loop) makeFragment(now time.Time) {
	if !l.delivered {
		return
	}
	if f := l.buildFragment(); f != l.last {
		l.last, l.out = f, f
		l.s.fragments.Add(1)
		if now.Sub(l.statusAt) > statusInterval/10 {
			l.publishStatus(now)
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
			if svc == nil || svc.wanted == readNone || svc.reading {
				*q = (*q)[1:] // read meanwhile, or read again after the present reading
				continue
			}
			t := task{name: name}
			if svc.wanted == readIndex {
				t.index = svc.index
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
	svc.reading, svc.wanted = true, readNone
}

// read queues a service: a full reading goes before those of an index.
func (l *loop) read(name string, how readMode) {
	svc := l.services[name]
	if svc == nil || svc.wanted >= how {
		return
	}
	svc.wanted = how
	if svc.reading {
		return
	}
	if how == readFull {
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
				names, m, err := client.GetLong(ctx, l.s.client, checked(l.s, queryNames))
				l.post(ctx, func(now time.Time) { l.wasListed(names, m, err, now) })
				continue
			}
			r := l.s.readService(ctx, t.name, t.index)
			l.post(ctx, func(now time.Time) { l.wasRead(t, r, now) })
		}
	}
}

// wasListed takes the list of services that a recheck read.
func (l *loop) wasListed(names listing, m client.Meta, err error, now time.Time) {
	l.relisting = false
	if err != nil {
		l.rechecking = false // until the next time
		return
	}
	l.gotNames(names, m, now)
}

// wasRead takes what a reader found.
func (l *loop) wasRead(t task, r *reading, now time.Time) {
	l.reads--
	l.swept(t.name, r.err == nil || l.unreadable[t.name])
	svc := l.services[t.name]
	if svc == nil {
		return
	}
	svc.reading = false
	counts := l.accept(r, now)
	failed := r.err != nil && isGeneral(r.err) && !l.unreadable[t.name]
	switch {
	case errors.Is(r.err, client.ErrFilter):
		l.pausedTill = now.Add(filterPause)
	case failed:
		l.pausedTill = now.Add(failurePause + rand.N(failurePause)) //nolint:gosec // no secret
	}
	again := svc.wanted
	if !counts || failed || l.stale[t.name] || l.unconfirmed[t.name] {
		again = readFull
	}
	svc.wanted = readNone
	l.read(t.name, again)
	l.compareWithTables(svc)
}

// followed is a blocking query of the loop.
type followed[T any] struct {
	name  string
	ask   func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)
	got   func(T, client.Meta, time.Time)
	every time.Duration
}

// follow follows a query in a goroutine of its own.
func follow[T any](ctx context.Context, l *loop, q followed[T]) {
	l.group.Go(func() error {
		client.Follow(ctx, l.s.client, client.Query[T]{
			Name: q.name, Read: checked(l.s, q.ask), MinInterval: q.every, Urgent: true, Long: true,
			OnError: func(err error) { l.post(ctx, func(now time.Time) { l.noteFault(q.name, err, now) }) },
		}, func(v T, m client.Meta) { l.post(ctx, func(now time.Time) { q.got(v, m, now) }) })
		return nil
	})
}

// noteFault takes the error of a query, or nil.
func (l *loop) noteFault(name string, err error, now time.Time) {
	was := l.faults[name]
	_, l.unusable[name] = errors.AsType[client.Unusable](err)
	if err == nil {
		delete(l.faults, name)
	} else {
		l.faults[name] = err
	}
	// Connect's defaults are worth having, and nothing waits for them.
	if err != nil && !errors.Is(err, client.ErrUnavailable) && !errors.Is(err, client.ErrThrottled) {
		l.defaultsKnown = l.defaultsKnown || name == queryDefaultsPath
		l.proxyKnown = l.proxyKnown || name == queryProxyPath
		l.watchesOutdated = true
	}
	switch {
	case name != queryNamesPath:
	case err != nil && was == nil && l.delivered:
		l.log.Warn("reading the Consul catalog failed: serving the last known one", "err", err)
	case err != nil && was == nil:
		l.log.Warn("reading the Consul catalog failed and none is stored", "err", err)
	case err == nil && was != nil:
		l.log.Info("Consul catalog is readable again")
	}
	l.publishStatus(now)
}

func (l *loop) gotServiceDefaults(of map[string]string, _ client.Meta, _ time.Time) {
	l.defaultsKnown, l.defaults.of = true, of
	l.gotDefaults()
}

func (l *loop) gotProxyDefaults(global string, _ client.Meta, _ time.Time) {
	l.proxyKnown, l.defaults.global = true, global
	l.gotDefaults()
}

// gotDefaults applies Connect's defaults once all are known. Until then, those of the
// stored catalog stay.
func (l *loop) gotDefaults() {
	l.watchesOutdated = true
	if l.defaultsKnown && l.proxyKnown {
		next := l.defaults
		l.setProtocols(&next)
	}
}

func (l *loop) gotNames(names listing, m client.Meta, now time.Time) {
	delete(l.faults, queryNamesPath)
	if l.listed != nil && isOlder(m, l.generation, l.listedIndex, l.listedAt) {
		l.relist = true // another answer overtook it
		return
	}
	l.watchesOutdated = true
	news, gone := l.setListing(names, m, now)
	for _, name := range gone {
		l.read(name, readFull)
	}
	for _, name := range news {
		if svc := l.services[name]; svc.empty || l.watchingTables && !svc.watched {
			l.read(name, readFull)
		}
	}
	l.sweepDue = l.sweepDue || l.watchingTables
}

// rereadAll reads all services that were not read in this generation. Watches do so by
// themselves.
func (l *loop) rereadAll() {
	for name := range l.stale {
		if svc := l.services[name]; !svc.watched {
			l.read(name, readFull)
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
