package agent

import (
	"context"
	"os"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Intervals of checks, each at most a twentieth of a certificate's life.
const (
	// checkInterval is how often the wall clock is read: somebody may have set it.
	checkInterval = time.Minute
	// renewInterval is how often new certificates are requested while this host's clock
	// contradicts the time that the authority has proven, and the least time between two
	// renewals: with a clock that is ahead each certificate looks old.
	renewInterval = 10 * time.Minute
	lifeFraction  = 20
)

// openClock loads the saved time.
func (a *Agent) openClock(ctx context.Context) {
	c, err := svid.OpenClock(a.c.StateDir, bootID(), nil)
	if err != nil {
		a.log.WarnContext(ctx, "reading the saved time failed; continuing without it", "path", c.Path(), "err", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock = c // Status may be called already
}

// bootID identifies the current boot of the machine; empty if the kernel does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// now is the best known time: this machine's clock, or the lower bound that the authority has
// proven.
func (a *Agent) now() time.Time { return a.clock.Now(wallclock.Now()) }

// stamp reports this machine's clock to a server. A clock that may not have been set since the
// boot is not reported.
func (a *Agent) stamp(node *corev3.Node) {
	if a.clock.Renewed() {
		bootstrap.SetTime(node, wallclock.Now())
	}
}

// clockMismatch says why this host's clock and the control plane's cannot both be right, or
// nothing.
func (a *Agent) clockMismatch(own time.Time) string {
	if a.clock == nil || !a.clock.Behind(own) {
		return ""
	}
	return "this host's clock shows " + own.UTC().Format(time.RFC3339) + ", and the control plane has proven that it is " +
		a.clock.Now(own).UTC().Format(time.RFC3339) + " at least: one of the two clocks is wrong; set it (NTP), the rest heals by itself"
}

// life is the shortest lifetime of the newest certificates.
func (i *identities) life() time.Duration {
	life := time.Duration(1<<63 - 1)
	for _, id := range []*svid.Identity{i.hostIDs.New, i.workloadIDs.New} {
		if id != nil {
			life = min(life, id.NotAfter().Sub(id.Leaf().NotBefore))
		}
	}
	return life
}

// within limits an interval by the lifetime of the certificates.
func (i *identities) within(most time.Duration) time.Duration {
	return max(min(most, i.life()/lifeFraction), 10*time.Millisecond)
}

// wait is the time until something may be due. It is short, because a clock that is set sends
// no event.
func (i *identities) wait(own time.Time) time.Duration {
	next := i.hostDue
	if i.workloadDue.Before(next) {
		next = i.workloadDue
	}
	left := max(next.Sub(i.a.clock.Now(own)), time.Until(i.notBefore), 0)
	return min(left, i.within(checkInterval))
}

// check serves the certificate that is valid now, which may have changed because the clock was
// set, and renews what is due.
func (i *identities) check(ctx context.Context, own time.Time) error {
	if id := i.workloadIDs.At(own); id != nil && id != i.a.workload.Load() {
		i.log.WarnContext(ctx, "clock was set: using the certificate that is valid now", "identity", id)
		if err := i.publish(time.Now(), id); err != nil {
			return err
		}
	}
	if time.Now().Before(i.notBefore) && !i.mustChange() {
		return nil
	}
	differ := i.a.clock.Behind(own) || i.hostIDs.Early(own) || i.workloadIDs.Early(own)
	if differ != i.clocksDiffer {
		i.clocksDiffer = differ
		if differ {
			i.log.WarnContext(ctx, "clock differs from the control plane's: requesting certificates until the clocks agree; check NTP on both",
				"own", own, "proven", i.a.clock.Now(own))
		} else {
			i.log.InfoContext(ctx, "clock agrees with the control plane's again")
		}
	}
	now := i.a.clock.Now(own)
	if differ { // only an answer of the authority shows which clock is right
		i.hostDue, i.workloadDue = now, now
	}
	if now.Before(i.hostDue) && now.Before(i.workloadDue) && !i.mustChange() {
		return nil
	}
	if err := i.renew(ctx, own); err != nil {
		return err
	}
	i.notBefore = time.Now().Add(i.within(renewInterval))
	return nil
}

// useHost puts the host's new identity to use. It is used even if it cannot be saved: the key
// is the one on disk.
func (i *identities) useHost(id *svid.Identity, own time.Time) {
	hosts := i.e.hosts
	i.hostIDs = i.hostIDs.Add(id, own)
	if old := i.hostIDs.Old; old != nil {
		i.a.saver.save(hosts.PreviousPath(), func() error { return hosts.SavePrevious(old) })
	}
	i.a.saveHost(hosts, id)
	i.a.host.Store(i.hostIDs.Shown(own))
}

// useWorkload puts the workload's new identity to use, and learns the time from it. It is
// served even if it cannot be saved.
func (i *identities) useWorkload(id *svid.Identity, own time.Time) error {
	i.workloadIDs = i.workloadIDs.Add(id, own)
	if i.workloadIDs.At(own) != id || own.After(id.NotAfter()) {
		i.log.Warn("new certificate is not valid by this host's clock; using the previous one while it is valid",
			"identity", id, "not_before", id.Leaf().NotBefore, "own", own)
	}
	if old, pair := i.workloadIDs.Old, i.e.pair; old != nil {
		if path, err := i.sealed.PreviousPath(pair); err == nil {
			i.a.saver.save(path, func() error { return i.sealed.SavePrevious(pair, old) })
		}
	}
	i.saveWorkload(id)
	i.a.clock.Certified(id)
	i.a.saver.save(i.a.clock.Path(), i.a.clock.Save)
	return i.publish(time.Now(), i.workloadIDs.At(own))
}

// renewHost requests the host's next certificate. A server whose clock is behind may reject
// the newest one, which is not valid yet, and accept the one before.
func (i *identities) renewHost(ctx context.Context, own time.Time) (*svid.Identity, error) {
	id, err := i.e.client.Renew(ctx, i.hostIDs.New)
	if err == nil || i.hostIDs.Old == nil || !i.hostIDs.Early(own) {
		return id, err
	}
	if other, otherErr := i.e.client.Renew(ctx, i.hostIDs.Old); otherErr == nil {
		return other, nil
	}
	return nil, err
}
