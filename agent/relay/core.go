package relay

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// reconnectGrace is how long an Envoy that is known to run may take to connect
// before it is reported absent.
const reconnectGrace = 5 * time.Second

// event is something that another goroutine tells the core.
type event func(c *core, now time.Time)

// core owns all state of a relay, on one goroutine that never waits for another.
type core struct {
	r   *Relay
	log *slog.Logger
	w   *writer

	node     *corev3.Node // what servers are told
	client   *stream.Client
	upstream *upstream // the open stream, or nil
	up       UpstreamStatus

	peers []*peer // oldest first: the last is the newest
	// distrust is what the Envoy that left last may or may not have.
	distrust map[stream.TypeURL][]string

	// offered is what Envoys shall have: what was accepted and, ahead of it, what
	// a server sent since. accepted is what the newest Envoy has taken. The inner
	// maps of offered are shared with generations and never written to.
	offered, accepted resources
	// wants are the names that the server is asked for, all the types that it is
	// asked for whole.
	wants map[stream.TypeURL]map[string]struct{}
	all   map[stream.TypeURL]bool
	// known are the types that may be answered: a server or the store has said
	// what there is. Only types that are asked for whole are in it.
	known map[stream.TypeURL]bool
	// missing are names that are asked for and not yet answered for.
	missing map[stream.TypeURL]map[string]struct{}
	// generation is offered as the Envoys' halves have it, or nil; stale means
	// that offered has changed since.
	generation *stream.Generation
	stale      bool
	number     uint64

	pending  []*pending        // offered, not yet answered by Envoy; in order
	queue    []*stream.Update  // not yet offered: they touch what is pending
	rejected map[key]Rejection // what Envoy refuses, in the version it refused

	label      string // the server's name for what was accepted last
	acceptedAt time.Time

	dirty      bool      // accepted differs from what the writer was given
	writing    bool      // the writer is at work
	nextWrite  time.Time // when it may be given something again
	graceUntil time.Time // until then no Envoy is no news; zero: it is
}

type key struct {
	url  stream.TypeURL
	name string
}

func newCore(r *Relay, w *writer, stored *state) *core {
	c := &core{
		r: r, log: r.log, w: w, node: r.c.Node,
		offered: resources{}, accepted: resources{},
		wants: map[stream.TypeURL]map[string]struct{}{}, all: map[stream.TypeURL]bool{},
		known: map[stream.TypeURL]bool{}, missing: map[stream.TypeURL]map[string]struct{}{}, rejected: map[key]Rejection{},
	}
	wants := map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.ListenerType: {All: true}}
	versions := map[stream.TypeURL]map[string]string{}
	if stored != nil {
		for url, w := range stored.Wants {
			w.All = w.All || wants[url].All
			wants[url] = w
		}
		for url, of := range stored.resources {
			c.offered[url], c.accepted[url] = maps.Clone(of), maps.Clone(of)
			// What was accepted, be it nothing, is known; what was only asked for is not.
			c.known[url] = true
			versions[url] = map[string]string{}
			for name, res := range of {
				versions[url][name] = res.Version
			}
		}
		c.label, c.acceptedAt, c.stale = stored.Generation, stored.SavedAt, true
	}
	c.client = stream.NewClient(stream.ClientConfig{Wants: wants, Accepted: versions})
	for url, w := range wants {
		c.all[url] = w.All
		for _, name := range w.Names {
			c.wantName(url, name)
		}
	}
	return c
}

// wantName notes that a name is asked for; false means that it was before.
func (c *core) wantName(url stream.TypeURL, name string) bool {
	if _, ok := c.wants[url][name]; ok {
		return false
	}
	if c.wants[url] == nil {
		c.wants[url] = map[string]struct{}{}
	}
	c.wants[url][name] = struct{}{}
	c.miss(url, name)
	return true
}

// miss notes that a name is asked for, unless there is an answer.
func (c *core) miss(url stream.TypeURL, name string) {
	if _, ok := c.offered[url][name]; ok {
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
		case e := <-c.r.in:
			e(c, time.Now())
		case <-c.r.bell:
			if c.upstream != nil {
				c.upstream.healthDue = true
			}
		case w := <-c.w.done:
			c.writing, c.nextWrite = false, time.Now().Add(max(saveInterval, saveShare*w.took))
			if !w.ok {
				c.dirty, c.nextWrite = true, time.Now().Add(retryInterval)
			}
		case <-timer.C:
		case <-ctx.Done():
			c.leave()
			return
		}
	}
}

// leave hands the writer what it has not got; the mailbox is empty or holds
// something older.
func (c *core) leave() {
	if !c.dirty {
		return
	}
	select {
	case <-c.w.in:
	default:
	}
	c.w.in <- c.snapshot(time.Now())
}

