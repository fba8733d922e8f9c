package jwks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
)

// fakeFetcher stands for issuers in tests of when something is fetched, which go by a clock of
// their own: there are no sockets in them.
type fakeFetcher struct {
	mu sync.Mutex // guards all following fields
	// issuers are what issuers publish; one that is not there does not answer.
	issuers map[string]string
	// blocked issuers answer when their channel is closed, or the time is over.
	blocked map[string]chan struct{}
	asked   map[string][]time.Time
	// now and most count requests at a time: by owner as the start of the URI says, by host.
	now, most map[string]int
}

func newFake() *fakeFetcher {
	return &fakeFetcher{issuers: map[string]string{}, blocked: map[string]chan struct{}{}, asked: map[string][]time.Time{}, now: map[string]int{}, most: map[string]int{}}
}

func (f *fakeFetcher) every() (refresh, firstRetry, lastRetry time.Duration) {
	return (&web{refresh: DefaultRefresh}).every()
}

func (f *fakeFetcher) host(l location) string { return (&web{}).host(l) }

func (f *fakeFetcher) publish(uri, keys string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.issuers[uri] = keys
}

func (f *fakeFetcher) goAway(uri string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.issuers, uri)
}

func (f *fakeFetcher) times(uri string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked[uri])
}

// groups of a request: all, its host, its owner, which is the path.
func (f *fakeFetcher) groups(uri string) []string {
	rest := strings.TrimPrefix(uri, "https://")
	host, owner, _ := strings.Cut(rest, "/")
	return []string{"all", "host " + host, "owner " + owner}
}

func (f *fakeFetcher) fetch(ctx context.Context, j job) answer {
	f.mu.Lock()
	f.asked[j.uri] = append(f.asked[j.uri], time.Now())
	for _, g := range f.groups(j.uri) {
		f.now[g]++
		f.most[g] = max(f.most[g], f.now[g])
	}
	wait := f.blocked[j.uri]
	f.mu.Unlock()
	if wait != nil {
		ctx, cancel := context.WithTimeout(ctx, j.timeout)
		defer cancel()
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.groups(j.uri) {
		f.now[g]--
	}
	text, ok := f.issuers[j.uri]
	if !ok {
		return answer{from: j.uri, err: errors.New("connection refused")}
	}
	return j.read([]byte(text), j.uri)
}

const issuer = "https://issuer.example.com/keys"

var source = Source{Issuer: "https://issuer.example.com", URI: issuer, Owner: "team"}

// newStore makes a store with another fetcher; edit changes the configuration.
func newStore(tb testing.TB, dir string, f fetcher, edit ...func(*Config)) *Store {
	tb.Helper()
	cfg := Config{Logger: slog.New(slog.DiscardHandler), CacheDir: dir}
	for _, e := range edit {
		e(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	if f != nil {
		s.fetcher = f
	}
	return s
}

// run runs a store until stop is called, which waits for its end.
func run(tb testing.TB, s *Store) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
}

// pass lets time pass in a bubble, and everything happen that is due.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// ids are the kids in force.
func ids(s *Store, from Source) string {
	set := s.Keys().Set(from)
	if set == nil {
		return "none"
	}
	out := make([]string, len(set.Keys))
	for i, k := range set.Keys {
		out[i] = k.ID
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func want(tb testing.TB, s *Store, from Source, keys string, state State) {
	tb.Helper()
	if got := ids(s, from); got != keys {
		tb.Errorf("keys %q, want %q", got, keys)
	}
	if st := s.StatusOf(from); st.State != state {
		tb.Errorf("%s (%s), want %s", st.State, st.Err, state)
	}
}

func twoKeys(tb testing.TB) string {
	tb.Helper()
	return set(jwk(tb, pub("p256"), "a"), jwk(tb, pub("p384"), "b"))
}

func oneKey(tb testing.TB, kid string) string {
	tb.Helper()
	return set(jwk(tb, pub("p256"), kid))
}

func TestRemovedKeyIsRefusedAfterTheRefresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "a b", StateCurrent)
		for round := range 20 {
			f.publish(issuer, oneKey(t, strconv.Itoa(round)))
			pass(DefaultRefresh + publishEvery)
			want(t, s, source, strconv.Itoa(round), StateCurrent)
		}
		asked := f.times(issuer)
		if n := len(asked); n < 20 || n > 24 {
			t.Errorf("fetched %d times in 20 intervals", n)
		}
	})
}

