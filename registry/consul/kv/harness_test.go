package kv

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = envoytest.Patience

// entry is a ServiceEntry of which the host is the value.
func entry(name, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s}\n"+
		"spec: {hosts: [%s.example], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}\n---\n", name, host)
}

// broken is a ServiceEntry that nobody takes.
func broken(name string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s}\nspec: {hots: []}\n---\n", name)
}

// objects is what a fragment holds, as "ns/name=host" lines; the namespace
// default is left out.
func objects(f *mesh.Fragment) []string {
	list := []string{}
	for _, s := range f.Services {
		list = append(list, strings.TrimPrefix(s.Namespace+"/"+s.Name, "default/")+"="+strings.TrimSuffix(string(s.Hostname), ".example"))
	}
	slices.Sort(list)
	return list
}

// store is what a test writes with.
type store struct {
	t  *testing.T
	kv *api.KV
	// txn is for several keys at once.
	txn    *api.Txn
	prefix string
}

func storeOf(t *testing.T, a *consultest.Agent, prefix string) store {
	t.Helper()
	c := a.Client()
	return store{t, c.KV(), c.Txn(), prefix}
}

func (s store) put(rel, value string) {
	s.t.Helper()
	_, err := s.kv.Put(&api.KVPair{Key: s.prefix + "/" + rel, Value: []byte(value)}, nil)
	check(s.t, err)
}

func (s store) remove(rel string) {
	s.t.Helper()
	_, err := s.kv.Delete(s.prefix+"/"+rel, nil)
	check(s.t, err)
}

// at is the Config that reads a prefix of an agent.
func at(a *consultest.Agent, prefix string) Config {
	return Config{
		Client: client.Config{Address: a.Address(), CAFile: a.Cluster().CAFile}, Prefix: prefix, RereadEvery: 600 * time.Millisecond,
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// running is a Source under test and what it has sent.
type running struct {
	*Source
	*sourcetest.Recorder
	t    *testing.T
	logs *sourcetest.Log
}

// start runs a source until the test ends or Stop is called.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	r := &running{t: t, logs: &sourcetest.Log{}}
	cfg.Logger = slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg)
	check(t, err)
	r.Source = s
	r.Recorder = sourcetest.Record(t, sourcetest.Recording{Source: s, Log: r.logs, Objects: objects, Patience: patience})
	return r
}

// awaitReadings waits for n more fragments, also such as were sent before.
func (r *running) awaitReadings(n int) {
	r.t.Helper()
	deadline := time.After(patience)
	for range n {
		_, news := r.History()
		select {
		case <-news:
		case <-deadline:
			r.t.Fatalf("no reading within %v", patience)
		}
	}
}

// awaitStatus waits until the status is as the function wants it.
func (r *running) awaitStatus(what string, ok func(*lastgood.Status) bool) *lastgood.Status {
	r.t.Helper()
	return sourcetest.AwaitStatus(r.Recorder, r.Status, what, ok)
}

func (r *running) hasFault(text string) bool {
	return slices.ContainsFunc(r.Status().Faults, func(f manifest.Fault) bool { return strings.Contains(f.String(), text) })
}

func ok(s *lastgood.Status) bool          { return s.State == lastgood.OK }
func unavailable(s *lastgood.Status) bool { return s.State == lastgood.Unavailable }
