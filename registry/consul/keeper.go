package consul

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
)

const (
	// saveEvery is the least time between two writes of the picture.
	saveEvery = 3 * time.Second
	// markEvery is how often it is written that the picture is still Consul's.
	markEvery = 30 * time.Second
	// retryAfter is when the keeper tries again after the disk refused.
	retryAfter = 5 * time.Second
)

// keeper writes the picture in a goroutine of its own, so that a slow disk delays
// no fragment.
type keeper struct {
	store    store
	log      *slog.Logger
	doorbell chan struct{}

	mu      sync.Mutex // guards all following fields
	waiting map[int][]stored
	mark    *mark  // or nil
	err     string // of the last attempt, or empty
	held    string // why nothing was offered, or empty
}

func newKeeper(s store, log *slog.Logger) *keeper {
	return &keeper{store: s, log: log, doorbell: make(chan struct{}, 1), waiting: map[int][]stored{}}
}

// offer hands over whole shards, and what holds for the picture with them; later
// ones replace what is not yet written.
func (k *keeper) offer(list map[int][]stored, m *mark) {
	k.mu.Lock()
	maps.Copy(k.waiting, list)
	if m != nil {
		k.mark = m
	}
	k.mu.Unlock()
	select {
	case k.doorbell <- struct{}{}:
	default:
	}
}

// run writes until ctx is done, and then what is waiting still.
func (k *keeper) run(ctx context.Context) {
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			k.flush()
			return
		case <-k.doorbell:
		case <-retry.C:
		}
		k.flush()
	}
}

// flush writes all that waits; what fails waits on.
func (k *keeper) flush() {
	k.mu.Lock()
	list, m := k.waiting, k.mark
	k.waiting, k.mark = map[int][]stored{}, nil
	k.mu.Unlock()
	if len(list) == 0 && m == nil {
		return
	}
	var errs []error
	for i, services := range list {
		if err := k.store.save(i, services); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(list, i)
	}
	if m != nil && len(errs) == 0 { // it speaks of all that is written
		if err := k.store.saveMark(*m); err != nil {
			errs = append(errs, err)
		} else {
			m = nil
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, services := range list {
		if _, newer := k.waiting[i]; !newer {
			k.waiting[i] = services
		}
	}
	if k.mark == nil {
		k.mark = m
	}
	was := k.err
	k.err = ""
	if err := errors.Join(errs...); err != nil {
		k.err = err.Error()
	}
	switch {
	case k.err != "" && was == "":
		k.log.Error("the last picture cannot be saved", "err", k.err)
	case k.err == "" && was != "":
		k.log.Info("the last picture is saved again")
	}
}

// trouble says why the picture is not on disk, or is empty.
func (k *keeper) trouble() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return cmp.Or(k.err, k.held)
}

// withhold says why nothing is offered.
func (k *keeper) withhold(reason string) {
	k.mu.Lock()
	k.held = reason
	k.mu.Unlock()
}

// saver is what the loop knows of the disk.
type saver struct {
	savedAt, markedAt time.Time
	diskAt            time.Time // of what is on disk
	fromDisk          bool      // the picture is the stored one
	seenAt            time.Time // when the picture was last known to be Consul's
	stateFault        string
}

// restore takes the stored picture, and has it sent.
func (l *loop) restore() {
	k := l.s.keeper
	if k == nil {
		return
	}
	list, m, err := k.store.load()
	if err != nil {
		l.stateFault = "the last picture is damaged: " + err.Error()
		l.log.Error("the last picture is damaged, what can be read of it is used", "err", err)
	}
	foreign := m.Datacenter != l.s.cfg.Client.Datacenter
	if foreign || err != nil {
		// What is written next speaks for all of the directory: nothing of another
		// datacenter, and nothing damaged, stays in it.
		defer func() {
			for i := range shards {
				l.unsaved[i] = true
			}
		}()
	}
	if foreign || len(list) == 0 {
		return
	}
	of := map[string]string{}
	for _, x := range list {
		of[x.Name] = x.Protocol
	}
	// What Connect says is known before the entries are: until it answers.
	l.redefine(&protocols{of: of})
	for _, x := range list {
		entries, err := parse(x.Entries)
		if err != nil {
			l.stateFault = "the last picture is damaged: " + err.Error()
			continue
		}
		svc := &service{name: x.Name, filtered: x.Filtered, held: setOf(x.Held)}
		l.services[x.Name] = svc
		r := &reading{name: x.Name, Meta: client.Meta{Filtered: x.Filtered}, entries: entries}
		l.remake(r)
		l.apply(svc, r)
	}
	clear(l.unsaved)
	l.fromDisk, l.seenAt, l.delivered, l.diskAt = true, m.Read, true, m.Read
	l.log.Info("the last picture stands until the catalog is read", "services", len(l.services), "read", m.Read.Format(time.RFC3339))
}

// save hands what changed to the keeper, if it is time to; it returns when it
// will be. What the receiver has not judged, or holds back, is not written: after
// a restart it is to be judged again.
func (l *loop) save(now time.Time, last bool) time.Time {
	k := l.s.keeper
	if k == nil || !l.liveEver {
		return time.Time{}
	}
	stale := l.live && now.Sub(l.markedAt) >= markEvery
	if len(l.unsaved) == 0 && !stale {
		return time.Time{}
	}
	if at := l.savedAt.Add(saveEvery); at.After(now) && !last {
		return at
	}
	if l.s.cfg.AwaitSettled {
		st := l.s.settled.Load()
		if st != nil && st.held > 0 {
			k.withhold("removals are held back: until they are released the picture on disk is that of " + l.diskAt.UTC().Format(time.RFC3339))
		}
		if st == nil || st.fragment != l.last || st.held > 0 || len(l.changed) > 0 {
			return time.Time{} // the receiver says when
		}
	}
	l.savedAt, l.diskAt = now, now
	k.withhold("")
	list := map[int][]stored{}
	for i := range l.unsaved {
		list[i] = nil
	}
	if len(list) > 0 {
		for name, svc := range l.services {
			i := shardOf(name)
			if _, ok := list[i]; ok && svc.raw != nil {
				list[i] = append(list[i], stored{name, svc.filtered, svc.protocol, svc.raw, slices.Sorted(maps.Keys(svc.held))})
			}
		}
		for _, services := range list {
			slices.SortFunc(services, func(a, b stored) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	clear(l.unsaved)
	var m *mark
	if l.live {
		l.markedAt = now
		m = &mark{schema, l.s.cfg.Client.Datacenter, now}
	}
	k.offer(list, m)
	return time.Time{}
}
