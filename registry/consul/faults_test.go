package consul_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
)

// fill registers services s0... with three instances each.
func fill(tb testing.TB, c *api.Client, services int) {
	tb.Helper()
	for i := range services {
		for j := range 3 {
			instance{
				node: fmt.Sprint("n", j), nodeAddress: fmt.Sprint("10.0.0.", j+1), id: fmt.Sprintf("s%d-%d", i, j),
				service: fmt.Sprint("s", i), port: 8000 + i,
			}.register(tb, c)
		}
	}
}

func tokenFile(tb testing.TB, secret string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "token")
	replace(tb, path, secret)
	return path
}

// replace writes a token as tools that rotate them do.
func replace(tb testing.TB, path, secret string) {
	tb.Helper()
	if err := os.WriteFile(path+".new", []byte(secret+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

func live(st *consul.Status) bool { return st.State == consul.Live }

// Whatever befalls a cluster, the catalog cache stays while it cannot be read, and is
// as a fresh reading soon after it can.
func TestCatalogSurvivesClusterFaults(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]consultest.ClusterOptions{"tables": {ACL: true}, "watches": {ACL: true, TLS: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := consultest.StartCluster(t, o)
			fill(t, cluster.Client(), 8)
			cfg := config(t, cluster, cluster.Address())
			cfg.Client.TokenFile = tokenFile(t, cluster.ReadToken().Secret)
			cfg.SweepEvery = time.Hour
			r := start(t, cfg)
			r.awaitFresh("at the start")
			whole := len(r.Last().Workloads)
			port := 9000
			step := func(what string, f func()) {
				t.Helper()
				seen := len(r.fragments())
				f()
				for _, f := range r.fragments()[seen:] {
					if len(f.Workloads) < whole {
						t.Errorf("%s: a fragment has %d workloads of %d", what, len(f.Workloads), whole)
					}
				}
				port++
				instance{node: "n1", nodeAddress: "10.0.0.2", id: "s3-1", service: "s3", port: port}.register(t, cluster.Client())
				t.Logf("%s: equal after %v", what, r.awaitFresh(what).Round(time.Millisecond))
				r.awaitStatus(what, live)
			}
			step("leader killed", func() { cluster.KillLeader() })
			step("all there again", cluster.Start)
			step("all restarted", cluster.RestartAll)
			step("connections reset", cluster.Front().Reset)
			step("cut and healed", func() {
				cluster.Front().Cut()
				r.awaitStatus("cut", func(st *consul.Status) bool { return st.State == consul.Stale && st.Reason != "" })
				instance{node: "n2", nodeAddress: "10.0.0.3", id: "s1-2", service: "s1", port: 7777}.register(t, cluster.Client())
				cluster.Front().Heal()
			})
			snapshot := cluster.Snapshot()
			step("restored", func() { cluster.Restore(snapshot) })
		})
	}
}

// A datacenter that lost its data loses it in the mesh at once, in one piece, so
// that the registry can judge it; and has it again when it is restored.
func TestLostDataIsOneRemoval(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Persistent = true
			a := consultest.Start(t, o)
			fill(t, a.Client(), 20)
			r := start(t, config(t, a.Cluster(), a.Address()))
			r.awaitFresh("at the start")
			snapshot := a.Cluster().Snapshot()
			a.Kill()
			a.Wipe()
			seen := len(r.fragments())
			a.Start()
			r.await("empty", func(f *mesh.Fragment) bool { return len(f.Workloads) == 0 })
			for _, f := range r.fragments()[seen:] {
				if n := len(f.Workloads); n != 0 && n != 60 {
					t.Errorf("a fragment has %d workloads: the loss came in parts", n)
				}
			}
			a.Cluster().Restore(snapshot)
			t.Logf("equal after %v", r.awaitFresh("restored"))
			if n := len(r.Last().Workloads); n != 60 {
				t.Errorf("restored: %d workloads, want 60", n)
			}
		})
	}
}

