package agents

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/internal/refusals"
	"github.com/fairlead/fairlead/registry/mesh"
)

// sourceName is the name of the source.
const sourceName = "agents"

const (
	// maxStreams limits the streams of one workload: more than one is a reconnect before the
	// end of the old stream was noticed.
	maxStreams = 8
	// maxReason bounds what is kept of a reason, in bytes.
	maxReason = 256
	// listedWorkloads bounds what Status lists.
	listedWorkloads = 100
)

// Config is what a Source needs.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Grace is how long after its stream was lost a workload counts as before; 0 means 3 s.
	Grace time.Duration
	// Settle is how long after the first agent came back, of those that were known before the
	// start, the others count as before; 0 means DefaultSettle.
	Settle time.Duration
	// MaxWorkloads limits the workloads in memory; 0 means 100,000. At the limit those that
	// are gone for longest are removed, and else new ones are rejected.
	MaxWorkloads int
	// Store saves which workloads are out or silent; nil means that a restart forgets it.
	Store Store
	// Claims saves the claims; nil means that a restart forgets them.
	Claims ClaimStore
	// ClaimLease is how long a claim lasts after the last stream of its host; 0 means
	// DefaultClaimLease.
	ClaimLease time.Duration
	// RequireProof rejects claims without a proof.
	RequireProof bool
	// Stands reports whether a host is still on record with a binding; nil means
	// that all are. It is called without any lock.
	Stands func(host, binding string) bool
}

// Defaults of Config.
const (
	DefaultClaimLease = 5 * time.Minute
	DefaultSettle     = 30 * time.Second
)

// Source turns what agents report into a Fragment of package mesh.
type Source struct {
	// Constant after New.
	log    *slog.Logger
	limits limits
	max    int
	store  Store // or nil
	// claimStore may be nil, and stands, too.
	claimStore ClaimStore
	stands     func(host, binding string) bool
	// claimLease and requireProof are of Config.
	claimLease   time.Duration
	requireProof bool
	// restored are the workloads that were out or silent before a restart.
	restored []*mesh.HealthReport
	wake     chan struct{}

	running atomic.Bool
	unsaved atomic.Pointer[string] // why state is not saved; or nil

	mu      sync.Mutex // guards all following fields
	leases  map[id]*lease
	sorted  []*lease              // by id
	there   map[location][]*lease // the same by address, whatever their service account
	streams map[uint64]*lease
	// counts are the leases by state; timed are those that change with time; changedLeases
	// those whose health changed since the last fragment.
	counts        map[State]int
	timed         map[*lease]bool
	changedLeases map[*lease]bool
	// healths is the latest fragment's list, down those of it that are out or silent.
	healths, down []*mesh.HealthReport
	changed       bool // a fragment is wanted, though nothing changed
	// settleAt is when agents that have not come back since the start are silent: zero until
	// the first one has come. settleOver says that this has passed.
	settleAt   time.Time
	settleOver bool
	refused    uint64
	ignored    uint64

	// sources are where hosts connect from, by stream in from.
	sources sources
	from    map[uint64]connection
	// conflicts are claims that were refused or lost, the newest last.
	conflicts            refusals.List[Conflict, *Conflict]
	displaced, contested uint64
	lossLogged           time.Time // when a lost claim was logged last
	lossOmitted          int       // and how many were not since
	claimsChanged        bool      // something of what is saved of claims
}

// connection is where the host of a stream connects from.
type connection struct {
	host   string
	source netip.Addr
}