// Reading the same keys again is no change for anybody.
func TestSameKeysAreNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		<-s.Changed()
		first := s.Keys()
		f.publish(issuer, set(jwk(t, pub("p384"), "b", with("use", "sig")), jwk(t, pub("p256"), "a")))
		pass(3 * DefaultRefresh)
		s.Want([]Source{source})
		pass(time.Second)
		select {
		case <-s.Changed():
			t.Error("a change is announced")
		default:
		}
		if s.Keys() != first || !s.Settled() {
			t.Error("there are other Keys")
		}
		if len(f.times(issuer)) < 3 {
			t.Error("the keys were not read again")
		}
	})
}

func TestIssuerThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		before := s.Keys().Set(source)
		f.goAway(issuer)
		pass(6 * time.Hour)
		want(t, s, source, "a b", StateStale)
		if s.Keys().Set(source) != before {
			t.Error("it is another set")
		}
		st := s.StatusOf(source)
		if st.Age < 5*time.Hour || st.Age > 6*time.Hour+time.Minute || st.Err != "connection refused" || st.Confirmed.IsZero() {
			t.Errorf("status %+v", st)
		}
		// The pauses grow, to a bound.
		asked := f.times(issuer)
		first, last := asked[2].Sub(asked[1]), asked[len(asked)-1].Sub(asked[len(asked)-2])
		if first > 6*time.Second || last < 4*time.Minute || last > 6*time.Minute {
			t.Errorf("the first pause is %s, the last %s", first, last)
		}
		f.publish(issuer, oneKey(t, "new"))
		pass(6 * time.Minute)
		want(t, s, source, "new", StateCurrent)
	})
}

func TestKeysThatAreTooOld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		f.goAway(issuer)
		pass(DefaultMaxAge - DefaultRefresh)
		want(t, s, source, "a b", StateStale)
		pass(DefaultRefresh)
		want(t, s, source, "none", StateNone)
		f.publish(issuer, twoKeys(t))
		pass(6 * time.Minute)
		want(t, s, source, "a b", StateCurrent)
	})
}

func TestBrokenSetsKeepTheLastGood(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"html": "<html>", "empty": "", "object": `{}`, "error": `{"error":"x"}`, "list": `[]`, "null": `null`, "half": `{"keys":[`,
		"keys-null": `{"keys":null}`, "keys-object": `{"keys":{}}`, "twice": `{"keys":[],"keys":[]}`, "too-many": set(strings.Repeat("1,", MaxKeys) + "1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.publish(issuer, twoKeys(t))
				dir := t.TempDir()
				s := newStore(t, dir, f)
				stop := run(t, s)
				s.Want([]Source{source})
				pass(time.Second)
				f.publish(issuer, text)
				pass(time.Hour)
				want(t, s, source, "a b", StateStale)
				stop()
				s = newStore(t, dir, f)
				defer run(t, s)()
				s.Want([]Source{source})
				pass(time.Second)
				want(t, s, source, "a b", StateStale)
				f.publish(issuer, twoKeys(t)) // the bytes from before
				pass(6 * time.Minute)
				want(t, s, source, "a b", StateCurrent)
			})
		})
	}
}

// What an issuer says that it has no key to use, counts: neither the memory nor the disk brings
// its keys back. It is asked again soon.
func TestSetWithoutAKeyToUse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, why string }{
		"empty":      {`{"keys":[]}`, "it is empty"},
		"symmetric":  {set(`{"kty":"oct","k":"AQAB"}`), "symmetric"},
		"weak":       {set(jwk(t, pub("weak"), "a")), "bits"},
		"no-object":  {`{"keys":[1]}`, "not a JSON object"},
		"other-use":  {set(jwk(t, pub("p256"), "a", with("use", "enc"))), "not for signatures"},
		"compromise": {set(jwk(t, testKeys()["p256"], "a")), "private key"}, // everybody can sign with it
		"two":        {set(`{"kty":"oct","k":"AQAB"}`, jwk(t, testKeys()["p256"], "a")), "private key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.publish(issuer, twoKeys(t))
				dir := t.TempDir()
				s := newStore(t, dir, f)
				stop := run(t, s)
				s.Want([]Source{source})
				pass(time.Second)
				want(t, s, source, "a b", StateCurrent)
				f.publish(issuer, c.text)
				pass(DefaultRefresh)
				want(t, s, source, "none", StateNone)
				st := s.StatusOf(source)
				if !strings.Contains(st.Err, c.why) || len(st.Keys) > 0 || (len(st.Unusable) > 0) != (name != "empty") {
					t.Errorf("status %+v", st)
				}
				pass(time.Hour)
				want(t, s, source, "none", StateNone)
				stop()
				f.goAway(issuer)
				s = newStore(t, dir, f)
				defer run(t, s)()
				s.Want([]Source{source})
				pass(time.Second)
				want(t, s, source, "none", StateNone)
				f.publish(issuer, c.text)
				pass(6 * time.Minute)
				f.publish(issuer, twoKeys(t)) // the bytes from before
				pass(6 * time.Minute)
				want(t, s, source, "a b", StateCurrent)
			})
		})
	}
}

