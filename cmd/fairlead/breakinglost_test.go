package main

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestLosesMoreThanBefore: a server that lost one name has not lost all: the next change must not take the others
// without a word.
func TestLosesMoreThanBefore(t *testing.T) {
	t.Parallel()
	lost := func(names, reason string) view.Finding {
		return view.Finding{
			Kind: view.LeftOutServer, Object: mesh.Key{Kind: mesh.KindGateway, Namespace: "shop", Name: "g"},
			Server: "https", ListensAt: 443, Lost: names, Reason: reason,
		}
	}
	for _, c := range []struct {
		before, now string
		want        bool
	}{
		{"a.test", "", false},
		{"a.test", "a.test b.test", false},
		{"a.test", "b.test", false},
		{"", "", true},
		{"", "a.test", true},
		{"a.test", "a.test", true},
		{"a.test b.test", "b.test", true},
	} {
		if got := alreadyFailed(lost(c.now, "now"), map[view.Finding]int{lost(c.before, "before"): 1}); got != c.want {
			t.Errorf("before %q, now %q: failed already %v, want %v", c.before, c.now, got, c.want)
		}
	}
}
