// Package refusals keeps what was refused lately, for people to see: peers, and what
// they claim. Whoever is refused tries again and again, so that what repeats itself
// is one refusal with a count; and nobody who is refused often, or for many reasons,
// pushes out the host that a person looks for.
package refusals

import (
	"slices"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/fairlist"
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
	mu   sync.Mutex        // guards list
	list *fairlist.List[T] // the one refused last at the end; nil if it is empty
}

// Add notes a refusal. It returns the earlier one that it repeats, and whether there
// is one.
func (l *List[T, P]) Add(x T, now time.Time) (earlier T, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		l.list = fairlist.New(Max, func(string) int { return Max }, T.By)
	}
	t := P(&x).times()
	*t = Times{First: now, Last: now, Count: 1}
	if i := slices.IndexFunc(l.list.All(), x.Repeats); i >= 0 {
		earlier, again = l.list.All()[i], true
		was := P(&earlier).times()
		t.First, t.Count = was.First, was.Count+1
		l.list.Delete(i)
	}
	l.list.Add(x)
	return earlier, again
}

// Forget drops refusals that are none any more.
func (l *List[T, P]) Forget(which func(T) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list != nil {
		l.list.DeleteFunc(which)
	}
}

// All are the refusals, the one refused last at the end.
func (l *List[T, P]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.list == nil {
		return nil
	}
	return slices.Clone(l.list.All())
}
