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

// Bounds on how soon things are looked at again, each at most a twentieth of a
// certificate's life.
const (
	// lookEvery is how often the wall clock is looked at: it may have been set.
	lookEvery = time.Minute
	// askEvery is how often new certificates are asked for while this host's clock
	// and what the authority has proven differ, and how soon after a renewal the
	// next may be: a clock that is ahead makes each certificate look old.
	askEvery  = 10 * time.Minute
	shareLife = 20
)

// openClock reads what is known of the time.
func (a *Agent) openClock(ctx context.Context) {
	c, err := svid.OpenClock(a.c.StateDir, bootID(), nil)
	if err != nil {
		a.log.WarnContext(ctx, "reading the saved time failed; continuing without it", "path", c.Path(), "err", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clock = c // Status may be asked already
}

// bootID names the present boot of the machine; empty where the kernel does not say.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// now is the time as far as it is known: this machine's, or the lower bound that the
// authority has proven.
func (a *Agent) now() time.Time { return a.clock.Now(wallclock.Now()) }

// stamp tells a server what this machine's clock shows. One that may not have been
// set since the machine booted says nothing.
func (a *Agent) stamp(node *corev3.Node) {
	if a.clock.Renewed() {
		bootstrap.SetTime(node, wallclock.Now())
	}
}

// clockDoubt says why this host's clock and the control plane's cannot both be
// right, or nothing.
func (a *Agent) clockDoubt(own time.Time) string {
	if a.clock == nil || !a.clock.Behind(own) {
		return ""
	}
	return "this host's clock shows " + own.UTC().Format(time.RFC3339) + ", and the control plane has proven that it is " +
		a.clock.Now(own).UTC().Format(time.RFC3339) + " at least: one of the two clocks is wrong; set it (NTP), the rest heals by itself"
}

// life is the life of the newest certificates, the shorter one.
func (i *identities) life() time.Duration {
	life := time.Duration(1<<63 - 1)
	for _, id := range []*svid.Identity{i.hostIDs.New, i.workloadIDs.New} {
		if id != nil {
			life = min(life, id.NotAfter().Sub(id.Leaf().NotBefore))
		}
	}
	return life
}

// within bounds how soon something is looked at again by the life of the
// certificates.
func (i *identities) within(most time.Duration) time.Duration {
	return max(min(most, i.life()/shareLife), 10*time.Millisecond)
}

// wait is how long until something may have to be done. Steps of the clock ring no
// bell, so it is never long.
func (i *identities) wait(own time.Time) time.Duration {
	next := i.hostDue
	if i.workloadDue.Before(next) {
		next = i.workloadDue
	}
	left := max(next.Sub(i.a.clock.Now(own)), time.Until(i.notBefore), 0)
	return min(left, i.within(lookEvery))
}

// look serves what is valid now, which a clock that was set may have changed, and
// renews what is due.
func (i *identities) look(ctx context.Context, own time.Time) error {
	if id := i.workloadIDs.At(own); id != nil && id != i.a.workload.Load() {
		i.log.WarnContext(ctx, "clock was set: using the certificate that is valid now", "identity", id)
		if err := i.publish(time.Now(), id); err != nil {
			return err
		}
	}
	if time.Now().Before(i.notBefore) && !i.unfinished() {
		return nil
	}
	doubt := i.a.clock.Behind(own) || i.hostIDs.Early(own) || i.workloadIDs.Early(own)
	if doubt != i.doubted {
		i.doubted = doubt
		if doubt {
			i.log.WarnContext(ctx, "clock differs from the control plane's: requesting certificates until the clocks agree; check NTP on both",
				"own", own, "proven", i.a.clock.Now(own))
		} else {
			i.log.InfoContext(ctx, "clock agrees with the control plane's again")
		}
	}
	now := i.a.clock.Now(own)
	if doubt { // only an answer of the authority tells which of the two is right
		i.hostDue, i.workloadDue = now, now
	}
	if now.Before(i.hostDue) && now.Before(i.workloadDue) && !i.unfinished() {
		return nil
	}
	if err := i.renew(ctx, own); err != nil {
		return err
	}
	i.notBefore = time.Now().Add(i.within(askEvery))
	return nil
}

// keepHost takes the host's new identity into use. Used even if it cannot be kept:
// the key is the one on disk.
func (i *identities) keepHost(id *svid.Identity, own time.Time) {
	hosts := i.e.hosts
	i.hostIDs = i.hostIDs.Add(id, own)
	if old := i.hostIDs.Old; old != nil {
		i.a.saver.save(hosts.PreviousPath(), func() error { return hosts.SavePrevious(old) })
	}
	i.a.saveHost(hosts, id)
	i.a.host.Store(i.hostIDs.Shown(own))
}

// keepWorkload takes the workload's new identity into use, and learns the time from
// it. It is served even if it cannot be kept.
func (i *identities) keepWorkload(id *svid.Identity, own time.Time) error {
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
	i.save(id)
	i.a.clock.Certified(id)
	i.a.saver.save(i.a.clock.Path(), i.a.clock.Save)
	return i.publish(time.Now(), i.workloadIDs.At(own))
}

// renewHost asks for the host's next certificate. A server that does not accept the
// newest one, because it has not begun, may accept the one before.
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
