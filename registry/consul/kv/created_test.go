package kv

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
)

// withGateway is an entry, and a Gateway without a date that wants a port for itself.
func withGateway(name, host string) string {
	return entry(name, host) + fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: %s}\n"+
		"spec: {servers: [{port: {number: 9000, name: tcp, protocol: TCP}, hosts: [\"*\"]}]}\n", name)
}

// serves is the Gateway that has the port in the fragment that was sent last.
func (r *running) serves() string {
	r.t.Helper()
	list, _ := r.History()
	gateways := slices.Clone(list[len(list)-1].Gateways)
	m := mesh.MergeGateways(gateways, nil)
	if len(m.Ports) != 1 || len(m.Servers[m.Ports[0]]) != 1 {
		r.t.Fatalf("the port is served by %v", m.Servers)
	}
	return m.Servers[m.Ports[0]][0].Gateway.Name
}

func (r *running) awaitServes(name string) {
	r.t.Helper()
	r.Await(r.objectsNow()...)
	if got := r.serves(); got != name {
		r.t.Errorf("%q has the port, want %q", got, name)
	}
}

func (r *running) objectsNow() []string {
	list, _ := r.History()
	return objects(list[len(list)-1])
}

// TestGatewaysOfKeysHaveTheirAge: of Gateways without a date in two keys, that of the key that was created first
// serves, whatever their names: also after an edit, after a restart, while Consul is away, and with what an earlier
// release has saved, once Consul has been read.
func TestGatewaysOfKeysHaveTheirAge(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{Persistent: true})
	s := storeOf(t, a, "m")
	cfg := at(a, "m")
	cfg.StateDir = t.TempDir()
	s.put("z.yaml", withGateway("z", "one"))
	r := start(t, cfg)
	r.Await("z=one")
	s.put("a.yaml", withGateway("a", "one"))
	r.Await("a=one", "z=one")
	r.awaitServes("z")
	s.put("z.yaml", withGateway("z", "two")) // an edit is no creation
	r.Await("a=one", "z=two")
	r.awaitServes("z")

	r.Stop()
	a.Kill()
	r = start(t, cfg)
	r.Await("a=one", "z=two")
	r.awaitServes("z")
	r.Stop()

	forgetIndexes(t, cfg.StateDir)
	r = start(t, cfg)
	r.Await("a=one", "z=two")
	r.awaitServes("a") // nobody knows better
	a.Start()
	r.awaitStatus("ok", ok)
	s = storeOf(t, a, "m")
	s.put("b.yaml", entry("b", "one"))
	r.Await("a=one", "b=one", "z=two")
	r.awaitServes("z")

	// The same text in a new key is new.
	s.remove("z.yaml")
	r.Await("a=one", "b=one")
	s.put("z.yaml", withGateway("z", "two"))
	r.Await("a=one", "b=one", "z=two")
	r.awaitServes("a")
}

// TestKeyThatIsMadeAgainIsNew: also where nobody has read the keys in between.
func TestKeyThatIsMadeAgainIsNew(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	s := storeOf(t, a, "m")
	cfg := at(a, "m")
	cfg.StateDir = t.TempDir()
	s.put("z.yaml", withGateway("z", "one"))
	s.put("a.yaml", withGateway("a", "one"))
	r := start(t, cfg)
	r.Await("a=one", "z=one")
	r.awaitServes("z")
	r.Stop()
	s.remove("z.yaml")
	s.put("z.yaml", withGateway("z", "one"))
	s.put("b.yaml", entry("b", "one"))
	r = start(t, cfg)
	r.Await("a=one", "b=one", "z=one")
	r.awaitServes("a")
}

// forgetIndexes makes of a state directory what an earlier release has written.
func forgetIndexes(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "consul-kv", "*", "lastgood-*.json"))
	check(t, err)
	forgot := 0
	for _, f := range files {
		var list []map[string]any
		check(t, durable.Unseal(f, &list, 1<<20))
		for _, e := range list {
			if _, has := e["create_index"]; has {
				delete(e, "create_index")
				forgot++
			}
		}
		check(t, durable.Seal(f, list, 1<<20))
	}
	if forgot != 2 {
		t.Fatalf("%d keys had an index", forgot)
	}
}
