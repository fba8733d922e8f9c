package consul

import (
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// lookLoop has two services, of which one has just lost an instance that the
// receiver holds back.
func lookLoop(t *testing.T) *loop {
	t.Helper()
	l := readyLoop(t)
	l.listedNow(client.Meta{Generation: 1, Index: 10}, at(0), "api", "web")
	l.watchesOutdated = false
	for _, name := range []string{"api", "web"} {
		l.services[name].watched = true
		l.wasWatched(l.answer(name, client.Meta{Generation: 1, Index: 100, Fresh: true, Asked: at(0)}, "n1", "n2"), at(0))
	}
	l.step(t.Context(), at(1))
	l.out = nil
	l.wasWatched(l.answer("web", client.Meta{Generation: 1, Index: 101, Asked: at(1)}, "n1"), at(2))
	l.step(t.Context(), at(4))
	l.expectInstances(t, "web", 1)
	l.out = nil
	l.s.Decided(l.last, 1)
	return l
}

// serve answers all that is asked until nothing is, and returns what was.
func (l *loop) serve(t *testing.T, now time.Time) []string {
	t.Helper()
	var asked []string
	for range 100 {
		l.step(t.Context(), now)
		k, tasks := l.nextTask(now)
		switch {
		case tasks == nil:
			return asked
		case k.name == "":
			l.started(k)
			l.wasListed(listing{"api": 0, "web": 0}, client.Meta{Generation: 1, Index: 10, Fresh: true, Asked: now}, nil, now)
		case k.index > 0:
			l.started(k)
			asked = append(asked, "index "+k.name)
			l.wasRead(k, &reading{name: k.name, unchanged: true, Meta: client.Meta{Generation: 1, Index: k.index, Fresh: true, Asked: now}}, now)
		default:
			l.started(k)
			asked = append(asked, "read "+k.name)
			l.wasRead(k, l.answer(k.name, client.Meta{Generation: 1, Index: 101, Fresh: true, Asked: now}, "n1"), now)
		}
	}
	t.Fatal("it asks without an end")
	return nil
}

// TestHeldRemovalsAreReadAgain: before a fragment of which something is held is sent
// again, what it lost is read, and all is looked at, also where there are watches.
func TestHeldRemovalsAreReadAgain(t *testing.T) {
	t.Parallel()
	l := lookLoop(t)
	if asked := l.serve(t, at(5)); len(asked) > 0 || l.out != nil {
		t.Fatalf("at once it asks %q, and sends %t", asked, l.out != nil)
	}
	asked := l.serve(t, at(15))
	slices.Sort(asked)
	if want := []string{"index api", "read web"}; !slices.Equal(asked, want) {
		t.Errorf("it asks %q, want %q", asked, want)
	}
	if l.out == nil {
		t.Error("it is not sent again")
	}
}

// TestRechecksOfHeldRemovalsEnd: a few looks tell the receiver what
// it can be told.
func TestRechecksOfHeldRemovalsEnd(t *testing.T) {
	t.Parallel()
	l := lookLoop(t)
	looks, late := 0, 0
	for s := range 200 {
		asked := l.serve(t, at(5+float64(s)))
		if len(asked) == 0 {
			continue
		}
		if slices.Contains(asked, "read web") {
			looks++
		}
		if s > 60 {
			late++
		}
	}
	if looks < 2 || looks > recheckMax || late > 0 {
		t.Errorf("it looked %d times, %d questions were late", looks, late)
	}
	// More that is held is another matter.
	l.s.Decided(l.last, 2)
	if l.serve(t, at(206)); l.recheckCount != 0 {
		t.Error("it is not looked at again")
	}
	if len(l.serve(t, at(212))) == 0 {
		t.Error("it is not looked at soon")
	}
}
