package tree_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// bomb is a few lines that stand for many values.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := range levels {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	return b.String()
}

func size(n *tree.Node) int {
	sum := 1
	for _, x := range n.Items {
		sum += size(x)
	}
	for _, f := range n.Fields {
		sum += size(f.Value)
	}
	return sum
}

// TestAliasesAreBounded: what a text costs is bounded by what is written in it.
func TestAliasesAreBounded(t *testing.T) {
	t.Parallel()
	sum, limited := 0, 0
	for _, doc := range tree.Parse([]byte(strings.Repeat(bomb(11)+"---\n", 3))) {
		sum += size(doc.Root)
		for _, p := range doc.Problems {
			if p.Code == tree.Limit {
				limited++
			}
		}
	}
	if sum > 30_000 || limited != 3 {
		t.Errorf("three documents of %d bytes became %d values, and %d are told to be too large", len(bomb(11)), sum, limited)
	}
}

// TestAliasesMayBeUsed: an anchor is for saying something many times.
func TestAliasesMayBeUsed(t *testing.T) {
	t.Parallel()
	text := "base: &b {hosts: [a, b, c, d, e, f, g, h], ports: [1, 2, 3, 4, 5, 6, 7, 8], x: {y: {z: 1}}}\nuses:\n" + strings.Repeat("- *b\n", 400)
	for _, text := range []string{text, bomb(2)} {
		for _, doc := range tree.Parse([]byte(text)) {
			if len(doc.Problems) > 0 {
				t.Error(doc.Problems)
			}
		}
	}
}

func BenchmarkBomb(b *testing.B) {
	text := []byte(bomb(11))
	b.ReportAllocs()
	for b.Loop() {
		tree.Parse(text)
	}
}
