package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/registry/mesh"
)

// loggedNames bounds the objects that one log record names.
const loggedNames = 5

// loop is the state of a running Registry; its goroutine owns it.
type loop struct {
	r       *Registry
	log     *slog.Logger
	began   time.Time
	sources []*source
	pushes  *pushes
	// bindings are by source; nil where none is bound.
	bindings []*mesh.Binding
	keys     keys
	names    gatewayNames
	grants   grantRecord
	// addresses are those of hosts that have none of their own.
	addresses addressRecord

	missingLogged bool
	conflicts     map[mesh.Conflict]bool // those of logged
	logged        []mesh.Conflict
	published     time.Time
	merge         time.Duration
	// compared and merged count objects since the start.
	compared, merged uint64
}

// source is the state of one source.
type source struct {
	limits
	name     string
	observer DecisionObserver // or nil
	// last is the latest reading; current is what is in force of it, including what is held;
	// public is the part that has been published. All are nil at first.
	last, current, public *mesh.Fragment
	held                  holds
	window                *window
	heldLogged            time.Time // when new holds were logged

	read, changed time.Time
	// waiting is when the first reading arrived that is in no snapshot yet, for the observer.
	waiting   time.Time
	readings  uint64
	heldTotal uint64
	objects   int
}

func newLoop(r *Registry, now time.Time) *loop {
	l := &loop{
		r: r, log: r.log, began: now,
		pushes:    newPushes(r.cfg.DebounceAfter, r.cfg.DebounceMax),
		conflicts: map[mesh.Conflict]bool{},
		bindings:  r.cfg.bindings(),
		grants:    grantRecord{saver: r.granted},
		addresses: addressRecord{saver: r.places, bindings: r.cfg.bindings(), assigned: now},
	}
	for _, s := range r.cfg.Sources {
		observer, _ := s.(DecisionObserver)
		l.sources = append(l.sources, &source{name: s.Name(), observer: observer, limits: limits{
			share: r.cfg.RemovalShare, floor: r.cfg.RemovalFloor, confirmAfter: r.cfg.ConfirmAfter,
			emptyAfter: r.cfg.ReleaseEmptyAfter, bound: boundTo(r.cfg.Bindings[s.Name()]),
		}, window: newWindow(r.cfg.RemovalWindow, boundTo(r.cfg.Bindings[s.Name()]), now)})
	}
	return l
}

// read handles a reading of a source.
func (l *loop) read(f *mesh.Fragment, now time.Time) error {
	i := slices.IndexFunc(l.sources, func(s *source) bool { return f != nil && s.name == f.Source })
	if i < 0 {
		return fmt.Errorf("reading a fragment: %w", errUnknownSource(f))
	}
	s := l.sources[i]
	first := s.last == nil
	s.read = now
	s.readings++
	if f == s.last && len(s.held) == 0 {
		return nil
	}
	s.last = f
	diff := mesh.Compare(s.current, f)
	if diff.Unsorted() {
		f = f.Sorted()
		diff = mesh.Compare(s.current, f)
	}
	reading := reading{limits: s.limits, prev: s.current, next: f, diff: diff, held: s.held, snapshot: l.r.Snapshot(), window: s.window, now: now}
	next, held := reading.decide()
	if next != f {
		diff = mesh.Compare(s.current, next)
	}
	l.logHolds(s, held, now)
	l.accept(s, diff, held, now)
	if first {
		l.log.Info("source loaded", "source", s.name, "objects", s.objects)
	}
	return nil
}

func boundTo(b *mesh.Binding) []string {
	if b == nil {
		return nil
	}
	return b.Namespaces
}

func errUnknownSource(f *mesh.Fragment) error {
	if f == nil {
		return errors.New("a source sent no fragment")
	}
	return fmt.Errorf("unknown source %q", f.Source)
}

// accept puts the second fragment of a difference in force, to be published when it is due.
func (l *loop) accept(s *source, d *mesh.Difference, held holds, now time.Time) {
	before := s.held
	s.held = held
	if s.observer != nil {
		s.observer.Decided(s.last, len(held))
	}
	first := s.current == nil
	if first {
		s.window.first(d)
		s.current = d.Next()
	}
	if d.Same() {
		return
	}
	if !first {
		s.window.accepted(d, before, l.r.Snapshot(), now)
	}
	s.current, s.changed = d.Next(), now
	if s.waiting.IsZero() {
		s.waiting = now
	}
	s.objects += d.Growth()
	l.compared += uint64(d.Objects())
	l.pushes.note(reached(d), now)
}

