package picture

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
)

var web = Key{Service: "web"}

func newStore(t *testing.T, dir, of string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir, Of: of, Logger: slog.New(slog.DiscardHandler), WriteEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func load(t *testing.T, dir, of string) *Picture {
	t.Helper()
	p, err := newStore(t, dir, of).Load()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func instance(service string, n int, address string) *api.ServiceEntry {
	return &api.ServiceEntry{
		Node: &api.Node{Node: fmt.Sprintf("node%d", n), Address: address, Datacenter: "dc1", Meta: map[string]string{"rack": "r1"}, ModifyIndex: 7},
		Service: &api.AgentService{
			ID: fmt.Sprintf("%s-%d", service, n), Service: service, Port: 8080, Tags: []string{"version=v1"}, Meta: map[string]string{"protocol": "http"},
			Weights: api.AgentWeights{Passing: 3, Warning: 1}, Connect: &api.AgentServiceConnect{Native: true, SidecarService: &api.AgentServiceRegistration{}},
			Proxy: &api.AgentServiceConnectProxyConfig{}, Locality: &api.Locality{Region: "eu"}, ModifyIndex: 8,
		},
		Checks: api.HealthChecks{{Node: "node1", CheckID: "c", Name: "alive", Status: "passing", ServiceID: "web-1", Output: "password=hunter2", ModifyIndex: 9}},
	}
}

func put(t *testing.T, s *Store, key Key, entries ...*api.ServiceEntry) {
	t.Helper()
	if err := s.Put(key, Service{Protocol: "http", Entries: entries}); err != nil {
		t.Fatal(err)
	}
}

// write is what Run does once.
func write(t *testing.T, s *Store) {
	t.Helper()
	if err := durable.MakeDir(s.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	s.flush(true)
	if n, reason := s.Trouble(); n > 0 {
		t.Fatal(reason)
	}
}

func TestPictureComesBack(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "consul")
	s := newStore(t, dir, "dc1")
	if p, err := s.Load(); p != nil || err != nil {
		t.Fatalf("a picture of nothing: %v, %v", p, err)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	put(t, s, web, instance("web", 1, "10.0.0.1"), instance("web", 2, "10.0.0.2"))
	put(t, s, Key{Service: "web", Namespace: "team", Partition: "east"})
	s.Commit(s.Stage())
	s.Seen(at)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	p := load(t, dir, "dc1")
	want := &Picture{Read: at, Services: map[Key]Service{
		web: {Protocol: "http", Entries: []*api.ServiceEntry{slim(instance("web", 1, "10.0.0.1")), slim(instance("web", 2, "10.0.0.2"))}},
		{Service: "web", Namespace: "team", Partition: "east"}: {Protocol: "http", Entries: []*api.ServiceEntry{}},
	}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	got := p.Services[web].Entries[0]
	if got.Service.Weights.Passing != 3 || got.Node.Meta["rack"] != "r1" || !got.Service.Connect.Native || got.Service.Locality.Region != "eu" || got.Checks[0].Status != "passing" {
		t.Errorf("what the mapping reads is missing: %+v", got.Service)
	}
	if got.Checks[0].Output != "" || got.Service.Proxy != nil {
		t.Error("what nobody needs was kept")
	}
	if p := load(t, dir, "dc2"); p != nil {
		t.Error("a picture of dc1 is one of dc2")
	}
}

func TestOnlyWhatIsCommittedIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir, "")
	put(t, s, web, instance("web", 1, "10.0.0.1"))
	s.Commit(s.Stage())
	s.Seen(time.Now())
	write(t, s)
	put(t, s, web, instance("web", 1, "10.0.0.9"))
	put(t, s, Key{Service: "db"}, instance("db", 1, "10.0.0.2"))
	stage := s.Stage()
	put(t, s, Key{Service: "late"}, instance("late", 1, "10.0.0.3"))
	put(t, s, web, instance("web", 1, "10.0.0.8"))
	write(t, s)
	if p := load(t, dir, ""); len(p.Services) != 1 || p.Services[web].Entries[0].Node.Address != "10.0.0.1" {
		t.Errorf("kept before it was committed: %v", p.Services)
	}
	s.Commit(stage)
	write(t, s)
	if p := load(t, dir, ""); len(p.Services) != 2 || p.Services[web].Entries[0].Node.Address != "10.0.0.1" {
		t.Errorf("after the commit of the first stage: %v", p.Services)
	}
	s.Delete(web)
	s.Commit(s.Stage())
	write(t, s)
	p := load(t, dir, "")
	if _, there := p.Services[web]; there || len(p.Services) != 2 {
		t.Errorf("after the last commit: %v", p.Services)
	}
}

// TestOneServiceCostsItsFile: what did not change is not written.
func TestOneServiceCostsItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir, "")
	for i := range 1000 {
		name := fmt.Sprintf("s%d", i)
		put(t, s, Key{Service: name}, instance(name, 1, "10.0.0.1"))
	}
	s.Commit(s.Stage())
	s.Seen(time.Now())
	write(t, s)
	files := func() map[string]os.FileInfo {
		out := map[string]os.FileInfo{}
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if out[e.Name()], err = e.Info(); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	before := files()
	flap := instance("s7", 1, "10.0.0.1")
	flap.Checks[0].Status = "critical"
	put(t, s, Key{Service: "s7"}, flap)
	quiet := instance("s8", 1, "10.0.0.1")
	quiet.Checks[0].Output, quiet.Checks[0].ModifyIndex = "another word", 10
	put(t, s, Key{Service: "s8"}, quiet)
	s.Commit(s.Stage())
	write(t, s)
	var changed []string
	for name, fi := range files() {
		if !os.SameFile(fi, before[name]) {
			changed = append(changed, name)
		}
	}
	if len(changed) != 2 {
		t.Errorf("written: %v, want one of %d files and the mark", changed, len(before))
	}
}

func TestPartOfAPictureIsNone(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"cut":     func(path string) error { return os.Truncate(path, 90) },
		"changed": func(path string) error { return os.WriteFile(path, []byte("sha256:00\n{}"), 0o600) },
		"gone":    os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := newStore(t, dir, "")
			put(t, s, web, instance("web", 1, "10.0.0.1"))
			s.Commit(s.Stage())
			s.Seen(time.Now())
			write(t, s)
			if err := damage(s.path(shardOf(web))); err != nil {
				t.Fatal(err)
			}
			next := newStore(t, dir, "")
			p, err := next.Load()
			if p != nil || err == nil || !strings.Contains(err.Error(), s.path(shardOf(web))) {
				t.Errorf("loaded %v, %v", p, err)
			}
			put(t, next, web, instance("web", 1, "10.0.0.1"))
			next.Commit(next.Stage())
			next.Seen(time.Now())
			write(t, next)
			if p := load(t, dir, ""); len(p.Services) != 1 {
				t.Errorf("mended: %v", p)
			}
		})
	}
}