// A server that starts waits for the issuer of a set that had no keys, as for one it does not know.
func TestSavedSetWithoutKeysIsNotSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, `{"keys":[]}`)
		dir := t.TempDir()
		s := newStore(t, dir, f)
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		stop()
		block := make(chan struct{})
		f.blocked[issuer] = block
		f.publish(issuer, oneKey(t, "a"))
		s = newStore(t, dir, f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "none", StatePending)
		if s.Settled() {
			t.Error("settled before the issuer was asked")
		}
		close(block)
		pass(time.Second)
		want(t, s, source, "a", StateCurrent)
		if !s.Settled() {
			t.Error("not settled")
		}
	})
}

func TestIssuerThatWasNeverThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		block := make(chan struct{})
		f.blocked[issuer] = block
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		if s.Settled() {
			t.Error("settled before anything is wanted")
		}
		other := Source{Issuer: "x", URI: "https://other.example.com", Owner: "team"}
		f.publish(other.URI, oneKey(t, "o"))
		s.Want([]Source{source, other})
		if s.Settled() {
			t.Error("settled with what was wanted before")
		}
		pass(time.Second)
		want(t, s, source, "none", StatePending)
		if st := s.StatusOf(source); st.Waiting != time.Second || st.File {
			t.Errorf("status %+v", st)
		}
		want(t, s, other, "o", StateCurrent) // nobody waits for the other
		if s.Settled() {
			t.Error("settled before the issuer was asked")
		}
		pass(DefaultTimeout)
		want(t, s, source, "none", StateNone)
		if !s.Settled() {
			t.Error("not settled after the issuer was asked")
		}
		if st := s.StatusOf(source); st.Err == "" || st.Attempted.IsZero() || st.Waiting != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestNothingWantedIsSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir(), newFake())
		defer run(t, s)()
		s.Want(nil)
		pass(time.Second)
		if !s.Settled() {
			t.Error("not settled")
		}
	})
}

func TestKeysSurviveRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, dir, f)
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		stop()
		f.goAway(issuer)
		pass(3 * time.Hour)
		for range 3 {
			s = newStore(t, dir, f)
			stop = run(t, s)
			s.Want([]Source{source})
			synctest.Wait()
			if got := ids(s, source); got != "a b" || !s.Settled() {
				t.Errorf("at once: %q, settled %v", got, s.Settled())
			}
			pass(time.Second)
			want(t, s, source, "a b", StateStale)
			if st := s.StatusOf(source); st.Age < 3*time.Hour || st.From != issuer {
				t.Errorf("status %+v", st)
			}
			stop()
		}
		pass(DefaultMaxAge)
		s = newStore(t, dir, f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "none", StateNone)
	})
}

// rewrite changes the one file of a cache.
func rewrite(tb testing.TB, dir string, edit func(*cached)) {
	tb.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"+cacheSuffix))
	if err != nil || len(names) != 1 {
		tb.Fatal(names, err)
	}
	data, err := os.ReadFile(names[0])
	if err != nil {
		tb.Fatal(err)
	}
	var c cached
	if err := json.Unmarshal(data, &c); err != nil {
		tb.Fatal(err)
	}
	edit(&c)
	if data, err = json.Marshal(c); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(names[0], data, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// A clock that was ahead when keys were saved, or is behind now, makes them neither older nor
// immortal; one that is ahead makes them too old, and they are fetched before anybody is served.
func TestClocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, dir, f)
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		stop()
		start := func() {
			s = newStore(t, dir, f)
			stop = run(t, s)
			s.Want([]Source{source})
			pass(time.Second)
		}

		rewrite(t, dir, func(c *cached) { c.Confirmed = time.Now().Add(365 * 24 * time.Hour) })
		f.goAway(issuer)
		start()
		want(t, s, source, "a b", StateStale)
		if st := s.StatusOf(source); st.Age > time.Minute {
			t.Errorf("age %s", st.Age)
		}
		pass(DefaultMaxAge)
		want(t, s, source, "none", StateNone)
		stop()

		rewrite(t, dir, func(c *cached) { c.Confirmed = time.Now().Add(-365 * 24 * time.Hour) })
		f.publish(issuer, twoKeys(t))
		block := make(chan struct{})
		f.blocked[issuer] = block
		start()
		if s.Settled() {
			t.Error("settled before the keys are there")
		}
		close(block)
		pass(time.Second)
		want(t, s, source, "a b", StateCurrent)
		stop()
	})
}

