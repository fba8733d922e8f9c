package envoys

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/wire"
)

// Config is what a Fleet is made from.
type Config struct {
	// Size is how many proxies there are.
	Size int
	// Node gives the encoded node of one of them.
	Node func(i int) []byte
	// Dial connects one of them.
	Dial func(ctx context.Context, i int) (net.Conn, error)
	// Authority is the name of the server.
	Authority string
	// VHDS says that virtual hosts may travel by themselves; an older Envoy
	// refuses a route configuration that has it so.
	VHDS bool
	// PerConn is how many streams share a connection; 0 means 1.
	PerConn int
	// Tap is called with every message, from the goroutines of connections; nil
	// means nobody.
	Tap func(msg []byte)
	// Reconnect makes proxies come back when their connection has ended.
	Reconnect bool
}

// Fleet is the proxies.
type Fleet struct {
	cfg     Config
	catalog *catalog
	envoys  []*envoy
	probe   atomic.Uint32
	counts  [kinds]counters
	sent    atomic.Int64

	mu       sync.Mutex // guards all following fields
	conns    map[*wire.Conn]bool
	closing  bool
	faults   int
	endings  int
	examples []string
	wait     sync.WaitGroup
}

type counters struct{ Messages, Bytes, Resources, Removed, Repeated, Rejects atomic.Int64 }

// Counts is what has come of one kind since the fleet was made.
type Counts struct {
	Messages  int64 `json:"messages"`
	Bytes     int64 `json:"bytes"`
	Resources int64 `json:"resources"`
	Removed   int64 `json:"removed"`
	// Repeated are resources that the stream held already, the same bytes.
	Repeated int64 `json:"repeated"`
	Rejects  int64 `json:"rejects"`
}

// New makes a fleet, and connects nobody.
func New(cfg Config) *Fleet {
	f := &Fleet{cfg: cfg, catalog: newCatalog(), conns: map[*wire.Conn]bool{}}
	f.cfg.PerConn = max(cfg.PerConn, 1)
	f.envoys = make([]*envoy, cfg.Size)
	for i := range f.envoys {
		f.envoys[i] = &envoy{fleet: f, index: i}
	}
	return f
}

// Start connects all proxies, at once; they stay until Close or until ctx ends.
func (f *Fleet) Start(ctx context.Context) {
	f.mu.Lock()
	f.closing = false
	f.mu.Unlock()
	for first := 0; first < len(f.envoys); first += f.cfg.PerConn {
		group := f.envoys[first:min(first+f.cfg.PerConn, len(f.envoys))]
		f.wait.Go(func() { f.run(ctx, group) })
	}
}

// Close ends all streams. Start connects them again, with what they have.
func (f *Fleet) Close() {
	f.mu.Lock()
	f.closing = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wait.Wait()
}

// Envoy's back-off begins with half a second; here it is shorter, so that the
// server is what is measured.
const (
	minBackOff = 50 * time.Millisecond
	maxBackOff = 200 * time.Millisecond
)

func (f *Fleet) run(ctx context.Context, group []*envoy) {
	for {
		err := f.session(ctx, group)
		f.mu.Lock()
		closing := f.closing
		f.mu.Unlock()
		if closing || ctx.Err() != nil {
			return
		}
		if !f.cfg.Reconnect {
			f.fail(err)
			return
		}
		timer := time.NewTimer(minBackOff + rand.N(maxBackOff-minBackOff)) //nolint:gosec // jitter
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// deltaMethod is the call that every proxy makes.
const deltaMethod = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

// session is one connection of a group, from beginning to end.
func (f *Fleet) session(ctx context.Context, group []*envoy) error {
	nc, err := f.cfg.Dial(ctx, group[0].index)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	c := wire.New(nc, f.cfg.Authority)
	f.mu.Lock()
	if f.closing {
		f.mu.Unlock()
		return nc.Close()
	}
	f.conns[c] = true
	f.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	defer func() {
		f.mu.Lock()
		delete(f.conns, c)
		f.mu.Unlock()
	}()
	for _, e := range group {
		s, err := c.Open(deltaMethod, e)
		if err != nil {
			return errors.Join(err, c.Close())
		}
		e.open(s)
		e.up.Store(time.Now().UnixNano())
	}
	return c.Run()
}

func (f *Fleet) count(k Kind, size int, r *response) {
	c := &f.counts[k]
	c.Messages.Add(1)
	c.Bytes.Add(int64(size))
	c.Resources.Add(int64(len(r.resources)))
	c.Removed.Add(int64(len(r.removed)))
}

const maxExamples = 5

func (f *Fleet) note(err error) {
	if err != nil && len(f.examples) < maxExamples && !slices.Contains(f.examples, err.Error()) {
		f.examples = append(f.examples, err.Error())
	}
}

// fail notes what must not happen.
func (f *Fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults++
	f.note(err)
}

// ended notes the end of a stream, which is a fault unless it was meant.
func (f *Fleet) ended(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closing {
		f.endings++
		f.note(err)
	}
}
