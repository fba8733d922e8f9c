package xds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// ProxyStatus is how one proxy stands.
type ProxyStatus struct {
	ID             string // the node id
	Name           string // NAME.NAMESPACE
	Host           string // as authenticated
	SPIFFEID       spiffeid.ID
	ServiceAccount mesh.ServiceAccount
	Workload       mesh.Key // what the mesh calls it

	Connected    bool
	Since        time.Time
	Left         time.Time // zero while connected
	EnvoyVersion string
	AgentVersion string
	// EnvoyState is what the agent reports, or empty: an Envoy without an agent.
	EnvoyState bootstrap.EnvoyState
	Health     mesh.Health
	// HealthReason is for people; empty when healthy.
	HealthReason string
	// CertificateEnds is when the certificate of the stream ends; zero means never.
	CertificateEnds time.Time
	// Encryption is what the proxy demands of traffic for its application.
	Encryption Encryption

	// Snapshot is the newest snapshot that was looked at for this proxy, Generation
	// the one that last changed something for it.
	Snapshot, Generation uint64
	// Partial means that what the proxy runs is not known in full, after a
	// refusal.
	Partial bool
	// Synced means that the proxy has asked for everything, answered everything,
	// and refused nothing.
	Synced bool
	// Stale says why the proxy does not get what the mesh says now; or empty.
	Stale string
	// Warnings are what a person should know of this proxy's view.
	Warnings []Diagnostic
	Types    []stream.TypeStatus

	// doubts are the names that the proxy may or may not have; or nil.
	doubts map[stream.TypeURL][]string
}

// Diagnostic is something a person should know of an object, found while
// configuration was made from it.
type Diagnostic struct {
	Key     mesh.Key
	Origin  string // path:line:column
	Message string
}

// notesOf are the diagnostics of a view and of what was built from it.
func notesOf(warnings []view.Warning, cl *class) []Diagnostic {
	var out []Diagnostic
	for _, w := range warnings {
		out = append(out, Diagnostic{Key: w.Key, Origin: w.Origin.String(), Message: w.Message})
	}
	for _, d := range cl.diagnostics {
		out = append(out, Diagnostic{Key: d.Key, Origin: d.Origin.String(), Message: d.Message})
	}
	return out
}

// Diagnostics lists what was found about objects, over all connected proxies,
// with the number of proxies that it concerns; sorted by key.
func (s *Server) Diagnostics() []DiagnosticCount {
	count := map[Diagnostic]int{}
	for _, c := range s.connections() {
		seen := map[Diagnostic]bool{}
		for _, d := range c.status.Load().Warnings {
			if !seen[d] {
				seen[d] = true
				count[d]++
			}
		}
	}
	out := make([]DiagnosticCount, 0, len(count))
	for d, n := range count {
		out = append(out, DiagnosticCount{Diagnostic: d, Proxies: n})
	}
	slices.SortFunc(out, func(a, b DiagnosticCount) int {
		return cmp.Or(a.Key.Compare(b.Key), strings.Compare(a.Message, b.Message), strings.Compare(a.Origin, b.Origin))
	})
	return out
}

// DiagnosticCount is a Diagnostic, and how many proxies it concerns.
type DiagnosticCount struct {
	Diagnostic
	Proxies int
}

// publish makes the status that others see.
func (c *conn) publish() *ProxyStatus {
	st := &ProxyStatus{
		ID: c.nodeID, Name: c.name(), Host: c.peer.Host, SPIFFEID: c.peer.ID,
		ServiceAccount: c.claim.account, Workload: c.workload.Key,
		Connected: true, Since: c.since, EnvoyVersion: c.version, AgentVersion: c.claim.node.AgentVersion,
		EnvoyState: c.envoy, Health: c.health, HealthReason: c.healthWhy,
		CertificateEnds: c.peer.Until, Encryption: c.encryption, Warnings: c.notes,
		Types: c.core.Status(), Synced: true, doubts: c.core.Unknown(),
	}
	if g := c.core.Target(); g != nil {
		st.Generation = g.Number
	}
	if c.seen != nil {
		st.Snapshot = c.seen.Generation
	}
	switch {
	case c.gone:
		st.Stale = "its workload is no longer in the mesh"
	case c.fault != "":
		st.Stale = c.fault
	}
	for _, t := range st.Types {
		st.Partial = st.Partial || t.Unknown > 0
		bad := len(t.Rejected) > 0 || t.Unknown > 0
		st.Synced = st.Synced && !bad && !t.Pending
		if g := c.server.metrics.rejecting[t.Type]; g != nil && bad != c.rejecting[t.Type] {
			if bad {
				c.rejecting[t.Type] = true
				g.Inc()
			} else {
				delete(c.rejecting, t.Type)
				g.Dec()
			}
		}
	}
	st.Synced = st.Synced && asksForAll(st.Types) && st.Stale == ""
	c.status.Store(st)
	return st
}