// Whatever the disk made of a file: the keys in force are those that were saved, or none.
func TestCorruptedCache(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := cache{dir, durable.OS{}, false}
	l := source.location()
	set, _, err := Parse([]byte(twoKeys(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.save(c.digest(l), "x", set, time.Now()); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.load(l); err != nil || got.JSON != set.JSON {
		t.Fatalf("%v, %v", got, err)
	}
	good, err := os.ReadFile(c.path(c.digest(l)))
	if err != nil {
		t.Fatal(err)
	}
	try := func(name string, data []byte) {
		t.Helper()
		got, _, err := decodeCached(data, cache{}.digest(l))
		if got != nil && got.JSON != set.JSON {
			t.Fatalf("%s: other keys: %s (%v)", name, got.JSON, err)
		}
	}
	for i := range good {
		for bit := range 8 {
			data := slices.Clone(good)
			data[i] ^= 1 << bit
			try(fmt.Sprint("byte ", i), data)
		}
		try(fmt.Sprint("the first ", i), good[:i])
	}
	for name, data := range map[string]string{"empty": "", "zeros": string(make([]byte, len(good))), "null": "null", "list": "[]"} {
		if got, _, err := decodeCached([]byte(data), cache{}.digest(l)); got != nil || err == nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// The file of another location is not this one's.
	other := location{"https://other.example.com", false, false}
	if err := os.WriteFile(c.path(c.digest(other)), good, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.load(other); got != nil || err == nil {
		t.Errorf("the file of another location: %v, %v", got, err)
	}
	if err := os.WriteFile(c.path(c.digest(other)), make([]byte, maxCached+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.load(other); got != nil || err == nil {
		t.Errorf("a large file: %v, %v", got, err)
	}
	if _, _, err := c.load(location{"https://third.example.com", false, false}); err != nil {
		t.Errorf("no file: %v", err)
	}
}

func TestCorruptedCacheIsFetchedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, dir, f)
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		stop()
		rewrite(t, dir, func(c *cached) { c.Sum = "" })
		s = newStore(t, dir, f)
		stop = run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "a b", StateCurrent)
		stop()
		f.goAway(issuer)
		s = newStore(t, dir, f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "a b", StateStale) // it was written again
	})
}

// A server that dies while it writes finds the keys from before or the new ones.
func TestDiesWhileSaving(t *testing.T) {
	t.Parallel()
	before, _, _ := Parse([]byte(oneKey(t, "before")))
	after, _, _ := Parse([]byte(oneKey(t, "after")))
	l := source.location()
	for steps := 0; ; steps++ {
		dir := t.TempDir()
		if err := (cache{dir, durable.OS{}, false}).save(cache{}.digest(l), "x", before, time.Now()); err != nil {
			t.Fatal(err)
		}
		fsys := &durabletest.FS{Steps: steps}
		err := cache{dir, fsys, false}.save(cache{}.digest(l), "x", after, time.Now())
		got, _, loadErr := cache{dir, durable.OS{}, false}.load(l)
		if loadErr != nil || got == nil || got.JSON != before.JSON && got.JSON != after.JSON {
			t.Fatalf("after %d steps: %v, %v", steps, got, loadErr)
		}
		if !fsys.Died() {
			if err != nil || got.JSON != after.JSON {
				t.Errorf("without a death: %v, %v", got, err)
			}
			break
		}
	}
}

// fullDisk is a disk that is full for a while.
type fullDisk struct {
	durable.OS

	full atomic.Bool
}

func (d *fullDisk) CreateTemp(dir, pattern string) (durable.File, error) {
	if d.full.Load() {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: errors.New("no space left on device")}
	}
	return d.OS.CreateTemp(dir, pattern)
}

func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		disk := &fullDisk{}
		disk.full.Store(true)
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, dir, f, func(c *Config) { c.FS = disk })
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Minute)
		want(t, s, source, "a b", StateCurrent)
		if !strings.Contains(s.Unsaved(), "no space left") {
			t.Errorf("unsaved: %q", s.Unsaved())
		}
		f.publish(issuer, oneKey(t, "new"))
		pass(DefaultRefresh)
		disk.full.Store(false)
		pass(2 * saveRetry)
		if s.Unsaved() != "" {
			t.Errorf("unsaved: %q", s.Unsaved())
		}
		stop()
		f.goAway(issuer)
		s = newStore(t, dir, f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "new", StateStale)
	})
}

