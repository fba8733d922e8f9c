package consul

import (
	"context"
	"hash/fnv"
	"io"
	"slices"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

const (
	// sweepShare bounds the share of the time that sweeps take: one in so many. Sweeps
	// begin sweepMax after one another at most, but the pause between them is at least
	// sweepRest, and as long as the sweep took.
	sweepShare = 20
	sweepRest  = 200 * time.Millisecond
	sweepMax   = 10 * time.Second
	// sweepEach bounds what counts of a sweep's time for each service: an outage during
	// a sweep does not delay the next one.
	sweepEach = 200 * time.Microsecond
	// rereadMax bounds the readings of a service whose entries differ from what a table
	// watch says: a filter may be the reason.
	rereadMax = 2
)

// tableWatches are blocking queries of whole tables. They report changes of services
// without a watch of their own.
type tableWatches struct {
	// watchesOutdated says that assignWatches has to run.
	watchesOutdated bool
	watchingTables  bool // the table watches are followed
	watches         int
	checksByState   map[string]*stateChecks
	nodeHashes      nodeHashes // or nil
	// unusable are table watches whose answers cannot be used. The others, and sweeps,
	// find changes.
	unusable        map[string]bool
	nodesGeneration uint64
}

// stateChecks are the checks in one state.
type stateChecks struct {
	generation uint64
	// byService has for each service a hash of its checks in that state.
	byService map[string]uint64
}

// reread counts the readings of a service for one hash of a table watch.
type reread struct {
	hash  uint64
	tries int
}

func newTableWatches() tableWatches {
	return tableWatches{unusable: map[string]bool{}, checksByState: map[string]*stateChecks{api.HealthCritical: {}, api.HealthWarning: {}}}
}

// answered reports whether each table watch has been answered in that generation.
func (d *tableWatches) answered(generation uint64) bool {
	for state, x := range d.checksByState {
		if x.generation < generation && !d.unusable[queryChecksPath+state] {
			return false
		}
	}
	return d.nodesGeneration >= generation || d.unusable[queryNodesPath]
}

// capacity is how many watches the server carries.
func (l *loop) capacity() int {
	if !l.s.client.HTTP2() {
		return 0
	}
	each := streamsPerConnection
	if n := l.s.client.Streams(); n > 0 { // a proxy may allow fewer
		each = min(each, n)
	}
	most := l.s.client.MaxConnections()
	return max(0, min((most-spareConnections)*each, most*each-otherQueries))
}

// assignWatches gives each service a watch. If the connections do not carry that many,
// table watches are for the others.
func (l *loop) assignWatches(ctx context.Context) {
	if !l.watchesOutdated || l.listed == nil || !l.defaultsKnown || !l.proxyKnown {
		return
	}
	l.watchesOutdated = false
	room := l.capacity()
	for name := range l.listed {
		svc := l.services[name]
		if svc.watched && l.watches > room {
			svc.cancel()
			svc.watched, svc.cancel = false, nil
			l.read(name, readIndex) // the watch may have missed a change meanwhile
		}
		switch {
		case svc.watched:
		case l.watches < room:
			l.watch(ctx, svc)
		case !l.watchingTables:
			l.watchingTables = true
			l.watchTables(ctx)
		}
	}
	l.rereadAll()
}

// watch follows one service in a goroutine of its own.
func (l *loop) watch(ctx context.Context, svc *service) {
	ctx, cancel := context.WithCancel(ctx)
	l.watches++
	svc.watched, svc.cancel = true, func() {
		l.watches--
		cancel()
	}
	name := svc.name
	l.group.Go(func() error {
		defer cancel()
		client.Follow(ctx, l.s.client, client.Query[[]*entry]{
			Name: "health/service", Bulk: true, Read: checked(l.s, l.s.queryService(name)), //nolint:contextcheck // it is in the options
			OnError: func(err error) {
				if err != nil {
					l.post(ctx, func(now time.Time) { l.wasWatched(&reading{name: name, err: err}, now) })
				}
			},
		}, func(list []*entry, m client.Meta) {
			l.s.reads.Add(1)
			r := l.s.newReading(name, list, m)
			l.post(ctx, func(now time.Time) { l.wasWatched(r, now) })
		})
		return nil
	})
}

// wasWatched takes the answer of a watch. If a reader overtook it, the service is read
// again: either may be newer.
func (l *loop) wasWatched(r *reading, now time.Time) {
	if !l.accept(r, now) {
		l.read(r.name, readFull)
	}
}

// watchTables starts the table watches.
func (l *loop) watchTables(ctx context.Context) {
	for state := range l.checksByState {
		follow(ctx, l, followed[checkHashes]{
			name: queryChecksPath + state, ask: queryChecks(state), every: 50 * time.Millisecond, //nolint:contextcheck // it is in the options
			got: func(list checkHashes, m client.Meta, _ time.Time) { l.gotChecks(state, list, m) },
		})
	}
	follow(ctx, l, followed[nodeHashes]{name: queryNodesPath, ask: queryNodes, got: l.gotNodes, every: 200 * time.Millisecond})
}

// sum is a hash of a check, to be added to those of others.
func sum(node, id string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, node+"\x00"+id) // never fails
	return h.Sum64()
}

