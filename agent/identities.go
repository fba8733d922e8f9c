package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/svid"
)

// identities keeps the host's and the workload's identity alive.
type identities struct {
	a       *Agent
	e       *enrolled
	sealed  *svid.SealedStore
	secrets *workload.Server
	log     *slog.Logger
	// due is when each identity is to be renewed, drawn once a certificate, by the
	// wall clock.
	hostDue, workloadDue time.Time
	// notBefore is before when nothing is renewed, by the monotonic clock.
	notBefore time.Time
	// The identities as they were received, the one before beside the newest.
	hostIDs, workloadIDs svid.Versions
	doubted              bool // the clocks differ, and that was logged
	// probed is when a server's refusal last made a renewal due.
	probed time.Time
	tokens tokenPace
}

// newIdentities loads the workload's identity, if there is one.
func newIdentities(a *Agent, e *enrolled, secrets *workload.Server) (*identities, error) {
	secret, err := svid.SealingSecret(a.host.Load().PrivateKey)
	if err != nil {
		return nil, err
	}
	sealed, err := svid.NewSealedStore(a.inState("workloads"), secret, nil)
	if err != nil {
		return nil, err
	}
	e.using, e.running = e.servers, e.Type
	i := &identities{a: a, e: e, sealed: sealed, secrets: secrets, log: a.log}
	i.hostDue = a.host.Load().RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.hostIDs = svid.Versions{New: a.host.Load(), Old: a.hostBefore}
	now := wallclock.Now()
	i.workloadIDs, err = sealed.Versions(e.pair)
	if e.prepared != nil {
		i.workloadIDs, err = svid.Versions{New: e.prepared}, nil
		i.save(e.prepared)
		e.prepared = nil
	}
	id := i.workloadIDs.At(now)
	switch {
	case err == nil:
		if now.After(id.NotAfter()) {
			i.log.Warn("workload certificate expired while the agent was stopped; requesting a new one", "identity", id)
		}
		i.workloadDue = i.workloadIDs.New.RenewAt(rand.Float64()) //nolint:gosec // spreads load
		return i, i.publish(time.Now(), id)
	case errors.Is(err, svid.ErrNoIdentity):
	default:
		// It can be asked for again; only without a server is it missed.
		i.log.Error("stored workload identity is unusable; requesting a new one", "err", err)
	}
	return i, nil
}

func (i *identities) publish(now time.Time, id *svid.Identity) error {
	i.a.workload.Store(id)
	return i.secrets.Set(now, id)
}

// save keeps the workload's identity.
func (i *identities) save(id *svid.Identity) {
	pair := i.e.pair
	path, err := i.sealed.Path(pair)
	if err != nil {
		i.log.Error("no file for the workload's identity; it will not survive a restart", "workload", pair, "err", err)
		return
	}
	i.a.saver.save(path, func() error { return i.sealed.Save(pair, id) })
}

// saveHost keeps the host's identity.
func (a *Agent) saveHost(hosts *svid.HostStore, id *svid.Identity) {
	a.saver.save(hosts.Path(), func() error { return hosts.Save(id) })
}

// run renews until ctx ends, or the host is something else.
func (i *identities) run(ctx context.Context) error {
	b := newBackOff(500*time.Millisecond, 30*time.Second)
	poll := time.NewTicker(tokenEvery)
	defer poll.Stop()
	var again time.Time // when what failed is tried again; zero: nothing failed
	if i.unfinished() {
		again = time.Now()
	}
	for {
		fresh, more := i.await(ctx, poll.C, again)
		if !more {
			return nil
		}
		if fresh {
			b.reset()
		}
		began := time.Now()
		err := i.look(ctx, wallclock.Now())
		switch {
		case err == nil:
			again = time.Time{}
			b.reset()
			i.a.fault(nil)
			continue
		case ctx.Err() != nil:
			return nil // the renewal was interrupted
		case errors.Is(err, errSwitch):
			return err
		}
		i.complain(ctx, b.tries == 0, err)
		i.a.fault(err)
		again = time.Now().Add(b.next(time.Since(began)))
	}
}