// What is fetched last, just before the end, is on the disk.
func TestSavesAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		disk := &fullDisk{}
		disk.full.Store(true)
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, dir, f, func(c *Config) { c.FS = disk })
		stop := run(t, s)
		s.Want([]Source{source})
		pass(time.Second)
		disk.full.Store(false)
		stop()
		if got, _, err := (cache{dir, durable.OS{}, false}).load(source.location()); got == nil || err != nil {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestOldFilesOfTheCacheGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := cache{dir, durable.OS{}, false}
	s, _, _ := Parse([]byte(oneKey(t, "a")))
	wanted := map[string]struct{}{}
	now := time.Now()
	for i := range 20 {
		digest := cache{}.digest(location{uri: strconv.Itoa(i)})
		if err := c.save(digest, "x", s, now); err != nil {
			t.Fatal(err)
		}
		at := now.Add(-time.Duration(i) * time.Minute)
		if i%2 == 0 {
			wanted[digest] = struct{}{}
			at = now.Add(-365 * 24 * time.Hour)
		}
		if i == 3 {
			at = now.Add(-keepUnwanted - time.Hour)
		}
		if err := os.Chtimes(c.path(digest), at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "other"), "x")
	if err := c.sweep(wanted, 6, now); err != nil {
		t.Fatal(err)
	}
	var left []int
	for i := range 20 {
		if got, _, _ := c.load(location{uri: strconv.Itoa(i)}); got != nil {
			left = append(left, i)
		}
	}
	// All that are wanted, and of the others the six newest but the old one.
	if want := []int{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "other")); err != nil {
		t.Error(err)
	}
}

func TestUnwantedKeysGoAndComeBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		s.Want(nil)
		pass(time.Second)
		want(t, s, source, "none", StatePending)
		if list, _ := s.Status(); len(list) != 0 {
			t.Errorf("status %v", list)
		}
		n := len(f.times(issuer))
		pass(5 * time.Hour)
		if len(f.times(issuer)) != n {
			t.Error("what nobody wants was fetched")
		}
		f.goAway(issuer)
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "a b", StateStale)
	})
}

// A source that may not use private addresses gets nothing that another fetched from there.
func TestPrivateIsNotShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		p := source
		p.Private = true
		s.Want([]Source{p})
		pass(time.Second)
		want(t, s, p, "a b", StateCurrent)
		want(t, s, source, "none", StatePending)
		f.goAway(issuer)
		s.Want([]Source{p, source})
		pass(time.Second)
		want(t, s, p, "a b", StateCurrent)
		want(t, s, source, "none", StateNone)
	})
}

// Sources with one location are fetched once, for as long as any of them wants.
func TestSourcesShareALocation(t *testing.T) {
	t.Parallel()
	wishes, over := plan([]Source{
		{Issuer: "b", URI: issuer, Owner: "y", Timeout: 2 * time.Second},
		{Issuer: "a", URI: issuer, Owner: "x", Timeout: time.Hour},
		{Issuer: "a", URI: issuer, Owner: "y", Timeout: -1},
		{Issuer: issuer, Owner: "x"},
	}, 10)
	if len(wishes) != 2 || len(over) != 0 {
		t.Fatalf("%d locations, %d over", len(wishes), len(over))
	}
	w := wishes[location{issuer, false, false}]
	if w.timeout != MaxTimeout || !slices.Equal(w.owners, []string{"x", "y"}) || !slices.Equal(w.issuers, []string{"a", "b"}) {
		t.Errorf("%+v", w)
	}
	if w := wishes[location{issuer, true, false}]; w == nil || w.timeout != DefaultTimeout {
		t.Errorf("%+v", w)
	}
}

// many are sources of one owner, each of a host of its own.
func many(owner string, n int) []Source {
	list := make([]Source, n)
	for i := range list {
		list[i] = Source{Issuer: strconv.Itoa(i), URI: fmt.Sprintf("https://%s-%05d.example.com/%s", owner, i, owner), Owner: owner}
	}
	return list
}

func TestTooManySources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		greedy := many("greedy", 10_000)
		all := slices.Clone(greedy)
		var others []Source
		for i := range 30 {
			others = append(others, many(fmt.Sprint("team", i), 5)...)
		}
		all = append(all, others...)
		key := oneKey(t, "a")
		for _, s := range all {
			f.publish(s.URI, key)
		}
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want(all)
		pass(time.Minute)
		for _, o := range others {
			want(t, s, o, "a", StateCurrent)
		}
		list, over := s.Status()
		if len(list) != DefaultMaxSources || over != len(all)-DefaultMaxSources || !s.Settled() {
			t.Errorf("%d followed, %d not, settled %v", len(list), over, s.Settled())
		}
		left := 0
		for _, g := range greedy {
			if st := s.StatusOf(g); st.State == StateNone {
				left++
				if !strings.Contains(st.Err, "more key sets are wanted than the 1000") {
					t.Fatalf("%+v", st)
				}
			}
		}
		if left != over {
			t.Errorf("%d are left out, want %d", left, over)
		}
		s.Want(others)
		pass(time.Second)
		if _, over := s.Status(); over != 0 {
			t.Errorf("%d are left out", over)
		}
	})
}

