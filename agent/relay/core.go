package relay

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

// reconnectGrace is how long an Envoy that is known to run may take to connect
// before it is reported absent.
const reconnectGrace = 5 * time.Second

// command is a function that the core runs for another goroutine.
type command func(c *core, now time.Time)

// core owns all state of a relay, on one goroutine that never waits for another.
type core struct {
	r   *Relay
	log *slog.Logger
	w   *writer

	node           *corev3.Node // sent to servers
	client         *stream.Client
	upstream       *upstream // the open stream, or nil
	upstreamStatus UpstreamStatus
	logged         loggedRejections // rejections by servers that are in the log already

	peers     []*peer   // oldest first: the last is the newest
	lastEnvoy time.Time // when the last one of them connected
	// unacknowledged are the names of which the Envoy that disconnected last may have any
	// version.
	unacknowledged map[stream.TypeURL][]string

	// offered is the configuration for Envoys: what was accepted, and what a server has sent
	// since. accepted is what the newest Envoy has acknowledged. Neither contains the route
	// configurations whose virtual hosts are sent by VHDS.
	offered, accepted resources
	// extensions are the extensions that accepted listeners name, by listener.
	extensions map[string][]string
	// routeConfigs are those, by name.
	routeConfigs map[string]*routeConfig
	// forgotten are route configurations whose virtual hosts are no longer accepted. The
	// client forgets them after all pending updates are answered.
	forgotten map[string]struct{}
	// subscribed are the names that the relay subscribes to, by type; wildcard are the types
	// that it subscribes to as a whole.
	subscribed map[stream.TypeURL]map[string]struct{}
	wildcard   map[stream.TypeURL]bool
	// known are the wildcard types that may be answered, because a server or the store has
	// delivered them.
	known map[stream.TypeURL]bool
	// missing are names that are subscribed to and not answered yet.
	missing map[stream.TypeURL]map[string]struct{}
	// number is the number of the generation that was given to the Envoys, zero before the
	// first; holdRemovals says whether it holds removals. stale means that it has to be made
	// again.
	number              uint64
	holdRemovals, stale bool

	pending  []*batch          // offered and not answered by Envoy yet, in order
	queue    []*batch          // not offered yet: they change names that are pending
	rejected map[key]Rejection // what Envoy rejects, with the rejected version
	// refused are accepted resources that the newest Envoy rejects; retries are rejected versions
	// that are not accepted.
	refused map[key]refusal
	retries map[key]*retry
	inbound inbound

	// fromStore are the listeners that are stored and that no Envoy has answered yet; storedBy is
	// the release that had accepted them. fallbacks are those that were replaced because Envoy
	// rejects them, by name.
	fromStore map[string]bool
	storedBy  string
	fallbacks map[string]Fallback

	// refusedConfig is the ProxyConfig that the agent rejects, or nil.
	refusedConfig *Rejection
	// namesAbsent means that the last server had no names for the agent: those that it has are of
	// an earlier one.
	namesAbsent bool

	label      string // the server's name of the generation that was accepted last
	acceptedAt time.Time

	dirty      bool      // accepted differs from what the writer has
	writing    bool      // a write is in progress
	wroteAt    time.Time // when it ended last
	nextWrite  time.Time // the earliest time of the next write, by its share of the time
	graceUntil time.Time // until then a missing Envoy is not reported; zero: it is

	unsaved      string    // why the last write failed, or empty
	unsavedSince time.Time // of the first of consecutive failures
}

type key struct {
	url  stream.TypeURL
	name string
}

// routeConfig is the name of the route configuration that a key belongs to, if it belongs to
// one.
func (k key) routeConfig() (name string, ok bool) {
	switch k.url {
	case stream.RouteType:
		return k.name, true
	case stream.VirtualHostType:
		name, _, _ = strings.Cut(k.name, vhds.Separator)
		return name, true
	default:
		return "", false
	}
}