// release releases what is held of a source.
func (l *loop) release(name string, now time.Time) {
	for _, s := range l.sources {
		if s.name != name || len(s.held) == 0 {
			continue
		}
		l.log.Info("held removals released by operator", "source", s.name, "objects", len(s.held))
		l.accept(s, mesh.Compare(s.current, s.last.Sorted()), nil, now)
	}
}

// logHolds logs new and released holds. Holds that follow one another are one record in a
// while, but those that need a person are logged at once.
func (l *loop) logHolds(s *source, held holds, now time.Time) {
	fresh := 0
	for key := range held {
		if _, ok := s.held[key]; !ok {
			fresh++
		}
	}
	s.heldTotal += uint64(fresh)
	switch {
	case fresh > 0:
		byPerson := held.byPerson()
		if byPerson == s.held.byPerson() && now.Sub(s.heldLogged) < s.confirmAfter {
			return
		}
		s.heldLogged = now
		list := held.list()
		names := make([]string, 0, loggedNames)
		for _, h := range list[:min(len(list), loggedNames)] {
			names = append(names, h.Key.String())
		}
		log := l.log.With("source", s.name, "objects", len(held), "first", names, "reasons", held.reasons())
		if byPerson {
			log.Error("removals on hold: confirm them with `fairlead release`", "command", "fairlead release "+s.name)
		} else {
			log.Warn("removals on hold until a second read confirms them", "command", "fairlead release "+s.name)
		}
	case len(s.held) > 0 && len(held) == 0:
		s.heldLogged = time.Time{}
		l.log.Info("held removals resolved", "source", s.name, "objects", len(s.held))
	}
}

// missing are the sources that have delivered nothing. One that comes after the first snapshot
// is still among them while configuration waits: none of its own was pushed yet.
func (l *loop) missing() []string {
	var names []string
	for _, s := range l.sources {
		if s.current == nil || !l.pushes.hold.IsZero() && s.public == nil && l.r.Snapshot() != nil {
			names = append(names, s.name)
		}
	}
	return names
}

// next is when the loop has to act by itself; zero means not before something happens.
func (l *loop) next(now time.Time) time.Time {
	if l.r.Snapshot() == nil {
		for _, wait := range []time.Time{l.pushes.hold, l.waitUntil()} {
			if now.Before(wait) {
				return wait
			}
		}
		return time.Time{}
	}
	at, _ := l.pushes.due()
	return at
}

func (l *loop) waitUntil() time.Time { return l.began.Add(l.r.cfg.SourceWait) }

// publishDue publishes if it is time to.
func (l *loop) publishDue(ctx context.Context, now time.Time) {
	prev := l.r.Snapshot()
	waiting := l.awaitKeys(now)
	waiting = l.awaitNames(now) || waiting
	l.pushes.hold = later(l.keys.until, l.names.until)
	missing := l.missing()
	switch {
	case prev == nil && len(missing) > 0:
		if now.Before(l.waitUntil()) {
			return
		}
		l.logMissing(missing)
		if waiting || !slices.ContainsFunc(l.sources, (*source).gaveSomething) {
			return // an empty mesh is no better than none
		}
		l.publish(ctx, true, missing, now)
	case prev == nil && waiting:
	case prev == nil, prev.Incomplete && len(missing) < len(prev.Missing) && !waiting:
		l.publish(ctx, true, missing, now)
	default:
		if at, config := l.pushes.due(); !at.IsZero() && !at.After(now) {
			l.publish(ctx, config, missing, now)
		}
	}
}

func (s *source) gaveSomething() bool {
	return s.current != nil && (s.objects > 0 || s.current.MeshConfig != nil)
}

func (l *loop) logMissing(missing []string) {
	if !l.missingLogged {
		l.missingLogged = true
		l.log.Error("sources missing after --source-wait: serving without them, removing nothing",
			"sources", missing, "waited", l.r.cfg.SourceWait)
	}
}

