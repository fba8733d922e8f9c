package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// envoysTimeout is how long an Envoy waits for the endpoints of a cluster.
const envoysTimeout = 15 * time.Second

// TestClusterChangesUnderLoad shows that a changed DestinationRule reaches a
// running Envoy before Envoy's own time-out for endpoints, and that no request fails
// meanwhile.
func TestClusterChangesUnderLoad(t *testing.T) {
	s := newShop(t)
	s.start()
	load := s.client.StartLoad(t, s.url, 100)
	load.Wait(t, 50)
	const last = "    labels: {version: v2}\n---"
	policy := func(n int) string {
		return fmt.Sprintf("    labels: {version: v2}\n  trafficPolicy: {connectionPool: {tcp: {connectTimeout: %ds}}}\n---", n)
	}
	from := last
	var took []time.Duration
	for n := 1; n <= 5; n++ {
		began := time.Now()
		s.Edit("orders.yaml", from, policy(n))
		from = policy(n)
		for _, c := range []string{"outbound|9080|v1|orders.shop.internal", "outbound|9080|v2|orders.shop.internal"} {
			s.awaitClusterText("web", c, fmt.Sprintf(`"connect_timeout":"%ds"`, n))
		}
		took = append(took, time.Since(began))
	}
	load.Wait(t, 50)
	unharmed(t, load)
	slices.Sort(took)
	t.Logf("from the edit to the Envoy: %v", took)
	if worst := took[len(took)-1]; worst >= envoysTimeout {
		t.Errorf("a change took %s: Envoy has waited for endpoints", worst)
	}
	s.noRejections()
}

// The routes of orders, all to one of its versions.
func allTo(version string) string {
	weights := map[string]int{"v1": 0, "v2": 0}
	weights[version] = 100
	return fmt.Sprintf("subset: v1}\n      weight: %d\n    - destination: {host: orders.shop.internal, subset: v2}\n      weight: %d\n", weights["v1"], weights["v2"])
}

