package keeper

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/pki/durable"
)

// Config configures a [Keeper].
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Dir is the directory with the settings that were applied and confirmed.
	Dir string
	// Socket is the path of the socket for agents and for people; its directory must exist. Empty
	// means none.
	Socket string
	// Kernel is that of the host; the zero value is that of the process's network namespace.
	Kernel capture.Kernel
}

// Times of the keeper. All are measured by the monotonic clock, or by the kernel's.
const (
	// usualLook is how often the table is looked at without a reason.
	usualLook = 10 * time.Second
	// lockedLook is when it is looked at again while a command is at work.
	lockedLook = 100 * time.Millisecond
	// leastLook is the least time between two looks.
	leastLook = 50 * time.Millisecond
	// firstGap and longestGap bound the time between two mends of one fight with another program:
	// it doubles. Meanwhile connections may go directly, so that it never gets long.
	firstGap, longestGap = 100 * time.Millisecond, time.Second
	// peace is how long nothing has to be mended until a fight counts as over.
	peace = time.Minute
	// fight is how many mends without peace are a fight.
	fight = 5
)

// Keeper keeps the table.
type Keeper struct {
	c     Config
	log   *slog.Logger
	lines loglimit.Limiter // of mends and of failures
	// foreign limits the lines about reports of others.
	foreign loglimit.Limiter
	hint    chan struct{} // that something may have changed; capacity 1
	looks   atomic.Int64  // how often the table was looked at
	beats   chan struct{} // that an Envoy was reported as alive; capacity 1

	// Owned by the goroutine of Run.
	loaded        *loaded // or nil: nothing is confirmed
	table, routes pace
	problem       string // logged last

	mu     sync.Mutex // guards all following fields
	status Status
	looked bool   // at least once, with success
	by     string // who changed tables since they were last as they should be
	stale  bool   // routes or addresses may have changed
	// inForce are the settings of the table in the kernel, confirmed or not; nil if there is none.
	inForce *capture.Settings
	// reports are when the Envoys of the workloads in force, and their agents' DNS, were reported as
	// alive last, by outbound port and port of DNS.
	reports map[uint16]time.Time
}

// pace bounds how often something is put back.
type pace struct {
	gap   time.Duration
	last  time.Time // zero if it never was
	mends int       // of this fight
}

// wait is how long nothing may be put back yet.
func (p *pace) wait(now time.Time) time.Duration {
	if p.last.IsZero() {
		return 0
	}
	return p.gap - now.Sub(p.last)
}

// attempt takes note that something is put back now.
func (p *pace) attempt(now time.Time) {
	if p.last.IsZero() || now.Sub(p.last) > peace {
		p.gap, p.mends = 0, 0
	}
	p.gap = min(max(2*p.gap, firstGap), longestGap)
	p.last = now
	p.mends++
}

// loaded is the table that the kernel shall have.
type loaded struct {
	sum   [sha256.Size]byte // of what it was made from
	table *capture.Ruleset
	held  *capture.Held // nil if the kernel may have another one
}

// New checks the configuration; it starts nothing.
func New(c Config) (*Keeper, error) {
	if c.Logger == nil || c.Dir == "" {
		return nil, errors.New("configuring the capture service: Logger and Dir are needed")
	}
	return &Keeper{
		c: c, log: c.Logger.With("component", "capture"), lines: loglimit.Limiter{Burst: 5, Every: time.Minute}, foreign: loglimit.Limiter{Burst: 5, Every: time.Minute},
		hint: make(chan struct{}, 1), beats: make(chan struct{}, 1),
	}, nil
}

// Run loads the confirmed table and keeps it until ctx ends. It leaves the table as it is then.
// It fails at once if a confirmed table cannot be read or loaded at the start; later failures are
// a problem of the status, and what was loaded last is kept.
func (k *Keeper) Run(ctx context.Context) error {
	if err := durable.MakeDir(k.c.Dir); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if k.c.Socket != "" {
		group.Go(func() error { return k.serve(ctx) })
	}
	group.Go(func() error {
		k.beat(ctx)
		return nil
	})
	listening := make(chan struct{})
	group.Go(func() error {
		return k.c.Kernel.Watch(ctx, func() { close(listening) }, k.changed)
	})
	group.Go(func() error {
		select {
		case <-listening: // no change between the first look and the first hint is missed
		case <-ctx.Done():
			return nil
		}
		return k.keep(ctx)
	})
	return group.Wait()
}

// changed takes a hint of the kernel.
func (k *Keeper) changed(what capture.Changed, by string) {
	k.mu.Lock()
	if by != "" {
		k.by = by
	}
	k.stale = k.stale || what == capture.Routes
	k.mu.Unlock()
	select {
	case k.hint <- struct{}{}:
	default:
	}
}

// keep looks at the table whenever there is a reason.
func (k *Keeper) keep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; {
		next, err := k.look()
		if err != nil && first {
			return err
		}
		k.report(err)
		if first = first && next == lockedLook; !first {
			k.setLooked()
		}
		timer.Reset(leastLook)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		timer.Reset(max(next-leastLook, 0))
		select {
		case <-ctx.Done():
			return nil
		case <-k.hint:
		case <-timer.C:
		}
	}
}

// look compares the kernel with the files, and mends what differs. It returns when to look again
// at the latest.
func (k *Keeper) look() (next time.Duration, err error) {
	k.looks.Add(1)
	lock, err := durable.Lock(filepath.Join(k.c.Dir, "lock"))
	if errors.Is(err, durable.ErrLocked) {
		return lockedLook, nil // a command is at work, and will have changed something
	}
	if err != nil {
		return usualLook, fmt.Errorf("keeping the table: %w", err)
	}
	defer func() { _ = lock.Close() }()
	pending, wait, err := k.pending()
	if err != nil || pending {
		return wait, err
	}
	saved, err := capture.LoadConfirmed(k.c.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		k.nothing()
		return usualLook, nil
	case err != nil && k.loaded != nil: // what was loaded is kept
		next, mendErr := k.mend()
		return next, errors.Join(err, mendErr)
	case err != nil:
		return usualLook, err
	}
	if err := k.load(saved); err != nil {
		return usualLook, err
	}
	return k.mend()
}

