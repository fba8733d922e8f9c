package accept

import (
	"container/list"
	"runtime"
	"sync"
	"time"
)

// Limits of [turns].
const (
	// maxAnswering is how many calls may be answered while handshakes begin.
	// Most of the time of an answer is the disk's, which takes many at once.
	maxAnswering = 32
	// answerTime is how long one answer holds up handshakes: a disk that does not
	// answer must not keep hosts from reconnecting.
	answerTime = 2 * time.Second
	// stallTime is after how long a handshake begins whatever else computes.
	stallTime = time.Second
	// longTime is after what wait of the oldest of an address the newest comes first.
	// Where many wait for longer than their clients do, the oldest are those that
	// are gone before they are served; only who has just come will be there.
	longTime = 3 * time.Second
	// sweepMost is how many of the oldest are looked at then, whether they are gone.
	sweepMost = 4
	// knownShare is how many handshakes from addresses of authenticated peers
	// begin for one from another address.
	knownShare = 3
)

// turns decides when a handshake begins. Work that was begun is finished before
// new work: only handshakes that have not begun wait, and they wait while a CPU's
// worth of other work is there. Nobody holds a turn while the server waits for a
// peer's bytes.
//
// Among those that wait, addresses take turns. Addresses of authenticated peers
// have a queue of their own.
type turns struct {
	most int // that compute at a time. Constant

	mu        sync.Mutex // guards all following fields
	computing int        // handshakes that compute now
	answering int        // calls that are answered now
	queues    [2]queue   // others, known
	inRow     int        // of known ones, since one of the others
	stalled   *time.Timer
	ended     bool
}

// waiter is a handshake that waits.
type waiter struct {
	ready chan struct{} // closed when it may begin, or shall not
	since time.Time
	gone  func() bool // whether its peer has closed the connection
	void  bool        // it does not begin: it is gone. Written before ready is closed
	in    *queue
	group *waiting
	place *list.Element // nil: it does not wait any more
}

// queue is handshakes in the order in which they begin: one of each address in turn.
type queue struct {
	groups map[string]*waiting
	order  list.List // of *waiting, the next first
	size   int       // handshakes
}

// waiting is the handshakes of one address, the oldest first.
type waiting struct {
	key   string
	list  list.List // of *waiter
	place *list.Element
}

func newTurns() *turns {
	t := &turns{most: runtime.GOMAXPROCS(0)}
	for i := range t.queues {
		t.queues[i].groups = map[string]*waiting{}
	}
	return t
}

// enter asks for a turn for a handshake that has not begun. It computes when ready
// is closed, until leave.
func (t *turns) enter(group string, known bool, gone func() bool) *waiter {
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

// forget takes back what was entered. It reports whether the turn had been given:
// then it is to be left.
func (t *turns) forget(w *waiter) (given bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.place == nil {
		return !w.void
	}
	w.in.remove(w)
	return false
}

// resume counts a handshake that goes on. It does not wait.
func (t *turns) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.computing++
}

// leave ends what enter or resume began.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.computing--
	t.grantLocked()
}

// answer counts a call that is being answered, until done is called.
func (t *turns) answer() (done func()) {
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

// grantLocked lets handshakes begin, as many as there is room for.
func (t *turns) grantLocked() {
	for t.computing < t.most && t.answering < maxAnswering && t.nextLocked() {
	}
}

// nextLocked lets one handshake begin; false if none waits.
func (t *turns) nextLocked() bool {
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

// waiting is how many handshakes wait.
func (t *turns) waiting() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queues[0].size + t.queues[1].size
}

// stall lets a handshake begin where none has begun for a while.
func (t *turns) stall() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || !t.nextLocked() { // which sets the timer again
		t.stalled = nil
	}
}

// end ends what turns does by itself.
func (t *turns) end() {
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

// pop takes out who is next, or nil.
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

// sweep takes out the oldest of an address that are gone, but for one.
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
