package weakmap

import (
	"runtime"
	"testing"
)

func TestOneValueForAKey(t *testing.T) {
	t.Parallel()
	var m Map[string, [64]byte]
	first, second := new([64]byte), new([64]byte)
	if m.Get("a") != nil {
		t.Error("a value that nobody put in")
	}
	if v, added := m.Keep("a", first); v != first || !added {
		t.Error("the first one was not kept")
	}
	if v, added := m.Keep("a", second); v != first || added {
		t.Error("a second one took its place")
	}
	if m.Get("a") != first || len(m.All()) != 1 {
		t.Error("it is not found")
	}
	runtime.KeepAlive(first)
}

// What nobody holds is forgotten, and its keys when there are many of them.
func TestForgets(t *testing.T) {
	t.Parallel()
	var m Map[int, [64]byte]
	held, _ := m.Keep(-1, new([64]byte))
	for i := range 100 * sweepAt {
		m.Keep(i, new([64]byte))
		if i%sweepAt == 0 {
			runtime.GC()
		}
	}
	runtime.GC()
	runtime.GC()
	if n := len(m.m); n > 4*sweepAt {
		t.Errorf("%d keys of nothing", n)
	}
	if m.Get(-1) != held || m.Get(0) != nil {
		t.Error("what is held is found, and nothing else")
	}
	runtime.KeepAlive(held)
}
