package registry_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
)

// counters are those that say what a change cost.
type counters struct{ reads, decodes, decoded, fragments, compared, merged, snapshots uint64 }

func (m *realMesh) counters() counters {
	st, f := m.r.Status(), m.src.Status().Counters
	return counters{f.Reads, f.Decodes, f.Objects, f.Fragments, st.Compared, st.Merged, st.Generation}
}

func (c counters) since(o counters) counters {
	return counters{
		c.reads - o.reads, c.decodes - o.decodes, c.decoded - o.decoded, c.fragments - o.fragments,
		c.compared - o.compared, c.merged - o.merged, c.snapshots - o.snapshots,
	}
}

// await waits until something holds, which a working registry does within
// milliseconds.
func (m *realMesh) await(what string, holds func() bool) {
	m.tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			m.tb.Fatalf("%s: not within a minute; %+v", what, m.counters())
		}
		quiet(2 * time.Millisecond)
	}
}

// TestCostOfAChange counts what each kind of change costs in a mesh of twenty
// services, two files and thirteen objects each.
func TestCostOfAChange(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	const services = 20
	m := startMesh(t, services, time.Nanosecond)
	defer m.end()
	m.await("start", func() bool { return m.counters().snapshots == 1 && m.src.Status().Files == 2*services })
	m.await("start", func() bool { return m.counters().compared == 13*services })
	if got, want := m.counters(), (counters{2 * services, 2 * services, 13 * services, 1, 13 * services, 13 * services, 1}); got != want {
		t.Errorf("start: %+v, want %+v", got, want)
	}
	hostsFile, routesFile := m.path(3, "hosts"), m.path(3, "routes")
	one := counters{1, 1, 1, 1, 1, 1, 1}
	for _, c := range []struct {
		name string
		edit func()
		want counters
	}{
		{"route_edited", func() { m.rename(routesFile, routes(3, 1)) }, counters{1, 1, 2, 1, 1, 1, 1}},
		{"the_same_again", func() { m.rename(routesFile, routes(3, 1)) }, counters{reads: 1}},
		{"touched", func() {
			if err := os.Chtimes(routesFile, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}, counters{reads: 1}},
		{"comment_below", func() { m.rename(routesFile, routes(3, 1)+"# the end\n") }, counters{1, 1, 2, 0, 0, 0, 0}},
		{"comment_above", func() { m.rename(routesFile, "# the start\n"+routes(3, 1)) }, counters{1, 1, 2, 1, 2, 2, 1}},
		{"endpoint_replaced", func() { m.rename(hostsFile, hosts(3, 1)) }, counters{1, 1, 11, 1, 1, 1, 1}},
		{"endpoint_moved", func() {
			m.rename(hostsFile, strings.ReplaceAll(hosts(3, 1), "address: 10.100.3.9", "address: 10.100.3.99"))
		}, counters{1, 1, 11, 1, 1, 1, 1}},
		{"endpoint_removed", func() { m.rename(hostsFile, without(hosts(3, 1))) }, counters{1, 1, 10, 1, 1, 1, 1}},
		{"endpoint_added", func() { m.rename(hostsFile, hosts(3, 1)) }, counters{1, 1, 11, 1, 1, 1, 1}},
		{"port_changed", func() {
			m.rename(hostsFile, strings.ReplaceAll(hosts(3, 1), "number: 8080", "number: 8081"))
		}, counters{1, 1, 11, 1, 1, 1, 1}},
		{"rule_edited", func() {
			m.rename(routesFile, "# the start\n"+strings.ReplaceAll(routes(3, 1), "maxConnections: 100", "maxConnections: 200"))
		}, counters{1, 1, 2, 1, 1, 1, 1}},
		{"renamed", func() { m.move(routesFile, routesFile+".yaml") }, counters{1, 1, 2, 1, 2, 2, 1}},
		{"renamed_back", func() { m.move(routesFile+".yaml", routesFile) }, counters{1, 1, 2, 1, 2, 2, 1}},
		{"sidecar_added", func() { m.rename(m.path(50, "sidecar"), sidecar("./*")) }, one},
		{"sidecar_edited", func() { m.rename(m.path(50, "sidecar"), sidecar("*/*")) }, one},
		{"peers_added", func() { m.rename(m.path(50, "peers"), peers("STRICT")) }, one},
		{"peers_edited", func() { m.rename(m.path(50, "peers"), peers("PERMISSIVE")) }, one},
		{"inline_added", func() { m.rename(m.path(50, "inline"), inline(1)) }, one},
		{"inline_endpoint_replaced", func() { m.rename(m.path(50, "inline"), inline(2)) }, one},
		// Of two objects the one that is broken stays as it was, and the other changes.
		{"one_of_two_broken", func() {
			m.rename(routesFile, "# the start\n"+strings.ReplaceAll(routes(3, 7), "maxConnections: 100", "maxConnections: many"))
		}, counters{1, 1, 2, 1, 1, 1, 1}},
		{"fixed", func() { m.rename(routesFile, "# the start\n"+routes(3, 1)) }, counters{1, 1, 2, 1, 2, 2, 1}},
		{"service_added", func() { m.rename(m.path(99, "hosts"), hosts(99, 0)) }, counters{1, 1, 11, 1, 11, 11, 1}},
		{"no_manifest", func() { m.rename(m.path(99, "hosts")+".txt", "nothing") }, counters{}},
		{"broken", func() { m.rename(routesFile, strings.ReplaceAll(routes(3, 2), "attempts: 3", "attempts: many")) }, counters{1, 1, 2, 1, 1, 1, 1}},
		{"removed", func() {
			if err := os.Remove(routesFile); err != nil {
				t.Fatal(err)
			}
		}, counters{0, 0, 0, 1, 2, 2, 1}},
	} {
		before := m.counters()
		events := m.src.Status().Counters.Events
		c.edit()
		m.await(c.name, func() bool {
			got := m.counters().since(before)
			return m.src.Status().Counters.Events > events && got.reads >= c.want.reads && got.snapshots >= c.want.snapshots
		})
		quiet(100 * time.Millisecond) // for what should not come
		if got := m.counters().since(before); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", c.want))
		}
	}
}

