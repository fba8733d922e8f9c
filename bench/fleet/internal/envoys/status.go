package envoys

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Totals is what the fleet has been sent, and how it stands.
type Totals struct {
	Connected int `json:"connected"`
	Ready     int `json:"ready"`
	// LastUp is when the last stream was opened, in nanoseconds since 1970.
	LastUp int64             `json:"last_up"`
	Kinds  map[string]Counts `json:"kinds"`
	Sent   int64             `json:"sent"`
	// Faults are refused or unreadable responses and failed connections; Endings
	// are streams that ended unasked. Examples are some of the reasons.
	Faults   int      `json:"faults"`
	Endings  int      `json:"endings"`
	Examples []string `json:"examples,omitempty"`
	// Unique is how many resources differ, over all streams, and their bytes.
	Unique      int   `json:"unique"`
	UniqueBytes int64 `json:"unique_bytes"`
	// Holdings is how many different sets of names and bytes the streams hold,
	// of each kind.
	Holdings map[string]int `json:"holdings"`
	// Held is the fewest and the most resources that a stream holds of a kind.
	Held map[string][2]int `json:"held"`
}

// Totals counts.
func (f *Fleet) Totals() Totals {
	t := Totals{Kinds: map[string]Counts{}, Sent: f.sent.Load(), Holdings: map[string]int{}, Held: map[string][2]int{}}
	for k := range kinds {
		c := &f.counts[k]
		t.Kinds[k.String()] = Counts{
			c.Messages.Load(), c.Bytes.Load(), c.Resources.Load(), c.Removed.Load(), c.Repeated.Load(), c.Rejects.Load(),
		}
		t.Holdings[k.String()], t.Held[k.String()] = f.holdings(k)
	}
	for _, e := range f.envoys {
		if at := e.up.Load(); at != 0 {
			t.LastUp = max(t.LastUp, at)
			t.Connected++
		}
		if e.ready.Load() {
			t.Ready++
		}
	}
	f.catalog.mu.RLock()
	t.Unique, t.UniqueBytes = len(f.catalog.entries)-firstEntry, f.catalog.bytes
	f.catalog.mu.RUnlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Faults, t.Endings, t.Examples = f.faults, f.endings, slices.Clone(f.examples)
	return t
}

func (f *Fleet) holdings(k Kind) (different int, span [2]int) {
	sums := map[uint64]bool{}
	for i, e := range f.envoys {
		sum, n := e.sum(k)
		sums[sum] = true
		if i == 0 {
			span = [2]int{n, n}
		}
		span = [2]int{min(span[0], n), max(span[1], n)}
	}
	return len(sums), span
}

// sum is a hash of what a proxy holds of a kind, and how many that are.
func (e *envoy) sum(k Kind) (sum uint64, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range e.held[k] {
		if id >= firstEntry {
			n++
			// The ids of different entries differ; spread them (splitmix64).
			x := uint64(id) * 0x9e3779b97f4a7c15
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			sum += x ^ x>>27
		}
	}
	return sum, n
}

// Times are moments over the streams of a fleet, in nanoseconds since 1970.
type Times struct {
	Count  int   `json:"count"`
	First  int64 `json:"first"`
	Median int64 `json:"median"`
	P99    int64 `json:"p99"`
	Last   int64 `json:"last"`
}

func timesOf(at []int64) Times {
	slices.Sort(at)
	n := len(at)
	if n == 0 {
		return Times{}
	}
	return Times{n, at[0], at[(n-1)/2], at[(99*n+99)/100-1], at[n-1]}
}

// AwaitReady waits until at least want proxies have all they have asked for and
// nothing has come for a while since it was called, and gives the moments of the last message of
// each that is ready.
func (f *Fleet) AwaitReady(ctx context.Context, want int, quiet time.Duration) (Times, error) {
	var at []int64
	begin := time.Now().UnixNano()
	err := poll(ctx, func(now time.Time) error {
		at = at[:0]
		newest := begin
		for _, e := range f.envoys {
			newest = max(newest, e.last.Load())
			if e.up.Load() != 0 && e.ready.Load() {
				at = append(at, e.last.Load())
			}
		}
		if len(at) < want {
			return fmt.Errorf("%d of %d proxies are ready", len(at), want)
		}
		if since := now.Sub(time.Unix(0, newest)); since < quiet {
			return fmt.Errorf("something came %s ago", since)
		}
		return nil
	})
	return timesOf(at), err
}

// Arm begins to look for a change: a resource that nobody has seen and that has
// these bytes. Call it before the change is made.
func (f *Fleet) Arm(marker string) { f.probe.Store(f.catalog.arm(marker)) }

// AwaitProbe waits until so many proxies have the change.
func (f *Fleet) AwaitProbe(ctx context.Context, want int) (Times, error) {
	p := f.probe.Load()
	var at []int64
	err := poll(ctx, func(time.Time) error {
		at = at[:0]
		for _, e := range f.envoys {
			if e.seenProbe.Load() == p {
				at = append(at, e.seenAt.Load())
			}
		}
		if len(at) < want {
			return fmt.Errorf("%d of %d proxies have the change", len(at), want)
		}
		return nil
	})
	return timesOf(at), err
}

// poll asks until the answer is nil or ctx ends.
func poll(ctx context.Context, ask func(now time.Time) error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(time.Now())
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// Minus is what has come since.
func (c Counts) Minus(before Counts) Counts {
	return Counts{
		c.Messages - before.Messages, c.Bytes - before.Bytes, c.Resources - before.Resources,
		c.Removed - before.Removed, c.Repeated - before.Repeated, c.Rejects - before.Rejects,
	}
}
