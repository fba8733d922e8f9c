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
	"github.com/fairlead/fairlead/xds/fold"
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
	told     told // refusals of servers

	peers []*peer // oldest first: the last is the newest
	// distrust is what the Envoy that left last may or may not have.
	distrust map[stream.TypeURL][]string

	// offered is what Envoys shall have: what was accepted and, ahead of it, what
	// a server sent since. accepted is what the newest Envoy has taken. Route tables
	// whose virtual hosts come by themselves are not in it.
	offered, accepted resources
	// tables are those, by name.
	tables map[string]*table
	// forget are route tables whose virtual hosts are not accepted any more, which
	// the client is told when it has been told all else.
	forget map[string]struct{}
	// wants are the names that the server is asked for, all the types that it is
	// asked for whole.
	wants map[stream.TypeURL]map[string]struct{}
	all   map[stream.TypeURL]bool
	// known are the types that may be answered: a server or the store has said
	// what there is. Only types that are asked for whole are in it.
	known map[stream.TypeURL]bool
	// missing are names that are asked for and not yet answered for.
	missing map[stream.TypeURL]map[string]struct{}
	// number is that of the generation that the Envoys' halves have, zero if they
	// have none, and hold whether it holds removals; stale means that what Envoys
	// shall have has changed since.
	number      uint64
	hold, stale bool

	pending  []*part           // offered, not yet answered by Envoy; in order
	queue    []*part           // not yet offered: they touch what is pending
	rejected map[key]Rejection // what Envoy refuses, in the version it refused

	label      string // the server's name for what was accepted last
	acceptedAt time.Time

	dirty      bool      // accepted differs from what the writer was given
	writing    bool      // the writer is at work
	wroteAt    time.Time // when it ended last
	nextWrite  time.Time // when its share of the time allows another write
	graceUntil time.Time // until then no Envoy is no news; zero: it is

	unsaved      string    // why the last write failed, or empty
	unsavedSince time.Time // of the first failure of a row
}

type key struct {
	url  stream.TypeURL
	name string
}

// table is the route table that a name is about, if it is about one.
func (k key) table() (name string, ok bool) {
	switch k.url {
	case stream.RouteType:
		return k.name, true
	case stream.VirtualHostType:
		name, _, _ = strings.Cut(k.name, fold.Separator)
		return name, true
	default:
		return "", false
	}
}

func newCore(r *Relay, w *writer, stored *state) *core {
	c := &core{
		r: r, log: r.log, w: w, node: r.c.Node,
		told: told{}, offered: resources{}, accepted: resources{}, tables: map[string]*table{}, forget: map[string]struct{}{},
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
		c.all[url] = w.All
		for _, name := range w.Names {
			c.wantName(url, name)
		}
	}
	if len(c.tables) > 0 {
		wants[stream.VirtualHostType] = stream.Want{All: true}
	}
	c.client = stream.NewClient(stream.ClientConfig{Wants: wants, Accepted: versions})
	return c
}

// restore takes over what is stored.
func (c *core) restore(s *state) {
	for url, of := range s.resources {
		// What was accepted, be it nothing, is known; what was only asked for is not.
		c.known[url] = true
		if url != stream.VirtualHostType && url != stream.RouteType {
			c.offered[url], c.accepted[url] = of, of
		}
	}
	var whole []*stream.Resource
	for r := range s.resources[stream.RouteType].All() {
		if !fold.Expects(r.Body) {
			whole = append(whole, r)
			continue
		}
		c.tables[r.Name] = &table{name: r.Name, known: true, accepted: contents{shell: r}}
	}
	c.offered[stream.RouteType] = stream.NewSet(whole)
	c.accepted[stream.RouteType] = c.offered[stream.RouteType]
	hosts := map[string][]*stream.Resource{}
	for h := range s.resources[stream.VirtualHostType].All() {
		name, _ := key{stream.VirtualHostType, h.Name}.table()
		hosts[name] = append(hosts[name], h)
	}
	for name, t := range c.tables {
		t.accepted.hosts = stream.NewSet(hosts[name])
		t.offered = t.accepted
	}
}

