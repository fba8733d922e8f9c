package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/consultest"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	for name, test := range map[string]func(*place){
		"push": testPush, "refused": testPushRefused, "prune": testPrune, "many": testPushMany, "large": testPushLarge,
		"two_people": testTwoPeople, "networks": testPushNetworks, "pull": testPull, "pull_odd": testPullOdd, "diff": testDiff,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newPlace(t, a, "fairlead/"+name))
		})
	}
}

func testPush(p *place) {
	p.file("a.yaml", serviceEntry("a", "a"))
	p.file("sub/route.yml", routeTo("a", "a"))
	p.file("notes.txt", "none of ours")
	p.file(".hidden/x.yaml", "]")
	p.run(0, []string{"push", "--dry-run"}, "consul-kv:fairlead/push/a.yaml: would create, in transaction 1 of 1", "it would be pushed: 2 keys in 1 transaction; nothing was written")
	if len(p.keys()) > 0 {
		p.t.Errorf("a dry run has written %v", p.keys())
	}
	out := p.run(0, []string{"push"}, "consul-kv:fairlead/push/a.yaml: created", "pushed 2 keys in 1 transaction; 0 were so already", "ServiceEntry default/a created\nVirtualService default/a created\n")
	if strings.Index(out, "a.yaml") > strings.Index(out, "route.yml") {
		p.t.Errorf("the route was written before its service:\n%s", out)
	}
	if got := p.keys(); len(got) != 2 || got["sub/route.yml"] != routeTo("a", "a") {
		p.t.Errorf("keys %v", got)
	}
	if pair, _, err := p.a.Client().KV().Get(p.prefix+"/sub/route.yml", nil); err != nil || !strings.HasSuffix(string(pair.Value), "\n...\n") {
		p.t.Errorf("what was pushed has no end: %v", err)
	}
	p.run(0, []string{"push"}, "the keys below fairlead/push/ are as the files: 2 keys")
	p.run(0, []string{"diff"})
	p.file("a.yaml", serviceEntry("a", "a")+"# a comment\n")
	p.run(0, []string{"push"}, "consul-kv:fairlead/push/a.yaml: updated (+1 -0 lines)", "ServiceEntry default/a unchanged", "pushed 1 key in 1 transaction; 1 were so already")
	if _, err := os.Stat(filepath.Join(p.dir, ".fairlead-config.json")); err == nil {
		p.t.Error("a push has left something in the directory")
	}
}

