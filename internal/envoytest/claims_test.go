package envoytest

import (
	"testing"
)

// TestClaimsAreOfOneTest: what one test has, no other one gets before it ends.
func TestClaimsAreOfOneTest(t *testing.T) {
	t.Parallel()
	const blocks = 100
	seen := map[string]bool{}
	t.Run("held", func(t *testing.T) {
		for range blocks {
			p := Loopback(t, 254, 254)
			if seen[p] {
				t.Errorf("the block %s comes twice", p)
			}
			seen[p] = true
		}
		ports := map[int]bool{}
		for range 20 {
			for _, p := range FreePorts(t, 50) {
				if ports[p] {
					t.Errorf("the port %d comes twice", p)
				}
				ports[p] = true
			}
		}
	})
	for p := range seen {
		if !claim(t, p) {
			t.Errorf("the block %s is not free after the test", p)
		}
	}
}
