package server

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNetworksFollowTheirFile: the networks of --mesh-networks are in force with the first snapshot,
// follow their file, and stay while it is broken, also after a restart. A first start with a broken
// file fails.
func TestNetworksFollowTheirFile(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshNetworksFile = filepath.Join(dir, "networks.yaml") // where it is no manifest
	put(t, cfg.MeshNetworksFile, "netwroks: {}\n")
	s, err := New(t.Context(), cfg)
	if err == nil {
		t.Fatalf("it started: %v", s.Close())
	}
	for _, want := range []string{"--mesh-networks", "networks.yaml:1:1", "netwroks"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	inForce := func(r *running, names ...string) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshNetworks == nil || len(s.DestinationRules) != 1 {
				return fmt.Errorf("in force: %+v", s)
			}
			if got := slices.Sorted(maps.Keys(s.MeshNetworks.Spec.GetNetworks())); !slices.Equal(got, names) {
				return fmt.Errorf("networks %v, want %v", got, names)
			}
			return nil
		})
	}
	put(t, cfg.MeshNetworksFile, "networks: {east: {}}\n")
	r := start(t, cfg)
	inForce(r, "east")
	put(t, cfg.MeshNetworksFile, "networks: {east: {}, west: {}}\n")
	inForce(r, "east", "west")
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{port: 1}]}}\n")
	faulty := func() error {
		s := r.sources()
		return s.fault("mesh-networks", "networks.yaml:1:30", "error")
	}
	r.eventually(faulty)
	inForce(r, "east", "west")
	r.stop()
	r = start(t, cfg)
	inForce(r, "east", "west")
	r.eventually(faulty)
	r.stop()
}
