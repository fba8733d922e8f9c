package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
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

// recordOwners writes the record of owners of an earlier release.
func recordOwners(t *testing.T, dir string, hosts map[mesh.Hostname]string) {
	t.Helper()
	narrow, wide := hostOwnersFile{Version: hostOwnersVersion}, hostOwnersFile{Version: hostOwnersVersion}
	for h, ns := range hosts {
		file := &narrow
		if strings.ContainsAny(string(h), "*/:") {
			file = &wide
		}
		file.Hosts = append(file.Hosts, hostOwner{Host: h, Namespace: ns})
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]hostOwnersFile{"host-owners.json": narrow, "range-owners.json": wide} {
		if err := durable.Seal(filepath.Join(dir, name), file, maxHostOwners); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRecordOfOwnersBecomesGrants starts on the state directory of an earlier release: who had a host has it, from a
// file that is written once, also across restarts with other directories. The record stays as it is, for a
// downgrade. Grants that are damaged open nothing, and that is told; those that a person removed are not made again.
func TestRecordOfOwnersBecomesGrants(t *testing.T) {
	t.Parallel()
	shop, evil := treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}), treeOf(t, map[string]string{"a.yaml": hostEntry("evil", "a", "orders.example", "news.example")})
	cfg := config(t, evil, shop)
	cfg.Roots[0].Namespaces, cfg.Roots[1].Namespaces = []string{"evil"}, []string{"shop"}
	recordOwners(t, cfg.StateDir, map[mesh.Hostname]string{"orders.example": "shop", "*.old.example": "evil", ":80": "shop"})
	record, err := os.ReadFile(filepath.Join(cfg.StateDir, "host-owners.json"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.StateDir, hostGrantsName)
	r := start(t, cfg)
	r.whose("orders.example", "shop")
	r.whose("news.example", "")
	r.eventually(func() error {
		b, err := os.ReadFile(path)
		if err == nil && !strings.Contains(string(b), `"name": "*.old.example"`) {
			err = fmt.Errorf("the grants: %s", b)
		}
		return err
	})
	r.stop()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the grants: %v, %v", info, err)
	}

	moved := treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example", "more.example")})
	cfg.Roots[0].Path, cfg.Roots[1].Path = moved, evil
	cfg.Roots[0].Namespaces, cfg.Roots[1].Namespaces = []string{"shop"}, []string{"evil"}
	r = start(t, cfg)
	r.whose("orders.example", "shop")
	r.whose("more.example", "")
	r.stop()
	if after, err := os.ReadFile(filepath.Join(cfg.StateDir, "host-owners.json")); err != nil || !bytes.Equal(after, record) {
		t.Errorf("the record differs: %v", err)
	}

	put(t, path, "damaged")
	r = start(t, cfg)
	r.whose("orders.example", "")
	if !strings.Contains(r.out.String(), "reading the grants of hosts failed") {
		t.Errorf("the log does not have it:\n%s", r.out)
	}
	r.stop()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	r = start(t, cfg)
	r.whose("orders.example", "")
	r.stop()
}

