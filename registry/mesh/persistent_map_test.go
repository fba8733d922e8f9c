package mesh

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestPersistentMap holds the map against one of Go's, and every earlier state of it
// against what it was.
func TestPersistentMap(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	type state struct {
		m    persistentMap[int, int]
		want map[int]int
	}
	var states []state
	now := state{want: map[int]int{}}
	for range 60 {
		next := state{want: maps.Clone(now.want)}
		edit := now.m.edit()
		for range rng.IntN(200) {
			k, v := rng.IntN(3000), rng.IntN(10)
			if rng.IntN(4) == 0 {
				edit.delete(k)
				delete(next.want, k)
				continue
			}
			edit.put(k, v)
			next.want[k] = v
		}
		next.m = edit.persistentMap
		states = append(states, next)
		now = next
	}
	for i, s := range states {
		if got := maps.Collect(s.m.all); !maps.Equal(got, s.want) || s.m.size != len(s.want) {
			t.Fatalf("state %d: %d entries (size %d), want %d", i, len(got), s.m.size, len(s.want))
		}
		for k := range 3000 {
			if s.m.get(k) != s.want[k] {
				t.Fatalf("state %d: %d is %d, want %d", i, k, s.m.get(k), s.want[k])
			}
		}
	}
}
