package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// follower is a Follow that runs, and what it said.
type follower struct {
	tb     testing.TB
	got    chan string
	errors chan error
}

// follow follows the list of services until the test ends.
func follow(tb testing.TB, c *client.Client) *follower {
	tb.Helper()
	f := &follower{tb: tb, got: make(chan string, 100), errors: make(chan error, 100)}
	ctx, cancel := context.WithCancel(tb.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		client.Follow(ctx, c, client.Query[map[string][]string]{Name: "services", Read: services, MinInterval: time.Millisecond, OnError: func(err error) { f.errors <- err }},
			func(v map[string][]string, m client.Meta) {
				f.got <- fmt.Sprintf("%d names at %d, fresh %t", len(v), m.Index, m.Fresh)
			})
	})
	tb.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f
}

func (f *follower) want(answers ...string) {
	f.tb.Helper()
	for _, want := range answers {
		select {
		case got := <-f.got:
			if got != want {
				f.tb.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(patience):
			f.tb.Fatalf("no answer, want %q", want)
		}
	}
}

func (f *follower) wantError(is func(error) bool, what string) {
	f.tb.Helper()
	select {
	case err := <-f.errors:
		if !is(err) {
			f.tb.Fatalf("got %v, want %s", err, what)
		}
	case <-time.After(patience):
		f.tb.Fatalf("got nothing, want %s", what)
	}
}

func isNil(err error) bool { return err == nil }

// script answers one query after the other; after the last it holds.
func script(steps ...func(w http.ResponseWriter)) func(w http.ResponseWriter, r *http.Request) {
	next := make(chan func(w http.ResponseWriter), len(steps))
	for _, s := range steps {
		next <- s
	}
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s := <-next:
			s(w)
		default:
			hold(r)
		}
	}
}

func answered(index int, names string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) { reply(w, index, names) }
}

func failed(status int, words string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) { http.Error(w, words, status) }
}

