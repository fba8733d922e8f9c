package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/agent/capture/beat"
)

// leastBeat is the least time between two beats. Agents report every 2 s.
const leastBeat = 500 * time.Millisecond

// serve serves the socket for agents and people.
func (k *Keeper) serve(ctx context.Context) error {
	// For the group of the process, which is that of the agents.
	if err := os.MkdirAll(filepath.Dir(k.c.Socket), 0o750); err != nil {
		return fmt.Errorf("making the directory of the socket: %w", err)
	}
	s := beat.Server{
		Logger: k.log, Path: k.c.Socket, Allowed: k.allowed, Alive: k.alive, Status: func() any { return k.answer() },
	}
	return s.Run(ctx)
}

// answer is the status for agents and people, with what the kernel has counted.
func (k *Keeper) answer() Status {
	s := k.Status()
	if st, err := k.c.Kernel.State(); err == nil {
		s.Counts = st.Counts
	}
	return s
}

// allowed reports whether processes of a user may speak: root, and the users that Envoys and
// agents run as.
func (k *Keeper) allowed(uid uint32) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return uid == 0 || k.inForce != nil && slices.Contains(k.inForce.Proxies, uid)
}

// put takes note of the settings of the table in the kernel; nil means none.
func (k *Keeper) put(s *capture.Settings) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inForce = s
	maps.DeleteFunc(k.reports, func(port uint16, _ time.Time) bool { return !switched(s, port) })
}

// switched reports whether anything of what settings capture depends on reports of a port: Envoy's
// outbound port in open mode, or that of an agent's DNS.
func switched(s *capture.Settings, port uint16) bool {
	return s != nil && slices.ContainsFunc(s.Workloads, func(w capture.Workload) bool {
		return s.Mode == capture.Open && w.OutboundPort == port || w.DNSPort != 0 && w.DNSPort == port
	})
}

// alive takes a report of an Envoy, or of an agent's DNS. One that nothing depends on is nothing: no
// report widens what is captured. A user speaks for its own ports alone.
func (k *Keeper) alive(uid uint32, port uint16) {
	k.mu.Lock()
	s := k.inForce
	k.mu.Unlock()
	if !switched(s, port) {
		return
	}
	if err := k.speaksFor(s, uid, port); err != nil {
		if omitted, ok := k.foreign.Allow(time.Now()); ok {
			k.log.Warn("report that a workload is alive rejected", "uid", uid, "port", port, "err", err, "left_out", omitted)
		}
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !switched(k.inForce, port) {
		return
	}
	if k.reports == nil {
		k.reports = map[uint16]time.Time{}
	}
	k.reports[port] = time.Now()
	select {
	case k.beats <- struct{}{}:
	default:
	}
}

// speaksFor returns why a user may not report for a port, or nil. The workload's proxy-user may;
// without one, the only one of proxy-users, or the one of whom the kernel says that it listens there.
func (k *Keeper) speaksFor(s *capture.Settings, uid uint32, port uint16) error {
	if uid == 0 {
		return nil
	}
	if !slices.Contains(s.Proxies, uid) {
		return errors.New("the user is none of proxy-users any more")
	}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if w.ProxyUser == nil || w.OutboundPort != port && w.DNSPort != port {
			continue
		}
		if *w.ProxyUser != uid {
			return fmt.Errorf("the port is of workload %s, whose proxy-user is %d", w.Name, *w.ProxyUser)
		}
		return nil
	}
	if len(s.Proxies) == 1 {
		return nil
	}
	of, ok, err := k.c.Kernel.Listener(port)
	switch {
	case errors.Is(err, capture.ErrNoDiagnosis):
		if omitted, ok := k.foreign.Allow(time.Now()); ok {
			k.log.Warn("any of proxy-users can report for any workload: write proxy-user for each workload", "err", err, "left_out", omitted)
		}
		return nil
	case err != nil:
		return err
	case !ok:
		return errors.New("nobody listens at the port")
	case of != uid:
		return fmt.Errorf("user %d listens at the port", of)
	}
	return nil
}

// reported is for how long the connections of a workload are captured by its last report.
func (k *Keeper) reported(port uint16) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	last, ok := k.reports[port]
	if !ok {
		return 0
	}
	return max(capture.OpenTimeout-time.Since(last), 0)
}

// left is what reported is, for a table that is loaded now: what an earlier process knew is still
// in the kernel.
func (k *Keeper) left(s *capture.Settings) (func(uint16) time.Duration, error) {
	if s.Mode != capture.Open && !slices.ContainsFunc(s.Workloads, func(w capture.Workload) bool { return w.DNSPort != 0 }) {
		return k.reported, nil
	}
	st, err := k.c.Kernel.State()
	if err != nil {
		return nil, err
	}
	return func(port uint16) time.Duration {
		return max(k.reported(port), min(st.Alive[port], capture.OpenTimeout))
	}, nil
}

// beat has connections captured for as long as reports say, until ctx ends. It waits for nothing
// that the rest of the keeper does.
func (k *Keeper) beat(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-k.beats:
		}
		timer.Reset(leastBeat)
		k.mu.Lock()
		of := map[uint16]time.Duration{}
		for port, last := range k.reports {
			if left := capture.OpenTimeout - time.Since(last); left > 0 {
				of[port] = left
			}
		}
		k.mu.Unlock()
		if len(of) == 0 {
			continue
		}
		// Without a table there is nothing to capture: it is put back with what is known.
		err := k.c.Kernel.Beat(of)
		if errors.Is(err, capture.ErrNoTable) {
			continue
		}
		k.setStatus(func(s *Status) {
			if err != nil {
				s.FailedBeats++
			} else {
				s.Beats++
			}
		})
		if err != nil {
			if omitted, ok := k.lines.Allow(time.Now()); ok {
				k.log.ErrorContext(ctx, "keeping capture on failed; connections go directly soon", "err", err, "left_out", omitted)
			}
		}
	}
}

// reportedLocked are the workloads by name of which something depends on reports, at the port of
// each; whether it is reported as alive. k.mu is held.
func (k *Keeper) reportedLocked(portOf func(*capture.Workload) uint16) map[string]bool {
	if k.inForce == nil {
		return nil
	}
	var out map[string]bool
	for i := range k.inForce.Workloads {
		w := &k.inForce.Workloads[i]
		port := portOf(w)
		if !switched(k.inForce, port) {
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}
		last, ok := k.reports[port]
		out[w.Name] = ok && time.Since(last) < capture.OpenTimeout
	}
	return out
}