// TestKilledAtAnyStep: whatever is found after a crash is a whole picture, with
// each service as it was before or after.
func TestKilledAtAnyStep(t *testing.T) {
	t.Parallel()
	for step := 0; ; step++ {
		dir := t.TempDir()
		s := newStore(t, dir, "")
		put(t, s, web, instance("web", 1, "10.0.0.1"))
		put(t, s, Key{Service: "db"}, instance("db", 1, "10.0.0.1"))
		s.Commit(s.Stage())
		s.Seen(time.Now())
		write(t, s)
		put(t, s, web, instance("web", 1, "10.0.0.2"))
		put(t, s, Key{Service: "db"}, instance("db", 1, "10.0.0.2"))
		s.Commit(s.Stage())
		disk := &durabletest.FS{Steps: step}
		s.disk = disk
		s.flush(true)
		p := load(t, dir, "")
		if len(p.Services) != 2 {
			t.Fatalf("killed at step %d: %d services", step, len(p.Services))
		}
		for key, svc := range p.Services {
			if a := svc.Entries[0].Node.Address; a != "10.0.0.1" && a != "10.0.0.2" {
				t.Errorf("killed at step %d: %s has %s", step, key.Service, a)
			}
		}
		if !disk.Died() {
			break
		}
		if n, reason := s.Trouble(); n == 0 || reason == "" {
			t.Errorf("killed at step %d: nobody is told", step)
		}
		s.disk = durable.OS{}
		s.flush(false)
		if p := load(t, dir, ""); p.Services[web].Entries[0].Node.Address != "10.0.0.2" {
			t.Errorf("step %d: it is not tried again", step)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := New(Config{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	var entries []*api.ServiceEntry
	for i := range 20 {
		entries = append(entries, instance("web", i, fmt.Sprintf("10.0.0.%d", i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Put(web, Service{Entries: entries}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(s.staged[web].of.Entries)), "bytes/service")
}
