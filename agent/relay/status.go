package relay

import (
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// Status is what a relay does at one moment, for people. Read-only.
type Status struct {
	// Envoy is the state of Envoy as it is reported to the control plane.
	Envoy  bootstrap.EnvoyState `json:"envoy"`
	Envoys []EnvoyStatus        `json:"envoys"`
	// LastEnvoy is when an Envoy connected last; zero if none did.
	LastEnvoy time.Time      `json:"last_envoy,omitzero"`
	Upstream  UpstreamStatus `json:"upstream"`
	// Types count the resources, by type.
	Types []TypeStatus `json:"types"`
	// Rejected are the resources that Envoy rejects.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Unserved says why no inbound listener of the workload is served; empty if one is, or if
	// it has none.
	Unserved string `json:"unserved,omitempty"`
	// Fallbacks are listeners that Envoy has in place of stored ones that it rejects.
	Fallbacks []Fallback `json:"fallbacks,omitempty"`
	// ProxyConfig is the version of the ProxyConfig in force; empty if no control plane has sent
	// one. RefusedProxyConfig is a newer one that the agent cannot use.
	ProxyConfig        string     `json:"proxy_config,omitempty"`
	RefusedProxyConfig *Rejection `json:"refused_proxy_config,omitempty"`
	// Generation is the server's name of the generation that Envoy accepted last, and
	// AcceptedAt is when. Both come from the store until Envoy accepts something.
	Generation string    `json:"generation"`
	AcceptedAt time.Time `json:"accepted_at"`
	// Held counts updates that Envoy has not answered yet.
	Held int `json:"held"`
	// Unsaved says why the newest accepted configuration is not on disk, since UnsavedSince.
	// It is empty if it is saved, or about to be.
	Unsaved      string    `json:"unsaved,omitempty"`
	UnsavedSince time.Time `json:"unsaved_since,omitzero"`
}

// EnvoyStatus is one connected Envoy.
type EnvoyStatus struct {
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Live    bool      `json:"live"`
	Newest  bool      `json:"newest"`
	// Split are the route configurations whose virtual hosts it gets by VHDS.
	Split []string `json:"split,omitempty"`
}

// UpstreamStatus is the connection to a server.
type UpstreamStatus struct {
	// Server is the connected one, or empty.
	Server string `json:"server"`
	// Since is the time of the connection, or of its loss.
	Since time.Time `json:"since"`
	// LastError is why the last connection or attempt ended, or empty.
	LastError string `json:"last_error,omitempty"`
	// Rejected says that the control plane was reached, and did not let this host in.
	Rejected bool `json:"rejected,omitempty"`
}

// TypeStatus counts resources of a type.
type TypeStatus struct {
	Type     stream.TypeURL `json:"type"`
	Accepted int            `json:"accepted"`
	Offered  int            `json:"offered"`
}

// Rejection is one resource that Envoy rejects.
type Rejection struct {
	Type    stream.TypeURL `json:"type"`
	Name    string         `json:"name"`
	Version string         `json:"version"`
	Reason  string         `json:"reason"`
}

// envoyState is the state of Envoy as it is reported to the control plane; empty means that it
// is not known yet.
func (c *core) envoyState(now time.Time) bootstrap.EnvoyState {
	p := c.newest()
	switch {
	case c.r.withdrawn.Load():
		return bootstrap.EnvoyAbsent
	case p == nil && now.Before(c.graceUntil):
		return ""
	case p == nil:
		return bootstrap.EnvoyAbsent
	case !p.live:
		return bootstrap.EnvoyStarting
	case len(c.rejected)+len(c.refused)+len(c.retries) > 0:
		return bootstrap.EnvoyRejecting
	default:
		return bootstrap.EnvoyLive
	}
}

func (c *core) publish(now time.Time) {
	s := &Status{
		LastEnvoy: c.lastEnvoy,
		Envoy:     c.envoyState(now), Upstream: c.upstreamStatus, Generation: c.label, AcceptedAt: c.acceptedAt,
		Held: len(c.pending) + len(c.queue), Unsaved: c.unsaved, UnsavedSince: c.unsavedSince,
	}
	if r := c.accepted[bootstrap.ProxyConfigType].Get(bootstrap.ProxyConfigName); r != nil {
		s.ProxyConfig = r.Version
	}
	s.RefusedProxyConfig = c.refusedConfig
	if s.Envoy == "" {
		s.Envoy = bootstrap.EnvoyStarting
	}
	for _, p := range c.peers {
		e := EnvoyStatus{Version: p.version.String(), Since: p.since, Live: p.live, Newest: p == c.newest()}
		for table, is := range p.vhds {
			if is {
				e.Split = append(e.Split, table)
			}
		}
		slices.Sort(e.Split)
		s.Envoys = append(s.Envoys, e)
	}
	s.Types = c.counts()
	s.Rejected = c.allRejected()
	s.Unserved = c.inbound.unserved
	for _, name := range slices.Sorted(maps.Keys(c.fallbacks)) {
		s.Fallbacks = append(s.Fallbacks, c.fallbacks[name])
	}
	// Before the status: who sees there that nothing is on its way any more sees them, too.
	if set, was := c.accepted[stream.ListenerType], c.r.listeners.Load(); set != nil && (was == nil || was.set != set) {
		next := &acceptedListeners{set: set, number: 1}
		switch {
		case was == nil:
		case sameResources(was.set, set): // an Envoy has connected again
			next.number = was.number
		default:
			next.number = was.number + 1
		}
		c.r.listeners.Store(next)
	}
	c.r.clusters.Store(c.accepted[stream.ClusterType])
	c.r.status.Store(s)
}

// HasCluster reports whether Envoy has accepted a cluster with such a name.
func (r *Relay) HasCluster(is func(name string) bool) bool {
	set := r.clusters.Load()
	if set == nil {
		return false
	}
	for x := range set.All() {
		if is(x.Name) {
			return true
		}
	}
	return false
}

// sameResources reports whether two sets have the same versions of the same resources.
func sameResources(a, b *stream.Set) bool {
	if a.Len() != b.Len() {
		return false
	}
	for r := range a.All() {
		if o := b.Get(r.Name); o == nil || o.Version != r.Version {
			return false
		}
	}
	return true
}

// counts are the numbers of resources, by type; sorted.
func (c *core) counts() []TypeStatus {
	by := map[stream.TypeURL]*TypeStatus{}
	add := func(url stream.TypeURL, accepted, offered int) {
		if by[url] == nil {
			by[url] = &TypeStatus{Type: url}
		}
		by[url].Accepted += accepted
		by[url].Offered += offered
	}
	for url, of := range c.offered {
		add(url, c.accepted[url].Len(), of.Len())
	}
	one := func(r *stream.Resource) int {
		if r == nil {
			return 0
		}
		return 1
	}
	for _, t := range c.routeConfigs {
		add(stream.RouteType, one(t.accepted.base), one(t.offered.base))
		add(stream.VirtualHostType, t.accepted.hosts.Len(), t.offered.hosts.Len())
	}
	var out []TypeStatus
	for _, url := range slices.Sorted(maps.Keys(by)) {
		out = append(out, *by[url])
	}
	return out
}
