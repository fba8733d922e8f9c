package agents

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
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
	// maxStreams bounds the streams of one workload: more than one is a
	// reconnect that overtook the end of its predecessor.
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
	// Grace is how long after its stream was lost a workload stays in; 0 means
	// 10 s.
	Grace time.Duration
	// Share is the part of all connected workloads, and Floor the number, beyond
	// which lost streams are held to be our own fault; 0 means 0.3 and 5.
	Share float64
	Floor int
	// MaxWorkloads bounds what is remembered; 0 means 100,000. Beyond it those
	// that are gone for longest are forgotten, and then new ones not taken.
	MaxWorkloads int
	// Store keeps who is out across restarts; nil means that a restart forgets.
	Store Store
	// Claims keeps which host a workload is of; nil means that a restart forgets.
	Claims ClaimStore
	// ClaimLease is how long a workload stays its host's after the last stream for
	// it; 0 means DefaultClaimLease.
	ClaimLease time.Duration
	// RequireProof refuses claims that nothing proves.
	RequireProof bool
	// Stands reports whether a host is still on record with a binding; nil means
	// that all are. It is called without any lock.
	Stands func(host, binding string) bool
}

// DefaultClaimLease is the default of Config.ClaimLease.
const DefaultClaimLease = 5 * time.Minute

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
	// restored is who was out before a restart.
	restored []*mesh.HealthReport
	bell     chan struct{}

	running atomic.Bool
	unsaved atomic.Pointer[string] // why what is to survive a restart is not on disk; or nil

	mu      sync.Mutex // guards all following fields
	leases  map[id]*lease
	sorted  []*lease          // by id
	there   map[site][]*lease // the same by address, whatever their service account
	streams map[uint64]*lease
	// counts are the leases by what has become of the agent; restless are those
	// that the passing of time changes; news those whose health changed since the
	// last fragment.
	counts   map[State]int
	restless map[*lease]bool
	news     map[*lease]bool
	// healths is the latest fragment's list, down those of it that are out.
	healths, down []*mesh.HealthReport
	changed       bool // a fragment is wanted, though nothing changed
	refused       uint64
	ignored       uint64

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
	if c.Grace < 0 || c.Share < 0 || c.Floor < 0 || c.MaxWorkloads < 0 || c.ClaimLease < 0 {
		return nil, errors.New("agents: a limit is negative")
	}
	s := &Source{
		log: c.Logger.With("component", "registry.agents"),
		limits: limits{
			grace: cmp.Or(c.Grace, 10*time.Second), share: cmp.Or(c.Share, 0.3), floor: cmp.Or(c.Floor, 5), streams: maxStreams,
		},
		max:          cmp.Or(c.MaxWorkloads, 100_000),
		store:        c.Store,
		claimStore:   c.Claims,
		stands:       c.Stands,
		claimLease:   cmp.Or(c.ClaimLease, DefaultClaimLease),
		requireProof: c.RequireProof,
		sources:      sources{at: map[netip.Addr]*origin{}, several: map[netip.Addr]time.Time{}},
		from:         map[uint64]connection{},
		bell:         make(chan struct{}, 1),
		leases:       map[id]*lease{},
		there:        map[site][]*lease{},
		streams:      map[uint64]*lease{},
		counts:       map[State]int{},
		restless:     map[*lease]bool{},
		news:         map[*lease]bool{},
	}
	now := time.Now()
	s.restoreClaims(now)
	s.restore(now)
	return s, nil
}

// Name is the name of the source.
func (s *Source) Name() string { return sourceName }

func (s *Source) ring() {
	select {
	case s.bell <- struct{}{}:
	default:
	}
}

