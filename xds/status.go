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
	"github.com/fairlead/fairlead/xds/view"
)

// ProxyStatus is the state of one proxy.
type ProxyStatus struct {
	ID             string // the node id
	Name           string // NAME.NAMESPACE
	Host           string // as authenticated
	SPIFFEID       spiffeid.ID
	ServiceAccount mesh.ServiceAccount
	Workload       mesh.Key // its key in the mesh
	// Network and Address are those of the workload that the host claims.
	Network, Address string

	Connected    bool
	Since        time.Time
	Left         time.Time // zero while connected
	EnvoyVersion string
	AgentVersion string
	// MetricsPort is the port of the agent's page of metrics, as the agent says; 0 if it does not.
	MetricsPort uint16
	// EnvoyState is what the agent reports; empty for an Envoy without an agent.
	EnvoyState bootstrap.EnvoyState
	// Credentials is what the agent reports of the credentials of its host; nil if it does not.
	Credentials *bootstrap.Credentials
	Health      mesh.Health
	// HealthReason is for people; empty when healthy.
	HealthReason string
	// CertificateEnds is when the certificate of the stream ends; zero means never.
	CertificateEnds time.Time
	// Encryption is the mTLS mode of the proxy's inbound traffic.
	Encryption cache.Encryption

	// Snapshot is the newest snapshot to which this proxy is updated, Generation the one
	// that last changed something for it.
	Snapshot, Generation uint64
	// Partial means that it is not known in full what the proxy runs, after a NACK.
	Partial bool
	// Synced means that the proxy has subscribed to everything, answered everything, and
	// rejected nothing.
	Synced bool
	// Behind is since when it is not synced for want of an answer, or of a configuration;
	// zero if it is synced.
	Behind time.Time
	// Stale says why the proxy does not get the current configuration; or empty.
	Stale string
	// VirtualHosts are the route configurations whose virtual hosts are delivered by VHDS.
	VirtualHosts []string
	// Warnings are diagnostics about this proxy's configuration.
	Warnings []Diagnostic
	// Fallbacks say what of the configuration the release of its Envoy lacks, and what it does
	// instead.
	Fallbacks []string
	// HashTables are those of consistentHash that its Envoy makes.
	HashTables view.HashTables
	Types      []stream.TypeStatus
	// Origins are the objects from which rejected resources were made, by type and name,
	// as path:line:column: the first few, of the first few resources.
	Origins map[stream.TypeURL]map[string][]string
}

// Diagnostic is a problem of an object, found while configuration was made from it.
type Diagnostic struct {
	Key     mesh.Key
	Origin  string // path:line:column
	Message string
}