func newCore(r *Relay, w *writer, stored *state) *core {
	c := &core{
		r: r, log: r.log, w: w, node: r.c.Node,
		logged: loggedRejections{}, offered: resources{}, accepted: resources{}, routeConfigs: map[string]*routeConfig{}, extensions: map[string][]string{}, forgotten: map[string]struct{}{},
		subscribed: map[stream.TypeURL]map[string]struct{}{}, wildcard: map[stream.TypeURL]bool{},
		known: map[stream.TypeURL]bool{}, missing: map[stream.TypeURL]map[string]struct{}{}, rejected: map[key]Rejection{}, refused: map[key]refusal{}, retries: map[key]*retry{},
		fromStore: map[string]bool{}, fallbacks: map[string]Fallback{},
	}
	wants := map[stream.TypeURL]stream.Want{
		stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		// The relay's own, whatever its Envoys subscribe to.
		bootstrap.ProxyConfigType: {Names: []string{bootstrap.ProxyConfigName}},
	}
	if r.c.Names != nil {
		wants[bootstrap.NameType] = stream.Want{All: true}
	}
	versions := map[stream.TypeURL]map[string]string{}
	if stored != nil {
		for url, w := range stored.Wants {
			w.All = w.All || wants[url].All
			wants[url] = w
		}
		c.restore(stored)
		for url, of := range c.everything() {
			versions[url] = map[string]string{}
			for r := range of.All() {
				versions[url][r.Name] = r.Version
			}
		}
		c.label, c.acceptedAt, c.stale = stored.Generation, stored.SavedAt, true
	}
	for url, w := range wants {
		if url == bootstrap.ProxyConfigType || url == bootstrap.NameType {
			continue
		}
		c.wildcard[url] = w.All
		for _, name := range w.Names {
			c.subscribeName(url, name)
		}
	}
	if len(c.routeConfigs) > 0 {
		wants[stream.VirtualHostType] = stream.Want{All: true}
	}
	c.client = stream.NewClient(stream.ClientConfig{Wants: wants, Accepted: versions})
	c.withdrawRefused()
	return c
}

// restore loads the stored state.
func (c *core) restore(s *state) {
	for url, of := range s.resources {
		if url == bootstrap.NameType && !c.restoreNames(of) {
			continue
		}
		// An accepted type is known, even an empty one; a type that was only subscribed to is not.
		c.known[url] = true
		if url == bootstrap.ProxyConfigType { // not for Envoys
			c.accepted[url] = of
			continue
		}
		if url == bootstrap.NameType { // neither
			continue
		}
		if url != stream.VirtualHostType && url != stream.RouteType {
			c.offered[url], c.accepted[url] = of, of
		}
	}
	c.storedBy = s.release()
	for l := range s.resources[stream.ListenerType].All() {
		c.fromStore[l.Name] = true
	}
	c.noteExtensions(slices.Collect(s.resources[stream.ListenerType].All()), nil)
	var inline []*stream.Resource
	for r := range s.resources[stream.RouteType].All() {
		if !vhds.IsBase(r.Body) {
			inline = append(inline, r)
			continue
		}
		c.routeConfigs[r.Name] = &routeConfig{name: r.Name, hostsKnown: true, accepted: contents{base: r}}
	}
	c.offered[stream.RouteType] = stream.NewSet(inline)
	c.accepted[stream.RouteType] = c.offered[stream.RouteType]
	hosts := map[string][]*stream.Resource{}
	for h := range s.resources[stream.VirtualHostType].All() {
		name, _ := key{stream.VirtualHostType, h.Name}.routeConfig()
		hosts[name] = append(hosts[name], h)
	}
	for name, t := range c.routeConfigs {
		t.accepted.hosts = stream.NewSet(hosts[name])
		t.offered = t.accepted
	}
	c.restoreRefused(s)
}

// everything is all that was accepted, route configurations with VHDS included.
func (c *core) everything() resources {
	out := maps.Clone(c.accepted)
	var shells, hosts []*stream.Resource
	for _, name := range slices.Sorted(maps.Keys(c.routeConfigs)) {
		t := c.routeConfigs[name]
		if t.accepted.base == nil {
			continue
		}
		shells = append(shells, t.accepted.base)
		if !t.accepted.inline() {
			hosts = slices.AppendSeq(hosts, t.accepted.hosts.All())
		}
	}
	if len(c.routeConfigs) > 0 {
		out[stream.RouteType] = out[stream.RouteType].With(shells, nil)
		out[stream.VirtualHostType] = stream.NewSet(hosts)
	}
	return out
}

