package fold

import "testing"

// A table that passes the threshold by one host, and back, never goes over.
func TestSplitStays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hosts []int
		has   Form
		want  bool
	}{
		"few":       {[]int{0, Few, Few + 1, 1000}, Unknown, false},
		"many":      {[]int{Few + 1, Few, 1, 0}, Unknown, true},
		"has-whole": {[]int{1000}, Whole, false},
		"has-it":    {[]int{3}, InPieces, true},
	} {
		has := c.has
		for _, n := range c.hosts {
			got := Split(n, has)
			if got != c.want {
				t.Errorf("%s: %d hosts: in pieces %t", name, n, got)
			}
			if has = Whole; got {
				has = InPieces
			}
		}
	}
}

func TestTakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		major, minor uint32
		want         bool
	}{{0, 0, false}, {1, 36, false}, {1, 37, false}, {1, 38, true}, {1, 40, true}, {2, 0, true}} {
		if got := Takes(c.major, c.minor); got != c.want {
			t.Errorf("%d.%d: %t", c.major, c.minor, got)
		}
	}
}