func TestTenThousandSources(t *testing.T) {
	race.SkipLongWait(t)
	race.SkipSequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		all := many("team", 10_000)
		key := oneKey(t, "a")
		for _, s := range all {
			f.publish(s.URI, key)
		}
		s := newStore(t, t.TempDir(), f, func(c *Config) { c.MaxSources, c.FS = len(all), noDisk{} })
		defer run(t, s)()
		s.Want(all)
		pass(time.Minute)
		if !s.Settled() {
			t.Fatal("not settled")
		}
		for _, o := range all {
			if ids(s, o) != "a" {
				t.Fatal(s.StatusOf(o))
			}
		}
		pass(DefaultRefresh)
		f.mu.Lock()
		defer f.mu.Unlock()
		for uri, asked := range f.asked {
			if len(asked) < 2 {
				t.Fatalf("%s was not refreshed", uri)
			}
		}
	})
}

// noDisk takes nothing, and at once: the disk is not what a test is about.
type noDisk struct{ durable.OS }

func (noDisk) CreateTemp(string, string) (durable.File, error) { return nil, fs.ErrPermission }

// However many issuers of one owner do not answer, those of others are fetched in time.
func TestSlowIssuersDelayNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		never := make(chan struct{})
		slow := many("slow", 500)
		for _, s := range slow {
			f.blocked[s.URI] = never
		}
		sameHost := make([]Source, 50)
		for i := range sameHost {
			sameHost[i] = Source{URI: fmt.Sprintf("https://slow.example.com/hosted?%d", i), Owner: "hosted"}
			f.blocked[sameHost[i].URI] = never
		}
		good := many("good", 100)
		for _, s := range good {
			f.publish(s.URI, oneKey(t, "a"))
		}
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want(slices.Concat(slow, sameHost, good))
		pass(time.Second)
		for _, g := range good {
			want(t, s, g, "a", StateCurrent)
		}
		// And when everything is due again and again.
		f.publish(good[7].URI, oneKey(t, "b"))
		pass(DefaultRefresh + time.Second)
		want(t, s, good[7], "b", StateCurrent)
		for _, x := range slices.Concat(slow, sameHost) {
			if len(f.times(x.URI)) == 0 {
				t.Fatalf("%s was never asked", x.URI)
			}
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.most["all"] > maxFetches || f.most["owner slow"] > maxFetchesOfOwner {
			t.Errorf("at a time: %d in all, %d of one owner", f.most["all"], f.most["owner slow"])
		}
		if n := f.most["host slow.example.com"]; n > maxFetchesFromHost || n == 0 {
			t.Errorf("at a time: %d from one host", n)
		}
	})
}

// Where many owners have issuers that do not answer, one that comes later is next as soon as
// there is a place.
func TestOwnerWithNothingUnderWayIsNext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var all []Source
		for i := range 10 {
			all = append(all, many(fmt.Sprint("slow", i), 100)...)
		}
		for _, s := range all {
			f.blocked[s.URI] = make(chan struct{})
		}
		good := many("good", 1)[0]
		f.publish(good.URI, oneKey(t, "a"))
		s := newStore(t, t.TempDir(), f, func(c *Config) { c.MaxSources = 2000 })
		defer run(t, s)()
		s.Want(all)
		pass(time.Second)
		s.Want(append(all, good))
		if s.Settled() {
			t.Error("settled before what is wanted now was asked for")
		}
		pass(DefaultTimeout)
		want(t, s, good, "a", StateCurrent)
	})
}

// Settled is about what is wanted now, not what was wanted before.
func TestSettledAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f)
		defer run(t, s)()
		s.Want(nil)
		pass(time.Second)
		if !s.Settled() {
			t.Error("not settled, and nothing is wanted")
		}
		s.Want([]Source{source})
		if s.Settled() {
			t.Error("settled with what was wanted before")
		}
		pass(time.Second)
		if !s.Settled() {
			t.Error("not settled again")
		}
	})
}

// A run ends although an issuer does not answer.
func TestEndsWhileFetching(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.blocked[issuer] = make(chan struct{})
		s := newStore(t, t.TempDir(), f)
		stop := run(t, s)
		long := source
		long.Timeout = MaxTimeout
		s.Want([]Source{long})
		pass(time.Second)
		before := time.Now()
		stop()
		if d := time.Since(before); d != 0 {
			t.Errorf("it took %s", d)
		}
	})
}

