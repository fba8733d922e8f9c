package xds

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
)

// ProxyStatus is how one proxy stands.
type ProxyStatus struct {
	ID             string // the node id
	Name           string // NAME.NAMESPACE
	Host           string // as authenticated
	SPIFFEID       spiffeid.ID
	ServiceAccount mesh.ServiceAccount
	Workload       mesh.Key // what the mesh calls it
	// Network and Address are where the workload is that the host claims.
	Network, Address string

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
	Encryption cache.Encryption

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
	// VirtualHosts are the route tables whose virtual hosts travel by themselves.
	VirtualHosts []string
	// Warnings are what a person should know of this proxy's view.
	Warnings []Diagnostic
	Types    []stream.TypeStatus
	// Origins are the objects that what is refused was made from, by type and name,
	// as path:line:column: the first few, of the first few resources.
	Origins map[stream.TypeURL]map[string][]string
}

// Diagnostic is something a person should know of an object, found while
// configuration was made from it.
type Diagnostic struct {
	Key     mesh.Key
	Origin  string // path:line:column
	Message string
}

// notes are the diagnostics of a view and of what was built from it.
func (o *proxyState) notes() []Diagnostic {
	var out []Diagnostic
	if o.View != nil {
		for _, w := range o.View.Warnings {
			out = append(out, Diagnostic{Key: w.Key, Origin: w.Origin.String(), Message: w.Message})
		}
	}
	if o.Resources != nil {
		for _, d := range o.Resources.Diagnostics {
			out = append(out, Diagnostic{Key: d.Key, Origin: d.Origin.String(), Message: d.Message})
		}
	}
	return out
}

// Diagnostics lists what was found about objects, over all connected proxies,
// with the number of proxies that it concerns; sorted by key.
func (s *Server) Diagnostics() []DiagnosticCount {
	count := map[Diagnostic]int{}
	for _, c := range s.connections() {
		o := c.current.Load()
		if o == nil {
			continue
		}
		seen := map[Diagnostic]bool{}
		for _, d := range o.notes() {
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

// publish makes the status that others see. Called by the owner of the stream.
func (c *conn) publish() ProxyStatus {
	st := ProxyStatus{
		ID: c.nodeID, Name: c.name(), Host: c.peer.Host, SPIFFEID: c.peer.ID, ServiceAccount: c.claim.account,
		Network: c.claimed.Network, Address: c.claimed.Address, Connected: true, Since: c.since, EnvoyVersion: c.version, AgentVersion: c.claim.node.AgentVersion,
		EnvoyState: c.envoy, Health: c.health, HealthReason: c.healthWhy,
		CertificateEnds: c.peer.Until, Encryption: cache.EncryptionNA,
		Types: c.core.Status(), Synced: true, Snapshot: max(c.server.looked.Load(), c.looked.Load()),
	}
	if g := c.core.Target(); g != nil {
		st.Generation = g.Number
	}
	o := c.current.Load()
	if o != nil {
		st.describe(o)
	}
	st.Origins = c.trace(st.Types)
	for _, t := range st.Types {
		st.Partial = st.Partial || t.Unknown > 0
		st.Synced = st.Synced && len(t.Rejected) == 0 && t.Unknown == 0 && !t.Pending
	}
	st.Synced = st.Synced && asksForAll(st.Types) && st.Stale == "" && o == c.seen
	return st
}

// describe adds what the conductor knows.
func (st *ProxyStatus) describe(o *proxyState) {
	switch {
	case o.gone:
		st.Stale = "its workload is no longer in the mesh"
	case o.fault != "":
		st.Stale = o.fault
	}
	if o.workload != nil {
		st.Workload = o.workload.Key
	}
	if o.Resources != nil {
		st.Encryption = o.Resources.Encryption
		st.Warnings = o.notes()
		st.VirtualHosts = o.Resources.VirtualHosts()
	}
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
		c.ask(nil, func() { out = append(out, c.publish()) }, nil)
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
	if !c.ask(ctx.Done(), func() {
		for _, t := range c.core.Status() {
			out = append(out, c.sent(t.Type)...)
		}
	}, nil) {
		return nil, fmt.Errorf("looking at proxy %q, which has just left: %w", proxy, cmp.Or(ctx.Err(), ErrUnknownProxy))
	}
	return out, nil
}
