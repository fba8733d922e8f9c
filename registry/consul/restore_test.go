package consul_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
)

// restoredWithin bounds how long the catalog may differ from Consul's after a snapshot
// was restored.
const restoredWithin = 10 * time.Second

// A snapshot that is restored on a cluster that runs takes indexes back, and a blocking
// query with a later index is not answered for it. The catalog is that of the snapshot soon,
// in both modes, also for services of which nothing else changes.
func TestSnapshotRestoredOnLiveCluster(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			c := a.Client()
			fill(t, c, 12)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.SweepEvery = time.Hour
			r := start(t, cfg)
			r.awaitFresh("at the start")
			for restores := range 2 {
				snapshot := a.Cluster().Snapshot()
				instance{node: "n1", nodeAddress: "10.0.0.2", id: "s3-1", service: "s3", port: 9999}.register(t, c) // another port
				for _, gone := range []string{"s5-0", "s5-1", "s5-2", "s7-1"} {
					deregister(t, c, "n"+gone[strings.Index(gone, "-")+1:], gone)
				}
				instance{node: "n9", nodeAddress: "10.0.0.9", id: "new-0", service: "new", port: 80}.register(t, c)
				r.awaitFresh("changed")
				a.Cluster().Restore(snapshot)
				took := r.awaitFresh("restored")
				t.Logf("equal after %v", took.Round(time.Millisecond))
				if took > restoredWithin {
					t.Errorf("the catalog was another one than Consul's for %v", took)
				}
				r.awaitStatus("counted", func(st *consul.Status) bool { return live(st) && st.Restores == uint64(restores)+1 })
			}
			if n := strings.Count(r.log.String(), "Consul restored a snapshot"); n != 2 {
				t.Errorf("the log reports %d restores, want 2:\n%s", n, r.log)
			}
		})
	}
}