// await returns when something may be due, or is to be tried again. fresh says that
// it is for a new join token; more is false if ctx ended.
func (i *identities) await(ctx context.Context, poll <-chan time.Time, again time.Time) (fresh, more bool) {
	// The polls come more often than the clock is looked at, and must not put it off.
	look := time.Now().Add(i.within(lookEvery))
	for {
		wait := time.Until(again)
		if again.IsZero() {
			wait = min(i.wait(wallclock.Now()), time.Until(look))
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			return false, true
		case <-poll:
			fresh = i.watch(ctx)
		case <-i.a.refused:
			i.refused(time.Now())
		case server := <-i.a.answered:
			i.a.reached(i.e, server)
		case <-ctx.Done():
			timer.Stop()
			return false, false
		}
		timer.Stop()
		if fresh {
			return true, true
		}
	}
}

// complain tells of a renewal that failed: the first of a row, and every refusal,
// because it takes a person.
func (i *identities) complain(ctx context.Context, first bool, err error) {
	ends := i.a.host.Load().NotAfter()
	if w := i.a.workload.Load(); w != nil {
		ends = w.NotAfter()
	}
	level := slog.LevelDebug
	switch {
	case errors.Is(err, svid.ErrRefused):
		level = slog.LevelError
	case first:
		level = slog.LevelWarn
	}
	i.log.Log(ctx, level, "renewing a certificate failed, retrying", "err", err, "not_after", ends)
}

// renew renews what is due: the host first, whose certificate asks for the
// workload's. own is what this machine's clock shows.
func (i *identities) renew(ctx context.Context, own time.Time) error {
	now, began := i.a.clock.Now(own), time.Now()
	later := func() time.Time { return own.Add(time.Since(began)) } // answers may take long
	pending := i.rejoin(ctx, nil)                                   // what the host has is renewed all the same
	if !now.Before(i.hostDue) {
		if err := i.renewOwn(ctx, later); err != nil {
			return errors.Join(pending, err)
		}
	}
	err := i.a.become(ctx, i.e)
	if errors.Is(err, errSwitch) {
		return err
	}
	if !now.Before(i.workloadDue) {
		err = errors.Join(err, i.renewWorkload(ctx, later))
	}
	return errors.Join(pending, err)
}

// renewOwn renews the host's identity. own is this machine's clock.
func (i *identities) renewOwn(ctx context.Context, own func() time.Time) error {
	id, err := i.renewHost(ctx, own())
	if errors.Is(err, svid.ErrRefused) {
		return i.rejoin(ctx, err)
	}
	if err != nil {
		return err
	}
	i.keepHost(id, own())
	i.hostDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.log.InfoContext(ctx, "host identity renewed", "identity", id)
	return nil
}

func (i *identities) renewWorkload(ctx context.Context, own func() time.Time) error {
	id, err := i.e.client.Workload(ctx, i.a.host.Load(), i.e.pair)
	if err != nil {
		return err
	}
	if err := i.keepWorkload(id, own()); err != nil {
		return err
	}
	i.workloadDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.log.InfoContext(ctx, "workload identity renewed", "identity", id)
	return nil
}

// held is what a server that has lost its records may know this host again by: the
// certificate of its workload, beside its own.
func (a *Agent) held() []string {
	w := a.workload.Load()
	if w == nil {
		return nil
	}
	return []string{svid.HeldCertificate, string(w.Leaf().Raw)}
}

// hostCredentials are the host's, as the relay shows them.
type hostCredentials struct{ a *Agent }

// TLS implements relay.Credentials.
func (h hostCredentials) TLS() *tls.Config { return svid.ClientTLSAt(h.a.host.Load, h.a.now) }

// NotAfter implements relay.Credentials.
func (h hostCredentials) NotAfter() time.Time { return h.a.host.Load().NotAfter() }

// backOff counts the tries between which a wait grows, with jitter.
type backOff struct {
	backoff.ExponentialBackOff
	tries int
}

func newBackOff(first, most time.Duration) *backOff {
	return &backOff{ExponentialBackOff: backoff.ExponentialBackOff{
		InitialInterval: first, Multiplier: 2, RandomizationFactor: 0.25, MaxInterval: most,
	}}
}

func (b *backOff) reset() {
	b.tries = 0
	b.Reset()
}

// next is how long to wait now, after a try that lasted so long. Tries that ran out of
// time, as those of all hosts do together where a server is late, are spread.
func (b *backOff) next(lasted time.Duration) time.Duration {
	b.tries++
	spread := time.Duration(rand.Float64() * float64(lasted) / 2) //nolint:gosec // spreads load
	return spread + b.NextBackOff()
}

// wait returns false if ctx ended first.
func (b *backOff) wait(ctx context.Context, lasted time.Duration) bool {
	timer := time.NewTimer(b.next(lasted))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
