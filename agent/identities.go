package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

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
}

// newIdentities loads the workload's identity, if there is one.
func newIdentities(a *Agent, e *enrolled, secrets *workload.Server) (*identities, error) {
	secret, err := svid.SealingSecret(a.host.Load().Key)
	if err != nil {
		return nil, err
	}
	sealed, err := svid.NewSealedStore(a.inState("workloads"), secret, nil)
	if err != nil {
		return nil, err
	}
	i := &identities{a: a, e: e, sealed: sealed, secrets: secrets, log: a.log}
	i.hostDue = a.host.Load().RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.hostIDs = svid.Versions{New: a.host.Load(), Old: a.hostBefore}
	now := wallclock.Now()
	i.workloadIDs, err = sealed.Versions(e.pair)
	id := i.workloadIDs.At(now)
	switch {
	case err == nil:
		if now.After(id.NotAfter()) {
			i.log.Warn("the workload's certificate has ended while the agent was away, asking for a new one", "identity", id)
		}
		i.workloadDue = i.workloadIDs.New.RenewAt(rand.Float64()) //nolint:gosec // spreads load
		return i, i.publish(time.Now(), id)
	case errors.Is(err, svid.ErrNoIdentity):
	default:
		// It can be asked for again; only without a server is it missed.
		i.log.Error("the workload's stored identity cannot be used, asking for a new one", "err", err)
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
		i.log.Error("the workload's identity has no place on disk", "workload", pair, "err", err)
		return
	}
	i.a.saver.save(path, func() error { return i.sealed.Save(pair, id) })
}

// saveHost keeps the host's identity.
func (a *Agent) saveHost(hosts *svid.HostStore, id *svid.Identity) {
	a.saver.save(hosts.Path(), func() error { return hosts.Save(id) })
}

// run renews until ctx ends.
func (i *identities) run(ctx context.Context) error {
	b := backOff{first: 500 * time.Millisecond, most: 30 * time.Second}
	for {
		timer := time.NewTimer(i.wait(wallclock.Now()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		err := i.look(ctx, wallclock.Now())
		if err == nil {
			b.reset()
			i.a.fault(nil)
			continue
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the renewal was interrupted
		}
		i.complain(ctx, b.tries == 0, err)
		i.a.fault(err)
		if !b.wait(ctx) {
			return nil
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
	i.log.Log(ctx, level, "an identity could not be renewed, trying again", "err", err, "not_after", ends)
}

// renew renews what is due: the host first, whose certificate asks for the
// workload's. own is what this machine's clock shows.
func (i *identities) renew(ctx context.Context, own time.Time) error {
	now := i.a.clock.Now(own)
	if !now.Before(i.hostDue) {
		id, err := i.renewHost(ctx, own)
		if errors.Is(err, svid.ErrRefused) && i.e.token != nil {
			// A token made with --replace lets the host in again, with its key.
			id, err = i.e.client.Join(ctx, *i.e.token, i.a.host.Load().Key)
		}
		if err != nil {
			return err
		}
		i.keepHost(id, own)
		i.hostDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
		i.log.InfoContext(ctx, "host identity renewed", "identity", id)
	}
	if now.Before(i.workloadDue) {
		return nil
	}
	id, err := i.e.client.Workload(ctx, i.a.host.Load(), i.e.pair)
	if err != nil {
		return err
	}
	if err := i.keepWorkload(id, own); err != nil {
		return err
	}
	i.workloadDue = id.RenewAt(rand.Float64()) //nolint:gosec // spreads load
	i.log.InfoContext(ctx, "workload identity renewed", "identity", id)
	return nil
}

// hostCredentials are the host's, as the relay shows them.
type hostCredentials struct{ a *Agent }

// TLS implements relay.Credentials.
func (h hostCredentials) TLS() *tls.Config { return svid.ClientTLSAt(h.a.host.Load, h.a.now) }

// NotAfter implements relay.Credentials.
func (h hostCredentials) NotAfter() time.Time { return h.a.host.Load().NotAfter() }

// backOff waits longer from try to try, with jitter.
type backOff struct {
	first, most time.Duration
	tries       int
	delay       time.Duration
}

func (b *backOff) reset() { b.tries, b.delay = 0, 0 }

// wait returns false if ctx ended first.
func (b *backOff) wait(ctx context.Context) bool {
	b.tries++
	b.delay = min(max(2*b.delay, b.first), b.most)
	timer := time.NewTimer(time.Duration((0.75 + rand.Float64()/2) * float64(b.delay))) //nolint:gosec // spreads load
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
