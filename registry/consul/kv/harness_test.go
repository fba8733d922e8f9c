package kv

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

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
		Client: client.Config{Address: a.Address(), CAFile: a.Cluster().CAFile}, Prefix: prefix, LookEvery: 600 * time.Millisecond,
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
	t    *testing.T
	logs *logs
	stop func()

	mu   sync.Mutex       // guards all following fields
	sent []*mesh.Fragment // but those that were the one before
	news chan struct{}    // closed and replaced at each fragment
}

// start runs a source until the test ends or stop is called.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	r := &running{t: t, logs: &logs{}, news: make(chan struct{})}
	cfg.Logger = slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg)
	check(t, err)
	r.Source = s
	ctx, cancel := context.WithCancel(t.Context())
	out := make(chan *mesh.Fragment)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, out); err != nil {
			t.Errorf("Run: %v", err)
		}
		close(out)
	})
	wg.Go(func() {
		for f := range out {
			r.note(f)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("log:\n%s", r.logs)
		}
	})
	return r
}

func (r *running) note(f *mesh.Fragment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.sent); n == 0 || r.sent[n-1] != f {
		r.sent = append(r.sent, f)
	}
	close(r.news)
	r.news = make(chan struct{})
}

// history is all fragments so far, and what will be closed at the next.
func (r *running) history() (sent []*mesh.Fragment, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent), r.news
}

// await waits until the source says exactly these objects.
func (r *running) await(want ...string) *mesh.Fragment {
	r.t.Helper()
	slices.Sort(want)
	if want == nil {
		want = []string{}
	}
	deadline := time.After(patience)
	for {
		list, news := r.history()
		var got []string
		if len(list) > 0 {
			f := list[len(list)-1]
			if got = objects(f); slices.Equal(got, want) {
				return f
			}
		}
		select {
		case <-news:
		case <-deadline:
			r.t.Fatalf("after %v (-want +got):\n%s", patience, cmp.Diff(want, got))
		}
	}
}

// awaitReadings waits for n more fragments, also such as were sent before.
func (r *running) awaitReadings(n int) {
	r.t.Helper()
	deadline := time.After(patience)
	for range n {
		_, news := r.history()
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
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		if st := r.Status(); ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("after %v the status is not %s: %+v", patience, what, r.Status())
		}
	}
}

// always checks all fragments so far for objects that must always be there.
func (r *running) always(want ...string) {
	r.t.Helper()
	list, _ := r.history()
	for i, f := range list {
		for _, o := range want {
			if !slices.Contains(objects(f), o) {
				r.t.Fatalf("fragment %d lacks %q: %v", i, o, objects(f))
			}
		}
	}
}

func (r *running) hasFault(text string) bool {
	return slices.ContainsFunc(r.Status().Faults, func(f manifest.Fault) bool { return strings.Contains(f.String(), text) })
}

func ok(s *lastgood.Status) bool          { return s.State == lastgood.OK }
func unavailable(s *lastgood.Status) bool { return s.State == lastgood.Unavailable }

// logs is a buffer for what a running source logs.
type logs struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *logs) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logs) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
