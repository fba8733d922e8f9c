package refusals

import (
	"slices"
	"strconv"
	"testing"
	"time"
)

type refusal struct {
	host, what string
	Times
}

func (r refusal) Repeats(o refusal) bool { return r.host == o.host && r.what == o.what }
func (r refusal) By() string             { return r.host }

type list = List[refusal, *refusal]

// TestNobodyPushesOutAnother: whoever is refused most, authenticated or not, loses
// room, and nobody else does.
func TestNobodyPushesOutAnother(t *testing.T) {
	t.Parallel()
	for _, loud := range [][]string{{""}, {"liar"}, {"", "liar"}, {"a", "b", "c", ""}} {
		var l list
		now := time.Now()
		l.Add(refusal{host: "quiet"}, now)
		for i := range 2 * Max {
			for _, host := range loud {
				l.Add(refusal{host: host, what: strconv.Itoa(i)}, now)
			}
		}
		all := l.All()
		if len(all) != Max || all[0].host != "quiet" {
			t.Errorf("%q: %d are listed, the oldest %+v", loud, len(all), all[0])
		}
		for _, host := range loud {
			n := 0
			for _, x := range all {
				if x.host == host {
					n++
				}
			}
			if least := (Max - 1) / len(loud); n < least {
				t.Errorf("%q: %q has %d, want at least %d", loud, host, n, least)
			}
		}
	}
	var l list
	for i := range 2 * Max { // of as many hosts, the last ones
		l.Add(refusal{host: strconv.Itoa(i)}, time.Now())
	}
	if all := l.All(); len(all) != Max || all[0].host != strconv.Itoa(Max) {
		t.Errorf("%d are listed, the oldest %+v", len(all), all[0])
	}
}

func TestRepeatedRefusalsAreOne(t *testing.T) {
	t.Parallel()
	var l list
	start := time.Now()
	for i := range 3 {
		earlier, again := l.Add(refusal{host: "web", what: "token"}, start.Add(time.Duration(i)*time.Second))
		if again != (i > 0) || earlier.Count != i {
			t.Errorf("time %d: %+v, %v", i, earlier, again)
		}
	}
	l.Add(refusal{host: "web", what: "rate"}, start)
	l.Add(refusal{host: "db", what: "rate"}, start)
	l.Forget(func(r refusal) bool { return r.host == "db" })
	got := l.All()
	want := []refusal{
		{"web", "token", Times{start, start.Add(2 * time.Second), 3}},
		{"web", "rate", Times{start, start, 1}},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