func wantAsked(tb testing.TB, f *fake, want ...string) {
	tb.Helper()
	var got []string
	for late := time.Now().Add(patience); time.Now().Before(late); {
		if got = f.queries(); len(got) >= len(want) {
			break
		}
	}
	for i := range want {
		if i >= len(got) || !strings.Contains(got[i], want[i]) {
			tb.Fatalf("asked:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestFollowDeliversChanges(t *testing.T) {
	t.Parallel()
	f := serve(t, false, script(answered(5, `{"a":[]}`), answered(5, `{"a":[]}`), answered(7, `{"a":[],"b":[]}`)))
	follow(t, newClient(t, f, nil)).want("1 names at 5, fresh true", "2 names at 7, fresh false")
	wantAsked(t, f, "index= ", "index=5 ", "index=5 ", "index=7 ")
}

func TestIndexThatGoesBackwardsIsReset(t *testing.T) {
	t.Parallel()
	f := serve(t, false, script(answered(50, `{"a":[]}`), answered(20, `{}`), answered(21, `{"b":[]}`)))
	c := newClient(t, f, nil)
	follow(t, c).want("1 names at 50, fresh true", "1 names at 21, fresh true")
	wantAsked(t, f, "index= ", "index=50 ", "index= ", "index=21 ")
	if n := c.Stats().Resets; n != 1 {
		t.Errorf("%d resets, want 1", n)
	}
}

func TestAnswerWithoutIndexDoesNotSpin(t *testing.T) {
	t.Parallel()
	f := serve(t, false, script(answered(0, `{"a":[]}`)))
	follow(t, newClient(t, f, nil)).want("1 names at 0, fresh true")
	wantAsked(t, f, "index= ", "index=1 ")
}

func TestErrorsAreReportedAndCleared(t *testing.T) {
	t.Parallel()
	denied := func(err error) bool {
		d, ok := errors.AsType[*client.Denied](err)
		return ok && d.Rule == `service:read on "web"`
	}
	for _, x := range []struct {
		name string
		fail func(w http.ResponseWriter)
		is   func(error) bool
		slow bool // it is not asked for again for seconds
	}{
		{"denied", failed(http.StatusForbidden, `Permission denied: token with AccessorID 'x' lacks permission 'service:read' on "web"`), denied, false},
		{"denied-by-another-server", failed(http.StatusInternalServerError, `rpc error making call: Permission denied: token with AccessorID 'x' lacks permission 'service:read' on "web"`), denied, false},
		{"throttled", failed(http.StatusTooManyRequests, "Your IP is issuing too many concurrent connections"), func(err error) bool { return errors.Is(err, client.ErrThrottled) }, false},
		{"rate-limited", failed(http.StatusServiceUnavailable, "rate limit exceeded for operation that can only be performed by the leader"), func(err error) bool { return errors.Is(err, client.ErrThrottled) }, false},
		{"no-leader", failed(http.StatusInternalServerError, "No cluster leader"), func(err error) bool { return errors.Is(err, client.ErrUnavailable) }, false},
		{"filter", failed(http.StatusInternalServerError, "Failed to create boolean expression evaluator: 1:6 (5): no match found"), func(err error) bool {
			return errors.Is(err, client.ErrFilter) && !errors.Is(err, client.ErrUnavailable)
		}, true},
		{"not-json", answered(9, "<html>"), func(err error) bool { return err != nil && !errors.Is(err, client.ErrUnavailable) }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			if x.slow {
				race.SkipLongWait(t)
			}
			steps, asked := []func(http.ResponseWriter){answered(5, `{"a":[]}`), x.fail}, []string{"index= ", "index=5 "}
			if !x.slow {
				steps, asked = append(steps, x.fail), append(asked, "index= ")
			}
			f := serve(t, false, script(append(steps, answered(5, `{"a":[]}`))...))
			fo := follow(t, newClient(t, f, nil))
			fo.want("1 names at 5, fresh true")
			fo.wantError(x.is, x.name)
			fo.wantError(isNil, "that it is over")
			fo.want("1 names at 5, fresh true")
			wantAsked(t, f, append(asked, "index= ", "index=5 ")...)
		})
	}
}

// One that works again wakes all others that wait.
func TestRecoveryWakesOthers(t *testing.T) {
	t.Parallel()
	f := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "No cluster leader", http.StatusInternalServerError)
	})
	c := newClient(t, f, nil)
	var all []*follower
	for range 20 {
		all = append(all, follow(t, c))
	}
	for _, fo := range all {
		fo.wantError(func(err error) bool { return errors.Is(err, client.ErrUnavailable) }, "that it is not available")
	}
	f.set(func() {
		f.answer = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("index") != "" {
				hold(r)
				return
			}
			reply(w, 7, `{}`)
		}
	})
	for _, fo := range all {
		fo.want("0 names at 7, fresh true")
	}
}

func TestNewTokenRestartsQueries(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") != "" {
			hold(r)
			return
		}
		reply(w, 5, `{}`)
	})
	fo := follow(t, newClient(t, f, func(c *client.Config) { c.TokenFile = path }))
	fo.want("0 names at 5, fresh true")
	wantAsked(t, f, "index= stale=false token=one", "index=5 stale=false token=one")
	write("two")
	fo.want("0 names at 5, fresh true")
	wantAsked(t, f, "", "", "index= stale=false token=two", "index=5 stale=false token=two")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.set(func() { f.leader = "10.0.0.2:8300" })
	fo.want("0 names at 5, fresh true")
	wantAsked(t, f, "", "", "", "", "index= stale=false token=two")
}

