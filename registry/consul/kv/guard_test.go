package kv

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/manifest"
)

// guarded is a registry that reads one source.
type guarded struct {
	*registry.Registry
	t    *testing.T
	stop func()
}

func guard(t *testing.T, cfg Config) *guarded {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := New(cfg)
	check(t, err)
	r, err := registry.New(registry.Config{
		Logger: cfg.Logger, Sources: []registry.Source{s}, Fallback: manifest.DefaultMeshConfig(), ConfirmAfter: time.Second,
	})
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	g := &guarded{r, t, sync.OnceFunc(func() { cancel(); wg.Wait() })}
	t.Cleanup(g.stop)
	return g
}

// await waits until so many services are in force, and so many removals held.
func (g *guarded) await(services, held int) {
	g.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(patience)
	for {
		got, gotHeld := 0, g.Status().Sources[0].HeldCount
		if snap := g.Snapshot(); snap != nil {
			got = len(snap.Services)
		}
		if got == services && gotHeld == held {
			return
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("%d services and %d held, want %d and %d", got, gotHeld, services, held)
		}
		<-tick.C
	}
}

// TestGuard: of a Consul that comes back empty nothing is accepted until somebody
// says so, also not after a restart of the control plane; what is deleted by hand
// is accepted at the second reading.
func TestGuard(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	cfg := at(a, "m")
	cfg.StateDir, cfg.AwaitDecision = t.TempDir(), true
	s := storeOf(t, a, "m")
	for i := range 10 {
		s.put(fmt.Sprintf("%d.yaml", i), entry(fmt.Sprintf("s%d", i), fmt.Sprintf("h%d", i)))
	}
	g := guard(t, cfg)
	g.await(10, 0)
	for i := range 5 {
		s.remove(fmt.Sprintf("%d.yaml", i))
	}
	g.await(5, 0) // held, or few at a time, and then accepted

	a.Kill()
	a.Start() // with nothing of what it had
	g.await(5, 5)
	for range 2 {
		g.stop()
		g = guard(t, cfg)
		g.await(5, 5)
	}
	check(t, g.Release("consul-kv"))
	g.await(0, 0)
}