// New checks the configuration and reads who was out. It starts nothing.
func New(c Config) (*Source, error) {
	if c.Logger == nil {
		return nil, errors.New("agents: Config.Logger is missing")
	}
	if c.Grace < 0 || c.Settle < 0 || c.MaxWorkloads < 0 || c.ClaimLease < 0 {
		return nil, errors.New("agents: a limit is negative")
	}
	s := &Source{
		log:           c.Logger.With("component", "registry/agents"),
		limits:        limits{grace: cmp.Or(c.Grace, 3*time.Second), settle: cmp.Or(c.Settle, DefaultSettle), streams: maxStreams},
		max:           cmp.Or(c.MaxWorkloads, 100_000),
		store:         c.Store,
		claimStore:    c.Claims,
		stands:        c.Stands,
		claimLease:    cmp.Or(c.ClaimLease, DefaultClaimLease),
		requireProof:  c.RequireProof,
		sources:       sources{at: map[netip.Addr]*origin{}, several: map[netip.Addr]time.Time{}},
		from:          map[uint64]connection{},
		wake:          make(chan struct{}, 1),
		leases:        map[id]*lease{},
		there:         map[location][]*lease{},
		streams:       map[uint64]*lease{},
		counts:        map[State]int{},
		timed:         map[*lease]bool{},
		changedLeases: map[*lease]bool{},
	}
	now := time.Now()
	s.restoreClaims(now)
	s.restore(now)
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return sourceName }

func (s *Source) wakeRun() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// StreamOpened records that the agent of a workload is connected, and claims the workload. The
// number of a stream is unique in the process. A [*RefusedError] means that the workload
// belongs to another host: then the stream is not open. end is called, from any goroutine,
// when the workload becomes another host's; it must not block.
func (s *Source) StreamOpened(stream uint64, c mesh.Claim, end func(reason string)) error {
	defer s.wakeRun()
	notify, err := s.open(stream, c, end)
	for err != nil && err.Holder != "" && s.stands != nil && !s.stands(err.Holder, err.Binding) && s.Free(err.Holder, err.Binding) {
		var more []func()
		more, err = s.open(stream, c, end)
		notify = append(notify, more...)
	}
	for _, f := range notify {
		f()
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.contested++
		s.conflict(err, time.Now())
		return err
	}
	return nil
}

func (s *Source) open(stream uint64, c mesh.Claim, end func(reason string)) (notify []func(), refused *RefusedError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream == 0 || s.streams[stream] != nil {
		return nil, nil
	}
	now := time.Now()
	if s.sources.opened(c.Source, c.Host, now) {
		notify = s.newlyShared(c.Source)
	}
	l, lost, err := s.grant(c, now)
	notify = append(notify, lost...)
	if l == nil {
		s.sources.closed(c.Source, c.Host, now)
		if err == nil {
			s.refused++
		}
		return notify, err
	}
	if s.settleAt.IsZero() {
		s.settleAt = now.Add(s.limits.settle)
	}
	s.from[stream] = connection{c.Host, c.Source}
	if forgotten := l.opened(attached{stream: stream, end: end}, s.limits, now); forgotten != 0 {
		delete(s.streams, forgotten)
	}
	s.streams[stream] = l
	s.updateLease(l)
	return notify, nil
}

// updateLease updates the lists that a lease is in.
func (s *Source) updateLease(l *lease) {
	if state := l.state(); state != l.counted {
		s.counts[l.counted]--
		s.counts[state]++
		l.counted = state
	}
	if l.timed() {
		s.timed[l] = true
	} else {
		delete(s.timed, l)
	}
	if health, reason := l.health(); !l.reported(health, reason) {
		s.changedLeases[l] = true
	}
}

// leaseOf returns the lease of a workload, or nil where there is no room.
func (s *Source) leaseOf(key id) *lease {
	if l := s.leases[key]; l != nil {
		return l
	}
	if len(s.leases) >= s.max && !s.forgetOldest() {
		return nil
	}
	l := &lease{id: key, counted: Lost}
	s.counts[Lost]++
	at, _ := slices.BinarySearchFunc(s.sorted, key, func(l *lease, k id) int { return compareIDs(l.id, k) })
	s.sorted = slices.Insert(s.sorted, at, l)
	s.leases[key] = l
	s.there[key.location()] = append(s.there[key.location()], l)
	return l
}

// forgetOldest makes room: it removes the lease that is gone for longest and of which nothing
// is known.
func (s *Source) forgetOldest() bool {
	var oldest *lease
	for _, l := range s.sorted {
		if (l.silent || l.gone() || l.awaited) && (oldest == nil || l.lost.Before(oldest.lost)) {
			oldest = l
		}
	}
	if oldest == nil {
		return false
	}
	s.drop(oldest)
	return true
}

