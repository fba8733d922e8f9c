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

// identities renews the host's and the workload's identity.
type identities struct {
	a       *Agent
	e       *enrolled
	sealed  *svid.SealedStore
	secrets *workload.Server
	log     *slog.Logger
	// hostDue and workloadDue are when each identity is to be renewed by the wall clock,
	// chosen once a certificate.
	hostDue, workloadDue time.Time
	// notBefore is the earliest time of the next renewal, by the monotonic clock.
	notBefore time.Time
	// The identities as they were received: the newest and the one before.
	hostIDs, workloadIDs svid.Versions
	clocksDiffer         bool // logged that the clocks differ
	// namedFor is the name for which a certificate was made due last.
	namedFor svid.WorkloadName
	// rejectedAt is when a rejected stream last made a renewal due.
	rejectedAt time.Time
	tokens     tokenLimiter
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
	e.partsServers, e.partsType = e.servers, e.Type
	i := &identities{a: a, e: e, sealed: sealed, secrets: secrets, log: a.log}
	i.hostDue = a.host.Load().RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.hostIDs = svid.Versions{New: a.host.Load(), Old: a.previousHost}
	now := wallclock.Now()
	i.workloadIDs, err = sealed.Versions(e.pair)
	if e.prepared != nil {
		i.workloadIDs, err = svid.Versions{New: e.prepared}, nil
		i.saveWorkload(e.prepared)
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
		// A new one can be requested; it is missing only while no server is reachable.
		i.log.Error("stored workload identity is unusable; requesting a new one", "err", err)
	}
	return i, nil
}

func (i *identities) publish(now time.Time, id *svid.Identity) error {
	i.a.workload.Store(id)
	return i.secrets.Set(now, id)
}

// saveWorkload saves the workload's identity.
func (i *identities) saveWorkload(id *svid.Identity) {
	pair := i.e.pair
	path, err := i.sealed.Path(pair)
	if err != nil {
		i.log.Error("no file for the workload's identity; it will not survive a restart", "workload", pair, "err", err)
		return
	}
	i.a.saver.save(path, func() error { return i.sealed.Save(pair, id) })
}

// saveHost saves the host's identity.
func (a *Agent) saveHost(hosts *svid.HostStore, id *svid.Identity) {
	a.saver.save(hosts.Path(), func() error { return hosts.Save(id) })
}

// run renews until ctx ends or the workload changes.
func (i *identities) run(ctx context.Context) error {
	b := newBackOff(500*time.Millisecond, 30*time.Second)
	poll := time.NewTicker(tokenPollInterval)
	defer poll.Stop()
	var again time.Time // the time of the next retry; zero: nothing failed
	if i.mustChange() {
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
		err := i.check(ctx, wallclock.Now())
		switch {
		case err == nil:
			again = time.Time{}
			b.reset()
			i.a.setLastError(nil)
			continue
		case ctx.Err() != nil:
			return nil // the renewal was interrupted
		case errors.Is(err, errWorkloadChanged):
			return err
		}
		i.logFailure(ctx, b.tries == 0, err)
		i.a.setLastError(err)
		again = time.Now().Add(b.next(time.Since(began)))
	}
}

// await returns when something may be due, or is to be retried. fresh means that what failed
// before may succeed now: there is a new join token, or the network is back; more is false if ctx
// ended.
func (i *identities) await(ctx context.Context, poll <-chan time.Time, again time.Time) (fresh, more bool) {
	// Polls are more frequent than checks of the clock, and must not delay them.
	look := time.Now().Add(i.within(checkInterval))
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
			fresh = i.checkToken(ctx)
		case <-i.a.refused:
			i.renewAfterRejection(time.Now())
		case <-i.a.named:
			i.renewForName(wallclock.Now())
		case <-i.a.returned:
			fresh = !again.IsZero()
		case server := <-i.a.answered:
			i.a.saveServers(i.e, server)
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

// logFailure logs a failed renewal: the first of consecutive ones, and every rejection,
// because a person has to act.
func (i *identities) logFailure(ctx context.Context, first bool, err error) {
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

// renew renews what is due: first the host's certificate, with which the workload's is
// requested. own is this machine's clock.
func (i *identities) renew(ctx context.Context, own time.Time) error {
	now, began := i.a.clock.Now(own), time.Now()
	later := func() time.Time { return own.Add(time.Since(began)) } // an answer may take long
	pending := i.rejoin(ctx, nil)                                   // the current certificates are renewed even if this fails
	if !now.Before(i.hostDue) {
		if err := i.renewOwn(ctx, later); err != nil {
			return errors.Join(pending, err)
		}
	}
	err := i.a.changeWorkload(ctx, i.e)
	if errors.Is(err, errWorkloadChanged) {
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
	i.useHost(id, own())
	i.hostDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.log.InfoContext(ctx, "host identity renewed", "identity", id)
	return nil
}

func (i *identities) renewWorkload(ctx context.Context, own func() time.Time) error {
	id, err := i.e.client.Workload(ctx, i.a.host.Load(), i.e.pair)
	if err != nil {
		return err
	}
	if err := i.useWorkload(id, own()); err != nil {
		return err
	}
	i.workloadDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.log.InfoContext(ctx, "workload identity renewed", "identity", id)
	i.renewForName(own())
	return nil
}

// renewForName makes a renewal of the workload's certificate due if it does not have the name that
// the control plane gives the workload: it was requested before the control plane knew who asks, or
// the name has changed. Renewals of a fleet are spread, and leave time to connect. It is done once for each name, because
// the control plane may have reasons, or an earlier release.
func (i *identities) renewForName(own time.Time) {
	who, known := i.a.Workload()
	id := i.a.workload.Load()
	name := svid.WorkloadName{Name: who.Name, Service: who.CanonicalName, Revision: who.CanonicalRevision}
	if !known || id == nil || name == i.namedFor || name == id.Workload() || !name.Fits() {
		return
	}
	i.namedFor = name
	spread := time.Duration((1 + rand.Float64()) / 2 * float64(i.within(renewInterval))) //nolint:gosec // spreads load
	if due := i.a.clock.Now(own).Add(spread); due.Before(i.workloadDue) {
		i.workloadDue = due
		i.log.Info("requesting a certificate with the workload's name in metrics", "name", name.Name, "at", due)
	}
}

// heldCertificate is the certificate of the workload, by which a server that has lost its
// records recognizes this host.
func (a *Agent) heldCertificate() []string {
	w := a.workload.Load()
	if w == nil {
		return nil
	}
	return []string{svid.HeldCertificate, string(w.Leaf().Raw)}
}

// hostCredentials are the host's credentials, for the relay.
type hostCredentials struct{ a *Agent }

// TLS implements relay.Credentials.
func (h hostCredentials) TLS() *tls.Config { return svid.ClientTLSAt(h.a.host.Load, h.a.now) }

// NotAfter implements relay.Credentials.
func (h hostCredentials) NotAfter() time.Time { return h.a.host.Load().NotAfter() }

// backOff is an exponential back-off with jitter that counts tries.
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

// next is the wait before the next try, after one that took lasted. Tries that timed out,
// which those of all hosts do together if a server is slow, are spread.
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
