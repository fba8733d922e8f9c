package accept

import (
	"container/list"
	"runtime"
	"sync"
	"time"
)

// Limits of [admission].
const (
	// maxAnswering is the number of calls that may be in progress while handshakes begin. Most
	// of the time of a call is spent on the disk, which serves many at once.
	maxAnswering = 32
	// answerTime is how long one call delays handshakes: a disk that hangs must not keep hosts
	// from reconnecting.
	answerTime = 2 * time.Second
	// stallTime is the time after which a handshake begins regardless of other work.
	stallTime = time.Second
	// longTime is the wait of the oldest handshake of an address from which its newest comes
	// first. If many wait for longer than their clients do, the oldest will be gone before
	// they are served.
	longTime = 3 * time.Second
	// sweepMost is how many of the oldest are then checked for closed connections.
	sweepMost = 4
	// knownShare is how many handshakes from addresses of authenticated peers
	// begin for one from another address.
	knownShare = 3
)

// admission decides when a handshake begins. Work that has begun is finished before new work:
// only handshakes that have not begun wait, and they wait while a CPU's worth of other work is
// in progress. A connection holds no slot while the server waits for its bytes.
//
// Among those that wait, addresses are served round-robin. Addresses of authenticated peers
// have a queue of their own.
type admission struct {
	most int // that compute at a time. Constant

	mu        sync.Mutex // guards all following fields
	computing int        // handshakes that compute now
	answering int        // calls that are answered now
	queues    [2]queue   // others, known
	inRow     int        // of known ones, since one of the others
	stalled   *time.Timer
	ended     bool
}

// waiter is a handshake that waits for a slot.
type waiter struct {
	ready chan struct{} // closed when it may begin, or shall not
	since time.Time
	gone  func() bool // whether its peer has closed the connection
	void  bool        // it does not begin: it is gone. Written before ready is closed
	in    *queue
	group *waiting
	place *list.Element // nil: it does not wait any more
}

// queue has handshakes in the order in which they begin: one of each address, round-robin.
type queue struct {
	groups map[string]*waiting
	order  list.List // of *waiting, the next first
	size   int       // handshakes
}

// waiting has the handshakes of one address, the oldest first.
type waiting struct {
	key   string
	list  list.List // of *waiter
	place *list.Element
}

func newAdmission() *admission {
	t := &admission{most: runtime.GOMAXPROCS(0)}
	for i := range t.queues {
		t.queues[i].groups = map[string]*waiting{}
	}
	return t
}

// enter requests a slot for a handshake that has not begun. It has the slot from when ready is
// closed until leave.
func (t *admission) enter(group string, known bool, gone func() bool) *waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &waiter{ready: make(chan struct{}), since: time.Now(), gone: gone}
	w.in = &t.queues[0]
	if known {
		w.in = &t.queues[1]
	}
	w.in.push(group, w)
	t.grantLocked()
	if w.place != nil && t.stalled == nil && !t.ended {
		t.stalled = time.AfterFunc(stallTime, t.stall)
	}
	return w
}

// forget withdraws a request. It reports whether the slot had been given: then it must be
// left.
func (t *admission) forget(w *waiter) (given bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.place == nil {
		return !w.void
	}
	w.in.remove(w)
	return false
}

// resume counts a handshake that continues. It does not wait.
func (t *admission) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.computing++
}

// leave releases the slot of enter or resume.
func (t *admission) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.computing--
	t.grantLocked()
}

// answer counts a call in progress, until done is called.
func (t *admission) answer() (done func()) {
	t.mu.Lock()
	t.answering++
	t.mu.Unlock()
	once := sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.answering--
		t.grantLocked()
	})
	lease := time.AfterFunc(answerTime, once)
	return func() { lease.Stop(); once() }
}

// grantLocked gives slots to handshakes, as many as there are.
func (t *admission) grantLocked() {
	for t.computing < t.most && t.answering < maxAnswering && t.nextLocked() {
	}
}

// nextLocked gives one handshake a slot; false if none waits.
func (t *admission) nextLocked() bool {
	first := 1
	if t.inRow >= knownShare {
		first = 0
	}
	for _, i := range []int{first, 1 - first} {
		w := t.queues[i].pop()
		if w == nil {
			continue
		}
		if t.inRow++; i == 0 {
			t.inRow = 0
		}
		t.computing++
		close(w.ready)
		if t.stalled != nil {
			t.stalled.Reset(stallTime)
		}
		return true
	}
	return false
}

// waiting is the number of handshakes that wait.
func (t *admission) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queues[0].size + t.queues[1].size
}

// stall begins a handshake if none has begun for a while.
func (t *admission) stall() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || !t.nextLocked() { // which sets the timer again
		t.stalled = nil
	}
}

// end stops the timers.
func (t *admission) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	if t.stalled != nil {
		t.stalled.Stop()
	}
}

func (q *queue) push(group string, w *waiter) {
	g := q.groups[group]
	if g == nil {
		g = &waiting{key: group}
		g.place = q.order.PushBack(g)
		q.groups[group] = g
	}
	w.group = g
	w.place = g.list.PushBack(w)
	q.size++
}

// pop removes and returns the next one, or nil.
func (q *queue) pop() *waiter {
	e := q.order.Front()
	if e == nil {
		return nil
	}
	g, _ := e.Value.(*waiting)
	w, _ := g.list.Front().Value.(*waiter)
	q.order.MoveToBack(e)
	if time.Since(w.since) > longTime {
		w, _ = g.list.Back().Value.(*waiter)
		q.sweep(g, w)
	}
	q.remove(w)
	return w
}

// sweep removes the oldest of an address whose connections are closed, except one.
func (q *queue) sweep(g *waiting, but *waiter) {
	for range sweepMost {
		if w, _ := g.list.Front().Value.(*waiter); w != but && w.gone() {
			q.remove(w)
			w.void = true
			close(w.ready)
		}
	}
}

func (q *queue) remove(w *waiter) {
	g := w.group
	g.list.Remove(w.place)
	w.place = nil
	q.size--
	if g.list.Len() == 0 {
		q.order.Remove(g.place)
		delete(q.groups, g.key)
	}
}