// A network that loses everything is found out, and what waits on its connections
// is restarted when it is back.
func TestStalledNetworkIsDetected(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			fill(t, a.Client(), 4)
			r := start(t, config(t, a.Cluster(), a.Cluster().Address()))
			r.awaitFresh("at the start")
			a.Cluster().Front().Stall()
			instance{node: "n1", nodeAddress: "10.0.0.2", id: "s1-1", service: "s1", port: 9999}.register(t, a.Client())
			r.awaitStatus("stalled", func(st *consul.Status) bool { return st.State == consul.Stale })
			a.Cluster().Front().Heal()
			took := r.await("healed", func(f *mesh.Fragment) bool { return workload(f, "/s1-1").Ports["tcp"] == 9999 })
			t.Logf("followed after %v", took.Round(time.Millisecond))
			r.awaitStatus("healed", live)
		})
	}
}

// A token that is revoked, or may see less, takes nothing away; another one in
// its file counts soon.
func TestNarrowerTokensRemoveNothing(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.ACL = true
			a := consultest.Start(t, o)
			c := a.Client()
			fill(t, c, 4)
			cfg := config(t, a.Cluster(), a.Address())
			first := a.Cluster().ReadToken()
			cfg.Client.TokenFile = tokenFile(t, first.Secret)
			r := start(t, cfg)
			r.awaitFresh("at the start")
			whole := text(r.Last())
			stands := func(what string) {
				t.Helper()
				if text(r.Last()) != whole {
					t.Errorf("%s: the catalog is\n%s", what, text(r.Last()))
				}
			}

			replace(t, cfg.Client.TokenFile, a.Cluster().CreateToken(`node_prefix "" { policy = "read" } service "s1" { policy = "read" }`).Secret)
			r.awaitStatus("less to see", func(st *consul.Status) bool { return st.Hidden && len(st.Denied) == 5 && live(st) })
			stands("a token for one service")
			if d := r.source.Status().Denied; !slices.ContainsFunc(d, func(s string) bool { return strings.HasPrefix(s, `service:read on "s0"`) }) {
				t.Errorf("denied is %q", d)
			}

			replace(t, cfg.Client.TokenFile, a.Cluster().CreateToken(`node "n1" { policy = "read" } service_prefix "" { policy = "read" }`).Secret)
			r.awaitStatus("one node", func(st *consul.Status) bool {
				return slices.ContainsFunc(st.Denied, func(s string) bool { return strings.HasPrefix(s, "node:read") })
			})
			stands("a token for one node")

			replace(t, cfg.Client.TokenFile, "6a1253d2-1785-24fd-91c2-f8e78c745511")
			r.awaitStatus("unknown token", func(st *consul.Status) bool { return st.State == consul.Stale && len(st.Denied) > 0 })
			stands("an unknown token")

			instance{node: "n1", nodeAddress: "10.0.0.2", id: "s1-1", service: "s1", port: 9999}.register(t, c)
			replace(t, cfg.Client.TokenFile, a.Cluster().ReadToken().Secret)
			t.Logf("equal after %v", r.awaitFresh("a good token"))
			r.awaitStatus("a good token", func(st *consul.Status) bool { return live(st) && len(st.Denied) == 0 && !st.Hidden })

			// What a rule allows again is found without another token.
			self, _, err := a.ClientWith(strings.TrimSpace(read(t, cfg.Client.TokenFile))).ACL().TokenReadSelf(nil)
			if err != nil {
				t.Fatal(err)
			}
			policy, _, err := c.ACL().PolicyRead(self.Policies[0].ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			rules := policy.Rules
			policy.Rules = `node_prefix "" { policy = "read" }`
			if policy, _, err = c.ACL().PolicyUpdate(policy, nil); err != nil {
				t.Fatal(err)
			}
			instance{node: "n1", nodeAddress: "10.0.0.2", id: "s1-1", service: "s1", port: 9998}.register(t, c)
			r.awaitStatus("rules taken away", func(st *consul.Status) bool { return len(st.Denied) > 0 })
			if n := len(r.Last().Workloads); n != 12 {
				t.Errorf("rules taken away: %d workloads, want 12", n)
			}
			policy.Rules = rules
			if _, _, err = c.ACL().PolicyUpdate(policy, nil); err != nil {
				t.Fatal(err)
			}
			t.Logf("rules given again: equal after %v", r.awaitFresh("rules given again"))
		})
	}
}

func read(tb testing.TB, path string) string {
	tb.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}