// subscribeName adds a subscription; false means that it existed.
func (c *core) subscribeName(url stream.TypeURL, name string) bool {
	if _, ok := c.subscribed[url][name]; ok {
		return false
	}
	if c.subscribed[url] == nil {
		c.subscribed[url] = map[string]struct{}{}
	}
	c.subscribed[url][name] = struct{}{}
	c.noteMissing(url, name)
	return true
}

// noteMissing marks a name as missing, unless there is an answer.
func (c *core) noteMissing(url stream.TypeURL, name string) {
	if c.offered[url].Get(name) != nil || url == stream.RouteType && c.routeConfigs[name] != nil {
		return
	}
	if c.missing[url] == nil {
		c.missing[url] = map[string]struct{}{}
	}
	c.missing[url][name] = struct{}{}
}

// run is the core's goroutine.
func (c *core) run(ctx context.Context) {
	if c.r.c.EnvoyRunning {
		c.graceUntil = time.Now().Add(reconnectGrace)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := c.pump(time.Now())
		timer.Reset(next)
		select {
		case e := <-c.r.commands:
			e(c, time.Now())
		case <-c.r.wake:
			if c.upstream != nil {
				c.upstream.healthDue = true
			}
		case w := <-c.w.done:
			c.wrote(time.Now(), w)
		case <-timer.C:
		case <-ctx.Done():
			c.saveOnExit()
			return
		}
	}
}

// saveOnExit gives the writer the newest state that it does not have. It replaces an older one
// that still waits.
func (c *core) saveOnExit() {
	if !c.dirty || !c.whole() || c.unproven() {
		return
	}
	select {
	case <-c.w.in:
	default:
	}
	c.w.in <- c.snapshot(time.Now())
}

// pump does everything that can be done now, and returns when to run again.
func (c *core) pump(now time.Time) time.Duration {
	retry := c.retryUpdates(now)
	for {
		c.refresh()
		for _, p := range c.peers {
			p.push(now)
		}
		if !c.settleUpdates(now) && !c.prune() {
			break
		}
	}
	if c.upstream != nil {
		c.upstream.push(c)
	}
	c.publish(now)
	next := min(c.save(now), retry)
	for _, p := range c.peers {
		if d := p.protocol.NextDeadline(); !d.IsZero() {
			next = min(next, d.Sub(now))
		}
	}
	if c.graceUntil.After(now) {
		next = min(next, c.graceUntil.Sub(now))
	}
	return max(next, 0)
}

// refresh gives the Envoys a new generation if anything changed.
func (c *core) refresh() {
	hold := c.mustHoldRemovals()
	if c.number > 0 && c.holdRemovals != hold {
		c.stale = true
	}
	if !c.stale {
		return
	}
	c.number++
	c.holdRemovals, c.stale = hold, false
	for _, p := range c.peers {
		p.protocol.SetGeneration(c.generation(p))
	}
}

// generation is the configuration for one Envoy.
func (c *core) generation(p *peer) *stream.Generation {
	g := &stream.Generation{Number: c.number, HoldRemovals: c.holdRemovals}
	base := &stream.Layer{Name: "base", Types: maps.Clone(c.offered)}
	g.Layers = []*stream.Layer{base}
	var routes []*stream.Resource
	for _, name := range slices.Sorted(maps.Keys(c.routeConfigs)) {
		t := c.routeConfigs[name]
		shown := t.served()
		if p.usesVHDS(t, shown) {
			routes = append(routes, t.baseResource(shown))
			g.Layers = append(g.Layers, &stream.Layer{
				Name: "hosts of " + name, Types: map[stream.TypeURL]*stream.Set{stream.VirtualHostType: shown.hosts},
			})
			continue
		}
		r, err := t.merge(shown)
		if err != nil { // counts as a rejection, see rejects
			r, err = t.merge(t.accepted)
		}
		if err == nil && r != nil {
			routes = append(routes, r)
		}
	}
	if len(routes) > 0 {
		base.Types[stream.RouteType] = base.Types[stream.RouteType].With(routes, nil)
	}
	return g
}

