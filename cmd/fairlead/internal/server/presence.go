package server

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultAbsentAfter is the default of Config.AbsentAfter: agents reconnect within seconds,
// and a fleet of thousands within half a minute.
const DefaultAbsentAfter = time.Minute

// leftAfter is how long a host may be without a stream, while the server runs, until it
// counts as absent: a reconnect takes less.
const leftAfter = 10 * time.Second

// AbsentHost is a host on record that is not connected.
type AbsentHost struct {
	Name string `json:"name"`
	// Pairs are the service accounts of the host's workloads, NAMESPACE/NAME, and Workloads
	// what it served last, as far as that is known.
	Pairs     []string         `json:"pairs"`
	Workloads []ServedWorkload `json:"workloads,omitempty"`
	// Since is when its last stream ended. If it has not had one since the server started,
	// it is when the server began to let hosts in, and Never is true.
	Since time.Time `json:"since"`
	Never bool      `json:"never,omitempty"`
}

// ServedWorkload is a workload that a host serves.
type ServedWorkload struct {
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	ServiceAccount string `json:"service_account"`
	Network        string `json:"network,omitempty"`
	Address        string `json:"address"`
}

// String names the workload for people.
func (w ServedWorkload) String() string {
	address := w.Address
	if w.Network != "" {
		address = w.Network + "/" + address
	}
	return w.Namespace + "/" + w.Name + " at " + address
}

func servedBy(w agents.WorkloadStatus) ServedWorkload {
	return ServedWorkload{w.ServiceAccount.Namespace, w.Workload, w.ServiceAccount.Name, w.Network, w.Address}
}

// presence knows which hosts are connected. It passes on what streams report to the source
// of the agents.
type presence struct {
	*agents.Source

	after time.Duration

	mu      sync.Mutex // guards all following fields
	begun   time.Time  // when hosts were let in; zero before
	streams map[uint64]string
	hosts   map[string]*present
}

// present is what is known of the streams of one host.
type present struct {
	streams int
	// opened and left are when it opened a stream last, and when the last one ended.
	opened, left time.Time
	// before is when it opened the stream before that one; zero if none is known.
	before time.Time
	source netip.Addr // where it connected from
}

func newPresence(source *agents.Source, after time.Duration) *presence {
	return &presence{Source: source, after: cmp.Or(after, DefaultAbsentAfter), streams: map[uint64]string{}, hosts: map[string]*present{}}
}

// StreamOpened implements [xds.Health].
func (p *presence) StreamOpened(stream uint64, c mesh.Claim, end func(reason string)) error {
	if err := p.Source.StreamOpened(stream, c, end); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[c.Host]
	if h == nil {
		h = &present{}
		p.hosts[c.Host] = h
	}
	p.streams[stream] = c.Host
	h.streams++
	h.before = h.opened
	h.opened, h.left, h.source = time.Now(), time.Time{}, c.Source
	return nil
}

// StreamClosed implements [xds.Health].
func (p *presence) StreamClosed(stream uint64) {
	p.Source.StreamClosed(stream)
	p.mu.Lock()
	defer p.mu.Unlock()
	name, ok := p.streams[stream]
	if !ok {
		return
	}
	delete(p.streams, stream)
	h := p.hosts[name]
	if h.streams--; h.streams == 0 {
		h.left = time.Now()
	}
}

// begin says that hosts are let in from now on.
func (p *presence) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = now
}

// settled reports whether hosts had the time to come back after the start of the server.
func (p *presence) settled(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.begun.IsZero() && now.Sub(p.begun) >= p.after
}

// absent lists the hosts on record that are not connected: those that have not come back
// since the server started, once that is settled, and those that left. away are the
// workloads of hosts that are not connected. Direct clients need no stream.
func (p *presence) absent(record []attest.Host, away []agents.WorkloadStatus, now time.Time) []AbsentHost {
	served := map[string][]ServedWorkload{}
	for _, w := range away {
		served[w.Host] = append(served[w.Host], servedBy(w))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []AbsentHost
	known := make(map[string]bool, len(record))
	for _, r := range record {
		known[r.Name] = true
		if r.Direct {
			continue
		}
		a := AbsentHost{Name: r.Name, Pairs: pairNames(r.Pairs), Workloads: served[r.Name]}
		after := leftAfter
		switch h := p.hosts[r.Name]; {
		case h == nil || h.opened.Before(r.Joined) && h.streams == 0: // that was a machine before this one
			a.Since, a.Never, after = p.begun, true, p.after
			if r.Joined.After(p.begun) && !r.Joined.After(now) { // else a clock was wrong
				a.Since = r.Joined
			}
		case h.streams > 0:
			continue
		default:
			a.Since = h.left
		}
		if !p.begun.IsZero() && now.Sub(a.Since) >= after {
			out = append(out, a)
		}
	}
	for name, h := range p.hosts {
		if h.streams == 0 && !known[name] { // it was removed
			delete(p.hosts, name)
		}
	}
	return out
}

// readmission is what became of a peer after it was refused.
type readmission int

const (
	notAdmitted readmission = iota
	// admittedBetween means that it was let in since, and perhaps between refusals, too: two machines may
	// have one name, or one address.
	admittedBetween
	admittedSince
)

// admitted says whether the host, or for a peer that has proved no name one that connects from its
// address, has opened a stream since it was refused, first and last at these times.
func (p *presence) admitted(host, address string, first, last time.Time) readmission {
	p.mu.Lock()
	defer p.mu.Unlock()
	var its []*present
	for name, h := range p.hosts {
		if name == host || host == "" && h.source.IsValid() && peeraddr.Group(h.source.String()) == peeraddr.Group(address) {
			its = append(its, h)
		}
	}
	switch {
	case !slices.ContainsFunc(its, func(h *present) bool { return h.opened.After(last) }):
		return notAdmitted
	case len(its) > 1 || its[0].before.After(first) && its[0].before.Before(last):
		return admittedBetween
	default:
		return admittedSince
	}
}

// absent lists the hosts on record that are not connected.
func (s *Server) absent(now time.Time) []AbsentHost {
	return s.presence.absent(s.entitled.List(), s.agents.Away(), now)
}

// reportAbsent logs once, when hosts had the time to come back after the start, which ones
// have not: nobody would hear of a host that died while the server was away.
func (s *Server) reportAbsent(ctx context.Context) error {
	wait := time.NewTimer(s.presence.after)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-wait.C:
	}
	gone := slices.DeleteFunc(s.absent(time.Now()), func(a AbsentHost) bool { return !a.Never })
	if len(gone) == 0 {
		return nil
	}
	var names []string
	for _, a := range gone[:min(len(gone), 5)] {
		names = append(names, a.Name)
	}
	s.cfg.Logger.WarnContext(ctx, "hosts on record have not connected since the start (--absent-after)", "count", len(gone), "first", strings.Join(names, ", "),
		"command", "fairlead proxy-status --unwell")
	return nil
}