// pending looks at a table that was applied and is not confirmed. While its time runs it is left
// alone. When the time is over, or the table is gone, the confirmed one counts again.
func (k *Keeper) pending() (waits bool, next time.Duration, err error) {
	saved, err := capture.LoadPending(k.c.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, 0, nil
	case err != nil:
		return false, usualLook, err
	}
	// The kernel measures the time: no clock that jumps makes it longer. An element without a time
	// is that of a table before, of an apply that was killed.
	st, err := k.c.Kernel.State()
	if err != nil {
		return false, usualLook, err
	}
	if st.Capturing && st.Remaining > 0 {
		k.setStatus(func(s *Status) { s.Pending = true })
		k.loaded = nil
		k.put(&saved.Settings)
		return true, min(st.Remaining+leastLook, usualLook), nil
	}
	if _, err := capture.LoadConfirmed(k.c.Dir); errors.Is(err, fs.ErrNotExist) {
		return false, 0, nil // nothing comes back, and `confirm` says that the time is over
	}
	k.log.Warn("applied table was not confirmed in time; loading the confirmed one")
	return false, 0, capture.ForgetPending(k.c.Dir)
}

// nothing is confirmed: the table is not ours to keep.
func (k *Keeper) nothing() {
	k.loaded = nil
	k.put(nil)
	k.setStatus(func(s *Status) { s.nothing() })
}

// load makes the table of what is confirmed, if that is another one than before.
func (k *Keeper) load(saved *capture.Saved) error {
	text, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("reading the confirmed settings: %w", err)
	}
	sum := sha256.Sum256(text)
	if k.loaded != nil && k.loaded.sum == sum && k.loaded.held != nil {
		return nil
	}
	table, err := capture.Build(&saved.Settings, &saved.Facts)
	if err != nil {
		return fmt.Errorf("reading the confirmed settings: %w", err)
	}
	left, err := k.left(&saved.Settings)
	if err != nil {
		return err
	}
	_, problem := k.c.Kernel.Prepare(table) // without its routes it still captures
	held, err := k.c.Kernel.Hold(table.Alive(left), nil)
	if err != nil {
		return errors.Join(err, problem)
	}
	k.put(&saved.Settings)
	k.loaded = &loaded{sum: sum, table: table, held: held}
	k.setStatus(func(s *Status) { s.loaded(saved.Settings.Mode, time.Now()) })
	k.log.Info("table loaded", "mode", saved.Settings.Mode)
	return problem
}

// mend puts back what is missing of the table and of its routes.
func (k *Keeper) mend() (next time.Duration, err error) {
	next, err = k.mendTable()
	kept := err == nil && next == usualLook
	k.setStatus(func(s *Status) { s.Kept = kept })
	also, routesErr := k.mendRoutes()
	return min(next, also), errors.Join(err, routesErr)
}

func (k *Keeper) mendTable() (next time.Duration, err error) {
	same, err := k.c.Kernel.Holds(k.loaded.held)
	if err != nil {
		return usualLook, fmt.Errorf("reading the table: %w", err)
	}
	if same {
		k.changer()
		return usualLook, nil
	}
	now := time.Now()
	if wait := k.table.wait(now); wait > 0 {
		return wait, nil
	}
	k.table.attempt(now)
	held, err := k.c.Kernel.Hold(k.loaded.table.Alive(k.reported), k.loaded.held)
	if err != nil {
		return longestGap, fmt.Errorf("putting the table back: %w", err)
	}
	k.loaded.held = held
	k.mended(now, "table", k.changer(), k.table.mends)
	return usualLook, nil
}

func (k *Keeper) mendRoutes() (next time.Duration, err error) {
	now := time.Now()
	k.mu.Lock()
	look := k.stale || now.Sub(k.status.routesLooked) >= usualLook
	k.mu.Unlock()
	if !look {
		return usualLook, nil
	}
	if wait := k.routes.wait(now); wait > 0 {
		return wait, nil
	}
	k.setStatus(func(s *Status) { s.routesLooked, k.stale = now, false })
	added, err := k.c.Kernel.Restore(k.loaded.table)
	if len(added) > 0 {
		k.routes.attempt(now)
		k.mended(now, "routes", "", k.routes.mends, "added", added)
	}
	return usualLook, err
}

// changer is the program that changed tables, and forgets it.
func (k *Keeper) changer() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	by := k.by
	k.by = ""
	return by
}

// mended counts what was put back.
func (k *Keeper) mended(now time.Time, what, by string, mends int, more ...any) {
	k.setStatus(func(s *Status) { s.mended(what, by, mends, now) })
	if omitted, ok := k.lines.Allow(now); ok {
		if by != "" {
			more = append(more, "by", by)
		}
		k.log.Warn("packet capture restored: another program had changed it", append([]any{"what", what, "left_out", omitted}, more...)...)
	}
}

// report logs a problem once, and its end.
func (k *Keeper) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	k.setStatus(func(s *Status) { s.Problem = text })
	if text == k.problem {
		return
	}
	k.problem = text
	if text == "" {
		k.log.Info("packet capture is kept again")
		return
	}
	if omitted, ok := k.lines.Allow(time.Now()); ok {
		k.log.Error("packet capture is not as declared", "err", text, "left_out", omitted)
	}
}