// asksForAll reports whether the proxy has got as far as asking for listeners.
// An Envoy whose clusters are not ready, for want of a certificate for one, has
// not: it is no use to anybody.
func asksForAll(types []stream.TypeStatus) bool {
	return slices.ContainsFunc(types, func(t stream.TypeStatus) bool { return t.Type == stream.ListenerType })
}

// Proxies lists the connected proxies and those that left recently; sorted by
// name, then id, the connected ones first.
func (s *Server) Proxies() []ProxyStatus {
	var out []ProxyStatus
	for _, c := range s.connections() {
		out = append(out, *c.status.Load())
	}
	s.mu.Lock()
	out = append(out, s.left...)
	s.mu.Unlock()
	slices.SortStableFunc(out, func(a, b ProxyStatus) int {
		if a.Connected != b.Connected {
			if a.Connected {
				return -1
			}
			return 1
		}
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID))
	})
	return out
}

// ResourceStatus is one resource as a proxy has it, or shall have it.
type ResourceStatus struct {
	Type stream.TypeURL
	stream.Sent
	// Accepted means that the proxy has what it shall have.
	Accepted bool
	// Origins are the objects that it was made from, as path:line:column.
	Origins []string
}

// Sent lists what a proxy has and shall have, in the order in which types are
// served. The proxy is named by its node id, by NAME.NAMESPACE, or by its host.
func (s *Server) Sent(ctx context.Context, proxy string) ([]ResourceStatus, error) {
	c, err := s.find(proxy)
	if err != nil {
		return nil, err
	}
	var out []ResourceStatus
	for _, t := range c.status.Load().Types {
		q := query{typeURL: t.Type, answer: make(chan []ResourceStatus, 1)}
		select {
		case c.queries <- q:
		case <-c.done:
			return nil, fmt.Errorf("looking at proxy %q, which has just left: %w", proxy, ErrUnknownProxy)
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.stopped:
			return nil, errStopping
		}
		out = append(out, <-q.answer...)
	}
	return out, nil
}

// Refusal is a peer that was not let in.
type Refusal struct {
	Host        string // as far as authenticated; may be empty
	Node        string // the node id that it claimed; may be empty
	Reason      string
	First, Last time.Time
	Count       int
}

// maxRefusals bounds what is kept of refused peers.
const maxRefusals = 256

// refusals are the peers that were not let in lately.
type refusals struct {
	mu   sync.Mutex // guards list
	list []Refusal  // the one refused last at the end
}

func newRefusals() *refusals { return &refusals{} }

// add notes a refusal, and reports whether it is news.
func (r *refusals) add(n Refusal) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n.First, n.Count = n.Last, 1
	news := true
	i := slices.IndexFunc(r.list, func(o Refusal) bool { return o.Host == n.Host && o.Node == n.Node })
	if i >= 0 {
		old := r.list[i]
		n.First, n.Count = old.First, old.Count+1
		news = old.Reason != n.Reason || n.Last.Sub(old.Last) > 10*time.Minute
		r.list = slices.Delete(r.list, i, i+1)
	}
	r.list = append(r.list, n)
	if len(r.list) > maxRefusals {
		r.list = slices.Delete(r.list, 0, 1)
	}
	return news
}

// forget drops what was noted of a peer that is now let in.
func (r *refusals) forget(host, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = slices.DeleteFunc(r.list, func(o Refusal) bool { return o.Host == host && (o.Node == node || o.Node == "") })
}

// Refused lists the peers that were not let in lately, the newest first.
func (s *Server) Refused() []Refusal {
	s.refused.mu.Lock()
	defer s.refused.mu.Unlock()
	out := slices.Clone(s.refused.list)
	slices.Reverse(out)
	return out
}
