package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestBindingsChangeBetweenStarts: whatever is changed of the settings that bind
// directories to namespaces, while the server is down, gives nobody a host that is
// granted to another.
func TestBindingsChangeBetweenStarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(t *testing.T, cfg *Config, shop, evil *files.Root)
		want   string // whose the host is afterwards; empty: nobody's
	}{
		"nothing": {func(*testing.T, *Config, *files.Root, *files.Root) {}, "shop"},
		"renamed": {func(t *testing.T, _ *Config, shop, _ *files.Root) {
			t.Helper()
			to := filepath.Join(t.TempDir(), "shop")
			if err := os.Rename(shop.Path, to); err != nil {
				t.Fatal(err)
			}
			shop.Path = to
		}, "shop"},
		"renamed and away": {func(t *testing.T, _ *Config, shop, _ *files.Root) {
			t.Helper()
			shop.Path = filepath.Join(t.TempDir(), "shop")
		}, ""},
		"in another order": {func(_ *testing.T, _ *Config, shop, evil *files.Root) { *shop, *evil = *evil, *shop }, "shop"},
		"in another order, and away": {func(t *testing.T, _ *Config, shop, evil *files.Root) {
			t.Helper()
			if err := os.RemoveAll(shop.Path); err != nil {
				t.Fatal(err)
			}
			*shop, *evil = *evil, *shop
		}, ""},
		"bound to another namespace": {func(_ *testing.T, _ *Config, shop, _ *files.Root) { shop.Namespaces = []string{"boutique"} }, ""},
		"bound to another namespace, and rewritten": {func(t *testing.T, _ *Config, shop, _ *files.Root) {
			t.Helper()
			shop.Namespaces = []string{"boutique"}
			put(t, filepath.Join(shop.Path, "a.yaml"), hostEntry("boutique", "orders", "orders.example"))
		}, ""},
		"bound to one namespace more": {func(t *testing.T, _ *Config, shop, _ *files.Root) {
			t.Helper()
			shop.Namespaces = []string{"boutique", "shop"}
			put(t, filepath.Join(shop.Path, "b.yaml"), hostEntry("boutique", "orders", "orders.example"))
		}, "boutique,shop"}, // both are this directory's
		"each bound to the other's": {func(_ *testing.T, _ *Config, shop, evil *files.Root) {
			shop.Namespaces, evil.Namespaces = evil.Namespaces, shop.Namespaces
		}, ""},
		"one directory for the other": {func(t *testing.T, cfg *Config, shop, evil *files.Root) {
			t.Helper()
			shop.Path = evil.Path
			cfg.Roots = []files.Root{*shop}
		}, ""},
		"bound no more": {func(_ *testing.T, _ *Config, shop, _ *files.Root) { shop.Namespaces = nil }, "shop"},
		"left out":      {func(_ *testing.T, cfg *Config, _, evil *files.Root) { cfg.Roots = []files.Root{*evil} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shop, evil := treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}), treeOf(t, nil)
			cfg := config(t, shop, evil)
			cfg.Roots[0].Namespaces, cfg.Roots[1].Namespaces = []string{"shop"}, []string{"evil"}
			recordOwners(t, cfg.StateDir, map[mesh.Hostname]string{"orders.example": "shop"})
			r := start(t, cfg)
			r.whose("orders.example", "shop")
			r.stop()
			put(t, filepath.Join(evil, "a.yaml"), hostEntry("evil", "a", "orders.example"))
			c.change(t, &cfg, &cfg.Roots[0], &cfg.Roots[1])
			for range 2 {
				r = start(t, cfg)
				r.whose("orders.example", c.want)
				r.stop()
			}
		})
	}
}

