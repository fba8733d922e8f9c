package relay

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/xds/stream"
)

// An Envoy that starts again may reject what it, or another one, accepted before: the port of a
// listener is in use, or the directory of an access log is gone. Such a resource stays accepted, on
// disk too, because its reason ends without a change of configuration. It is refused: it counts as
// rejected, here and at the control plane, until Envoy takes it. A listener or a cluster is sent again
// by its stream, with growing pauses. Others depend on nothing but themselves and the release of Envoy:
// another version, or another Envoy, ends their refusal, or that Envoy does not subscribe to them any more.
//
// A listener that nothing is in force instead of is treated so from the first time. A new version
// of one that is in force is not: an Envoy that starts has to get the older one. So such a version
// is a retry, which is offered again as an update is.

// envoyRetry is when Envoys are sent again what they reject: often enough that a port that is free
// again is served within a minute, and seldom enough that it costs nothing.
func envoyRetry() stream.Retry {
	return stream.Retry{Min: time.Second, Max: time.Minute, All: true}
}

// refusal is why the newest Envoy rejects a version that was accepted.
type refusal struct {
	version, reason string
	cure            string // or empty
}

// retry is a rejected version of a resource that another version is in force of, or a listener that
// is not tried again, for which at is zero.
type retry struct {
	r      *stream.Resource
	reason string
	tries  int
	at     time.Time
}

var (
	errRefused = errors.New("Envoy rejects a resource that it had accepted; the server has to know")
	errTaken   = errors.New("Envoy has taken a resource that it rejected before; the server has to know")
)

// acceptedOf is a resource that was accepted, or nil.
func (c *core) acceptedOf(k key) *stream.Resource {
	if t := c.routeConfigs[k.name]; k.url == stream.RouteType && t != nil {
		return t.accepted.base
	}
	return c.accepted[k.url].Get(k.name)
}

// refusalOf is why an Envoy rejects an accepted resource, if it does.
func (c *core) refusalOf(k key, r *stream.Resource, p *peer, v ackState) (reason string, is bool) {
	if t := c.routeConfigs[k.name]; k.url == stream.RouteType && t != nil {
		if len(v.rejected[k]) == 0 || t.bisection != nil {
			return "", false
		}
		return p.rejects(t, v)
	}
	return v.rejection(k.url, k.name, r.Version)
}

// decidable reports whether the newest Envoy has answered about a name, and no update is about to
// change it.
func (c *core) decidable(k key, v ackState) bool {
	touches := func(b *batch) bool { return b.touches(k) }
	return v.answered[k.url] && !slices.ContainsFunc(c.pending, touches) && !slices.ContainsFunc(c.queue, touches)
}

// unasked reports whether an Envoy that has all of its configuration does not subscribe to a name, so that
// it says nothing of it any more. An extension is kept for a listener that names it, see unused.
func (c *core) unasked(k key, p *peer) bool {
	if !p.live || c.wildcard[k.url] || p.names[k] || k.url == stream.VirtualHostType {
		return false
	}
	return k.url != stream.ExtensionType || len(c.unused([]string{k.name})) > 0
}

// noteRefused finds which accepted resources the newest Envoy rejects, and which it has taken since.
// The server learns both by a new stream, on which they are listed as what they are.
func (c *core) noteRefused(p *peer, v ackState) {
	if c.unproven() {
		return // it may have to get other listeners, see replaceRefused
	}
	var news error
	for k := range v.rejected {
		r := c.acceptedOf(k)
		if r == nil || !c.decidable(k, v) {
			continue
		}
		reason, is := c.refusalOf(k, r, p, v)
		reason = boundReason(k.name, reason)
		was, known := c.refused[k]
		if !is || known && was.version == r.Version && was.reason == reason {
			continue
		}
		if known && was.version == r.Version {
			was.reason = reason
			c.refused[k] = was
			continue
		}
		c.refuse(k, r.Version, reason, "")
		c.log.Error("Envoy rejects a stored resource, which is not served now; trying again", "type_url", k.url, "name", k.name, "version", r.Version, "err", reason)
		news = errRefused
	}
	for k, was := range c.refused {
		r := c.acceptedOf(k)
		switch {
		case r == nil || r.Version != was.version: // an update replaced it
		case c.unasked(k, p):
			p.namesChanged = true // prune waits for the end of refusals
		case !c.decidable(k, v):
			continue
		default:
			if _, is := c.refusalOf(k, r, p, v); is {
				continue
			}
			c.log.Info("Envoy has taken a resource that it rejected before", "type_url", k.url, "name", k.name, "version", r.Version)
			if !c.client.Has(k.url, k.name, r.Version) {
				c.restoreAccepted(k, r)
				news = errTaken
			}
		}
		delete(c.refused, k)
		if x := c.rejected[k]; x.Version == was.version {
			delete(c.rejected, k)
		}
		c.dirty, c.inbound.stale = true, true
	}
	if news != nil && c.upstream != nil {
		c.upstream.cancel(news)
	}
	c.checkInbound(p, v)
}

// maxStoredReason bounds, in bytes, what is stored of a reason. Envoy's message about an update has the
// reasons of all its resources.
const maxStoredReason = 512

func boundReason(name, reason string) string {
	if len(reason) > maxStoredReason {
		reason = aboutName(name, reason)
	}
	return safetext.Sanitize(reason, maxStoredReason)
}

// refuse records that an accepted resource is rejected.
func (c *core) refuse(k key, version, reason, cure string) {
	c.refused[k] = refusal{version, boundReason(k.name, reason), cure}
	c.dirty, c.inbound.stale = true, true
	c.withdraw(k, version)
}