// TestEveryWayOfChangingFiles changes the same route in each of the ways that
// people and their tools have, and sees the traffic follow without a failure.
func TestEveryWayOfChangingFiles(t *testing.T) {
	s := newShop(t)
	s.Edit("orders.yaml", "subset: v1}\n      weight: 90\n    - destination: {host: orders.shop.internal, subset: v2}\n      weight: 10\n", allTo("v1"))
	s.Edit("orders.yaml", `["./inventory.shop.internal"]`, `["./inventory.shop.internal", "./extra.shop.internal"]`)
	// The directory is a link to a tree, as deployments make it, with a tree below.
	trees := filepath.Join(s.Dir, "trees")
	check(t, os.Mkdir(trees, 0o750), os.Rename(s.ConfigDir, filepath.Join(trees, "0")), os.Symlink(filepath.Join(trees, "0"), s.ConfigDir),
		os.Mkdir(filepath.Join(s.ConfigDir, "sub"), 0o750))
	s.Write("sub.new", extra)
	check(t, os.Rename(filepath.Join(s.ConfigDir, "sub.new"), filepath.Join(s.ConfigDir, "sub", "extra.yaml")))
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	path := filepath.Join(s.ConfigDir, "orders.yaml")
	next := func(version string) []byte {
		b, err := os.ReadFile(path)
		check(t, err)
		other := map[string]string{"v1": "v2", "v2": "v1"}[version]
		out := strings.Replace(string(b), allTo(other), allTo(version), 1)
		if out == string(b) {
			t.Fatalf("the routes go to %s already:\n%s", version, b)
		}
		return []byte(out)
	}
	ways := []struct {
		name   string
		change func(content []byte)
	}{
		{"in_place", func(b []byte) { check(t, os.WriteFile(path, b, 0o600)) }},
		{"rename", func(b []byte) {
			check(t, os.WriteFile(path+".tmp", b, 0o600), os.Rename(path+".tmp", path))
		}},
		{"editor_with_backup", func(b []byte) {
			check(t, os.Rename(path, path+"~"), os.WriteFile(path, b, 0o600), os.Remove(path+"~"))
		}},
		{"swapped_tree", func(b []byte) {
			tree := filepath.Join(trees, "1")
			check(t, os.CopyFS(tree, os.DirFS(filepath.Join(trees, "0"))), os.WriteFile(filepath.Join(tree, "orders.yaml"), b, 0o600),
				os.Symlink(tree, s.ConfigDir+".next"), os.Rename(s.ConfigDir+".next", s.ConfigDir))
		}},
		{"in_place_after_the_swap", func(b []byte) { check(t, os.WriteFile(path, b, 0o600)) }},
		{"deleted_and_made_again", func(b []byte) { check(t, os.Remove(path), os.WriteFile(path, b, 0o600)) }},
	}
	for i, w := range ways {
		version := []string{"v2", "v1"}[i%2]
		began := time.Now()
		w.change(next(version))
		s.awaitOnly("orders-" + version)
		t.Logf("%s: followed after %s", w.name, time.Since(began))
	}
	const cluster = "outbound|9090||extra.shop.internal"
	sub, away := filepath.Join(s.ConfigDir, "sub"), filepath.Join(s.Dir, "away")
	s.awaitCluster("orders-v1", cluster, true)
	check(t, os.Rename(sub, away))
	s.awaitCluster("orders-v1", cluster, false)
	check(t, os.Rename(away, sub))
	s.awaitCluster("orders-v1", cluster, true)
	unharmed(t, load)
	s.noRejections()
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// awaitOnly waits until ten answers in a row are of one of the orders.
func (s *shop) awaitOnly(name string) {
	s.t.Helper()
	row := 0
	s.Server.Eventually(envoytest.Patience, func() error {
		a, err := s.client.Get(s.t.Context(), s.url)
		if err != nil {
			row = 0
			return err
		}
		row++
		if a.Next.Name != name {
			row = 0
		}
		if row < 10 {
			return fmt.Errorf("%s answered", a.Next.Name)
		}
		return nil
	})
}

// TestManyFilesAreOnePush writes fifty files within a second. Pushes of so many are
// a second apart, from the first on: a busy machine may take longer and see more of
// them, but never more than one for each second.
func TestManyFilesAreOnePush(t *testing.T) {
	s := newShop(t)
	s.Edit("web.yaml", `["./orders.shop.internal"]`, `["./*"]`)
	s.start()
	for round := range 3 {
		before := s.metrics()
		began := time.Now()
		names := s.writeMany(round)
		envoytest.Eventually(t, envoytest.Patience, func() error {
			clusters := s.envoy("web", "/clusters")
			for _, name := range names {
				if !strings.Contains(clusters, "outbound|9080||"+name+"::") {
					return fmt.Errorf("envoy of web does not have a cluster of %s", name)
				}
			}
			return nil
		})
		after := s.metrics()
		took := time.Since(began)
		most := 1 + int(took/time.Second)
		for _, typ := range []string{"cds", "vhds"} {
			name := `pilot_xds_pushes{type="` + typ + `"}`
			n := after[name] - before[name]
			t.Logf("%d pushes of %s within %s", n, typ, took)
			if n < 1 || n > most {
				t.Errorf("fifty files made %d pushes of %s to the one proxy that sees them within %s, want 1 to %d", n, typ, took, most)
			}
		}
		s.noRejections()
		if most <= 2 {
			return
		}
		t.Log("this machine is busy: once more")
	}
}

// writeMany writes fifty services, a file each, within a second and with pauses. The
// first ones come in a directory that is complete, so however busy the machine is,
// the server sees at once that they are many. It gives their names.
func (s *shop) writeMany(round int) []string {
	s.t.Helper()
	var names []string
	file := func() (name, content string) {
		name = fmt.Sprintf("many-%d-%d", round, len(names))
		names = append(names, name+".shop.internal")
		return name + ".yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec:
  hosts: [%s.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 9080, name: http, protocol: HTTP}
  endpoints:
  - address: %s
`, name, name, s.Address(12))
	}
	together := fmt.Sprintf("many-%d", round)
	made := filepath.Join(s.Dir, together)
	check(s.t, os.Mkdir(made, 0o750))
	for range 20 {
		name, content := file()
		check(s.t, os.WriteFile(filepath.Join(made, name), []byte(content), 0o600))
	}
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	check(s.t, os.Rename(made, filepath.Join(s.ConfigDir, together)))
	for range 3 {
		<-tick.C
		for range 10 {
			name, content := file()
			s.Write(name, content)
		}
	}
	return names
}

// TestMassLoss empties the directory: nothing is believed until a person says
// so.
func TestMassLoss(t *testing.T) {
	s := newShop(t)
	s.start("--scan-interval", "200ms")
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	elsewhere := filepath.Join(s.Dir, "elsewhere")
	check(t, os.Mkdir(elsewhere, 0o750))
	move := func(from, to string) {
		// The largest first: a look between two of them shall not see a small loss.
		for _, name := range []string{"orders.yaml", "inventory.yaml", "web.yaml"} {
			check(t, os.Rename(filepath.Join(from, name), filepath.Join(to, name)))
		}
	}
	before := s.metrics()
	move(s.ConfigDir, elsewhere)
	s.awaitObjects(13, 13)
	out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
	if err == nil || !strings.Contains(out, "`fairlead release files`") {
		t.Errorf("proxy-status does not say what holds and how to release it: %v\n%s", err, out)
	}
	load.Wait(t, 100)
	if n := sum(s.metrics(), "pilot_xds_pushes") - sum(before, "pilot_xds_pushes"); n != 0 {
		t.Errorf("%d responses were sent", n)
	}
	if out, err := s.CLI("release", "files", "--run-dir", s.RunDir("server")); err != nil {
		t.Errorf("releasing: %v %s", err, out)
	}
	s.awaitObjects(0, 0)
	// No mesh is left, so nobody is told what to do: what runs goes on running.
	load.Wait(t, 50)
	move(elsewhere, s.ConfigDir)
	s.awaitObjects(13, 0)
	s.awaitLive()
	unharmed(t, load)
	s.noRejections()
}