// drop forgets a lease, with its streams.
func (s *Source) drop(l *lease) {
	for _, a := range l.streams {
		delete(s.streams, a.stream)
	}
	delete(s.leases, l.id)
	at, _ := slices.BinarySearchFunc(s.sorted, l.id, func(l *lease, k id) int { return compareIDs(l.id, k) })
	s.sorted = slices.Delete(s.sorted, at, at+1)
	if rest := slices.DeleteFunc(s.there[l.id.location()], func(o *lease) bool { return o == l }); len(rest) > 0 {
		s.there[l.id.location()] = rest
	} else {
		delete(s.there, l.id.location())
	}
	s.counts[l.counted]--
	delete(s.timed, l)
	s.claimsChanged = s.claimsChanged || l.host != ""
	l.forgotten = true
	s.changedLeases[l] = true
	s.elect(l.id.placement)
}

// ReportProbe records the result of an agent's probe of the application, and returns the
// health that follows from all reports of the stream. The stream determines the workload. It
// is ignored if the stream is not open, and counts until the stream ends or a newer stream of
// the same host reports.
func (s *Source) ReportProbe(stream uint64, health mesh.Health, reason string) (mesh.Health, string) {
	if health != mesh.Unhealthy {
		reason = ""
	}
	return s.report(stream, func(l *lease, a *attached) { l.reportProbe(a, health, bounded(reason)) })
}

// ReportEnvoy records the state of the workload's Envoy: absent, starting, live or rejecting.
func (s *Source) ReportEnvoy(stream uint64, state string) (mesh.Health, string) {
	return s.report(stream, func(l *lease, a *attached) { l.reportEnvoy(a, state) })
}

func (s *Source) report(stream uint64, note func(*lease, *attached)) (mesh.Health, string) {
	defer s.wakeRun()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.streams[stream]
	at := -1
	if l != nil {
		at = l.at(stream)
	}
	if at < 0 {
		s.ignored++
		return mesh.HealthUnknown, ""
	}
	a := &l.streams[at]
	note(l, a)
	s.updateLease(l)
	return a.health()
}

// bounded limits the length of a reason, which comes from a peer, and makes it valid UTF-8.
func bounded(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(reason, "")
}

// StreamClosed records that a stream has ended.
func (s *Source) StreamClosed(stream uint64) {
	defer s.wakeRun()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if f, ok := s.from[stream]; ok {
		delete(s.from, stream)
		s.claimsChanged = s.sources.closed(f.source, f.host, now) || s.claimsChanged
	}
	l := s.streams[stream]
	if l == nil {
		return
	}
	delete(s.streams, stream)
	l.closed(stream, now)
	s.updateLease(l)
}

// Run sends what is known, first what the store has, until ctx is done.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return errors.New("agents: the source ran already")
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	keeper := downSaver{store: s.store, log: s.log, saved: s.restored}
	claims := claimSaver{s: s}
	down := s.restored // who is out
	s.mu.Lock()
	s.changed = true
	s.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-wake.C:
		}
		now := time.Now()
		fragment, next := s.look(now)
		if fragment != nil {
			down = s.down // only this goroutine changes it
			keeper.before(down, now)
			select {
			case <-ctx.Done():
				return nil
			case out <- fragment:
			}
		}
		for _, at := range []time.Time{keeper.after(down, now), claims.save(now)} {
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		s.noteUnsaved(cmp.Or(keeper.trouble, claims.trouble))
		if next.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(next.Sub(now))
		}
	}
}

func (s *Source) noteUnsaved(reason string) { s.unsaved.Store(&reason) }

// Unsaved says why state is not saved, or is empty.
func (s *Source) Unsaved() string {
	if why := s.unsaved.Load(); why != nil {
		return *why
	}
	return ""
}

func (i id) String() string {
	return i.account.String() + " at " + where(i.network, i.address)
}
