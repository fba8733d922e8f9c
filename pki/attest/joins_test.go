package attest_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// slowFS is a disk that takes its time to sync.
type slowFS struct {
	durable.OS
	took time.Duration
}

type slowFile struct {
	durable.File
	took time.Duration
}

func (f slowFile) Sync() error {
	<-time.After(f.took)
	return nil
}

func (s slowFS) CreateTemp(dir, pattern string) (durable.File, error) {
	f, err := s.OS.CreateTemp(dir, pattern)
	return slowFile{f, s.took}, err
}

func (s slowFS) SyncDir(string) error {
	<-time.After(s.took)
	return nil
}

// gate lets nobody write the directory of hosts before so many are at it.
type gate struct {
	durable.OS
	t    *testing.T
	once sync.Once
	want int
	mu   sync.Mutex // guards came
	came int
	open chan struct{}
}

func (g *gate) SyncDir(dir string) error {
	if filepath.Base(dir) == "hosts" {
		g.mu.Lock()
		if g.came++; g.came == g.want {
			close(g.open)
		}
		g.mu.Unlock()
		select {
		case <-g.open:
		case <-time.After(envoytest.Patience):
			g.once.Do(func() { g.t.Error("hosts that join wait for one another's writes") })
		}
	}
	return g.OS.SyncDir(dir)
}

func grantFor(host string) jointoken.Grant {
	return jointoken.Grant{Host: host, Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "web"}}}
}

// TestJoinsShareTheDisk: hosts that join at the same time do not wait for one
// another's writes.
func TestJoinsShareTheDisk(t *testing.T) {
	t.Parallel()
	const hosts = 16
	e := open(t, t.TempDir(), &gate{t: t, want: hosts / 2, open: make(chan struct{})}) // some names may share a lock
	var secrets []svid.Secret
	for i := range hosts {
		secret, _, err := e.CreateToken(grantFor(fmt.Sprint("web-", i)), 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	var all sync.WaitGroup
	for i, secret := range secrets {
		all.Go(func() {
			if _, err := e.Redeem(secret, profile.KeyHash{byte(i + 1)}, time.Now()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(e.List()); n != hosts {
		t.Errorf("%d hosts", n)
	}
}

// TestJoinsAtOnce: a token is one key's, a name one token's, and there are no more
// hosts than there may be, however many come at the same time.
func TestJoinsAtOnce(t *testing.T) {
	t.Parallel()
	const most, callers = 5, 40
	e, err := attest.New(attest.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), MaxHosts: most, FS: slowFS{took: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	race := func(token func(i int) svid.Secret, want int) {
		t.Helper()
		var all sync.WaitGroup
		var joined atomic.Int64
		var secrets []svid.Secret
		for i := range callers {
			secrets = append(secrets, token(i))
		}
		for i, secret := range secrets {
			all.Go(func() {
				if _, err := e.Redeem(secret, profile.KeyHash{byte(i + 1)}, time.Now()); err == nil {
					joined.Add(1)
				}
			})
		}
		all.Wait()
		if n := int(joined.Load()); n != want {
			t.Errorf("%d of %d have joined, want %d", n, callers, want)
		}
	}
	create := func(host string) svid.Secret {
		t.Helper()
		secret, _, err := e.CreateToken(grantFor(host), 0, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	one := create("one-token")
	race(func(int) svid.Secret { return one }, 1)
	race(func(int) svid.Secret { return create("one-name") }, 1)
	race(func(i int) svid.Secret { return create(fmt.Sprint("many-", i)) }, most-2)
	if n := len(e.List()); n != most {
		t.Errorf("%d hosts, %d may be", n, most)
	}
	if err := e.Remove("one-name"); err != nil {
		t.Fatal(err)
	}
	race(func(i int) svid.Secret { return create(fmt.Sprint("more-", i)) }, 1)
}

// BenchmarkJoins is 1,000 hosts that join, 64 at a time, on a disk that takes so long
// to sync a file or a directory; 0s is the disk of this machine.
func BenchmarkJoins(b *testing.B) {
	for _, took := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		b.Run(fmt.Sprint(took), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				dir := b.TempDir()
				maker, err := attest.New(attest.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), FS: slowFS{}})
				if err != nil {
					b.Fatal(err)
				}
				var secrets []svid.Secret
				for i := range 1000 {
					s, _, err := maker.CreateToken(grantFor(fmt.Sprint("web-", i)), time.Hour, time.Now())
					if err != nil {
						b.Fatal(err)
					}
					secrets = append(secrets, s)
				}
				var fs durable.FS = slowFS{took: took}
				if took == 0 {
					fs = durable.OS{}
				}
				e, err := attest.New(attest.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), FS: fs})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				var wg sync.WaitGroup
				next := make(chan int)
				for range 64 {
					wg.Go(func() {
						for i := range next {
							if _, err := e.Redeem(secrets[i], profile.KeyHash{byte(i), byte(i >> 8), 1}, time.Now()); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for i := range secrets {
					next <- i
				}
				close(next)
				wg.Wait()
			}
		})
	}
}
