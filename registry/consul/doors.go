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
	// sweepShare is the part of the time that sweeps may take: one in so many. From
	// the beginning of one to that of the next it is sweepMost at most, but for a
	// rest of sweepRest, and as long as the sweep took.
	sweepShare = 20
	sweepRest  = 200 * time.Millisecond
	sweepMost  = 10 * time.Second
	// sweepEach is what counts of a sweep for a service at most: one that took long
	// because Consul was away for a while is no reason to rest.
	sweepEach = 200 * time.Microsecond
	// rangMost is how often a service is read because a doorbell says something
	// else of it than its own entries do: a filter may be the reason.
	rangMost = 2
)

// doorbells are the questions about whole tables that tell that something
// changed, where a service has no watch of its own.
type doorbells struct {
	// unequipped says that there may be services without a watch or doorbells.
	unequipped bool
	ringing    bool // the doorbells are followed
	watches    int
	states     map[string]*door
	hosts      hosts // or nil
	// broken are doorbells with answers that cannot be used: others, and the sweeps,
	// do without.
	broken    map[string]bool
	hostsTurn uint64
}

// door is what is known of the checks in one state.
type door struct {
	turn uint64
	// wants has for each service a hash of its checks in that state.
	wants map[string]uint64
}

// rung is how often a service was read because of a doorbell that says want.
type rung struct {
	want  uint64
	tries int
}

func newDoorbells() doorbells {
	return doorbells{broken: map[string]bool{}, states: map[string]*door{api.HealthCritical: {}, api.HealthWarning: {}}}
}

// answered reports whether each doorbell has been answered in that turn.
func (d *doorbells) answered(turn uint64) bool {
	for state, x := range d.states {
		if x.turn < turn && !d.broken[questionState+state] {
			return false
		}
	}
	return d.hostsTurn >= turn || d.broken[questionNodes]
}

// capacity is how many watches the server carries.
func (l *loop) capacity() int {
	if !l.s.client.HTTP2() {
		return 0
	}
	each := streams
	if n := l.s.client.Streams(); n > 0 { // what is before a server may carry fewer
		each = min(each, n)
	}
	most := l.s.client.MaxConnections()
	return max(0, min((most-spare)*each, most*each-others))
}

// equip gives each service a watch; where the server cannot carry that many, or
// not any more, the doorbells are for the others.
func (l *loop) equip(ctx context.Context) {
	if !l.unequipped || l.listed == nil || !l.defaultsKnown || !l.proxyKnown {
		return
	}
	l.unequipped = false
	room := l.capacity()
	for name := range l.listed {
		svc := l.services[name]
		if svc.watched && l.watches > room {
			svc.cancel()
			svc.watched, svc.cancel = false, nil
			l.read(name, peek) // the watch may have missed a change meanwhile
		}
		switch {
		case svc.watched:
		case l.watches < room:
			l.watch(ctx, svc)
		case !l.ringing:
			l.ringing = true
			l.ring(ctx)
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
			Name: "health/service", Bulk: true, Read: whole(l.s, l.s.askService(name)), //nolint:contextcheck // it is in the options
			OnError: func(err error) {
				if err != nil {
					l.post(ctx, func(now time.Time) { l.wasWatched(&reading{name: name, err: err}, now) })
				}
			},
		}, func(list []*entry, m client.Meta) {
			l.s.reads.Add(1)
			r := l.s.take(name, list, m)
			l.post(ctx, func(now time.Time) { l.wasWatched(r, now) })
		})
		return nil
	})
}

// wasWatched takes what a watch found. Where a reader overtook it, it is not known
// which of both is the last word.
func (l *loop) wasWatched(r *reading, now time.Time) {
	if !l.accept(r, now) {
		l.read(r.name, full)
	}
}

// ring follows the doorbells.
func (l *loop) ring(ctx context.Context) {
	for state := range l.states {
		follow(ctx, l, question[checks]{
			name: questionState + state, ask: askState(state), every: 50 * time.Millisecond, //nolint:contextcheck // it is in the options
			got: func(list checks, m client.Meta, _ time.Time) { l.gotState(state, list, m) },
		})
	}
	follow(ctx, l, question[hosts]{name: questionNodes, ask: askHosts, got: l.gotHosts, every: 200 * time.Millisecond})
}

