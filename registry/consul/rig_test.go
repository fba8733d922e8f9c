package consul_test

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// patience separates what works from what does not, on a machine that does much
// else.
const patience = time.Minute

// rig is a source that runs, and its receiver.
type rig struct {
	*sourcetest.Recorder
	tb     testing.TB
	cfg    consul.Config
	source *consul.Source
	log    *sourcetest.Log
}

func config(tb testing.TB, a *consultest.Cluster, address string) consul.Config {
	tb.Helper()
	m, err := mapping.New(mapping.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return consul.Config{Mapper: m, Client: client.Config{Address: address, CAFile: a.CAFile}}
}

// start runs a source; it ends with the test, or by Stop.
func start(tb testing.TB, cfg consul.Config) *rig {
	tb.Helper()
	r := &rig{tb: tb, log: &sourcetest.Log{}}
	cfg.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	r.cfg = cfg
	var err error
	if r.source, err = consul.New(cfg); err != nil {
		tb.Fatal(err)
	}
	r.Recorder = sourcetest.Record(tb, sourcetest.Recording{Source: r.source, Log: r.log, Patience: patience, Took: func(f *mesh.Fragment) {
		if !cfg.AwaitDecision {
			r.source.Decided(f, 0)
		}
	}})
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("status: %+v", *r.source.Status())
		}
	})
	return r
}

func (r *rig) fragments() []*mesh.Fragment {
	list, _ := r.History()
	return list
}

// await waits until the latest fragment, or nil, is as wanted, and returns how
// long that took.
func (r *rig) await(what string, want func(*mesh.Fragment) bool) time.Duration {
	r.tb.Helper()
	began := time.Now()
	late := time.After(patience)
	for {
		_, news := r.History()
		if f := r.Last(); f != nil && want(f) {
			return time.Since(began)
		}
		select {
		case <-news:
		case <-late:
			r.tb.Fatalf("%s: not after %v; the catalog is\n%s", what, patience, text(r.Last()))
		}
	}
}

// awaitStatus waits until the status is as wanted.
func (r *rig) awaitStatus(what string, want func(*consul.Status) bool) {
	r.tb.Helper()
	sourcetest.AwaitStatus(r.Recorder, r.source.Status, what, want)
}

// awaitFresh waits until the catalog cache is what a fresh reading gives.
func (r *rig) awaitFresh(what string) time.Duration {
	r.tb.Helper()
	cfg := r.cfg
	cfg.Logger = slog.New(slog.DiscardHandler)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	var fresh string
	for late := began.Add(patience); time.Now().Before(late); <-tick.C {
		f, _, err := consul.Read(r.tb.Context(), cfg)
		if err != nil {
			began = time.Now() // it is not readable yet
			continue
		}
		if fresh = text(f); fresh == text(r.Last()) {
			return time.Since(began)
		}
	}
	r.tb.Fatalf("%s: the catalog is\n%s\na fresh reading gives\n%s", what, text(r.Last()), fresh)
	return 0
}

// text is what a fragment says, for comparing.
func text(f *mesh.Fragment) string {
	if f == nil {
		return "(none)"
	}
	var b strings.Builder
	for _, s := range f.Services {
		fmt.Fprintf(&b, "%s %s %v %s\n", s.Key, s.Hostname, s.Ports, s.Hash)
	}
	for _, w := range f.Workloads {
		fmt.Fprintf(&b, "%s %s %v health=%d %q %s\n", w.Key, w.Address, w.Ports, w.Health, w.HealthReason, w.Hash)
	}
	return b.String()
}

// workload finds a workload by the end of its name.
func workload(f *mesh.Fragment, suffix string) *mesh.Workload {
	i := slices.IndexFunc(f.Workloads, func(w *mesh.Workload) bool { return strings.HasSuffix(w.Name, suffix) })
	if i < 0 {
		return nil
	}
	return f.Workloads[i]
}

// instance is a registration, made over the API as an agent makes it.
type instance struct {
	node, nodeAddress, id, service string
	tags                           []string
	meta                           map[string]string
	port                           int
	status                         string // of its check; empty means passing
}

func (i instance) register(tb testing.TB, c *api.Client) {
	tb.Helper()
	_, err := c.Catalog().Register(&api.CatalogRegistration{
		Node: i.node, Address: cmp.Or(i.nodeAddress, "10.0.0.1"),
		Service: &api.AgentService{ID: i.id, Service: i.service, Tags: i.tags, Meta: i.meta, Port: cmp.Or(i.port, 8080)},
		Check: &api.AgentCheck{
			Node: i.node, CheckID: "service:" + i.id, Name: "alive", ServiceID: i.id, ServiceName: i.service,
			Status: cmp.Or(i.status, api.HealthPassing),
		},
	}, nil)
	if err != nil {
		tb.Fatalf("registering %q: %v", i.id, err)
	}
}

func (i instance) with(change func(*instance)) instance {
	change(&i)
	return i
}

func deregister(tb testing.TB, c *api.Client, node, id string) {
	tb.Helper()
	if _, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: node, ServiceID: id}, nil); err != nil {
		tb.Fatalf("deregistering %q: %v", id, err)
	}
}
