package client_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// restorable answers as a Consul that restores a snapshot when restored is closed: all that
// waits is answered with what was there before, and indexes are lower from then on, so nothing
// that asks with an earlier index is answered.
func restorable(restored <-chan struct{}) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		index, names := 50, `{"a":[]}`
		asked := r.URL.Query().Get("index")
		select {
		case <-restored:
			if asked != "" {
				hold(r)
				return
			}
			index, names = 20, `{"a":[],"b":[]}`
		default:
			if asked != "" {
				select {
				case <-r.Context().Done():
					return
				case <-restored:
				}
			}
		}
		if r.URL.Path == restorePath {
			names = "[]"
		}
		reply(w, index, names)
	}
}

func TestRestoredSnapshotRestartsQueries(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]time.Duration{"soon": 0, "later": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restored := make(chan struct{})
			consul := restorable(restored)
			f := serve(t, false, consul)
			waiting := make(chan struct{}, 100)
			f.set(func() {
				f.restore = func(w http.ResponseWriter, r *http.Request) {
					waiting <- struct{}{}
					consul(w, r)
				}
			})
			log := &sourcetest.Log{}
			c := newClient(t, f, func(c *client.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			follower := follow(t, c)
			follower.want("1 names at 50, fresh true")
			<-waiting
			began := time.Now().Add(held)
			time.AfterFunc(held, func() { close(restored) })
			follower.want("2 names at 20, fresh true")
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if n := c.Stats().Restores; n != 1 {
				t.Errorf("%d restores, want 1", n)
			}
			envoytest.Eventually(t, envoytest.Patience, func() error { // it is logged after the restart
				if n := strings.Count(log.String(), "Consul restored a snapshot"); n != 1 {
					return fmt.Errorf("%d lines in the log:\n%s", n, log)
				}
				return nil
			})
		})
	}
}

// An index that is lower than before is evidence, too.
func TestLowerIndexRestartsQueries(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	begin := make(chan struct{})
	f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") != "" {
			hold(r)
			return
		}
		reply(w, 50, `{}`)
	})
	f.set(func() {
		f.restore = func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-begin:
			case <-r.Context().Done():
				return
			}
			switch asked.Add(1) {
			case 1:
				reply(w, 9, "[]")
			case 2:
				reply(w, 8, "[]")
			default:
				hold(r)
			}
		}
	})
	c := newClient(t, f, nil)
	follower := follow(t, c)
	follower.want("0 names at 50, fresh true")
	close(begin)
	follower.want("0 names at 50, fresh true")
	if n := c.Stats().Restores; n != 1 {
		t.Errorf("%d restores, want 1", n)
	}
}

// A proxy that does not hold blocking queries, or ends them early, is no snapshot: all is
// read again a few times at most.
func TestQueriesThatEndEarlyDoNotRestartForEver(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it waits for queries of seconds")
	}
	for name, x := range map[string]struct {
		held     time.Duration
		asked    int64
		restores uint64
	}{"not held": {0, 6, 0}, "ended early": {1200 * time.Millisecond, 12, 3}} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			enough := make(chan struct{})
			var asked atomic.Int64
			f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("index") != "" {
					hold(r)
					return
				}
				reply(w, 50, `{}`)
			})
			f.set(func() {
				f.restore = func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) == x.asked {
						close(enough)
					}
					select {
					case <-time.After(x.held):
						reply(w, 9, "[]")
					case <-r.Context().Done():
					}
				}
			})
			log := &sourcetest.Log{}
			c := newClient(t, f, func(c *client.Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
			follow(t, c)
			select {
			case <-enough:
			case <-time.After(patience):
				t.Fatalf("asked %d times", asked.Load())
			}
			if n := c.Stats().Restores; n != x.restores {
				t.Errorf("%d restores, want %d", n, x.restores)
			}
			want := 0
			if x.restores > 0 {
				want = 1
			}
			if n := strings.Count(log.String(), "blocking queries end early"); n != want {
				t.Errorf("the log is\n%s", log)
			}
		})
	}
}