// diagnostics are those of the view and of the resources built from it.
func (o *proxyState) diagnostics() []Diagnostic {
	var out []Diagnostic
	if o.View != nil {
		for _, w := range o.View.OwnWarnings() {
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

// cannotCall is the problem of a proxy through which nothing can call.
func (o *proxyState) cannotCall(in *mesh.Snapshot) []Diagnostic {
	if o.View == nil || o.workload == nil || in == nil {
		return nil
	}
	cannot, sidecar := o.View.CannotCall(in)
	if !cannot {
		return nil
	}
	at := &o.workload.Meta
	if sidecar != nil {
		at = &sidecar.Meta
	}
	return []Diagnostic{{Key: at.Key, Origin: at.Origin.String(), Message: view.CannotCallText}}
}

// Diagnostics lists the problems of objects over all connected proxies, with the number of
// affected proxies; sorted by key.
func (s *Server) Diagnostics() []DiagnosticCount {
	count, now := map[Diagnostic]int{}, s.cfg.Snapshots.Snapshot()
	for _, c := range s.connections() {
		o := c.current.Load()
		if o == nil {
			continue
		}
		seen := map[Diagnostic]bool{}
		for _, d := range append(o.diagnostics(), o.cannotCall(now)...) {
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

// DiagnosticCount is a Diagnostic, and how many proxies it affects.
type DiagnosticCount struct {
	Diagnostic
	Proxies int
}

// status returns the status of the stream. Called by its owner.
func (c *conn) status() ProxyStatus {
	st := ProxyStatus{
		ID: c.nodeID, Name: c.name(), Host: c.peer.Host, SPIFFEID: c.peer.ID, ServiceAccount: c.node.account,
		Network: c.claim.Network, Address: c.claim.Address, Connected: true, Since: c.since, EnvoyVersion: c.version, AgentVersion: c.node.reported.AgentVersion, MetricsPort: c.node.reported.MetricsPort,
		EnvoyState: c.envoy, Credentials: c.credentials, Health: c.health, HealthReason: c.healthWhy,
		CertificateEnds: c.peer.Until, Encryption: cache.EncryptionNA,
		Types: c.core.Status(), Synced: true, Snapshot: max(c.server.updatedTo.Load(), c.updatedTo.Load()),
	}
	if g := c.core.Target(); g != nil {
		st.Generation = g.Number
	}
	o := c.current.Load()
	if o != nil {
		st.describe(o, &c.server.tables)
	}
	st.Origins = c.trace(st.Types)
	for _, t := range st.Types {
		st.Partial = st.Partial || t.Unknown > 0
		st.Synced = st.Synced && len(t.Rejected) == 0 && t.Unknown == 0 && !t.Pending
	}
	st.Synced = st.Synced && asksForAll(st.Types) && st.Stale == "" && o == c.applied
	if !st.Synced {
		st.Behind = c.behind(st.Types)
	}
	return st
}

// behind is since when the proxy owes an answer, or the server a configuration.
func (c *conn) behind(types []stream.TypeStatus) time.Time {
	if c.converging {
		return c.convergingSince
	}
	since := time.Now()
	for _, t := range types { // it has subscribed to more since it answered everything
		if t.Pending && !t.SentAt.IsZero() && t.SentAt.Before(since) {
			since = t.SentAt
		}
	}
	return since
}

// describe adds what is known from the view and resources.
func (st *ProxyStatus) describe(o *proxyState, tables *tableSums) {
	switch {
	case o.gone:
		st.Stale = sanitize(o.goneWhy, 256)
	case o.fault != "":
		st.Stale = o.fault
	}
	if o.workload != nil {
		st.Workload = o.workload.Key
	}
	if o.Resources != nil {
		st.Encryption = o.Resources.Encryption
		st.Warnings = o.diagnostics()
		if o.View != nil {
			st.Fallbacks = o.View.Fallbacks
			st.HashTables = tables.of(o.View)
		}
		st.VirtualHosts = o.Resources.VirtualHosts()
	}
}

// asksForAll reports whether the proxy has subscribed to listeners. An Envoy whose
// clusters are not ready, for want of a certificate for example, has not: it serves no
// traffic.
func asksForAll(types []stream.TypeStatus) bool {
	return slices.ContainsFunc(types, func(t stream.TypeStatus) bool { return t.Type == stream.ListenerType })
}

// Proxies lists the connected proxies, and those that disconnected recently; connected
// ones first, then sorted by name and id.
func (s *Server) Proxies() []ProxyStatus {
	var out []ProxyStatus
	s.LargestHashTables() // forgets what no proxy has any more
	for _, c := range s.connections() {
		c.runInOwner(nil, func() { out = append(out, c.status()) }, nil)
	}
	s.mu.Lock()
	for _, d := range s.departed.All() {
		out = append(out, *d.ProxyStatus)
	}
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

// ResourceStatus is one resource as a proxy has it, or is to have it.
type ResourceStatus struct {
	Type stream.TypeURL
	stream.Sent
	// Accepted means that the proxy has the wanted version.
	Accepted bool
	// Origins are the objects from which it was made, as path:line:column.
	Origins []string
}

// Sent lists what a proxy has and is to have, in the order in which types are served. The
// proxy is named by its node id, by NAME.NAMESPACE, or by its host.
func (s *Server) Sent(ctx context.Context, proxy string) ([]ResourceStatus, error) {
	c, err := s.find(proxy)
	if err != nil {
		return nil, err
	}
	var out []ResourceStatus
	if !c.runInOwner(ctx.Done(), func() {
		for _, t := range c.core.Status() {
			out = append(out, c.sent(t.Type)...)
		}
	}, nil) {
		return nil, fmt.Errorf("looking at proxy %q, which has just left: %w", proxy, cmp.Or(ctx.Err(), ErrUnknownProxy))
	}
	return out, nil
}
