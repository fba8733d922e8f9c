package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

const (
	// flips is how often a check changes to critical, and back to passing.
	flips = 100
	// instances is the number of instances of the service, whose checks change.
	instances = 3
)

// checks is the time from the change of a check in Consul until the Envoy of a client has it,
// for both ways of finding changes.
func checks(b *testing.B, r *report) {
	b.Helper()
	b.Run("table-watches", func(b *testing.B) {
		c := consultest.Start(b, consultest.Options{Persistent: true}).Cluster()
		newCatalog(b, c).flip(r, "one server, HTTP")
	})
	b.Run("watches", func(b *testing.B) {
		c := consultest.StartCluster(b, consultest.ClusterOptions{ACL: true, TLS: true})
		token := filepath.Join(b.TempDir(), "token")
		if err := os.WriteFile(token, []byte(c.ReadToken().Secret), 0o600); err != nil {
			b.Fatal(err)
		}
		newCatalog(b, c, "--consul-ca-file", c.CAFile, "--consul-token-file", token).flip(r, "three servers, HTTPS and ACLs")
	})
}

// catalog is a mesh of one client over a Consul.
type catalog struct {
	*meshtest.Mesh
	b      *testing.B
	consul *api.Client
}

func newCatalog(b *testing.B, c *consultest.Cluster, args ...string) *catalog {
	b.Helper()
	m := &catalog{Mesh: meshtest.New(b, "internal/e2e/consul/testdata/mesh", nil), b: b, consul: c.Leader().Client()}
	for i := range instances {
		m.turn(i, api.HealthPassing)
	}
	m.StartServer(append([]string{"--consul-address", c.Address(), "--consul-mesh-namespace", "shop", "--consul-loopback"}, args...)...)
	m.StartHost(meshtest.Host{Name: "client", Workload: "shop/client", Address: 11, Agent: []string{"--drain-time", "1s"}})
	m.AwaitLive("client")
	m.await(instances)
	return m
}

// turn registers an instance with a check of that status.
func (m *catalog) turn(i int, status string) {
	m.b.Helper()
	id, node := fmt.Sprintf("api-%d", i), fmt.Sprintf("host-%d", i)
	_, err := m.consul.Catalog().Register(&api.CatalogRegistration{
		Node: node, Address: m.Address(20 + i),
		Service: &api.AgentService{ID: id, Service: "api", Port: 9080, Meta: map[string]string{"protocol": "http"}},
		Check:   &api.AgentCheck{Node: node, CheckID: "service:" + id, ServiceID: id, Name: "alive", Status: status},
	}, nil)
	if err != nil {
		m.b.Fatal(err)
	}
}

// await waits until the client's Envoy sends requests to so many instances.
func (m *catalog) await(healthy int) {
	m.b.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		got, err := m.healthy()
		if err == nil && got == healthy {
			return
		}
		if time.Now().After(deadline) {
			m.b.Fatalf("%d instances are healthy, not %d: %v", got, healthy, err)
		}
	}
}

// healthy counts the instances that the client's Envoy sends requests to.
func (m *catalog) healthy() (int, error) {
	out, err := m.EnvoyAdmin("client", "/clusters")
	n := 0
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "outbound|9080||api.service.consul::") && strings.HasSuffix(strings.TrimSpace(line), "::health_flags::healthy") {
			n++
		}
	}
	return n, err
}

// flip changes checks, one after the other. The clock starts before the write to Consul.
func (m *catalog) flip(r *report, where string) {
	m.b.Helper()
	const budget = 500 // ms, for 99 of 100
	sides := []struct{ status, name string }{
		{api.HealthCritical, "Check turns critical, out of the Envoy: "}, {api.HealthPassing, "Check turns passing, back in the Envoy: "},
	}
	var figures []*figure
	for _, s := range sides {
		figures = append(figures, r.figure(figure{name: s.name + where, unit: "ms"}))
	}
	for i := range flips {
		for j, s := range sides {
			// At no fixed distance, so that it meets every phase of what is periodic.
			pause(200*time.Millisecond + rand.N(200*time.Millisecond))
			begin := time.Now()
			m.turn(i%instances, s.status)
			m.await(instances - 1 + j)
			figures[j].add(1000 * time.Since(begin).Seconds())
		}
	}
	for j, s := range sides {
		v := slices.Sorted(slices.Values(figures[j].values))
		tail := r.figure(figure{name: s.name + where + ", 99th percentile", unit: "ms", budget: budget})
		tail.add(v[(99*len(v)+99)/100-1])
	}
}