// without is a file without its last object.
func without(text string) string { return text[:strings.LastIndex(text, "---\n")] }

func sidecar(hosts string) string {
	return "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: default, namespace: team-00}\nspec: {egress: [{hosts: [\"" + hosts + "\"]}]}\n"
}

func peers(mode string) string {
	return "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: team-00}\nspec: {mtls: {mode: " + mode + "}}\n"
}

// inline is a service that names its endpoints itself.
func inline(last int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: inline, namespace: team-00}
spec:
  hosts: [inline.example.com]
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 10.200.0.1}, {address: 10.200.1.%d}]
`, last)
}

// move gives a file another name.
func (m *realMesh) move(from, to string) {
	m.tb.Helper()
	if err := os.Rename(from, to); err != nil {
		m.tb.Fatal(err)
	}
}

// TestCheckout changes the files of a fifth of all services at once, as the
// checkout of another branch does: proxies get them together.
func TestCheckout(t *testing.T) {
	t.Parallel()
	const services = 100
	m := startMesh(t, services, 0)
	defer m.end()
	m.await("start", func() bool { return m.counters().compared == 13*services && m.counters().snapshots > 0 })
	quiet(500 * time.Millisecond) // files are written in place at first, and may take several snapshots
	before := m.counters()
	began := time.Now()
	for i := 0; i < services; i += 5 {
		m.rename(m.path(i, "hosts"), hosts(i, 1))
		m.rename(m.path(i, "routes"), routes(i, 1))
	}
	m.await("all", func() bool { return m.counters().since(before).merged >= 2*services/5 })
	took := time.Since(began)
	quiet(300 * time.Millisecond) // for what should not come
	// What is written within a second makes two; a busy machine takes several.
	most := 2 * (1 + uint64(took/time.Second))
	if got := m.counters().since(before); got.merged != 2*services/5 || got.snapshots > most {
		t.Errorf("%+v after %s, want %d objects in at most %d snapshots", got, took, 2*services/5, most)
	}
}