// gotChecks takes the checks in one state. Services with other checks in the catalog
// cache are read, so a change that was missed is found, too.
func (l *loop) gotChecks(state string, list checkHashes, m client.Meta) {
	d := l.checksByState[state]
	d.generation, d.byService = m.Generation, list.services
	ofNodes := list.nodes
	for name, svc := range l.services {
		if len(ofNodes) > 0 {
			for _, node := range svc.nodes {
				if x := ofNodes[node]; x != 0 {
					d.byService[name] += x
				}
			}
		}
		if len(svc.failing) > 0 || d.byService[name] != 0 {
			l.rereadIfDifferent(svc, state)
		}
	}
}

// rereadIfDifferent reads a service if its checks in a table watch differ from those in
// the catalog cache.
func (l *loop) rereadIfDifferent(svc *service, state string) {
	d := l.checksByState[state]
	if svc.watched || l.unusable[queryChecksPath+state] || d.generation < l.generation || svc.generation < l.generation {
		return
	}
	have := uint64(0)
	for _, x := range svc.failing {
		if x.status == state {
			have += sum(x.node, x.check)
		}
	}
	want := d.byService[svc.name]
	if have == want {
		delete(svc.rereads, state)
		return
	}
	r := svc.rereads[state]
	if r.hash != want {
		r = reread{hash: want}
	}
	if r.tries++; r.tries > rereadMax {
		return
	}
	if svc.rereads == nil {
		svc.rereads = map[string]reread{}
	}
	svc.rereads[state] = r
	l.read(svc.name, readFull)
}

// compareWithTables compares a service that was read with the latest table watches.
func (l *loop) compareWithTables(svc *service) {
	if !l.watchingTables || svc.wanted != readNone {
		return
	}
	for state := range l.checksByState {
		l.rereadIfDifferent(svc, state)
	}
}

// gotNodes takes the nodes, and reads the services with instances on changed ones.
func (l *loop) gotNodes(list nodeHashes, m client.Meta, _ time.Time) {
	prev := l.nodeHashes
	continued := l.nodesGeneration == m.Generation
	l.nodeHashes, l.nodesGeneration = list, m.Generation
	if !continued {
		return // all services are read anyway
	}
	changed := map[string]bool{}
	for node, h := range list {
		if was, ok := prev[node]; ok && was != h {
			changed[node] = true
		}
	}
	for node := range prev {
		if _, ok := list[node]; !ok {
			changed[node] = true
		}
	}
	if len(changed) == 0 {
		return
	}
	for name, svc := range l.services {
		if !svc.watched && slices.ContainsFunc(svc.nodes, func(node string) bool { return changed[node] }) {
			l.read(name, readFull)
		}
	}
}

// sweep reads the indexes of all services without a watch.
type sweep struct {
	sweepDue   bool
	sweepAll   bool            // also of those with a watch
	sweepLeft  map[string]bool // services that are left; nil if none is running
	sweepBegan time.Time
	nextSweep  time.Time // not before then
}

func (w *sweep) sweeping() bool { return w.sweepLeft != nil }

// swept notes that the index of a service was read.
func (l *loop) swept(name string, ok bool) {
	if l.sweepLeft[name] {
		delete(l.sweepLeft, name)
		l.sweepDue = l.sweepDue || !ok
	}
}

// runSweeps begins and ends sweeps, and returns when the next one is due.
func (l *loop) runSweeps(now time.Time) time.Time {
	if l.sweeping() && (len(l.sweepLeft) == 0 || l.reads == 0 && len(l.urgent)+len(l.queue) == 0) {
		l.sweepLeft = nil
		l.s.sweeps.Add(1)
		took := min(now.Sub(l.sweepBegan), time.Duration(len(l.listed))*sweepEach)
		rest := min(max(sweepRest, took*sweepShare), sweepMax) - took
		l.nextSweep = now.Add(max(sweepRest, took, rest))
	}
	if !l.sweepDue || l.sweeping() || !l.ready() || len(l.stale) > 0 {
		return time.Time{}
	}
	if l.nextSweep.After(now) {
		return l.nextSweep
	}
	all := l.sweepAll
	l.sweepAll, l.sweepDue, l.sweepBegan, l.sweepLeft = false, false, now, map[string]bool{}
	for name := range l.listed {
		if svc := l.services[name]; !svc.watched || all {
			l.sweepLeft[name] = true
			l.read(name, readIndex) // in full where no index is known
		}
	}
	return time.Time{}
}
