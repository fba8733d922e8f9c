package jwks

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// queue says which request begins next. It belongs to the loop.
//
// A request that is due waits behind others of its owner. The owner with the fewest requests
// under way is next, so that many owners, or one with many requests, delay nobody else's. A
// request to a host that is asked as often as it may be waits for the host.
type queue struct {
	later   schedule
	ready   map[string][]*entry // by owner; none is empty
	parked  map[string][]*entry // by host; none is empty
	running int
	byOwner map[string]int
	byHost  map[string]int
}

func newQueue() *queue {
	return &queue{ready: map[string][]*entry{}, parked: map[string][]*entry{}, byOwner: map[string]int{}, byHost: map[string]int{}}
}

// reset replaces what waits; what is under way goes on.
func (q *queue) reset(entries []*entry) {
	q.later = q.later[:0]
	clear(q.ready)
	clear(q.parked)
	for _, e := range entries {
		if !e.running {
			q.later = append(q.later, e)
		}
	}
	heap.Init(&q.later)
}

func (q *queue) add(e *entry) { heap.Push(&q.later, e) }

// next is when something is due that waits for its time only.
func (q *queue) next() (time.Time, bool) {
	if len(q.later) == 0 {
		return time.Time{}, false
	}
	return q.later[0].next, true
}

// take is the request that begins now, and for whom, or nil.
func (q *queue) take(now time.Time) (*entry, string) {
	for len(q.later) > 0 && !q.later[0].next.After(now) {
		e, _ := heap.Pop(&q.later).(*entry)
		q.line(e)
	}
	for q.running < maxFetches {
		owner, ok := q.owner()
		if !ok {
			return nil, ""
		}
		e := q.ready[owner][0]
		pop(q.ready, owner)
		if e.host != "" && q.byHost[e.host] >= maxFetchesFromHost {
			q.parked[e.host] = append(q.parked[e.host], e)
			continue
		}
		e.running = true
		q.running++
		q.byOwner[owner]++
		q.byHost[e.host]++
		return e, owner
	}
	return nil, ""
}

// line puts a request behind others of that of its owners which has the fewest.
func (q *queue) line(e *entry) {
	owner := slices.MinFunc(e.wish.owners, func(a, b string) int {
		return cmp.Compare(q.byOwner[a]+len(q.ready[a]), q.byOwner[b]+len(q.ready[b]))
	})
	q.ready[owner] = append(q.ready[owner], e)
}

// owner is whose turn it is. Among equals, the one whose request has waited longest.
func (q *queue) owner() (string, bool) {
	best, found := "", false
	for o, list := range q.ready {
		switch {
		case q.byOwner[o] >= maxFetchesOfOwner:
		case !found, q.byOwner[o] < q.byOwner[best],
			q.byOwner[o] == q.byOwner[best] && list[0].next.Before(q.ready[best][0].next):
			best, found = o, true
		}
	}
	return best, found
}

// release ends a request.
func (q *queue) release(e *entry, owner string) {
	e.running = false
	q.running--
	count(q.byOwner, owner)
	count(q.byHost, e.host)
	if list := q.parked[e.host]; len(list) > 0 {
		pop(q.parked, e.host)
		q.line(list[0])
	}
}

func count(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

func pop(lists map[string][]*entry, key string) {
	if lists[key] = lists[key][1:]; len(lists[key]) == 0 {
		delete(lists, key)
	}
}

// schedule is a heap of requests, the earliest first.
type schedule []*entry

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].next.Before(s[j].next) }
func (s schedule) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }

// Push implements heap.Interface.
func (s *schedule) Push(x any) {
	e, _ := x.(*entry)
	*s = append(*s, e)
}

// Pop implements heap.Interface.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	e := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return e
}