func TestFilesRotate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "issuer.example.com", "keys.json")
		write(t, path, twoKeys(t))
		cacheDir := t.TempDir()
		s := newStore(t, cacheDir, nil, func(c *Config) { c.Dir = dir })
		stop := run(t, s)
		discovered := Source{Issuer: "https://accounts.example.com"}
		s.Want([]Source{source, discovered})
		pass(time.Second)
		want(t, s, source, "a b", StateCurrent)
		want(t, s, discovered, "none", StateNone)
		write(t, filepath.Join(dir, "accounts.example.com.json"), oneKey(t, "d"))
		write(t, path, oneKey(t, "new"))
		pass(2 * FileInterval)
		want(t, s, source, "new", StateCurrent)
		want(t, s, discovered, "d", StateCurrent)
		if st := s.StatusOf(source); st.From != path || !st.File {
			t.Errorf("from %s, a file: %v", st.From, st.File)
		}
		write(t, path, `{"keys":[]}`)
		pass(2 * FileInterval)
		want(t, s, source, "none", StateNone)
		write(t, path, oneKey(t, "new"))
		pass(2 * FileInterval)
		want(t, s, source, "new", StateCurrent)
		write(t, path, `{"keys":[`) // half of it
		pass(2 * FileInterval)
		want(t, s, source, "new", StateStale)
		if err := os.RemoveAll(dir); err != nil { // not mounted
			t.Fatal(err)
		}
		pass(time.Hour)
		want(t, s, source, "new", StateStale)
		stop()
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s = newStore(t, cacheDir, nil, func(c *Config) { c.Dir = dir })
		defer run(t, s)()
		s.Want([]Source{source})
		pass(time.Second)
		want(t, s, source, "new", StateStale)
		write(t, path, oneKey(t, "back"))
		pass(2 * FileInterval)
		want(t, s, source, "back", StateCurrent)
	})
}

// What was fetched is not what a directory has, and the other way round.
func TestCacheOfFilesIsNotThatOfTheNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.publish(issuer, oneKey(t, "fetched"))
		cacheDir, files := t.TempDir(), t.TempDir()
		path := filepath.Join(files, "issuer.example.com", "keys.json")
		asFiles := func(c *Config) { c.Dir = files }
		for _, step := range []struct {
			f      fetcher
			edit   func(*Config)
			before func()
			keys   string
			state  State
		}{
			{f, func(*Config) {}, func() {}, "fetched", StateCurrent},
			{nil, asFiles, func() {}, "none", StateNone},
			{nil, asFiles, func() { write(t, path, oneKey(t, "written")) }, "written", StateCurrent},
			{f, func(*Config) {}, func() { f.goAway(issuer) }, "fetched", StateStale},
			{nil, asFiles, func() { _ = os.Remove(path) }, "written", StateStale},
		} {
			step.before()
			s := newStore(t, cacheDir, step.f, step.edit)
			stop := run(t, s)
			s.Want([]Source{source})
			pass(time.Second)
			want(t, s, source, step.keys, step.state)
			stop()
		}
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := prometheus.NewPedanticRegistry()
		f := newFake()
		f.publish(issuer, twoKeys(t))
		s := newStore(t, t.TempDir(), f, func(c *Config) { c.Registerer, c.MaxSources, c.FS = r, 2, noDisk{} })
		defer run(t, s)()
		s.Want([]Source{source, {URI: "https://a.example.com", Owner: "x"}, {URI: "https://b.example.com", Owner: "x"}})
		pass(time.Second)
		f.goAway(issuer)
		pass(DefaultRefresh)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				if labels := m.GetLabel(); len(labels) > 0 {
					name += " " + labels[0].GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if got["pilot_jwks_resolver_network_fetch_success_total"] != 1 || got["pilot_jwks_resolver_network_fetch_fail_total"] < 3 {
			t.Errorf("requests: %v", got)
		}
		if got["fairlead_jwks_key_sets stale"] != 1 || got["fairlead_jwks_key_sets none"] != 2 || got["fairlead_jwks_key_sets current"] != 0 || got["fairlead_jwks_key_sets pending"] != 0 {
			t.Errorf("sets: %v", got)
		}
		if age := got["fairlead_jwks_oldest_seconds"]; age < 18*60 || age > 21*60 || got["fairlead_jwks_unsaved"] != 1 {
			t.Errorf("%v", slices.Sorted(maps.Keys(got)))
		}
	})
}

