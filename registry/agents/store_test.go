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

func TestUnhealthyStaysOutAfterRestart(t *testing.T) {
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
		h.want("before", "1+ 2- 3~")
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
		again.want("who was out is out from the first word on", "2-left 3~")
		again.after(time.Hour)
		again.want("and stays so", "2-left 3~")
		again.open(7, 2)
		again.open(8, 3)
		again.after(0)
		again.want("the agent that said so has not yet said otherwise", "2-left")
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

// TestRecoveryIsSavedBeforeItIsSent shows that a restart takes out nobody who is in
// use: that somebody is back is saved before anybody hears of it, that somebody is
// out when there is time.
func TestRecoveryIsSavedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		h := run(t, Config{Store: store})
		h.open(1, 1)
		h.open(2, 2)
		h.say(1, mesh.Unhealthy)
		h.after(0)
		if len(store.out) != 1 {
			t.Errorf("the first that is out is saved at once: %v", store.out)
		}
		h.say(2, mesh.Unhealthy)
		h.after(0)
		h.say(1, mesh.Healthy)
		h.after(0)
		h.want("sent", "1+ 2-")
		if len(store.out) != 1 || store.out[0].Address != "10.0.0.002" {
			t.Errorf("sent, and saved is %v", store.out)
		}
	})
}

func TestSavesAreRateLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
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
			t.Errorf("%d saves in a fifth of a second, the last of %v", store.saves, store.out)
		}
	})
}

func TestFailedSaveIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{fault: errors.New("disk full")}
		h := run(t, Config{Store: store})
		h.open(1, 1)
		h.say(1, mesh.Unhealthy)
		h.after(12 * time.Second)
		if store.saves != 3 {
			t.Errorf("%d saves in twelve seconds", store.saves)
		}
		store.mu.Lock()
		store.fault = nil
		store.mu.Unlock()
		h.after(time.Minute)
		if store.saves != 4 {
			t.Errorf("%d saves in the end", store.saves)
		}
		h.want("nobody is kept waiting by that", "1-")
	})
}
