package accept

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// Whatever comes and goes, the pool keeps its bounds, and for one that comes the
// oldest of the largest group goes, or of its own where that is full.
func TestPoolIsBoundedAndFair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPool(1+r.IntN(12), r.IntN(5))
		var in []*conn // in the order in which they came
		of := func(g string) int {
			n := 0
			for _, c := range in {
				if c.group == g {
					n++
				}
			}
			return n
		}
		for range 2000 {
			if len(in) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(in))
				p.remove(in[i])
				in = slices.Delete(in, i, i+1)
				continue
			}
			c := &conn{group: strconv.Itoa(r.IntN(6))}
			most := 0
			for g := range 6 {
				most = max(most, of(strconv.Itoa(g)))
			}
			own, full := of(c.group), len(in) == p.most
			victim := p.add(c)
			switch {
			case p.mostPerGroup > 0 && own == p.mostPerGroup:
				if victim == nil || victim.group != c.group {
					t.Fatalf("seed %d: its address has all that it may, and %+v goes", seed, victim)
				}
			case full:
				if victim == nil || of(victim.group) != most {
					t.Fatalf("seed %d: the pool is full, and %+v goes", seed, victim)
				}
			case victim != nil:
				t.Fatalf("seed %d: there is room, and %+v goes", seed, victim)
			}
			if victim != nil {
				i := slices.IndexFunc(in, func(o *conn) bool { return o.group == victim.group })
				if in[i] != victim {
					t.Fatalf("seed %d: not the oldest of its address goes", seed)
				}
				in = slices.Delete(in, i, i+1)
			}
			in = append(in, c)
			if p.size != len(in) || p.size > p.most || len(p.groups) > p.size {
				t.Fatalf("seed %d: %d connections of %d, %d groups", seed, p.size, len(in), len(p.groups))
			}
		}
	}
}
