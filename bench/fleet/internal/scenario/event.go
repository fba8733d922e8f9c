package scenario

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
)

// Cost is what one event cost, from its beginning until nothing came any more.
// Times are in seconds.
type Cost struct {
	// Decision is from the rename of the file to the decision to push.
	Decision float64 `json:"decision,omitempty"`
	// First to Last are the streams that have it, from the decision to push, or
	// from the first connection.
	First  float64 `json:"first"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Last   float64 `json:"last"`
	// CPU is of the server, Client of the fleet.
	CPU    float64 `json:"cpu"`
	Client float64 `json:"client"`
	// Peak is the server's, in MB; Bytes and Messages are of all streams.
	Peak     float64                  `json:"peak"`
	Bytes    int64                    `json:"bytes"`
	Messages int64                    `json:"messages"`
	Repeated int64                    `json:"repeated"`
	Rejects  int64                    `json:"rejects"`
	Kinds    map[string]envoys.Counts `json:"kinds"`
}

// quiet is how long nothing has to come for an event to have ended.
const quiet = 300 * time.Millisecond

// cold connects the whole fleet at once.
func (c *cell) cold(ctx context.Context) (Cost, error) {
	done := c.profile(ctx, "cold", 20)
	m, err := c.measure()
	if err != nil {
		return Cost{}, err
	}
	begin := time.Now()
	if err := c.fleet.Connect(); err != nil {
		return Cost{}, err
	}
	times, err := c.fleet.Ready(c.cfg.Mesh.Proxies, time.Second)
	if err != nil {
		return Cost{}, errors.Join(err, c.explain())
	}
	cost, err := m.cost(begin, times)
	return cost, errors.Join(err, done())
}

// repeat makes a change so many times.
func (c *cell) repeat(ctx context.Context, kind Kind, n int) ([]Cost, error) {
	if n == 0 {
		return nil, nil
	}
	done := c.profile(ctx, string(kind), max(n, 5))
	var out []Cost
	for range n {
		cost, err := c.change(ctx, kind)
		if err != nil {
			return out, errors.Join(err, c.explain())
		}
		out = append(out, cost)
	}
	return out, done()
}

// gatewayRoutes edits routes that only the gateway proxies have. It returns what these edits cost them, and
// how many bytes all others were sent meanwhile.
func (c *cell) gatewayRoutes(ctx context.Context, n int) ([]Cost, int64, error) {
	before, err := c.fleet.Totals()
	if err != nil {
		return nil, 0, err
	}
	all := *c
	all.fleet, all.cfg.Mesh.Proxies = c.gateways, c.cfg.Mesh.GatewayProxies
	out, err := all.repeat(ctx, GatewayRoute, n)
	c.revision = all.revision
	if err != nil {
		return out, 0, err
	}
	after, err := c.fleet.Totals()
	if err != nil {
		return out, 0, err
	}
	var sent int64
	for k, now := range after.Kinds {
		sent += now.Minus(before.Kinds[k]).Bytes
	}
	return out, sent, nil
}

// change makes one change and waits until every stream has it.
func (c *cell) change(ctx context.Context, kind Kind) (Cost, error) {
	c.revision++
	m, err := c.measure()
	if err != nil {
		return Cost{}, err
	}
	if err := c.fleet.Arm(marker(c.cfg.Mesh, kind, c.revision)); err != nil {
		return Cost{}, err
	}
	at, err := c.subject.change(ctx, kind, c.revision)
	if err != nil {
		return Cost{}, err
	}
	times, err := c.fleet.Probe(c.cfg.Mesh.Proxies)
	if err != nil {
		return Cost{}, err
	}
	if _, err := c.fleet.Ready(c.cfg.Mesh.Proxies, quiet); err != nil {
		return Cost{}, err
	}
	decided, err := c.subject.decided(ctx, at)
	if err != nil {
		return Cost{}, err
	}
	cost, err := m.cost(decided, times)
	cost.Decision = decided.Sub(at).Seconds()
	return cost, err
}

// measurement is the state before an event.
type measurement struct {
	c             *cell
	server, fleet Usage
	totals        envoys.Totals
}

func (c *cell) measure() (m measurement, err error) {
	m.c = c
	if m.totals, err = c.fleet.Totals(); err != nil {
		return m, err
	}
	if err := c.subject.proc().resetPeak(); err != nil {
		return m, err
	}
	if m.server, err = c.subject.proc().usage(); err != nil {
		return m, err
	}
	m.fleet, err = c.fleet.usage()
	return m, err
}

// cost is what has been used since.
func (m *measurement) cost(begin time.Time, t envoys.Times) (Cost, error) {
	server, err := m.c.subject.proc().usage()
	if err != nil {
		return Cost{}, err
	}
	fleet, err := m.c.fleet.usage()
	if err != nil {
		return Cost{}, err
	}
	totals, err := m.c.fleet.Totals()
	if err != nil {
		return Cost{}, err
	}
	if totals.Faults+totals.Endings > m.totals.Faults+m.totals.Endings {
		return Cost{}, fmt.Errorf("the fleet has %d faults, %d streams have ended: %q", totals.Faults, totals.Endings, totals.Examples)
	}
	since := func(at int64) float64 { return time.Unix(0, at).Sub(begin).Seconds() }
	cost := Cost{
		First: since(t.First), Median: since(t.Median), P99: since(t.P99), Last: since(t.Last),
		CPU: server.CPU - m.server.CPU, Client: fleet.CPU - m.fleet.CPU, Peak: server.Peak, Kinds: map[string]envoys.Counts{},
	}
	for k, now := range totals.Kinds {
		d := now.Minus(m.totals.Kinds[k])
		if d == (envoys.Counts{}) {
			continue
		}
		cost.Kinds[k] = d
		cost.Bytes += d.Bytes
		cost.Messages += d.Messages
		cost.Repeated += d.Repeated
		cost.Rejects += d.Rejects
	}
	return cost, nil
}

// explain is what is known when something did not happen.
func (c *cell) explain() error {
	t, err := c.fleet.Totals()
	if err != nil {
		return err
	}
	return fmt.Errorf("the fleet: %+v", t)
}

// profile takes a CPU profile while something is measured.
func (c *cell) profile(ctx context.Context, name string, seconds int) (done func() error) {
	if !c.cfg.Profile {
		return func() error { return nil }
	}
	ended := make(chan error, 1)
	go func() {
		ended <- c.subject.save(ctx, seconds, filepath.Join(c.cfg.Dir, name+".pprof"))
	}()
	return func() error { return <-ended }
}
