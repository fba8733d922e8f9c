// Package refusals keeps what was refused lately, for people to see: peers, and what
// they claim. Whoever is refused tries again and again, so that what repeats itself
// is one refusal with a count; and nobody who is refused often, or for many reasons,
// pushes out the host that a person looks for.
package refusals

import (
	"slices"
	"sync"
	"time"
)

const (
	// Max is how many refusals a list has.
	Max = 256
	// QuietFor is how long a refusal that repeats itself is no news.
	QuietFor = 10 * time.Minute
)

// Times say when something was refused, and how often. A type of refusals embeds it.
type Times struct {
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	Count int       `json:"count"`
}

func (t *Times) times() *Times { return t }

// Refusal is a type of refusals.
type Refusal[T any] interface {
	// Repeats reports whether it is an earlier one again.
	Repeats(earlier T) bool
	// By is the host that caused it, empty for all peers that have proved nothing.
	By() string
}

// List has the last refusals. It may be used from any goroutine; its zero value is
// empty.
type List[T Refusal[T], P interface {
	*T
	times() *Times
}] struct {
	mu   sync.Mutex // guards list
	list []T        // the one refused last at the end
}

// Add notes a refusal. It returns the earlier one that it repeats, and whether there
// is one.
func (l *List[T, P]) Add(x T, now time.Time) (earlier T, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := P(&x).times()
	*t = Times{First: now, Last: now, Count: 1}
	if i := slices.IndexFunc(l.list, x.Repeats); i >= 0 {
		earlier, again = l.list[i], true
		was := P(&earlier).times()
		t.First, t.Count = was.First, was.Count+1
		l.list = slices.Delete(l.list, i, i+1)
	}
	if l.list = append(l.list, x); len(l.list) > Max {
		l.dropLoudest()
	}
	return earlier, again
}

// dropLoudest drops the oldest refusal of the host with most of them.
func (l *List[T, P]) dropLoudest() {
	count, most := map[string]int{}, 0
	for _, x := range l.list {
		count[x.By()]++
		most = max(most, count[x.By()])
	}
	i := slices.IndexFunc(l.list, func(x T) bool { return count[x.By()] == most })
	l.list = slices.Delete(l.list, i, i+1)
}

// Forget drops refusals that are none any more.
func (l *List[T, P]) Forget(which func(T) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, which)
}

// All are the refusals, the one refused last at the end.
func (l *List[T, P]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}