// publish merges the sources. Without config, debounced changes are not included.
// It does nothing if ctx ends before they are merged.
func (l *loop) publish(ctx context.Context, config bool, missing []string, now time.Time) {
	fragments := make([]*mesh.Fragment, len(l.sources))
	for i, s := range l.sources {
		if !slices.Contains(missing, s.name) {
			s.public = s.publishable(config)
		}
		fragments[i] = s.public
	}
	prev := l.r.Snapshot()
	l.addresses.assign(l.sources, len(missing) > 0, now)
	in := mesh.Input{
		Prev: prev, Fallback: l.r.cfg.Fallback, Fragments: fragments, Missing: missing,
		Bindings: l.bindings,
		KeySets:  l.keys.current, BoundPrivateKeys: l.r.cfg.BoundPrivateKeys,
		Allocations: l.addresses.current, GatewayAddresses: l.names.current,
	}
	in.Grants = l.grants.current
	next, made := l.mergeInputs(ctx, in, now)
	if next == nil {
		return
	}
	if made != nil {
		l.grants.took(made, missing)
		in.Grants = made
	}
	if config || in.Grants != l.grants.judged { // nothing else changes them, and there may be many
		l.grants.open, l.grants.judged = next.OpenGrants(), in.Grants
	}
	l.pushes.pushed(config, now)
	l.logConflicts(next.Conflicts)
	if len(missing) == 0 && (prev == nil || prev.Incomplete) {
		l.log.InfoContext(ctx, "all sources loaded", "services", len(next.Services), "workloads", len(next.Workloads))
	}
	l.published = time.Now()
	l.merge = l.published.Sub(now)
	l.merged += uint64(next.Merged())
	l.observe(next.Generation, now)
	l.r.publish(next)
}

// publishable is what may be published of a source: all of it or, while its
// configuration is debounced, the last configuration with today's workloads and
// health.
func (s *source) publishable(config bool) *mesh.Fragment {
	if config || s.current == nil || s.public == nil || s.public == s.current {
		return s.current
	}
	d := mesh.Compare(s.public, s.current)
	if d.ConfigReach() < mesh.ReachConfig {
		return s.current // nothing is debounced
	}
	return d.EndpointsOnly()
}

func (l *loop) logConflicts(list []mesh.Conflict) {
	if len(list) == 0 && len(l.conflicts) == 0 || len(list) > 0 && len(list) == len(l.logged) && &list[0] == &l.logged[0] {
		return
	}
	l.logged = list
	now := make(map[mesh.Conflict]bool, len(list))
	var fresh []mesh.Conflict
	for _, c := range list {
		if now[c] = true; !l.conflicts[c] {
			fresh = append(fresh, c)
		}
	}
	logged := fairlist.First(fresh, loggedNames, func(c mesh.Conflict) string { return sourceOf(c.Dropped) })
	for _, c := range logged {
		switch {
		case c.Reason != "" && c.Host == "" && !c.OfTenant(): // two catalogs, and the instances of both stand
			l.log.Info("datacenters disagree on a service", "object", c.Key.String(), "path", c.Dropped.String(), "kept", c.Kept.String(), "reason", c.Reason)
		case c.Kind != mesh.ConflictObject:
			l.log.Warn("object may not do all that it says", "object", c.Key.String(), "path", c.Dropped.String(), "reason", c.Reason)
		case c.Reason != "":
			l.log.Warn("object is limited to some namespaces", "object", c.Key.String(), "path", c.Dropped.String(), "kept", c.Kept.String(), "reason", c.Reason)
		default:
			l.log.Error("duplicate object ignored",
				"object", c.Key.String(), "path", c.Dropped.String(), "kept", c.Kept.String())
		}
	}
	if more := len(fresh) - len(logged); more > 0 {
		l.log.Warn("more objects are not in force; the status lists them", "objects", more)
	}
	l.conflicts = now
}

func sourceOf(o *mesh.Origin) string {
	if o == nil {
		return ""
	}
	return o.Source
}

// report is the status.
func (l *loop) report() *Status {
	st := &Status{
		Missing:   l.missing(),
		Published: l.published,
		Merge:     l.merge,
		Compared:  l.compared,
		Merged:    l.merged,
		Addresses: l.addresses.report(),
	}
	st.Grants, st.GrantsFault = l.grants.open, l.grants.fault
	st.Complete = len(st.Missing) == 0
	if s := l.r.Snapshot(); s != nil {
		st.Generation, st.Conflicts = s.Generation, s.Conflicts
	}
	foreign := map[string]int{}
	for _, c := range st.Conflicts {
		if c.Foreign {
			foreign[c.Dropped.Source]++
		}
	}
	at, _ := l.pushes.due()
	st.Waiting = !at.IsZero()
	for _, s := range l.sources {
		list := s.held.list()
		st.Sources = append(st.Sources, SourceStatus{
			Name: s.name, Delivered: s.current != nil, Read: s.read, Changed: s.changed, Readings: s.readings,
			Objects: s.objects, Held: list[:min(len(list), listedHolds)], HeldCount: len(list), HeldTotal: s.heldTotal,
			ForeignHosts: foreign[s.name],
		})
	}
	return st
}
