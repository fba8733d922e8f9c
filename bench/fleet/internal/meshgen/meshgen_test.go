package meshgen

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func write(t *testing.T, s Spec) (string, map[string]string) {
	t.Helper()
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	return dir, read(t, dir)
}

// TestDeterministic: figures of two days are of the same mesh.
func TestDeterministic(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 30, Endpoints: 3, Proxies: 40, Clients: 10, Namespaces: 4, OwnSidecars: true}
	_, one := write(t, s)
	_, two := write(t, s)
	if d := cmp.Diff(one, two); d != "" {
		t.Error(d)
	}
	if len(one) < 60 {
		t.Errorf("%d files for 30 services", len(one))
	}
}

// TestProxies: each proxy of the fleet is a workload of its own in the mesh.
func TestProxies(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 30, Endpoints: 3, Proxies: 47, Clients: 10, Namespaces: 4}
	_, files := write(t, s)
	all := strings.Join(slices.Collect(maps.Values(files)), "\n")
	names, addresses := map[string]bool{}, map[string]bool{}
	for i := range s.Proxies {
		p := s.Proxy(i)
		names[p.Namespace+"/"+p.Name], addresses[p.Address] = true, true
		for _, want := range []string{
			"{name: " + p.Name + ", namespace: " + p.Namespace + "}", "address: " + p.Address + "\n",
			"{app: " + p.Labels["app"] + ", instance: " + p.Labels["instance"] + ", version: " + p.Labels["version"] + "}",
		} {
			if !strings.Contains(all, want) {
				t.Fatalf("proxy %d: the mesh has no %q", i, want)
			}
		}
	}
	if len(names) != s.Proxies || len(addresses) != s.Proxies {
		t.Errorf("%d names and %d addresses of %d proxies", len(names), len(addresses), s.Proxies)
	}
}

// TestChanges: a change is of one file, and its marker was nowhere before.
func TestChanges(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 50, Endpoints: 3, Proxies: 20, Clients: 10, Namespaces: 4}
	dir, before := write(t, s)
	for name, change := range map[string]func(revision int) (Change, error){
		"route":    func(r int) (Change, error) { return s.EditRoute(dir, s.EditedRoute(), r) },
		"endpoint": func(r int) (Change, error) { return s.ReplaceEndpoint(dir, s.EditedHosts(), r) },
	} {
		for _, revision := range []int{1, 123, 12_345} {
			c, err := change(revision)
			if err != nil {
				t.Fatal(err)
			}
			var changed []string
			after := read(t, dir)
			for path, content := range after {
				if content == before[path] {
					continue
				}
				changed = append(changed, path)
				if strings.Contains(before[path], c.Marker) || !strings.Contains(content, c.Marker) {
					t.Errorf("%s %d: marker %q says nothing", name, revision, c.Marker)
				}
			}
			if len(changed) != 1 || len(after) != len(before) {
				t.Errorf("%s %d: changed %q, %d files", name, revision, changed, len(after))
			}
			before = after
		}
	}
	if s.isProxy(s.EditedHosts(), 0) || !s.Spare() {
		t.Error("the endpoint that is replaced is a proxy")
	}
}

func TestEditMany(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 50, Endpoints: 3, Proxies: 20, Clients: 10, Namespaces: 4}
	dir, before := write(t, s)
	c, n, err := s.EditMany(dir, 0.2, 1)
	if err != nil {
		t.Fatal(err)
	}
	changed, marked := 0, 0
	for path, content := range read(t, dir) {
		if content != before[path] {
			changed++
		}
		if strings.Contains(content, c.Marker) {
			marked++
		}
	}
	if n != 10 || changed != n || marked != 1 {
		t.Errorf("%d services, %d files, %d with the marker", n, changed, marked)
	}
}

// TestSidecars: no two proxies may share their view.
func TestSidecars(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 300, Endpoints: 2, Proxies: 200, OwnSidecars: true}
	egress := map[string]bool{}
	for i := range s.Proxies {
		text := s.sidecar(i%100, i/100)
		_, hosts, _ := strings.Cut(text, "egress:")
		egress[hosts] = true
		if !strings.Contains(hosts, s.Host(s.EditedRoute())) {
			t.Errorf("proxy %d does not see what is edited", i)
		}
	}
	if len(egress) != s.Proxies {
		t.Errorf("%d lists of hosts for %d proxies", len(egress), s.Proxies)
	}
}

// TestCapture: services without addresses are what the control plane gives addresses to.
func TestCapture(t *testing.T) {
	t.Parallel()
	s := Spec{Services: 30, Endpoints: 3, Proxies: 40, Clients: 10, Namespaces: 4}
	_, without := write(t, s)
	s.Capture = true
	_, with := write(t, s)
	count := func(files map[string]string) int {
		return strings.Count(strings.Join(slices.Collect(maps.Values(files)), "\n"), "\n  addresses:")
	}
	if a, b := count(without), count(with); a != 30 || b != 0 {
		t.Errorf("%d and %d services with addresses, want 30 and 0", a, b)
	}
}
