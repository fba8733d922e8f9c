package consul_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// awaitSaved waits until the state directory has what is in force.
func (r *rig) awaitSaved(began time.Time) {
	r.tb.Helper()
	path := filepath.Join(r.cfg.StateDir, "consul", "consul", "picture.json")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); time.Now().Before(late); <-tick.C {
		if fi, err := os.Stat(path); err == nil && fi.ModTime().After(began) {
			return
		}
	}
	r.tb.Fatal("nothing is saved")
}

// A restart while Consul is away begins with the last known catalog, mapped by the
// settings of the day; and what was lost meanwhile is lost in one step, after it.
func TestStoredCatalogSurvivesRestart(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Persistent = true
			a := consultest.Start(t, o)
			fill(t, a.Client(), 10)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.StateDir = t.TempDir()
			began := time.Now()
			r := start(t, cfg)
			r.awaitFresh("at the start")
			r.awaitSaved(began)
			before := text(r.Last())
			r.Stop()

			a.Kill()
			r = start(t, cfg)
			r.await("restarted without Consul", func(f *mesh.Fragment) bool { return text(f) == before })
			r.awaitStatus("restarted without Consul", func(st *consul.Status) bool {
				return st.State == consul.Stale && st.FromDisk && st.Delivered && st.Reason != "" && st.Read.After(began)
			})
			r.Stop()

			a.Start()
			for i := range 10 {
				deregister(t, a.Client(), "n1", fmt.Sprintf("s%d-1", i))
			}
			var err error
			if cfg.Mapper, err = mapping.New(mapping.Config{Hosts: []string{"{{.Service}}.other"}}); err != nil {
				t.Fatal(err)
			}
			r = start(t, cfg)
			r.awaitFresh("restarted with other settings")
			r.awaitStatus("restarted with other settings", func(st *consul.Status) bool { return live(st) && !st.FromDisk })
			all := r.fragments()
			if n := len(all[0].Workloads); n != 30 || all[0].Services[0].Hostname != "s0.other" {
				t.Errorf("the first fragment has %d workloads of %s, want 30 of s0.other", n, all[0].Services[0].Hostname)
			}
			for _, f := range all[1:] {
				if n := len(f.Workloads); n != 20 && n != 30 {
					t.Errorf("a fragment has %d workloads: the loss came in parts", n)
				}
			}
		})
	}
}

// What the receiver holds back is not forgotten on disk.
func TestHeldRemovalsStayOnDisk(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	fill(t, a.Client(), 4)
	cfg := config(t, a.Cluster(), a.Address())
	cfg.StateDir, cfg.AwaitDecision = t.TempDir(), true
	r := start(t, cfg)
	r.awaitFresh("at the start")
	began := time.Now()
	r.source.Decided(r.Last(), 0)
	r.awaitSaved(began)
	for i := range 3 {
		deregister(t, a.Client(), "n1", fmt.Sprintf("s%d-1", i))
	}
	r.awaitFresh("lost some")
	lost := r.Last()
	r.source.Decided(lost, 3)
	// What is held is looked at again, and the same is said again.
	seen := r.Again()
	r.await("said again", func(f *mesh.Fragment) bool { return r.Again() > seen && f == lost })
	r.Stop()

	r = start(t, cfg)
	r.awaitFresh("restarted")
	if n := len(r.fragments()[0].Workloads); n != 12 {
		t.Errorf("the first fragment has %d workloads, want 12: what was held is forgotten", n)
	}
	r.source.Decided(r.Last(), 0)
	r.awaitSaved(time.Now())
	r.Stop()

	r = start(t, cfg)
	r.awaitFresh("restarted again")
	if n := len(r.fragments()[0].Workloads); n != 9 {
		t.Errorf("the first fragment has %d workloads, want 9", n)
	}
}

// A damaged file is reported; only its own services are lost.
func TestDamagedStoreIsReported(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	fill(t, a.Client(), 4)
	cfg := config(t, a.Cluster(), a.Address())
	cfg.StateDir = t.TempDir()
	began := time.Now()
	r := start(t, cfg)
	r.awaitFresh("at the start")
	r.awaitSaved(began)
	r.Stop()
	files, err := filepath.Glob(filepath.Join(cfg.StateDir, "consul", "consul", "services-*.json"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	b := read(t, files[0])
	if err := os.WriteFile(files[0], []byte(strings.Replace(b, `"passing"`, `"failing"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	r = start(t, cfg)
	r.awaitFresh("with a damaged file")
	r.awaitStatus("with a damaged file", func(st *consul.Status) bool {
		return live(st) && strings.Contains(st.StateFault, filepath.Base(files[0]))
	})
}
