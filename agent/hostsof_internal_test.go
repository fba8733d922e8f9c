package agent

import (
	"slices"
	"testing"
)

// TestNamesOfServers: what is never answered are the names of servers, without their ports.
func TestNamesOfServers(t *testing.T) {
	t.Parallel()
	got := hostsOf([]string{"mesh.lab:15012", "10.0.0.1:15012", "[2001:db8::1]:15012", "control:1", "odd", ":15012"})
	if want := []string{"mesh.lab", "control"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
}