// sum is a hash of a check, to be added to those of others.
func sum(node, id string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, node+"\x00"+id) // never fails
	return h.Sum64()
}

// gotState takes the checks in one state. Services of which the picture has other
// ones are read: so a change that went unseen is found, too.
func (l *loop) gotState(state string, list checks, m client.Meta) {
	d := l.states[state]
	d.turn, d.wants = m.Generation, list.services
	ofNodes := list.nodes
	for name, svc := range l.services {
		if len(ofNodes) > 0 {
			for _, node := range svc.nodes {
				if x := ofNodes[node]; x != 0 {
					d.wants[name] += x
				}
			}
		}
		if len(svc.failing) > 0 || d.wants[name] != 0 {
			l.compare(svc, state)
		}
	}
}

// compare has a service read if a doorbell says something else of its checks than
// the picture does.
func (l *loop) compare(svc *service, state string) {
	d := l.states[state]
	if svc.watched || l.broken[questionState+state] || d.turn < l.turn || svc.turn < l.turn {
		return
	}
	have := uint64(0)
	for _, x := range svc.failing {
		if x.status == state {
			have += sum(x.node, x.check)
		}
	}
	want := d.wants[svc.name]
	if have == want {
		delete(svc.rang, state)
		return
	}
	r := svc.rang[state]
	if r.want != want {
		r = rung{want: want}
	}
	if r.tries++; r.tries > rangMost {
		return
	}
	if svc.rang == nil {
		svc.rang = map[string]rung{}
	}
	svc.rang[state] = r
	l.read(svc.name, full)
}

// disagree compares a service that was read with what the doorbells said last.
func (l *loop) disagree(svc *service) {
	if !l.ringing || svc.wanted != no {
		return
	}
	for state := range l.states {
		l.compare(svc, state)
	}
}

// gotHosts takes the nodes. Services with instances on those that changed are
// read.
func (l *loop) gotHosts(list hosts, m client.Meta, _ time.Time) {
	prev := l.hosts
	continued := l.hostsTurn == m.Generation
	l.hosts, l.hostsTurn = list, m.Generation
	if !continued {
		return // everything is read anyway
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
			l.read(name, full)
		}
	}
}

// sweep is a look at the indexes of all services without a watch.
type sweep struct {
	sweepDue   bool
	sweepAll   bool            // also of those with a watch
	waiting    map[string]bool // services that it still looks at; nil while there is none
	sweepBegan time.Time
	nextSweep  time.Time // not before then
}

func (w *sweep) sweeping() bool { return w.waiting != nil }

// peeked notes that a service was looked at.
func (l *loop) peeked(name string, ok bool) {
	if l.waiting[name] {
		delete(l.waiting, name)
		l.sweepDue = l.sweepDue || !ok
	}
}

// swept begins and ends sweeps, and returns when to look again.
func (l *loop) swept(now time.Time) time.Time {
	if l.sweeping() && (len(l.waiting) == 0 || l.reads == 0 && len(l.urgent)+len(l.queue) == 0) {
		l.waiting = nil
		l.s.sweeps.Add(1)
		took := min(now.Sub(l.sweepBegan), time.Duration(len(l.listed))*sweepEach)
		rest := min(max(sweepRest, took*sweepShare), sweepMost) - took
		l.nextSweep = now.Add(max(sweepRest, took, rest))
	}
	if !l.sweepDue || l.sweeping() || !l.ready() || len(l.behind) > 0 {
		return time.Time{}
	}
	if l.nextSweep.After(now) {
		return l.nextSweep
	}
	all := l.sweepAll
	l.sweepAll, l.sweepDue, l.sweepBegan, l.waiting = false, false, now, map[string]bool{}
	for name := range l.listed {
		if svc := l.services[name]; !svc.watched || all {
			l.waiting[name] = true
			l.read(name, peek) // in full where no index is known
		}
	}
	return time.Time{}
}