// testPushNetworks holds that a push is checked with the networks of the mesh, as the server will have
// them.
func testPushNetworks(p *place) {
	networks := filepath.Join(p.t.TempDir(), "networks.yaml")
	write := func(text string) {
		if err := os.WriteFile(networks, []byte(text), 0o600); err != nil {
			p.t.Fatal(err)
		}
	}
	write("networks: {a: {endpoints: [{fromCidr: 10.0.0.0/16}, {fromRegistry: dc7}], gateways: [{address: 203.0.113.1, port: 15443}]}, b: {endpoints: [{fromRegistry: dc1}]}}")
	p.file("a.yaml", serviceEntry("a", "a"))
	const plaintext = "warning [FL0267] ServiceEntry default/a"
	if out := p.run(0, []string{"push", "--dry-run"}); strings.Contains(out, plaintext) {
		p.t.Errorf("without networks:\n%s", out)
	}
	p.run(0, []string{"push", "--dry-run", "--mesh-networks", networks}, plaintext)
	code, out, errs := cli(p.t, "analyze", "--mesh-networks", networks, "--consul-address", p.a.Address(), "--consul-datacenter", "dc1", p.dir)
	if unknown := "[FL0272] MeshNetworks: fromRegistry \"dc7\" takes in nothing"; code != 0 || strings.Count(out, "FL0272") != 1 || !strings.Contains(out, unknown) || strings.Contains(out, "--consul-address") {
		p.t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	write("networks: {a: {gatways: []}}")
	p.run(2, []string{"push", "--mesh-networks", networks}, "gatways")
}

func testPushRefused(p *place) {
	p.file("a.yaml", serviceEntry("a", "a")+"  hots: []\n")
	p.run(1, []string{"push"}, filepath.Join(p.dir, "a.yaml")+":10:3: error", "refused: nothing was written")
	// The whole mesh is checked with the existing keys: a route of the keys loses its service.
	p.file("a.yaml", serviceEntry("a", "a"))
	p.put("route.yaml", routeTo("a", "a"))
	p.run(0, []string{"push"})
	p.file("a.yaml", serviceEntry("a", "b"))
	p.run(1, []string{"push"}, "consul-kv:fairlead/refused/route.yaml:5:", "refused: nothing was written")
	// Another directory of the mesh may have it.
	also := p.other()
	also.file("more.yaml", serviceEntry("more", "a"))
	p.run(0, []string{"push", "--config-dir", also.dir}, "updated")
	p.run(2, []string{"push", "--consul-kv-prefix", "/"}, "--consul-kv-prefix: the prefix")
	p.run(1, []string{"push", "--consul-kv-prefix", p.prefix + "=shop,other"}, "is not one that")
	empty := p.other()
	empty.run(2, []string{"push"}, "there is nothing to push")
	gone := p.other()
	gone.dir += "/nothing"
	gone.run(2, []string{"push"}, "no such file or directory")
	p.file("back\\slash.yaml", serviceEntry("x", "x"))
	p.run(2, []string{"push"}, "cannot be a key: it has a backslash in it; rename the file")
}

func testPrune(p *place) {
	p.file("a.yaml", serviceEntry("a", "a"))
	p.put("old.yaml", serviceEntry("old", "old"))
	p.put("README.md", "x")
	p.run(0, []string{"push"}, "consul-kv:fairlead/prune/old.yaml is not in", "--prune would delete it")
	p.run(0, []string{"push", "--prune", "--dry-run"}, "old.yaml: would delete")
	p.run(0, []string{"push", "--prune"}, "consul-kv:fairlead/prune/old.yaml: deleted")
	if got := p.keys(); len(got) != 2 || got["README.md"] != "x" {
		p.t.Errorf("keys %v", got)
	}
	p.remove("a.yaml")
	p.run(1, []string{"push", "--prune"}, "would delete all that there is, 1 key", "--allow-empty")
	p.run(0, []string{"push", "--prune", "--allow-empty"}, "a.yaml: deleted")
	if got := p.keys(); len(got) != 1 {
		p.t.Errorf("keys %v", got)
	}
}

// testPushMany pushes more than one transaction takes.
func testPushMany(p *place) {
	for i := range 70 {
		name := fmt.Sprintf("s%02d", i)
		p.file(name+".yaml", serviceEntry(name, name))
	}
	p.file("a-route.yaml", routeTo("r", "s69"))
	p.run(0, []string{"push", "--dry-run"}, "a-route.yaml: would create, in transaction 2 of 2", "71 keys in 2 transactions")
	p.run(0, []string{"push"}, "pushed 71 keys in 2 transactions")
	if got := p.keys(); len(got) != 71 {
		p.t.Errorf("%d keys", len(got))
	}
	p.put("a-route.yaml", serviceEntry("other", "other"))
	index := p.modified("s00.yaml")
	if p.modified("s63.yaml") != index || p.modified("s64.yaml") == index {
		p.t.Error("the first 64 keys were not one transaction")
	}
}

func (p *place) modified(rel string) uint64 {
	p.t.Helper()
	kv, _, err := p.a.Client().KV().Get(p.prefix+"/"+rel, nil)
	if err != nil || kv == nil {
		p.t.Fatal(kv, err)
	}
	return kv.ModifyIndex
}

// testPushLarge pushes values of which one fits into no transaction, and which do
// not fit into one together.
func testPushLarge(p *place) {
	pad := func(n int) string { return "#" + strings.Repeat("x", n) + "\n" }
	p.file("a.yaml", serviceEntry("a", "a")+pad(200_000))
	p.file("b.yaml", serviceEntry("b", "b")+pad(200_000))
	p.file("c.yaml", serviceEntry("c", "c")+pad(500_000))
	p.file("d.yaml", serviceEntry("d", "d"))
	p.run(0, []string{"push"}, "pushed 4 keys in 4 transactions")
	p.file("c.yaml", serviceEntry("c", "c")+pad(510_000))
	p.run(0, []string{"push"}, "pushed 1 key in 1 transaction")
	if got := p.keys(); len(got["c.yaml"]) < 510_000 {
		p.t.Errorf("c has %d bytes", len(got["c.yaml"]))
	}
	p.file("c.yaml", serviceEntry("c", "c")+pad(520_000)+pad(5000))
	p.run(2, []string{"push"}, "Consul takes at most 524288 a key: split the file")
}

// testTwoPeople pulls into two directories: nobody undoes what the other did
// without being told.
func testTwoPeople(p *place) {
	one, two := p, p.other()
	one.file("a.yaml", serviceEntry("a", "a"))
	one.run(0, []string{"push"})
	one.run(0, []string{"pull"}, "1 file as in Consul already")
	two.run(0, []string{"pull"}, "a.yaml: created")
	one.file("a.yaml", serviceEntry("a", "one"))
	one.run(0, []string{"push"}, "updated")
	two.file("a.yaml", serviceEntry("a", "two")+"...\n") // as it was pulled
	two.run(1, []string{"push"}, "somebody else has changed it since", "overwrite it with --force")
	two.run(1, []string{"pull"}, "it was edited here, and in Consul it is another", "1 file could not be made what the keys are")
	if two.files()["a.yaml"] != serviceEntry("a", "two")+"...\n" {
		two.t.Error("the pull has overwritten an edit")
	}
	two.run(0, []string{"push", "--force"}, "updated")
	one.run(0, []string{"pull"}, "a.yaml: updated") // it was not edited since its push
	if one.files()["a.yaml"] != serviceEntry("a", "two")+"...\n" {
		two.t.Error("the pull has not brought what was pushed")
	}
	one.file("b.yaml", serviceEntry("b", "b"))
	one.run(0, []string{"push"}, "b.yaml: created")
	two.run(1, []string{"push", "--prune"}, "b.yaml: somebody else has changed it since")
	two.run(0, []string{"pull"}, "b.yaml: created")
	two.remove("b.yaml")
	two.run(0, []string{"push", "--prune"}, "b.yaml: deleted")
	one.run(0, []string{"pull"}, "b.yaml: its key is gone from Consul; it stays")
	one.run(0, []string{"pull", "--prune", "--dry-run"}, "b.yaml: would delete")
	one.run(0, []string{"pull", "--prune"}, "b.yaml: deleted")
	if got := one.files(); len(got) != 1 {
		one.t.Errorf("files %v", got)
	}
}

func testPull(p *place) {
	p.put("sub/a.yaml", serviceEntry("a", "a"))
	p.put("README.md", "none of ours")
	p.run(0, []string{"pull", "--dry-run"}, "sub/a.yaml: would create")
	if len(p.files()) > 0 {
		p.t.Errorf("a dry run has written %v", p.files())
	}
	p.dir = filepath.Join(p.dir, "new")
	p.run(0, []string{"pull"}, "sub/a.yaml: created", "0 files as in Consul already")
	info, err := os.Stat(filepath.Join(p.dir, "sub/a.yaml"))
	if err != nil || info.Mode() != 0o644 {
		p.t.Errorf("%v, %v", info.Mode(), err)
	}
	if got := p.files(); len(got) != 1 || got["sub/a.yaml"] != serviceEntry("a", "a") {
		p.t.Errorf("files %v", got)
	}
	p.run(0, []string{"pull"}, "1 file as in Consul already")
	p.file("sub/a.yaml", "edited")
	p.put("sub/a.yaml", serviceEntry("a", "b"))
	p.run(1, []string{"pull"}, "left as it is")
	p.run(0, []string{"pull", "--force"}, "updated")
}

// testPullOdd: what cannot be a file below the directory is told, and nothing is
// written elsewhere.
func testPullOdd(p *place) {
	none := &place{t: p.t, a: p.a, dir: filepath.Join(p.dir, "new"), prefix: "fairlead/pull_typo"}
	none.run(1, []string{"pull"}, "see whether the prefix is the right one")
	if _, err := os.Stat(none.dir); err == nil {
		p.t.Error("a directory was made of nothing")
	}
	top := p.dir
	p.dir = filepath.Join(top, "in")
	outside := filepath.Join(top, "outside")
	for _, dir := range []string{p.dir, outside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"linked": outside, "file.yaml": filepath.Join(outside, "target")} {
		if err := os.Symlink(to, filepath.Join(p.dir, link)); err != nil {
			p.t.Fatal(err)
		}
	}
	good := serviceEntry("a", "a")
	for _, rel := range []string{"good.yaml", "../up.yaml", "a/../../up.yaml", "/abs.yaml", "a//b.yaml", "linked/x.yaml", "file.yaml", "a\nb.yaml", "good.yaml/b.yaml"} {
		p.put(rel, good)
	}
	p.run(1, []string{"pull"}, "good.yaml: created", "6 files could not be made what the keys are",
		"consul-kv:fairlead/pull_odd/a//b.yaml: left as it is: the key cannot be a file: it has an empty name in it",
		`a\nb.yaml: left as it is: the key cannot be a file: it has a character in it that is not to be seen`,
		"file.yaml: left as it is: it is a symbolic link", "good.yaml/b.yaml: left as it is: not a directory",
		"linked/x.yaml: left as it is: path escapes from parent")
	var all []string
	err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if !d.IsDir() {
			rel, _ := filepath.Rel(top, path)
			all = append(all, rel)
		}
		return err
	})
	if want := []string{"in/.fairlead-config.json", "in/file.yaml", "in/good.yaml", "in/linked"}; err != nil || !slices.Equal(all, want) {
		p.t.Errorf("%v, %v", all, err)
	}
}