// withdraw has the next server know that Envoy does not have a resource. What is subscribed to by
// name is answered for each name. Of the others a server says nothing that it does not have itself,
// so they are listed, with another version.
func (c *core) withdraw(k key, version string) {
	switch {
	case k.url == stream.ListenerType || k.url == stream.ClusterType:
		c.client.Refused(k.url, k.name, version)
	case c.routeConfigs[k.name] != nil && k.url == stream.RouteType:
		c.client.ForgetHosts(k.name)
		c.client.Forget(k.url, k.name)
	default:
		c.client.Forget(k.url, k.name)
	}
}

// restoreAccepted has the next server know that Envoy has a resource. A route configuration whose
// virtual hosts are separate is sent again.
func (c *core) restoreAccepted(k key, r *stream.Resource) {
	if k.url != stream.RouteType || c.routeConfigs[k.name] == nil {
		c.client.Accept(k.url, k.name, r.Version)
	}
}

// keepRefused handles the rejection of a resource of an update. It reports whether the resource
// counts as accepted and refused: a listener that nothing is in force instead of, and that has its
// reason on the host.
func (c *core) keepRefused(now time.Time, url stream.TypeURL, r *stream.Resource, reason string) bool {
	if url != stream.ListenerType {
		return false
	}
	k, old := key{url, r.Name}, c.accepted[url].Get(r.Name)
	onHost := stream.IsHostError(url, reason)
	if onHost && (old == nil || old.Version == r.Version) {
		delete(c.retries, k)
		c.refuse(k, r.Version, reason, "")
		return true
	}
	x := &retry{r: r, reason: reason}
	if was := c.retries[k]; was != nil && was.r.Version == r.Version {
		x.tries = was.tries
	}
	if onHost {
		x.at = now.Add(envoyRetry().Wait(x.tries))
		x.tries++
	}
	if old == nil {
		c.withdraw(k, r.Version)
	}
	if onHost || old == nil { // else it is rejected, and the old one is in force: that is all
		c.retries[k] = x
		c.inbound.stale = true
	}
	return false
}

// replacedRetry ends a retry that another version replaces.
func (c *core) replacedRetry(url stream.TypeURL, name, version string) {
	k := key{url, name}
	if x := c.retries[k]; x != nil && x.r.Version != version {
		delete(c.retries, k)
		c.inbound.stale = true
	}
}

// endRetry handles that Envoy has taken a resource. The server of a retry does not know it.
func (c *core) endRetry(b *batch, r *stream.Resource) {
	k := key{b.url, r.Name}
	delete(c.retries, k)
	c.inbound.stale = true
	if b.from.update != nil {
		return
	}
	c.client.Accept(k.url, k.name, r.Version)
	c.log.Info("Envoy has taken a resource that it rejected before", "type_url", k.url, "name", k.name, "version", r.Version)
	if c.upstream != nil {
		c.upstream.cancel(errTaken)
	}
}

// retryUpdates offers the rejected versions again whose time has come, and returns how long it is
// until the next.
func (c *core) retryUpdates(now time.Time) time.Duration {
	next := time.Hour
	for k, x := range c.retries {
		if x.at.IsZero() || c.newest() == nil {
			continue // an Envoy that connects wakes the core
		}
		if wait := x.at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		x.at = now.Add(envoyRetry().Wait(x.tries)) // unless Envoy answers before
		next = min(next, x.at.Sub(now))
		if b := (&batch{from: &pendingUpdate{}, url: k.url, changed: []*stream.Resource{x.r}}); !c.conflicts(b) {
			c.offer(b)
		}
	}
	return next
}

// rejections are refusals as a list; sorted.
func rejections(of map[key]refusal) (out []Rejection) {
	for _, k := range slices.SortedFunc(maps.Keys(of), compareKeys) {
		x := of[k]
		reason := x.reason
		if x.cure != "" {
			reason += "; " + x.cure
		}
		out = append(out, Rejection{Type: k.url, Name: k.name, Version: x.version, Reason: reason})
	}
	return out
}

func compareKeys(a, b key) int {
	return slices.Compare([]string{string(a.url), a.name}, []string{string(b.url), b.name})
}

// allRejected is everything that the newest Envoy rejects, whichever way it came; one for each name.
func (c *core) allRejected() (out []Rejection) {
	all := map[key]Rejection{}
	for k, x := range c.retries {
		all[k] = Rejection{Type: k.url, Name: k.name, Version: x.r.Version, Reason: x.reason}
	}
	maps.Copy(all, c.rejected)
	for _, x := range rejections(c.refused) {
		all[key{x.Type, x.Name}] = x // nothing of that name is in force
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareKeys) {
		out = append(out, all[k])
	}
	return out
}

// restoreRefused restores what the last Envoy rejected.
func (c *core) restoreRefused(s *state) {
	for _, x := range s.Refused {
		k := key{x.Type, x.Name}
		if r := c.acceptedOf(k); r != nil && r.Version == x.Version {
			c.refused[k] = refusal{version: x.Version, reason: x.Reason}
		}
	}
	if c.r.c.Inbound != nil && len(c.refused) > 0 { // until the next Envoy has answered
		c.inbound.unserved = c.unserved(c.accepted[stream.ListenerType])
		c.inbound.reported, c.inbound.stale = c.inbound.unserved != "", true
	}
}

// withdrawRefused has the first server know what is refused.
func (c *core) withdrawRefused() {
	for k, x := range c.refused {
		c.withdraw(k, x.version)
	}
}
