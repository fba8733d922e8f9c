package vhds

import "testing"

// TestEnvoyKeepsForm: a route configuration that crosses the threshold keeps its form.
func TestEnvoyKeepsForm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hosts []int
		has   Form
		want  bool
	}{
		"few":        {[]int{0, MaxInline, MaxInline + 1, 1000}, Unknown, false},
		"many":       {[]int{MaxInline + 1, MaxInline, 1, 0}, Unknown, true},
		"has-inline": {[]int{1000}, Inline, false},
		"has-vhds":   {[]int{3}, Separate, true},
	} {
		has := c.has
		for _, n := range c.hosts {
			got := Use(n, has)
			if got != c.want {
				t.Errorf("%s: %d hosts: by VHDS %t", name, n, got)
			}
			if has = Inline; got {
				has = Separate
			}
		}
	}
}

func TestSupported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		major, minor uint32
		want         bool
	}{{0, 0, false}, {1, 36, false}, {1, 37, false}, {1, 38, true}, {1, 40, true}, {2, 0, true}} {
		if got := Supported(c.major, c.minor); got != c.want {
			t.Errorf("%d.%d: %t", c.major, c.minor, got)
		}
	}
}