func testDiff(p *place) {
	p.file("a.yaml", serviceEntry("a", "a"))
	p.run(1, []string{"diff"}, "a.yaml: ServiceEntry default/a added", "--- /dev/null", "+++ "+filepath.Join(p.dir, "a.yaml"), "+kind: ServiceEntry")
	p.run(0, []string{"push"})
	if out := p.run(0, []string{"diff"}); out != "" {
		p.t.Errorf("of the same it says %q", out)
	}
	p.file("a.yaml", "# a comment\n"+serviceEntry("a", "a"))
	p.run(1, []string{"diff"}, "a.yaml: no object differs", "--- consul-kv:fairlead/diff/a.yaml", "@@ -1,3 +1,4 @@\n+# a comment\n apiVersion")
	p.put("b.yaml", "]")
	p.file("a.yaml", serviceEntry("a", "b"))
	p.run(1, []string{"diff"}, "ServiceEntry default/a changed", "b.yaml: what Consul has is not valid", "+++ /dev/null")
	p.dir += "/nothing"
	p.run(2, []string{"diff"})
	p.dir = p.t.TempDir()
	p.run(2, []string{"diff", "--consul-address", "127.0.0.1:1"}, "Consul is not available")
}

// TestConfigCatalog: a push is checked with the catalog.
func TestConfigCatalog(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true})
	p := newPlace(t, a, "m")
	p.token = a.Cluster().Management
	route := strings.ReplaceAll(routeTo("r", "x"), "x.example", "web.service.consul")
	p.file("route.yaml", route)
	p.run(1, []string{"push"}, `error [FL0201] VirtualService default/r`, `"web.service.consul"`, "refused")
	p.run(0, []string{"push", "--no-catalog", "--dry-run"}, "warning [FL0201]", "it would be pushed")
	reg := &api.CatalogRegistration{
		Node: "n", Address: "10.0.0.1", Service: &api.AgentService{ID: "web1", Service: "web", Port: 80, Meta: map[string]string{"protocol": "http"}},
	}
	if _, err := a.Client().Catalog().Register(reg, nil); err != nil {
		t.Fatal(err)
	}
	// Without permission for the catalog that is reported, and unknown hosts are no errors.
	p.token = a.Cluster().CreateToken(`key_prefix "m/" { policy = "write" }`).Secret
	p.run(0, []string{"push", "--dry-run"}, "warning [FL0201]", "[FL0223]")
	p.token = a.Cluster().Management
	p.run(0, []string{"push"}, "pushed 1 key")
}

