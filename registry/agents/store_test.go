package agents

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// memory is a Store.
type memory struct {
	mu    sync.Mutex // guards all following fields
	out   []mesh.HealthReport
	saves int
	fault error
}

func (m *memory) Load() ([]mesh.HealthReport, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.out), m.fault
}

func (m *memory) Save(out []mesh.HealthReport) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.out, m.saves = slices.Clone(out), m.saves+1
	return m.fault
}

func TestRestartLetsNobodyIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		h := run(t, Config{Store: store})
		for host := range 3 {
			h.open(uint64(host+1), host+1)
			h.say(uint64(host+1), mesh.Healthy)
		}
		h.say(2, mesh.Unhealthy)
		h.StreamClosed(3)
		h.after(11 * time.Second)
		h.want("before", "1+ 2- 3-gone")
		// Killed; nothing is said to the store at the end.

		s, err := New(Config{Logger: slog.New(slog.DiscardHandler), Store: store})
		if err != nil {
			t.Fatal(err)
		}
		again := &harness{Source: s, t: t, out: make(chan *mesh.Fragment)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, again.out) }()
		again.after(0)
		again.want("who was out is out from the first word on", "2- 3-gone")
		again.after(time.Hour)
		again.want("and stays so", "2- 3-gone")
		again.open(7, 2)
		again.open(8, 3)
		again.after(0)
		again.want("the agent that said so has not yet said otherwise", "2-")
		again.say(7, mesh.Healthy)
		again.after(time.Second)
		again.want("now it has", "2+")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(store.out) != 0 {
			t.Errorf("saved although all are in: %v", store.out)
		}
	})
}

func TestStoreIsSpared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{fault: errors.New("disk full")}
		h := run(t, Config{Store: store})
		h.open(1, 1)
		for range 100 {
			h.say(1, mesh.Unhealthy)
			h.after(time.Millisecond)
			h.say(1, mesh.Healthy)
			h.after(time.Millisecond)
		}
		h.after(time.Second)
		if store.saves < 1 || store.saves > 4 || len(store.out) != 0 {
			t.Errorf("%d saves in a second, the last of %v", store.saves, store.out)
		}
	})
}
