package main

import (
	"fmt"
	"path/filepath"
	"testing"
)

// TestSurvivorsAreThere keeps the list of survivors to places that there are: code that
// was rewritten has to be asked anew.
func TestSurvivorsAreThere(t *testing.T) {
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
		t.Fatalf("%d places were found", len(there))
	}
	for s, reason := range explained() {
		if !there[s] {
			t.Errorf("survivors.txt has %q (%s), which is not there any more", s, reason)
		}
	}
}