// TestPushReportsTheResult: where a server on this machine reads the keys, a push
// says what became of those that changed something; of others nobody is asked. That
// nobody knows is told, too.
func TestPushReportsTheResult(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	p := newPlace(t, a, "m")
	rollout := func(_ context.Context, r *http.Request, _ struct{}) (server.Rollout, error) {
		if path := r.PathValue("path"); path != "consul-kv:m/a.yaml" {
			t.Errorf("asked for %q", path)
		}
		return server.Rollout{Done: true, Touched: 3, Accepted: 2, Rejected: []server.Rejection{{Proxy: "p", Name: "n", Reason: "why"}}}, nil
	}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/sources": reads("consul-kv:m"), "GET /v1/rollout/{path...}": admin.JSON(rollout),
	})
	p.file("a.yaml", serviceEntry("a", "a"))
	p.file("b.yaml", "# nothing yet\n")
	p.run(1, []string{"push", "--run-dir", run}, "consul-kv:m/a.yaml applied to 2/3 proxies", "p rejected it: n: why")
	p.file("b.yaml", "# nothing still\n")
	p.file("a.yaml", "# moved\n")
	p.file("c.yaml", serviceEntry("a", "a"))
	p.run(0, []string{"push", "--dry-run"}, "ServiceEntry default/a unchanged, was in consul-kv:m/a.yaml")
	if err := os.Remove(filepath.Join(p.dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	p.file("a.yaml", serviceEntry("a", "a"))
	p.run(0, []string{"push", "--run-dir", run}, "pushed 1 key")
	for name, c := range outcomes(t, "consul-kv:m") {
		p.file("a.yaml", serviceEntry("a", name))
		if out := p.run(c.code, []string{"push", "--run-dir", c.run, "--wait", "200ms"}, "pushed 1 key", c.want); c.want == "" && !strings.HasSuffix(out, "; 1 were so already\n") {
			t.Errorf("%s: nobody is there, and it says\n%s", name, out)
		}
	}
}

// TestConfigDenied: a token that lacks a rule is told which, and nothing is
// written; all of it over TLS.
func TestConfigDenied(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true, TLS: true})
	p := newPlace(t, a, "fairlead/mesh")
	may := a.Cluster().CreateToken(`key_prefix "fairlead/mesh/" { policy = "read" }`)
	none := a.Cluster().CreateToken(`node_prefix "" { policy = "read" }`)
	write := a.Cluster().CreateToken(`key_prefix "fairlead/mesh/" { policy = "write" }`)
	part := a.Cluster().CreateToken(`key_prefix "fairlead/mesh/" { policy = "write" } key "fairlead/mesh/b.yaml" { policy = "read" }`)
	p.file("a.yaml", serviceEntry("a", "a"))
	p.file("b.yaml", serviceEntry("b", "b")+"#"+strings.Repeat("x", 480_000)+"\n")
	for name, token := range map[string]string{"none": none.Secret, "nobody": ""} {
		p.token = token
		for _, command := range []string{"push", "pull", "diff"} {
			p.run(2, []string{command}, `the token lacks key:read on "fairlead/mesh/"; give it key_prefix "fairlead/mesh/" { policy = "read" }`)
		}
		if len(p.keys()) > 0 {
			t.Errorf("%s has written", name)
		}
	}
	p.token = may.Secret
	p.run(1, []string{"diff"}, "ServiceEntry default/a added")
	p.run(2, []string{"push"}, `key:write' on "fairlead/mesh/a.yaml"; give it key_prefix "fairlead/mesh/" { policy = "write" }; nothing was written`)
	p.token = part.Secret
	p.run(2, []string{"push"}, `key:write' on "fairlead/mesh/b.yaml"`, "1 of 2 transactions (1 of 2 keys) were written before and are in force; the others were not")
	p.token = "10000000-0000-0000-0000-000000000000"
	p.run(2, []string{"push"}, "ACL not found")
	p.token = write.Secret
	p.run(0, []string{"push"}, "pushed 1 key in 1 transaction; 1 were so already")
}