// pump does all that can be done now, and says when to look again.
func (c *core) pump(now time.Time) time.Duration {
	for {
		c.refresh()
		for _, p := range c.peers {
			p.push(now)
		}
		if !c.finish(now) && !c.prune() {
			break
		}
	}
	if c.upstream != nil {
		c.upstream.push(c)
	}
	c.publish(now)
	next := c.save(now)
	for _, p := range c.peers {
		if d := p.half.NextDeadline(); !d.IsZero() {
			next = min(next, d.Sub(now))
		}
	}
	if c.graceUntil.After(now) {
		next = min(next, c.graceUntil.Sub(now))
	}
	return max(next, 0)
}

// refresh gives the Envoys' halves a new generation if there is something new.
func (c *core) refresh() {
	hold := c.holding()
	if c.generation != nil && c.generation.HoldRemovals != hold {
		c.stale = true
	}
	if !c.stale {
		return
	}
	c.number++
	c.generation = &stream.Generation{Number: c.number, Layers: []*stream.Layer{c.offered.layer()}, HoldRemovals: hold}
	c.stale = false
	for _, p := range c.peers {
		p.half.SetGeneration(c.generation)
	}
}

// holding reports whether what is absent may only be unknown yet. Then nothing
// is removed from an Envoy.
func (c *core) holding() bool {
	for _, names := range c.missing {
		if len(names) > 0 {
			return true
		}
	}
	return !c.known[stream.ClusterType] || !c.known[stream.ListenerType]
}

// newest is the Envoy whose verdict counts, or nil.
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
		Wants: map[stream.TypeURL]stream.Want{}, resources: resources{},
	}
	for url, of := range c.accepted {
		s.resources[url] = maps.Clone(of)
	}
	for url, all := range c.all {
		s.Wants[url] = stream.Want{All: all}
	}
	for url, names := range c.wants {
		s.Wants[url] = stream.Want{All: c.all[url], Names: slices.Sorted(maps.Keys(names))}
	}
	return s
}

// Between two writes is saveInterval, and saveShare times as long as the last one
// took: a flapping endpoint must not keep a disk busy, and what was accepted last
// must not be lost to a kill for longer than need be. After a write that did not
// succeed it is retryInterval.
const (
	saveInterval  = 10 * time.Millisecond
	saveShare     = 20
	retryInterval = 10 * time.Second
)

// save hands the accepted state to the writer when it is time, and says how long
// it is until then.
func (c *core) save(now time.Time) time.Duration {
	if !c.dirty || c.writing {
		return time.Hour
	}
	if wait := c.nextWrite.Sub(now); wait > 0 {
		return wait
	}
	select {
	case c.w.in <- c.snapshot(now):
		c.dirty, c.writing = false, true
	default:
	}
	return time.Hour
}

// envoyState is what is reported upstream of the Envoy below; empty means that
// it is too early to say.
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
	case len(c.rejected) > 0:
		return bootstrap.EnvoyRejecting
	default:
		return bootstrap.EnvoyLive
	}
}

func (c *core) publish(now time.Time) {
	s := &Status{
		Envoy: c.envoyState(now), Upstream: c.up, Generation: c.label, AcceptedAt: c.acceptedAt,
		Held: len(c.pending) + len(c.queue),
	}
	if s.Envoy == "" {
		s.Envoy = bootstrap.EnvoyStarting
	}
	for _, p := range c.peers {
		s.Envoys = append(s.Envoys, EnvoyStatus{Version: p.version.String(), Since: p.since, Live: p.live, Newest: p == c.newest()})
	}
	for _, url := range slices.Sorted(maps.Keys(c.offered)) {
		s.Types = append(s.Types, TypeStatus{Type: url, Accepted: len(c.accepted[url]), Offered: len(c.offered[url])})
	}
	for _, k := range slices.SortedFunc(maps.Keys(c.rejected), func(a, b key) int {
		return slices.Compare([]string{string(a.url), a.name}, []string{string(b.url), b.name})
	}) {
		s.Rejected = append(s.Rejected, c.rejected[k])
	}
	c.r.status.Store(s)
}

// nodeVersion is the release of Envoy in a node.
func nodeVersion(n *corev3.Node) bootstrap.Version {
	v := n.GetUserAgentBuildVersion().GetVersion()
	return bootstrap.Version{Major: v.GetMajorNumber(), Minor: v.GetMinorNumber(), Patch: v.GetPatch()}
}

// tell gives the core an event; false means that ctx ended first.
func (r *Relay) tell(ctx context.Context, e event) bool {
	select {
	case r.in <- e:
		return true
	case <-ctx.Done():
		return false
	}
}

// errOther says that a stream belongs to no Envoy of this relay.
var errOther = errors.New("the node is not the one that this relay serves")

// withNode is the first request of a stream, which carries the node.
func withNode(req *discoveryv3.DeltaDiscoveryRequest, n *corev3.Node) *discoveryv3.DeltaDiscoveryRequest {
	req.Node = proto.CloneOf(n)
	return req
}