func TestLogTellsWhatHappens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuilder
		f := newFake()
		secret := Source{URI: "https://me:secret@issuer.example.com/keys?secret", Owner: "team"}
		s := newStore(t, t.TempDir(), f, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		defer run(t, s)()
		s.Want([]Source{secret})
		pass(time.Hour)
		f.publish(secret.URI, set(jwk(t, pub("p256"), "a"), jwk(t, testKeys()["rsa"], "b")))
		pass(time.Hour)
		f.goAway(secret.URI)
		pass(24 * time.Hour)
		f.publish(secret.URI, set(jwk(t, pub("p256"), "a"), jwk(t, testKeys()["rsa"], "b")))
		pass(time.Hour)
		f.publish(secret.URI, `{"keys":[]}`)
		pass(time.Hour)
		f.publish(secret.URI, set(jwk(t, pub("p256"), "a"), jwk(t, testKeys()["rsa"], "b")))
		pass(time.Hour)
		f.goAway(secret.URI)
		pass(DefaultMaxAge + time.Hour)
		text := log.String()
		for message, n := range map[string]int{
			"fetching the keys of an issuer failed":                     3,
			"failed; its tokens are refused":                            1, // the first time
			"the last good keys stay in force":                          2,
			"keys of an issuer changed":                                 2,
			"some keys of an issuer are left out":                       2,
			"fetching the keys of an issuer works again":                1,
			"an issuer has no key that can be used any more":            1,
			"the keys of an issuer are too old; its tokens are refused": 1,
		} {
			if got := strings.Count(text, message); got != n {
				t.Errorf("%d lines with %q, want %d", got, message, n)
			}
		}
		if strings.Contains(text, "secret") {
			t.Error("the log has a credential")
		}
		if t.Failed() {
			t.Log(text)
		}
	})
}

type lockedBuilder struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A tenant whose issuers fail in a new way each time does not fill the log.
func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuilder
		s := newStore(t, t.TempDir(), newFake(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		defer run(t, s)()
		s.Want(many("x", 900))
		pass(10 * time.Second)
		if n := strings.Count(log.String(), "\n"); n > 15 {
			t.Errorf("%d lines", n)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, edit := range map[string]func(*Config){
		"no-logger":     func(c *Config) { c.Logger = nil },
		"no-cache":      func(c *Config) { c.CacheDir = "" },
		"cache-is-file": func(c *Config) { c.CacheDir = os.Args[0] },
		"refresh":       func(c *Config) { c.Refresh = time.Second },
		"negative":      func(c *Config) { c.Refresh = -1 },
		"age":           func(c *Config) { c.MaxAge = time.Minute },
		"sources":       func(c *Config) { c.MaxSources = -1 },
		"dir-missing":   func(c *Config) { c.Dir = filepath.Join(dir, "x") },
		"dir-is-file":   func(c *Config) { c.Dir = os.Args[0] },
		"dir-and-proxy": func(c *Config) { c.Dir, c.Proxy = dir, "http://proxy:1" },
		"ca-missing":    func(c *Config) { c.CAFile = filepath.Join(dir, "x") },
		"proxy":         func(c *Config) { c.Proxy = "proxy:3128" },
		"proxy-scheme":  func(c *Config) { c.Proxy = "ftp://me:secret@proxy:3128" },
	} {
		cfg := Config{Logger: slog.New(slog.DiscardHandler), CacheDir: filepath.Join(dir, "cache")}
		edit(&cfg)
		if s, err := New(cfg); err == nil || s != nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The whole with real sockets: an issuer goes away, and the server restarts.
func TestRealIssuerAwayOverARestart(t *testing.T) {
	t.Parallel()
	srv := serve(t, says(twoKeys(t)))
	dir := t.TempDir()
	src := Source{Issuer: "x", URI: srv.URL + "/keys"}
	start := func() (*Store, func()) {
		s := newStore(t, dir, nil)
		s.fetcher = webTo(t, srv)
		s.Want([]Source{src})
		return s, run(t, s)
	}
	await := func(s *Store, what string, ok func() bool) {
		t.Helper()
		end := time.After(patience)
		for !ok() {
			select {
			case <-s.Changed():
			case <-end:
				t.Fatalf("%s: %+v", what, s.StatusOf(src))
			}
		}
	}
	s, stop := start()
	await(s, "the first keys", func() bool { return ids(s, src) == "a b" })
	stop()
	srv.Close()
	s, stop = start()
	defer stop()
	await(s, "the keys on disk", func() bool { return s.Settled() && ids(s, src) == "a b" })
	// Without the policy of this test, loopback is never fetched from.
	s2 := newStore(t, t.TempDir(), nil)
	defer run(t, s2)()
	s2.Want([]Source{src})
	await(s2, "an answer", func() bool { return s2.Settled() })
	if st := s2.StatusOf(src); ids(s2, src) != "none" || !strings.Contains(st.Err, "a loopback address") {
		t.Errorf("%+v", st)
	}
}
