package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/xds/stream"
)

// inbound is whether the workload's declared inbound listeners are served.
type inbound struct {
	unserved string // why none is; or empty
	reported bool   // that none is was reported since the start
	stale    bool   // what is refused has changed
	of       *stream.Set
}

// checkInbound decides whether one of the workload's inbound listeners is served. Only if some
// listener is rejected the others are looked at.
func (c *core) checkInbound(p *peer, v ackState) {
	set := c.accepted[stream.ListenerType]
	if c.r.c.Inbound == nil || !p.live || !v.answered[stream.ListenerType] || !c.inbound.stale && c.inbound.of == set {
		return
	}
	c.inbound.stale, c.inbound.of = false, set
	unserved := c.unserved(set)
	if unserved == c.inbound.unserved {
		return
	}
	if unserved == "" {
		c.log.Info("Envoy serves an inbound listener of the workload again")
	} else {
		c.log.Error("Envoy serves no inbound listener of the workload: reporting it as unhealthy", "err", unserved)
	}
	c.inbound.unserved, c.inbound.reported = unserved, true
	if c.upstream != nil {
		c.upstream.healthDue = true
	}
}

// unserved says why none of the inbound listeners is served; empty if one is, or if there are none.
func (c *core) unserved(set *stream.Set) string {
	var why []string
	for _, k := range slices.SortedFunc(maps.Keys(c.retries), compareKeys) {
		if x := c.retries[k]; k.url == stream.ListenerType && set.Get(k.name) == nil && c.r.c.Inbound(x.r.Body) {
			why = append(why, aboutName(k.name, x.reason))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(c.refused), compareKeys) {
		if r := set.Get(k.name); k.url == stream.ListenerType && r != nil && c.r.c.Inbound(r.Body) {
			why = append(why, aboutName(k.name, c.refused[k].reason))
		}
	}
	if len(why) == 0 {
		return ""
	}
	for l := range set.All() {
		if _, refused := c.refused[key{stream.ListenerType, l.Name}]; !refused && c.r.c.Inbound(l.Body) {
			return ""
		}
	}
	if len(why) == 1 {
		return "Envoy does not serve its inbound listener " + why[0]
	}
	return fmt.Sprintf("Envoy serves none of its %d inbound listeners: %s", len(why), strings.Join(why, "; "))
}

// aboutName is a listener's name with what Envoy says of it. Envoy's message about an update begins
// with words of its own, and lists others after it.
func aboutName(name, reason string) string {
	if _, own, ok := strings.Cut(reason, name+": "); ok {
		reason = own
	}
	return name + ": " + reason
}

// health is what is reported of the workload, or nil.
func (c *core) health() *Health {
	h := c.r.health.Load()
	switch {
	case c.inbound.unserved != "":
		return &Health{Message: c.inbound.unserved}
	case h == nil && c.inbound.reported:
		return &Health{Healthy: true}
	default:
		return h
	}
}
