package files

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestNetworksKeepTheirLastGoodVersion: a file of networks is watched; while it is broken, empty or gone,
// its last good version stays in force, also after a restart.
func TestNetworksKeepTheirLastGoodVersion(t *testing.T) {
	t.Parallel()
	top := treeOf(t, map[string]string{"networks.yaml": "networks: {a: {}}\n"})
	path := filepath.Join(top, "networks.yaml")
	cfg := Config{MeshNetworksFile: path, StateDir: t.TempDir(), Decoder: manifests{}}
	faults := func(r *running, some bool) {
		t.Helper()
		r.awaitStatus("faults", func(st *Status) bool { return len(st.Faults) > 0 == some })
	}
	r := start(t, cfg)
	r.Await("networks=[a]")
	write(t, top, map[string]string{"networks.yaml": "networks: {b: {}, c: {}}\n"})
	r.Await("networks=[b c]")
	for _, broken := range []string{"networks: {d: {gatways: []}}\n", "networks: {d: {endpoints: [{fromCidr: 10.0.0.0/99}]}}\n", "]", ""} {
		write(t, top, map[string]string{"networks.yaml": broken})
		faults(r, true)
		r.Await("networks=[b c]")
		write(t, top, map[string]string{"networks.yaml": "networks: {b: {}, c: {}} # again\n"})
		faults(r, false)
	}
	write(t, top, map[string]string{"networks.yaml": "]"})
	faults(r, true)
	r.Stop()
	r = start(t, cfg)
	r.Await("networks=[b c]")
	r.Stop()

	cfg.Logger, cfg.ScanInterval = discard(), time.Hour
	read := func(present, lastGood bool) {
		t.Helper()
		s, err := New(cfg)
		check(t, err)
		p, l, err := s.ReadMeshNetworks()
		if (p != nil) != present || (l != nil) != lastGood || (err == nil) != present {
			t.Errorf("present %v, last good %v, %v", p, l, err)
		}
	}
	read(false, true)
	check(t, os.Remove(path))
	read(false, true)
	cfg.StateDir = t.TempDir()
	read(false, false)
	write(t, top, map[string]string{"networks.yaml": "{}"})
	read(true, false)
}