// StreamOpened says that the agent of a workload is connected, and claims it. The
// number of a stream is unique in the process. A [*RefusedError] says that the
// workload is another host's: then the stream is not open. end is called, from any
// goroutine, when the workload becomes another host's; it must not block.
func (s *Source) StreamOpened(stream uint64, c mesh.Claim, end func(reason string)) error {
	defer s.ring()
	tell, err := s.open(stream, c, end)
	for err != nil && err.Holder != "" && s.stands != nil && !s.stands(err.Holder, err.Binding) && s.Free(err.Holder, err.Binding) {
		var more []func()
		more, err = s.open(stream, c, end)
		tell = append(tell, more...)
	}
	for _, f := range tell {
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

func (s *Source) open(stream uint64, c mesh.Claim, end func(reason string)) (tell []func(), refused *RefusedError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stream == 0 || s.streams[stream] != nil {
		return nil, nil
	}
	now := time.Now()
	if s.sources.opened(c.Source, c.Host, now) {
		tell = s.newlyShared(c.Source)
	}
	l, lost, err := s.grant(c, now)
	tell = append(tell, lost...)
	if l == nil {
		s.sources.closed(c.Source, c.Host, now)
		if err == nil {
			s.refused++
		}
		return tell, err
	}
	s.from[stream] = connection{c.Host, c.Source}
	if forgotten := l.opened(attached{stream: stream, end: end}, s.limits, now); forgotten != 0 {
		delete(s.streams, forgotten)
	}
	s.streams[stream] = l
	s.settle(l)
	return tell, nil
}

// settle takes note of what has become of a lease.
func (s *Source) settle(l *lease) {
	if state := l.state(); state != l.counted {
		s.counts[l.counted]--
		s.counts[state]++
		l.counted = state
	}
	if l.restless() {
		s.restless[l] = true
	} else {
		delete(s.restless, l)
	}
	if health, reason := l.health(); !l.told(health, reason) {
		s.news[l] = true
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
	s.there[key.site()] = append(s.there[key.site()], l)
	return l
}

// forgetOldest makes room by forgetting who is gone for longest, and of whom
// nothing is known.
func (s *Source) forgetOldest() bool {
	var oldest *lease
	for _, l := range s.sorted {
		if (l.gone || l.awaited) && (oldest == nil || l.lost.Before(oldest.lost)) {
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
	if rest := slices.DeleteFunc(s.there[l.id.site()], func(o *lease) bool { return o == l }); len(rest) > 0 {
		s.there[l.id.site()] = rest
	} else {
		delete(s.there, l.id.site())
	}
	s.counts[l.counted]--
	delete(s.restless, l)
	s.claimsChanged = s.claimsChanged || l.host != ""
	l.forgotten = true
	s.news[l] = true
	s.elect(l.id.place)
}

// ReportProbe takes what the agent of a workload has found out by its probe of the
// application, and returns the health that follows from all that the stream has said.
// Whom it is about is known from the stream. It is ignored when the stream is not
// open, and counts until the stream ends, or a newer stream of the same host speaks.
func (s *Source) ReportProbe(stream uint64, health mesh.Health, reason string) (mesh.Health, string) {
	if health != mesh.Unhealthy {
		reason = ""
	}
	return s.report(stream, func(l *lease, a *attached) { l.reportProbe(a, health, bounded(reason)) })
}

// ReportEnvoy does the same for the state of the workload's Envoy: absent, starting,
// live or rejecting.
func (s *Source) ReportEnvoy(stream uint64, state string) (mesh.Health, string) {
	return s.report(stream, func(l *lease, a *attached) { l.reportEnvoy(a, state) })
}

func (s *Source) report(stream uint64, note func(*lease, *attached)) (mesh.Health, string) {
	defer s.ring()
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
	s.settle(l)
	return a.health()
}

// bounded keeps a reason, which comes from outside, short and valid.
func bounded(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason]
	}
	return strings.ToValidUTF8(reason, "")
}

// StreamClosed says that a stream is no longer open.
func (s *Source) StreamClosed(stream uint64) {
	defer s.ring()
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
	s.settle(l)
}

// Release takes out the workloads that are held in because too many were lost
// together. It reports whether there were any.
func (s *Source) Release() bool {
	defer s.ring()
	s.mu.Lock()
	defer s.mu.Unlock()
	released := false
	for l := range s.restless {
		if l.held {
			l.expire()
			s.settle(l)
			released = true
		}
	}
	return released
}

// Run sends what is known, first what the store has, until ctx is done.
func (s *Source) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	if s.running.Swap(true) {
		return errors.New("agents: the source ran already")
	}
	wake := time.NewTimer(0)
	defer wake.Stop()
	keeper := keeper{store: s.store, log: s.log, saved: s.restored}
	claims := claimKeeper{s: s}
	down := s.restored // who is out
	s.mu.Lock()
	s.changed = true
	s.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.bell:
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

// Unsaved says why what is to survive a restart is not on disk, or is empty.
func (s *Source) Unsaved() string {
	if why := s.unsaved.Load(); why != nil {
		return *why
	}
	return ""
}

// look lets time pass and returns a fragment if there is something new, and
// when to look again.
func (s *Source) look(now time.Time) (*mesh.Fragment, time.Time) {
	var sw sweep
	fragment := s.sweep(&sw, now)
	s.tell(&sw)
	return fragment, sw.next
}

func (s *Source) sweep(sw *sweep, now time.Time) *mesh.Fragment {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := slices.SortedFunc(maps.Keys(s.restless), func(a, b *lease) int { return compareIDs(a.id, b.id) })
	many := s.limits.tooMany(s.counts[Lost]+s.counts[Held], s.counts[Connected])
	sw.run(leases, s.limits.grace, many, now)
	for _, l := range leases {
		s.settle(l)
	}
	if !s.changed && len(s.news) == 0 {
		return nil
	}
	s.changed = false
	s.rewrite()
	return &mesh.Fragment{Source: sourceName, Health: s.healths}
}

// rewrite brings the lists up to date.
func (s *Source) rewrite() {
	var healths, down []mesh.Delta[*mesh.HealthReport]
	out := func(r *mesh.HealthReport) *mesh.HealthReport {
		if r != nil && r.Health == mesh.Unhealthy {
			return r
		}
		return nil
	}
	for l := range s.news {
		before := l.last
		if l.last = l.news(); before == l.last {
			continue
		}
		healths = append(healths, mesh.Delta[*mesh.HealthReport]{Old: before, New: l.last})
		if d := (mesh.Delta[*mesh.HealthReport]{Old: out(before), New: out(l.last)}); d.Old != d.New {
			down = append(down, d)
		}
	}
	clear(s.news)
	s.healths, s.down = mesh.PatchReports(s.healths, healths), mesh.PatchReports(s.down, down)
}

func (s *Source) tell(sw *sweep) {
	if len(sw.held) > 0 {
		s.log.Error("too many agents disconnected at once; keeping their workloads until they return or are released",
			"workloads", len(sw.held), "first", sw.held[0].String(), "command", "fairlead release "+sourceName)
	}
	if len(sw.freed) > 0 {
		s.log.Info("most agents reconnected; new grace period for the others", "workloads", len(sw.freed), "first", sw.freed[0].String())
	}
	if len(sw.gone) > 0 {
		s.log.Warn("agents disconnected; workloads removed from load balancing", "workloads", len(sw.gone), "first", sw.gone[0].String())
	}
}

func (i id) String() string {
	return i.account.String() + " at " + where(i.network, i.address)
}
