package main

import (
	"fmt"
	"path/filepath"
	"testing"
)

// TestListedSurvivorsExist checks that every listed survivor is a site: code that was
// rewritten has to be tested again.
func TestListedSurvivorsExist(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	there, times, next := map[string]bool{}, map[string]int{}, 0
	for _, dir := range packages() {
		sites, _, err := find(root, dir, &next)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sites {
			times[s.name()]++
			there[fmt.Sprintf("%s #%d", s.name(), times[s.name()])] = true
		}
	}
	if len(there) < 1000 {
		t.Fatalf("%d sites were found", len(there))
	}
	for s, reason := range expectedSurvivors() {
		if !there[s] {
			t.Errorf("survivors.txt has %q (%s), which is not a site any more", s, reason)
		}
	}
}