// Only what waits may be stale, and only as stale as is allowed.
func TestStaleAnswerIsReadFromLeader(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration][]string{
		5 * time.Second: {"index= stale=false", "index=5 stale=true", "index= stale=false", "index=7 stale=true"},
		7 * time.Second: {"index= stale=false", "index=5 stale=true", "index=6 stale=true"},
	} {
		var waited atomic.Bool
		f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			switch {
			case !q.Has("stale") && !q.Has("consistent"):
				http.Error(w, "a leader that reads its log still may answer that", http.StatusBadRequest)
			case !q.Has("stale") && !waited.Load():
				reply(w, 5, `{}`)
			case !q.Has("stale"):
				reply(w, 7, `{}`)
			case !waited.Swap(true):
				w.Header().Set("X-Consul-Lastcontact", "6000")
				reply(w, 6, `{}`)
			default:
				<-r.Context().Done()
			}
		})
		follow(t, newClient(t, f, func(c *client.Config) { c.Stale = limit }))
		wantAsked(t, f, want...)
	}
}

// The environment that Consul's own tools read is not ours.
func TestEnvironmentIsIgnored(t *testing.T) {
	for name, v := range map[string]string{
		api.HTTPTokenEnvName: "secret", api.HTTPTokenFileEnvName: "/nonexistent", api.HTTPNamespaceEnvName: "ns", api.HTTPPartitionEnvName: "p",
		api.HTTPAddrEnvName: "127.0.0.1:1", api.HTTPSSLEnvName: "true", api.HTTPAuthEnvName: "me:you",
	} {
		t.Setenv(name, v)
	}
	f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("ns") || q.Has("partition") || r.Header.Get("X-Consul-Token") != "" || r.Header.Get("Authorization") != "" {
			http.Error(w, "too much is said: "+r.URL.String(), http.StatusBadRequest)
			return
		}
		reply(w, 5, `{}`)
	})
	if _, _, err := client.Get(t.Context(), newClient(t, f, nil), services); err != nil {
		t.Error(err)
	}
}

func TestAnswerLengthIsBounded(t *testing.T) {
	t.Parallel()
	f := serve(t, false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", "5")
		_, _ = fmt.Fprint(w, `{"`)
		chunk := strings.Repeat("a", 1<<20)
		for range 80 {
			if _, err := fmt.Fprint(w, chunk); err != nil {
				return
			}
		}
		_, _ = fmt.Fprint(w, `":[]}`)
	})
	_, _, err := client.GetLong(t.Context(), newClient(t, f, nil), services) // so many bytes take a while
	if err == nil || errors.Is(err, client.ErrUnavailable) || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("err = %v, want one of the length", err)
	}
}

// A redirect would let a name choose another query.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	f := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/catalog/services" {
			http.Redirect(w, r, "/v1/kv/secret", http.StatusMovedPermanently)
			return
		}
		t.Errorf("asked for %s", r.URL.Path)
	})
	if _, _, err := client.Get(t.Context(), newClient(t, f, nil), services); err == nil {
		t.Error("no error")
	}
}

// TestBulkQueriesWaitForReads has more queries than may
// be asked at once: none of them begins to wait before each has an answer.
func TestBulkQueriesWaitForReads(t *testing.T) {
	t.Parallel()
	const queries = 60
	var first, early atomic.Int64
	waiting := make(chan struct{}, queries)
	f := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") != "" {
			if first.Load() < queries {
				early.Add(1)
			}
			waiting <- struct{}{}
			hold(r)
			return
		}
		// So slow that one that does not wait its generation would come in between.
		tick := time.NewTimer(20 * time.Millisecond)
		defer tick.Stop()
		<-tick.C
		first.Add(1)
		reply(w, 7, `{}`)
	})
	c := newClient(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() {
			client.Follow(ctx, c, client.Query[map[string][]string]{Name: "services", Read: services, Bulk: true},
				func(map[string][]string, client.Meta) {})
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for range queries {
		select {
		case <-waiting:
		case <-time.After(patience):
			t.Fatal("not all of them wait for a change")
		}
	}
	// A goroutine that begins late is none of them.
	if n := early.Load(); n > queries/4 {
		t.Errorf("%d of %d waited for a change before all had an answer", n, queries)
	}
}