// mustHoldRemovals reports whether an absent resource may only be unknown yet. Then nothing is
// removed from an Envoy.
func (c *core) mustHoldRemovals() bool {
	for _, names := range c.missing {
		if len(names) > 0 {
			return true
		}
	}
	for _, t := range c.routeConfigs {
		if t.awaitsHosts() {
			return true
		}
	}
	return !c.known[stream.ClusterType] || !c.known[stream.ListenerType]
}

// newest is the Envoy that decides what is accepted, or nil.
func (c *core) newest() *peer {
	if len(c.peers) == 0 {
		return nil
	}
	return c.peers[len(c.peers)-1]
}

// snapshot is the accepted state as it is stored.
func (c *core) snapshot(now time.Time) *state {
	s := &state{
		Who: who(c.node), EnvoyVersion: nodeVersion(c.node).String(), Generation: c.label, SavedAt: now.UTC(),
		Wants: map[stream.TypeURL]stream.Want{}, resources: c.everything(),
	}
	for url, all := range c.wildcard {
		s.Wants[url] = stream.Want{All: all}
	}
	for url, names := range c.subscribed {
		s.Wants[url] = stream.Want{All: c.wildcard[url], Names: slices.Sorted(maps.Keys(names))}
	}
	s.Refused = rejections(c.refused)
	return s
}

// Limits of writing. Every write has the whole state, 2 MB in a mesh of 1,000 services, and a
// flapping endpoint must not keep a disk busy. So writing takes at most 1/saveShare of the
// time, and at most saveRate bytes a second. Unused time and bytes of the last saveCredit are
// available to later writes: the first configuration of an Envoy is on disk at once, also on a
// slow disk, because a host may be killed right after. saveInterval is the least time between
// two writes, retryInterval the time after a failed one.
const (
	saveInterval  = 10 * time.Millisecond
	saveShare     = 20
	saveRate      = 512 << 10
	saveCredit    = 10 * time.Second
	retryInterval = 10 * time.Second
)

// saveAfter is the earliest time of the next write, given the earliest time of this one. It
// may be in the past if credit is left.
func saveAfter(now, allowed time.Time, w written) time.Time {
	if w.err != nil {
		return now.Add(retryInterval)
	}
	if earliest := now.Add(-saveCredit); allowed.Before(earliest) {
		allowed = earliest
	}
	return allowed.Add(max(saveShare*w.took, time.Duration(w.size)*time.Second/saveRate))
}

// wrote handles the result of a write.
func (c *core) wrote(now time.Time, w written) {
	c.writing, c.wroteAt, c.nextWrite = false, now, saveAfter(now, c.nextWrite, w)
	switch {
	case w.err == nil:
		c.unsaved, c.unsavedSince = "", time.Time{}
		return
	case c.unsaved == "":
		c.unsavedSince = now
	}
	c.unsaved, c.dirty = w.err.Error(), true
}

// save gives the accepted state to the writer when it is time, and returns how long it is
// until then.
func (c *core) save(now time.Time) time.Duration {
	if !c.dirty || c.writing || !c.whole() || c.unproven() {
		return time.Hour
	}
	if wait := max(c.nextWrite.Sub(now), c.wroteAt.Add(saveInterval).Sub(now)); wait > 0 {
		return wait
	}
	select {
	case c.w.in <- c.snapshot(now):
		c.dirty, c.writing = false, true
	default:
	}
	return time.Hour
}

// nodeVersion is the release of Envoy in a node.
func nodeVersion(n *corev3.Node) bootstrap.Version {
	v := n.GetUserAgentBuildVersion().GetVersion()
	return bootstrap.Version{Major: v.GetMajorNumber(), Minor: v.GetMinorNumber(), Patch: v.GetPatch()}
}

// submit gives the core a command; false means that ctx ended first.
func (r *Relay) submit(ctx context.Context, e command) bool {
	select {
	case r.commands <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// errOther rejects a stream of another node than this relay's.
var errOther = errors.New("the node is not the one that this relay serves")

// withNode is the first request of a stream, which carries the node.
func withNode(req *discoveryv3.DeltaDiscoveryRequest, n *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	req.Node = proto.CloneOf(n)
	return req
}
