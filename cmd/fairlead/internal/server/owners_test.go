package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

func hostEntry(namespace, name string, hosts ...string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
`, name, namespace, strings.Join(hosts, ", "))
}

// TestHostOwnersSurvive: who had a host first keeps it across restarts in which
// the directories come in another order and under other names, and what the other
// one says is told. A record that is damaged is told, too, and made anew.
func TestHostOwnersSurvive(t *testing.T) {
	t.Parallel()
	shop, evil := treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}), treeOf(t, nil)
	cfg := config(t, shop, evil)
	cfg.Roots[0].Namespaces, cfg.Roots[1].Namespaces = []string{"shop"}, []string{"evil"}
	whose := func(r *running, want string, reported bool) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.Incomplete {
				return errors.New("not published")
			}
			var got []string
			for _, svc := range s.ServicesVisibleTo("third") {
				got = append(got, svc.Namespace)
			}
			if fmt.Sprint(got) != "["+want+"]" {
				return fmt.Errorf("others get the host from %v, want %s", got, want)
			}
			faults := 0
			for _, f := range r.fileStatus() {
				for _, x := range f.Faults {
					if x.Code == "FL0226" && x.Key.Kind == mesh.KindServiceEntry {
						faults++
					}
				}
			}
			if (faults == 1) != reported {
				return fmt.Errorf("%d times reported", faults)
			}
			return nil
		})
	}
	r := start(t, cfg)
	whose(r, "shop", false)
	put(t, filepath.Join(evil, "a.yaml"), hostEntry("evil", "a", "orders.example"))
	whose(r, "shop", true)
	if !strings.Contains(r.out.String(), "belongs to namespace shop") {
		t.Errorf("the log does not have it:\n%s", r.out)
	}
	r.stop()

	moved := treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")})
	cfg.Roots[0].Path, cfg.Roots[0].Namespaces = evil, []string{"evil"}
	cfg.Roots[1].Path, cfg.Roots[1].Namespaces = moved, []string{"shop"}
	r = start(t, cfg)
	whose(r, "shop", true)
	r.stop()

	record := filepath.Join(cfg.StateDir, "host-owners.json")
	put(t, record, "damaged")
	r = start(t, cfg)
	whose(r, "evil", true) // the first by name
	if !strings.Contains(r.out.String(), "reading host-owners.json failed") {
		t.Errorf("the log does not have it:\n%s", r.out)
	}
	r.stop()
	if b, err := os.ReadFile(record); err != nil || !strings.Contains(string(b), `"namespace":"evil"`) {
		t.Errorf("the record: %s, %v", b, err)
	}
	if info, err := os.Stat(record); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record: %v, %v", info, err)
	}
}

// TestHostOwnersUnsaved: a record that cannot be saved is told by readiness and
// metrics, and what it says counts all the same.
func TestHostOwnersUnsaved(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}))
	cfg.Roots[0].Namespaces, cfg.HTTPAddress = []string{"shop"}, "127.0.0.1:0"
	if err := os.MkdirAll(filepath.Join(cfg.StateDir, "host-owners.json", "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}
	r := start(t, cfg)
	r.eventually(func() error {
		for path, want := range map[string]string{"/readyz": "saving host-owners.json failed", "/metrics": "fairlead_host_owners_unsaved 1"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.admin.Address()+path, nil)
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if err != nil {
				return err
			}
			b, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				return err
			}
			if !strings.Contains(string(b), want) {
				return fmt.Errorf("%s: %d %s", path, resp.StatusCode, b)
			}
		}
		return nil
	})
	if len(r.registry.Snapshot().Services) != 1 {
		t.Error("the host is not served")
	}
}

// TestOwnersOfRangesAreAFileOfTheirOwn: the file that earlier releases know has no name
// that these would not put there, and if one file is damaged, the other counts.
func TestOwnersOfRangesAreAFileOfTheirOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := hostOwners{filepath.Join(dir, "host-owners.json"), filepath.Join(dir, "range-owners.json")}
	shop := registry.Ownership{Owner: mesh.Owner{Namespace: "shop"}}
	record := map[mesh.Hostname]registry.Ownership{"orders.shop.internal": shop, "10.96.0.5": shop}
	if err := files.Save(record); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(files.wide); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file for nothing: %v", err)
	}
	record["*.shop.internal"], record["10.96.0.0/16"], record["fd00::/64"] = shop, shop, shop
	if err := files.Save(record); err != nil {
		t.Fatal(err)
	}
	if got, err := files.Load(); err != nil || !maps.Equal(got, record) {
		t.Errorf("read back: %v, %v", got, err)
	}
	if b, err := os.ReadFile(files.path); err != nil || strings.ContainsAny(string(b), "*/") {
		t.Errorf("the file of earlier releases: %s, %v", b, err)
	}
	put(t, files.wide, "damaged")
	if got, err := files.Load(); err == nil || len(got) != 2 {
		t.Errorf("of damaged files: %v, %v", got, err)
	}
}

// TestRootNamespaceStaysUnbound: settings that make a bound namespace the root one
// while the server runs are not in force.
func TestRootNamespaceStaysUnbound(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}))
	cfg.Roots[0].Namespaces = []string{"shop"}
	cfg.MeshConfigFile = filepath.Join(t.TempDir(), "mesh.yaml")
	put(t, cfg.MeshConfigFile, "rootNamespace: house\n")
	r := start(t, cfg)
	root := func(want string) {
		t.Helper()
		r.eventually(func() error {
			if s := r.registry.Snapshot(); s == nil || s.RootNamespace() != want {
				return fmt.Errorf("not %s", want)
			}
			return nil
		})
	}
	root("house")
	put(t, cfg.MeshConfigFile, "rootNamespace: shop\n")
	r.eventually(func() error {
		src := r.sources()
		return src.fault("mesh-config", "mesh.yaml:1:1", "rootNamespace", `"shop" is not in force`, "--bind-root-namespace")
	})
	root("house")
	put(t, cfg.MeshConfigFile, "rootNamespace: home\n")
	root("home")
}