// everything is all that was accepted, that of the tables too.
func (c *core) everything() resources {
	out := maps.Clone(c.accepted)
	var shells, hosts []*stream.Resource
	for _, name := range slices.Sorted(maps.Keys(c.tables)) {
		t := c.tables[name]
		if t.accepted.shell == nil {
			continue
		}
		shells = append(shells, t.accepted.shell)
		if !t.accepted.whole() {
			hosts = slices.AppendSeq(hosts, t.accepted.hosts.All())
		}
	}
	if len(c.tables) > 0 {
		out[stream.RouteType] = out[stream.RouteType].With(shells, nil)
		out[stream.VirtualHostType] = stream.NewSet(hosts)
	}
	return out
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
	if c.offered[url].Get(name) != nil || url == stream.RouteType && c.tables[name] != nil {
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
			c.wrote(time.Now(), w)
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
	if c.number > 0 && c.hold != hold {
		c.stale = true
	}
	if !c.stale {
		return
	}
	c.number++
	c.hold, c.stale = hold, false
	for _, p := range c.peers {
		p.half.SetGeneration(c.generation(p))
	}
}

// generation is what an Envoy shall have.
func (c *core) generation(p *peer) *stream.Generation {
	g := &stream.Generation{Number: c.number, HoldRemovals: c.hold}
	base := &stream.Layer{Name: "base", Types: maps.Clone(c.offered)}
	g.Layers = []*stream.Layer{base}
	var routes []*stream.Resource
	for _, name := range slices.Sorted(maps.Keys(c.tables)) {
		t := c.tables[name]
		shown := t.shown()
		if p.splits(t, shown) {
			routes = append(routes, t.travelling(shown))
			g.Layers = append(g.Layers, &stream.Layer{
				Name: "hosts of " + name, Types: map[stream.TypeURL]*stream.Set{stream.VirtualHostType: shown.hosts},
			})
			continue
		}
		r, err := t.fold(shown)
		if err != nil { // which is a refusal; see refuses
			r, err = t.fold(t.accepted)
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

// holding reports whether what is absent may only be unknown yet. Then nothing
// is removed from an Envoy.
func (c *core) holding() bool {
	for _, names := range c.missing {
		if len(names) > 0 {
			return true
		}
	}
	for _, t := range c.tables {
		if t.waits() {
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
		Wants: map[stream.TypeURL]stream.Want{}, resources: c.everything(),
	}
	for url, all := range c.all {
		s.Wants[url] = stream.Want{All: all}
	}
	for url, names := range c.wants {
		s.Wants[url] = stream.Want{All: c.all[url], Names: slices.Sorted(maps.Keys(names))}
	}
	return s
}

// Writing takes a share of 1 in saveShare of the time, and no more than saveRate in
// bytes a second: a flapping endpoint must not keep a disk busy, and all of the state
// is written for each change, 2 MB in a mesh of 1,000 services. What was not used of
// the last saveCredit is left for what comes: the steps in which an Envoy takes its
// first configuration are on disk at once, however slow the disk is, for a host may be
// killed right after. Between two writes is saveInterval; after one that did not
// succeed, retryInterval.
const (
	saveInterval  = 10 * time.Millisecond
	saveShare     = 20
	saveRate      = 512 << 10
	saveCredit    = 10 * time.Second
	retryInterval = 10 * time.Second
)

// saveAfter is when there may be another write, after one that was allowed from a time
// on; in the past, if credit is left.
func saveAfter(now, allowed time.Time, w written) time.Time {
	if w.err != nil {
		return now.Add(retryInterval)
	}
	if earliest := now.Add(-saveCredit); allowed.Before(earliest) {
		allowed = earliest
	}
	return allowed.Add(max(saveShare*w.took, time.Duration(w.size)*time.Second/saveRate))
}

// wrote takes what became of a write.
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

// save hands the accepted state to the writer when it is time, and says how long
// it is until then.
func (c *core) save(now time.Time) time.Duration {
	if !c.dirty || c.writing {
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
