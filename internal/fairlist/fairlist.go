// Package fairlist keeps lists of limited length in which nobody takes the places of others: at
// the limit, the owner with the most elements loses its oldest. A list is not safe for concurrent
// use, and starts no goroutine.
package fairlist

import "slices"

// List has the newest elements, in the order in which they were added.
type List[T any] struct {
	all   int
	each  func(owner string) int
	owner func(T) string
	list  []T
	count map[string]int // by owner
}

// New makes a list of at most all elements, and at most each of one owner.
func New[T any](all int, each func(owner string) int, owner func(T) string) *List[T] {
	return &List[T]{all: all, each: each, owner: owner, count: map[string]int{}}
}

// Add adds an element. What it takes the place of is its owner's own, unless the list is full of
// owners that have fewer.
func (l *List[T]) Add(x T) {
	of := l.owner(x)
	l.list = append(l.list, x)
	l.count[of]++
	if l.count[of] > l.each(of) {
		l.dropOldest(func(o string) bool { return o == of })
	}
	if len(l.list) > l.all {
		most := 0
		for _, n := range l.count {
			most = max(most, n)
		}
		l.dropOldest(func(o string) bool { return l.count[o] == most })
	}
}

func (l *List[T]) dropOldest(of func(owner string) bool) {
	if i := slices.IndexFunc(l.list, func(x T) bool { return of(l.owner(x)) }); i >= 0 {
		l.Delete(i)
	}
}

// Delete removes the element at a place of All.
func (l *List[T]) Delete(i int) {
	l.forget(l.list[i])
	l.list = slices.Delete(l.list, i, i+1)
}

func (l *List[T]) forget(x T) {
	of := l.owner(x)
	if l.count[of]--; l.count[of] == 0 {
		delete(l.count, of)
	}
}

// DeleteFunc removes elements.
func (l *List[T]) DeleteFunc(which func(T) bool) {
	l.list = slices.DeleteFunc(l.list, func(x T) bool {
		gone := which(x)
		if gone {
			l.forget(x)
		}
		return gone
	})
}

// All are the elements, the newest at the end. They are not copied.
func (l *List[T]) All() []T { return l.list }

// First are the first n elements of a list, in its order, where owners take turns: who has many does
// not hide those who have few.
func First[T any](list []T, n int, owner func(T) string) []T {
	if len(list) <= n {
		return list
	}
	turn, byTurn := make([]int, len(list)), map[int]int{} // the how manieth of its owner each element is
	has := map[string]int{}
	for i, x := range list {
		of := owner(x)
		turn[i] = has[of]
		byTurn[has[of]]++
		has[of]++
	}
	whole, left := 0, n // turns of which all elements are taken, and places for those of the next
	for byTurn[whole] <= left {
		left -= byTurn[whole]
		whole++
	}
	out := make([]T, 0, n)
	for i, x := range list {
		if turn[i] < whole {
			out = append(out, x)
		} else if turn[i] == whole && left > 0 {
			out = append(out, x)
			left--
		}
	}
	return out
}
