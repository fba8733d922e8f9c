package registry_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
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
	const services = 20
	m := startMesh(t, services, time.Nanosecond)
	defer m.end()
	m.await("start", func() bool { return m.counters().snapshots == 1 && m.src.Status().Files == 2*services })
	m.await("start", func() bool { return m.counters().compared == 13*services })
	if got, want := m.counters(), (counters{2 * services, 2 * services, 13 * services, 1, 13 * services, 13 * services, 1}); got != want {
		t.Errorf("start: %+v, want %+v", got, want)
	}
	hostsFile, routesFile := m.path(3, "hosts"), m.path(3, "routes")
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

// TestCheckout changes the files of a fifth of all services at once, as the
// checkout of another branch does: proxies get them together.
func TestCheckout(t *testing.T) {
	t.Parallel()
	const services = 300
	m := startMesh(t, services, 0)
	defer m.end()
	m.await("start", func() bool { return m.counters().compared == 13*services && m.counters().snapshots > 0 })
	quiet(500 * time.Millisecond) // files are written in place at first, and may take several snapshots
	before := m.counters()
	for i := 0; i < services; i += 5 {
		m.rename(m.path(i, "hosts"), hosts(i, 1))
		m.rename(m.path(i, "routes"), routes(i, 1))
	}
	m.await("all", func() bool { return m.counters().since(before).merged >= 2*services/5 })
	quiet(300 * time.Millisecond)
	if got := m.counters().since(before); got.merged != 2*services/5 || got.snapshots > 2 {
		t.Errorf("%+v, want %d objects in at most two snapshots", got, 2*services/5)
	}
}
