package client_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// Thousands of queries that wait share as few connections as can carry them,
// even if all begin at the same moment.
func TestQueriesShareConnections(t *testing.T) {
	t.Parallel()
	const queries = 2000
	var waiting atomic.Int64
	all := make(chan struct{})
	f := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") == "" {
			reply(w, 5, `{}`)
			return
		}
		if waiting.Add(1) == queries {
			close(all)
		}
		hold(r)
	})
	c := newClient(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() {
			client.Follow(ctx, c, client.Query[map[string][]string]{Read: services}, func(map[string][]string, client.Meta) {})
		})
	}
	select {
	case <-all:
	case <-time.After(3 * patience):
		t.Errorf("%d queries wait, want %d", waiting.Load(), queries)
	}
	if !c.HTTP2() {
		t.Error("HTTP/2 is not spoken")
	}
	f.set(func() {
		if f.most < queries/250 || f.most > queries/250+2 {
			t.Errorf("%d connections for %d queries", f.most, queries)
		}
	})
	cancel()
	wg.Wait()
	if n := c.Stats().Connections; n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// Over plain HTTP each query has its own connection: no more are asked at the
// same time than there are slots.
func TestReadsInFlightAreBounded(t *testing.T) {
	t.Parallel()
	var now, most atomic.Int64
	f := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		for n := now.Add(1); ; {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		defer now.Add(-1)
		reply(w, 5, `{}`)
	})
	for name, limit := range map[string]int{"slots": 64, "connections": 3} {
		c := newClient(t, f, func(c *client.Config) { c.MaxConnections = limit })
		f.set(func() { f.most = 0 })
		most.Store(0)
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if _, _, err := client.Get(t.Context(), c, services); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := most.Load(); n > int64(min(16, limit)) {
			t.Errorf("%s: %d queries at once", name, n)
		}
		c.Close()
	}
}

// A server that restarts leaves connections behind that nobody can use.
func TestClosedConnectionIsRetried(t *testing.T) {
	t.Parallel()
	f := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { reply(w, 5, `{}`) })
	c := newClient(t, f, nil)
	for range 20 {
		if _, _, err := client.Get(t.Context(), c, services); err != nil {
			t.Fatal(err)
		}
		f.CloseClientConnections()
	}
}

func TestEscapedNames(t *testing.T) {
	t.Parallel()
	f := serve(t, false, func(w http.ResponseWriter, _ *http.Request) { reply(w, 5, `[]`) })
	_, _, err := client.Get(t.Context(), newClient(t, f, nil), func(c *api.Client, q *api.QueryOptions) ([]string, *api.QueryMeta, error) {
		var v []string
		m, err := c.Raw().Query("/v1/health/service/a%2F..%2Fb%25", &v, client.Escaped(q))
		return v, m, err
	})
	if err != nil {
		t.Error(err)
	}
	wantAsked(t, f, "/v1/health/service/a%2F..%2Fb%25 ")
}

// part is what a server said, and when it is passed on.
type part struct {
	due   <-chan time.Time
	bytes []byte
}

// slowly passes connections on to a server; what the server says comes late.
func slowly(t *testing.T, server string, late time.Duration) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = down.Close()
				continue
			}
			wg.Go(func() {
				_, _ = io.Copy(up, down)
				_, _ = up.Close(), down.Close()
			})
			parts := make(chan part, 1000)
			wg.Go(func() {
				defer close(parts)
				for {
					b := make([]byte, 16<<10)
					n, err := up.Read(b)
					if err != nil {
						return
					}
					parts <- part{time.After(late), b[:n]}
				}
			})
			wg.Go(func() {
				defer func() { _, _ = up.Close(), down.Close() }()
				for p := range parts {
					<-p.due
					_, _ = down.Write(p.bytes)
				}
			})
		}
	})
	return l.Addr().String()
}

// How many queries a connection carries is known before there are more, however far
// away the server is: one too many would wait within the connection, or be refused.
func TestStreamsAreKnownBeforeTheyAreUsed(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	const queries = 24
	var waiting atomic.Int64
	all := make(chan struct{})
	f := serveStreams(t, 4, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") == "" {
			reply(w, 5, `{}`)
			return
		}
		if waiting.Add(1) == queries {
			close(all)
		}
		hold(r)
	})
	address := slowly(t, f.Listener.Addr().String(), 400*time.Millisecond)
	c := newClient(t, f, func(c *client.Config) { c.Address = "https://" + address })
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() {
			client.Follow(ctx, c, client.Query[map[string][]string]{Read: services}, func(map[string][]string, client.Meta) {})
		})
	}
	select {
	case <-all:
	case <-time.After(patience):
		t.Errorf("%d of %d queries wait for a change", waiting.Load(), queries)
	}
	if st := c.Stats(); st.Failed > 0 || st.Connections > queries/4+1 {
		t.Errorf("%+v", st)
	}
	cancel()
	wg.Wait()
}
