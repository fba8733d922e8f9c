package bench

import (
	"math"
	"slices"
	"testing"
)

// medianOf is the value in the middle, or between the two in the middle.
func medianOf(values []float64) float64 {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// medianRank is how many values from each end the 95 % interval of the median of n values
// ends, counted from 1: the greatest rank for which at most 2.5 % of all samples have their
// true median below it. 0 where there are too few values for such an interval.
func medianRank(n int) int {
	below, p := 0.0, math.Pow(0.5, float64(n)) // of a binomial distribution: rank values are below the median
	for rank := range n {
		if below += p; below > 0.025 {
			return rank
		}
		p *= float64(n-rank) / float64(rank+1)
	}
	return 0
}

// intervalOf is a 95 % interval of the median, by order statistics, which need no assumption of
// how values are distributed. Of fewer than six values it is all of them.
func intervalOf(values []float64) (low, high float64) {
	v := slices.Sorted(slices.Values(values))
	rank := max(medianRank(len(v)), 1)
	return v[rank-1], v[len(v)-rank]
}

// over is one by the other, value by value.
func over(with, without []float64) []float64 {
	out := make([]float64, len(with))
	for i := range with {
		out[i] = with[i] / without[i]
	}
	return out
}

func TestMedians(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values            []float64
		median, low, high float64
	}{
		{[]float64{3}, 3, 3, 3},
		{[]float64{4, 1, 2}, 2, 1, 4},
		{[]float64{5, 4, 1, 2}, 3, 1, 5},
		{[]float64{6, 5, 4, 3, 2, 1}, 3.5, 1, 6},
		{[]float64{16, 1, 15, 2, 14, 3, 13, 4, 12, 5, 11, 6, 10, 7, 9, 8}, 8.5, 4, 13},
	} {
		kept := slices.Clone(c.values)
		low, high := intervalOf(c.values)
		if m := medianOf(c.values); m != c.median || low != c.low || high != c.high {
			t.Errorf("of %v: median %v, %v to %v; want %v, %v to %v", c.values, m, low, high, c.median, c.low, c.high)
		}
		if !slices.Equal(kept, c.values) {
			t.Errorf("%v were moved: %v", kept, c.values)
		}
	}
}

// TestMedianRanks has the ranks of tables of the sign test.
func TestMedianRanks(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{1: 0, 5: 0, 6: 1, 8: 1, 9: 2, 10: 2, 15: 4, 16: 4, 17: 5, 20: 6, 24: 7, 25: 8, 50: 18, 100: 40} {
		if got := medianRank(n); got != want {
			t.Errorf("of %d values: rank %d, want %d", n, got, want)
		}
	}
}

// TestCorrected: what a variant costs is divided by what two meshes without it differ.
func TestCorrected(t *testing.T) {
	t.Parallel()
	v := variantCosts{with: pairs{on: []float64{300, 330}, off: []float64{200, 220}}}
	idle := pairs{on: []float64{100, 220}, off: []float64{80, 200}}
	if got := v.with.ratios(); !slices.Equal(got, []float64{1.5, 1.5}) {
		t.Errorf("with by without: %v", got)
	}
	got := v.corrected(idle)
	for i, want := range []float64{1.2, 1.5 / 1.1} {
		if math.Abs(got[i]-want) > 1e-9 {
			t.Errorf("corrected, round %d: %v, want %v", i, got[i], want)
		}
	}
}

// TestBudgets: one is for the end of the interval, the other for the median.
func TestBudgets(t *testing.T) {
	t.Parallel()
	narrow, wide := []float64{1.05, 1.06, 1.07}, []float64{1.05, 1.06, 1.10}
	for _, c := range []struct {
		budget budget
		values []float64
		want   string
	}{
		{budget{}, wide, ""},
		{budget{interval: 1.10}, narrow, "met"},
		{budget{interval: 1.10}, wide, "**missed**"},
		{budget{median: 1.06}, wide, "met"},
		{budget{median: 1.05}, wide, "**missed**"},
	} {
		if got := c.budget.result(c.values); got != c.want {
			t.Errorf("%+v of %v: %q, want %q", c.budget, c.values, got, c.want)
		}
	}
}
