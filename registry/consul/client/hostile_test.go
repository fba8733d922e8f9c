package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// both runs a test against servers with and without TLS.
func both(t *testing.T, test func(t *testing.T, overTLS bool)) {
	t.Helper()
	for name, overTLS := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, overTLS)
		})
	}
}

// A redirect takes the token nowhere.
func TestTokenDoesNotFollowRedirect(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, overTLS bool) {
		t.Helper()
		var lured atomic.Int64
		thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { lured.Add(1) }))
		t.Cleanup(thief.Close)
		token := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
			f := serve(t, overTLS, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL+r.URL.Path, status) })
			c := newClient(t, f, func(c *client.Config) { c.TokenFile = token })
			_, _, err := client.Get(t.Context(), c, services)
			if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "is not followed") {
				t.Errorf("status %d: %v", status, err)
			}
			if _, err := c.SeesAll(t.Context()); err == nil {
				t.Errorf("status %d says what may be seen", status)
			}
		}
		if n := lured.Load(); n > 0 {
			t.Errorf("%d queries followed", n)
		}
	})
}

// An answer of a watch that begins and does not end is given up, and the next one
// counts; it is not waited for as long as for a change.
func TestStalledAnswerIsCanceled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes as long as an answer may")
	}
	both(t, func(t *testing.T, overTLS bool) {
		t.Helper()
		var stalled atomic.Bool
		f := serve(t, overTLS, func(w http.ResponseWriter, r *http.Request) {
			switch index := r.URL.Query().Get("index"); {
			case index == "5" && !stalled.Swap(true):
				w.Header().Set("X-Consul-Index", "6")
				_, _ = fmt.Fprint(w, `{"we`)
				_ = http.NewResponseController(w).Flush()
				hold(r)
			case index == "6":
				hold(r)
			case stalled.Load():
				reply(w, 6, `{"web": []}`)
			default:
				reply(w, 5, `{}`)
			}
		})
		fo := follow(t, newClient(t, f, nil))
		fo.want("0 names at 5, fresh true")
		fo.wantError(func(err error) bool {
			return errors.Is(err, client.ErrUnavailable) && strings.Contains(err.Error(), "does not end")
		}, "that it does not end")
		fo.want("1 names at 6, fresh true")
	})
}

// Thousands of watches may wake at the same moment: few of their answers are in
// memory at a time, and all are read.
func TestBodiesReadAtOnceAreBounded(t *testing.T) {
	t.Parallel()
	const queries = 400
	var waiting, reading, most, read atomic.Int64
	wake := make(chan struct{})
	f := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("index") {
		case "5":
			if waiting.Add(1) == queries {
				close(wake)
			}
			<-wake
			reply(w, 6, `{}`)
		case "6":
			hold(r)
		default:
			reply(w, 5, `{}`)
		}
	})
	c := newClient(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := make(chan struct{})
	slowly := func(io.Reader) error {
		n := reading.Add(1)
		defer reading.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			continue
		}
		<-time.After(5 * time.Millisecond)
		return nil
	}
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() {
			client.Follow(ctx, c, client.Query[any]{Read: func(a *api.Client, q *api.QueryOptions) (any, *api.QueryMeta, error) {
				var v any
				m, err := a.Raw().Query("/v1/catalog/services", &v, client.Streamed(q, slowly))
				return v, m, err
			}}, func(_ any, m client.Meta) {
				if m.Index == 6 && read.Add(1) == queries {
					close(all)
				}
			})
		})
	}
	select {
	case <-all:
	case <-time.After(patience):
		t.Fatalf("%d of %d answers were read", read.Load(), queries)
	}
	if n := most.Load(); n > 32 {
		t.Errorf("%d answers were read at once", n)
	}
	cancel()
	wg.Wait()
}

// A server that does not wait is not asked all the time.
func TestServerThatDoesNotHoldQueries(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	both(t, func(t *testing.T, overTLS bool) {
		t.Helper()
		f := serve(t, overTLS, func(w http.ResponseWriter, _ *http.Request) { reply(w, 5, `{}`) })
		follow(t, newClient(t, f, nil)).want("0 names at 5, fresh true")
		<-time.After(3 * time.Second) // the passing of time is what is tested
		if n := len(f.queries()); n > 12 {
			t.Errorf("%d queries in three seconds", n)
		}
	})
}

// What a cache answers was true once.
func TestAnswerOfCacheIsRefused(t *testing.T) {
	t.Parallel()
	var asked atomic.Value
	f := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.Header.Get("Cache-Control"))
		w.Header().Set("Age", "17")
		reply(w, 5, `{}`)
	})
	_, _, err := client.Get(t.Context(), newClient(t, f, nil), services)
	if !errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "cache on the way") || asked.Load() != "no-cache" {
		t.Errorf("%v; it was asked with %q", err, asked.Load())
	}
}

// Headers that nobody needs are not kept.
func TestHeadersAreBounded(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, overTLS bool) {
		t.Helper()
		f := serve(t, overTLS, func(w http.ResponseWriter, _ *http.Request) {
			for i := range 9 {
				w.Header().Set("X-"+strconv.Itoa(i), strings.Repeat("x", 100<<10))
			}
			reply(w, 5, `{}`)
		})
		if _, _, err := client.Get(t.Context(), newClient(t, f, nil), services); !errors.Is(err, client.ErrUnavailable) {
			t.Errorf("they are taken: %v", err)
		}
	})
}

// How much a connection carries is what the server, or what is before it, says.
func TestStreamsAreWhatTheServerAllows(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 7, 100} {
		f := serveStreams(t, most, func(w http.ResponseWriter, _ *http.Request) { reply(w, 5, `{}`) })
		c := newClient(t, f, nil)
		if n := c.Streams(); n != 0 {
			t.Errorf("%d before anything was answered", n)
		}
		if _, _, err := client.Get(t.Context(), c, services); err != nil {
			t.Fatal(err)
		}
		if n := c.Streams(); n != most {
			t.Errorf("%d, not %d", n, most)
		}
	}
}
