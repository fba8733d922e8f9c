package loglimit

import (
	"strconv"
	"testing"
	"time"
)

func TestLimiterAllowsABurstAndThenARate(t *testing.T) {
	t.Parallel()
	l := Limiter{Burst: 3, Every: time.Second}
	now := time.Unix(1000, 0)
	lines := 0
	for range 100 {
		if _, ok := l.Allow(now); ok {
			lines++
		}
	}
	if lines != 3 {
		t.Errorf("%d lines at once, want 3", lines)
	}
	omitted, ok := l.Allow(now.Add(time.Second))
	if !ok || omitted != 97 {
		t.Errorf("a second later: %d omitted, %v; want 97, true", omitted, ok)
	}
	if _, ok := l.Allow(now.Add(-time.Hour)); ok {
		t.Error("a clock that goes back gives more lines")
	}
	if l.Idle(now.Add(time.Hour)) {
		t.Error("it is idle, and has not told of a line that was left out")
	}
	l.Omit(2)
	if got := l.Omitted(); got != 3 {
		t.Errorf("%d lines were left out of which nothing was told, want 3", got)
	}
	if omitted, ok := l.TakeOmitted(now.Add(time.Hour)); !ok || omitted != 3 || l.Idle(now.Add(time.Hour)) {
		t.Errorf("an hour later: %d omitted, %v, or idle", omitted, ok)
	}
	if omitted, ok := l.TakeOmitted(now.Add(time.Hour)); ok || omitted != 0 {
		t.Errorf("nothing was left out, and a line is allowed for it: %d", omitted)
	}
	if !l.Idle(now.Add(2 * time.Hour)) {
		t.Error("it is never idle")
	}
}

// However many keys there are, all together get no more than the allowance of
// all, and what is remembered is bounded.
func TestAllKeysTogetherAreBounded(t *testing.T) {
	t.Parallel()
	l := ByKey{Each: Allowance{2, time.Minute}, All: Allowance{10, time.Second}}
	now := time.Unix(1000, 0)
	lines := 0
	for i := range 5 * maxKeys {
		if _, ok := l.Allow(strconv.Itoa(i), now); ok {
			lines++
		}
	}
	if lines != 10 || len(l.keys) > maxKeys {
		t.Errorf("%d lines and %d keys, want 10 and at most %d", lines, len(l.keys), maxKeys)
	}
	if omitted, ok := l.Allow("late", now.Add(2*time.Minute)); !ok || omitted != 5*maxKeys-10 {
		t.Errorf("later: %d omitted, %v", omitted, ok)
	}
}

// A key that asks without end leaves the others their lines.
func TestOneKeyLeavesTheOthersTheirLines(t *testing.T) {
	t.Parallel()
	l := ByKey{Each: Allowance{2, time.Minute}, All: Allowance{10, time.Second}}
	now := time.Unix(1000, 0)
	lines := 0
	for range 1000 {
		if _, ok := l.Allow("loud", now); ok {
			lines++
		}
	}
	if _, ok := l.Allow("quiet", now); !ok || lines != 2 {
		t.Errorf("the loud one has %d lines, want 2; the quiet one: %v, want true", lines, ok)
	}
}
