package schema

import (
	"math/rand/v2"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// TestPlain holds what is seen at a glance against CEL, on values that rules speak
// of and on others that no schema would let through.
func TestPlain(t *testing.T) {
	t.Parallel()
	set, err := New()
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]bool{}
	seen := map[*Schema]bool{}
	var collect func(s *Schema) *Schema
	collect = func(s *Schema) *Schema {
		if seen[s] {
			return s
		}
		seen[s] = true
		for _, r := range s.Rules {
			rules[r.Rule] = true
		}
		s.children(collect)
		return s
	}
	for _, gvk := range set.Kinds() {
		collect(set.Lookup(gvk))
	}
	for rule, plainly := range plain {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			if !rules[rule] {
				t.Fatal("no schema has this rule any more")
			}
			r := rand.New(rand.NewPCG(1, 2))
			yes, broken := 0, 0
			for range 4_000 {
				n := randomValue(r, 3)
				holds, err := set.rule(rule).holds(n.JSON())
				if !holds {
					broken++
				}
				if !plainly(n) {
					continue
				}
				yes++
				if !holds {
					t.Fatalf("CEL says no (%v) of %v", err, n.JSON())
				}
			}
			if yes == 0 || broken == 0 {
				t.Errorf("of 4,000 values %d hold plainly, and %d do not hold", yes, broken)
			}
		})
	}
}

// randomValue is made of what the rules speak of.
func randomValue(r *rand.Rand, depth int) *tree.Node {
	kinds := []tree.Kind{tree.String, tree.Int, tree.Null, tree.Bool, tree.Float, tree.List, tree.Map, tree.Map}
	if depth == 0 {
		kinds = kinds[:5]
	}
	n := &tree.Node{Kind: kinds[r.IntN(len(kinds))]}
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	switch n.Kind {
	case tree.String:
		n.Text = pick("", "*", "a", "a*", "unix://", "unix:///a", "unix://@a", "unix:///a/", "unix", "10.0.0.0/8", "10.0.0.1",
			"NONE", "STATIC", "DNS", "DNS_ROUND_ROBIN", "DYNAMIC_DNS")
	case tree.Int:
		n.Int = []int64{-1, 0, 1, 2, 80, 65535, 65536}[r.IntN(7)]
		n.Float = float64(n.Int)
	case tree.Float:
		n.Float = []float64{-0.5, 0.5, 1, 80, 1e9}[r.IntN(5)]
	case tree.Bool:
		n.Bool = r.IntN(2) == 0
	case tree.List:
		for range r.IntN(4) {
			n.Items = append(n.Items, randomValue(r, depth-1))
		}
	case tree.Map:
		set := map[string]bool{}
		for range r.IntN(4) {
			key := pick("address", "network", "ports", "addresses", "resolution", "endpoints", "workloadSelector", "number", "number", "", "a*")
			if !set[key] {
				set[key] = true
				n.Fields = append(n.Fields, tree.Field{Key: key, Value: randomValue(r, depth-1)})
			}
		}
	case tree.Null:
	}
	return n
}