// TestGrantsThatAPersonRemovedAreNotMadeAgain, also if the server that wrote them ended before it had noted so.
func TestGrantsThatAPersonRemovedAreNotMadeAgain(t *testing.T) {
	t.Parallel()
	g := hostGrants{dir: t.TempDir()}
	recordOwners(t, g.dir, map[mesh.Hostname]string{"orders.example": "shop"})
	if err := g.Save([]mesh.Grant{{Name: "orders.example", Namespace: "shop"}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(g.dir, hostGrantsMade)); err != nil {
		t.Fatal(err)
	}
	if list, made, err := g.Load(); len(list) != 1 || !made || err != nil {
		t.Fatalf("%v, made %t: %v", list, made, err)
	}
	if err := os.Remove(filepath.Join(g.dir, hostGrantsName)); err != nil {
		t.Fatal(err)
	}
	if list, made, err := g.Load(); len(list) != 0 || !made || err != nil {
		t.Errorf("%v, made %t: %v", list, made, err)
	}
}

// TestReadingOwnersChangesNothing reads state directories as `analyze --state-dir` does, beside a server that may run:
// also where the server would complete what it had begun.
func TestReadingOwnersChangesNothing(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]string{"grants": {hostGrantsName}, "removed": {hostGrantsMade}, "record": nil} {
		dir := t.TempDir()
		recordOwners(t, dir, map[mesh.Hostname]string{"orders.example": "shop"})
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte(`{"version": 1, "grants": [{"name": "a.example", "namespace": "shop"}]}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before := entriesOf(t, dir)
		o, err := ReadOwners(dir)
		if err != nil || o.Made != (len(files) > 0) || len(o.Recorded) != 1 {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
		if now := entriesOf(t, dir); now != before {
			t.Errorf("%s: the directory had %s, and has %s", name, before, now)
		}
	}
}

func entriesOf(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestGrantsAreConditions: what a namespace has from before patterns is listed by namespace, with the exact flags that give
// it to the sources that name it. Nothing of a manifest that cannot be a pattern, and no name that another namespace
// overlaps with, is a part of what people copy; and that is never cut.
func TestGrantsAreConditions(t *testing.T) {
	t.Parallel()
	open := func(ns, source string, name mesh.Hostname) mesh.OpenGrant {
		return mesh.OpenGrant{Grant: mesh.Grant{Name: name, Namespace: ns}, Sources: []string{source}}
	}
	atGateways, nested := open("web", mesh.KeysSource, "*.web.example"), open("shop", "/srv/shop", "*.corp.example")
	atGateways.Gateways, nested.Overlaps = true, "a.corp.example of the namespace evil"
	_, s := allWell()
	s.Registry.Grants = []mesh.OpenGrant{open("shop", "/srv/shop", "$(x).example"), open("shop", "/srv/shop", "10.1.0.0/16"), open("shop", "/srv/it's", "a.example"), open("shop", "/srv/shop", "orders.example"), nested, atGateways}
	got := hostGrantsOpen(nil, s, time.Now())
	if len(got) != 2 || got[0].Subject != "namespace shop" ||
		!strings.Contains(got[0].Action, `start the server with --config-hosts '/srv/shop=10.1.0.0/16,orders.example' --config-hosts '/srv/it'\''s=a.example';`) || strings.Contains(got[0].Action, "$") ||
		!strings.Contains(got[0].Action, "*.corp.example cannot be a pattern, because it overlaps with a.corp.example of the namespace evil") ||
		!strings.Contains(got[1].Text, "*.web.example (at gateways)") || !strings.Contains(got[1].Action, "--consul-kv-hosts '*.web.example';") {
		t.Errorf("conditions: %+v", got)
	}
	other := open("shop", "/srv/shop", "*.third.example")
	other.Overlaps = "b.third.example of the namespace third"
	s.Registry.Grants = []mesh.OpenGrant{nested, other}
	if got := hostGrantsOpen(nil, s, time.Now()); len(got) != 1 || !strings.Contains(got[0].Action,
		"*.corp.example cannot be a pattern, because it overlaps with a.corp.example of the namespace evil; *.third.example cannot be a pattern, because it overlaps with b.third.example of the namespace third: write patterns for single names") {
		t.Errorf("one of two names that cannot be patterns is left out: %+v", got)
	}
	s.Registry.Grants = nil
	for i := range 30 {
		s.Registry.Grants = append(s.Registry.Grants, open("shop", "/srv/shop", mesh.Hostname(fmt.Sprintf("a%02d.%s.example", i, strings.Repeat("b", 60)))))
	}
	for _, c := range Conditions(&Proxies{}, s, time.Now()) {
		if c.Reason == "host-grants" && (!strings.Contains(c.Action, ".example'") || !strings.Contains(c.Action, "prints the flags for all") || !strings.Contains(c.Text, "more")) {
			t.Errorf("the flag is cut, or nothing says that there are more: %+v", c)
		}
	}
}

// TestNoGrantsWithPatternsAlone: where patterns alone gave hosts already, an old record gives none.
func TestNoGrantsWithPatternsAlone(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": hostEntry("shop", "orders", "orders.example")}))
	cfg.Roots[0].Namespaces, cfg.HostsOnly = []string{"shop"}, true
	recordOwners(t, cfg.StateDir, map[mesh.Hostname]string{"orders.example": "shop"})
	for range 2 {
		r := start(t, cfg)
		r.whose("orders.example", "")
		r.stop()
		cfg.HostsOnly = false
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