// whose waits until every source has been waited for, and checks who gives others a
// host.
func (r *running) whose(host, want string) {
	r.t.Helper()
	r.eventually(func() error {
		s := r.registry.Snapshot()
		if s == nil || s.Incomplete && len(r.registry.Status().Missing) == 0 {
			return errors.New("not published")
		}
		var got []string
		for _, svc := range s.ServicesVisibleTo("third") {
			if string(svc.Hostname) == host {
				got = append(got, svc.Namespace)
			}
		}
		if g := strings.Join(got, ","); g != want {
			return fmt.Errorf("others get the host from %q, want %q", g, want)
		}
		return nil
	})
}

// TestRootNamespaceTakesASecondFlag: whatever is bound to the root namespace, whoever
// says which that is, the server does not start unless a second flag says that it is
// meant.
func TestRootNamespaceTakesASecondFlag(t *testing.T) {
	t.Parallel()
	dir, other := treeOf(t, map[string]string{"a.yaml": rule("default", "a")}), treeOf(t, nil)
	settings := filepath.Join(t.TempDir(), "mesh.yaml")
	put(t, settings, "rootNamespace: house\n")
	for root, file := range map[string]string{"istio-system": "", "house": settings} {
		for flag, bind := range map[string]func(c *Config, namespaces ...string){
			fmt.Sprintf("--config-dir %q", dir):   func(c *Config, ns ...string) { c.Roots[0].Namespaces = ns },
			fmt.Sprintf("--config-dir %q", other): func(c *Config, ns ...string) { c.Roots[1].Namespaces = ns },
			"--consul-kv-prefix": func(c *Config, ns ...string) {
				c.Consul = Consul{Client: client.Config{Address: "127.0.0.1:1"}, KVPrefix: "mesh=" + strings.Join(ns, ",")}
			},
		} {
			for _, namespaces := range [][]string{{root}, {"default", root}, {"default", "shop"}} {
				for _, meant := range []bool{false, true} {
					cfg := config(t, dir, other)
					cfg.MeshConfigFile, cfg.BindRoot = file, meant
					bind(&cfg, namespaces...)
					s, err := New(t.Context(), cfg)
					if err == nil {
						err = s.Close()
					} else if !strings.Contains(err.Error(), flag) || !strings.Contains(err.Error(), "--bind-root-namespace") {
						t.Errorf("%s=%v: %v", flag, namespaces, err)
					}
					if want := !meant && namespaces[len(namespaces)-1] == root; (err != nil) != want {
						t.Errorf("%s=%v with the root namespace %s, meant %v: %v", flag, namespaces, root, meant, err)
					} else if err != nil {
						expectNothing(t, cfg)
					}
				}
			}
		}
	}
}

// TestNamespaceOfTheCatalogIsNamed: a source that is bound to the namespace of all catalog services may route them, and the
// start says so; of a source of another namespace, and without a common namespace, it says nothing.
func TestNamespaceOfTheCatalogIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		namespace, prefix string
		bound             []string
		want              string
	}{
		"directory":             {bound: []string{"default", "shop"}, want: "namespace=default"},
		"key-value_store":       {prefix: "mesh=default", want: "source=consul-kv"},
		"template":              {namespace: "catalog", bound: []string{"catalog"}, want: "namespace=catalog"},
		"other_namespace":       {bound: []string{"shop"}},
		"template_elsewhere":    {namespace: "catalog", bound: []string{"default"}},
		"namespace_by_service":  {namespace: "{{.Service}}", bound: []string{"default"}},
		"bound_to_no_namespace": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, treeOf(t, nil))
			cfg.Roots[0].Namespaces = c.bound
			cfg.Consul = Consul{Client: client.Config{Address: "127.0.0.1:1"}, KVPrefix: c.prefix}
			cfg.Consul.Mapping.Namespace = c.namespace
			out := &envoytest.Log{}
			cfg.Logger = slog.New(slog.NewTextHandler(out, nil))
			s, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if named := strings.Contains(out.String(), "may route all of its services"); named != (c.want != "") || !strings.Contains(out.String(), c.want) {
				t.Errorf("the log:\n%s", out)
			}
		})
	}
}
