package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
	"github.com/fairlead/fairlead/bench/fleet/internal/world"
)

// CellConfig is one mesh, one fleet, and what is done with them.
type CellConfig struct {
	// Subject is what is measured; empty means our control plane.
	Subject Subject
	// Binary is the program of the control plane or of the peers, Dir a directory
	// for everything.
	Binary, Dir string
	World       world.Spec
	// Feed is a file of resources that the peers serve, of [WriteFeed].
	Feed string
	// Sizes are those of the limit's messages.
	Sizes Sizes
	// Minor is the release of Envoy that the fleet is of; 0 means 1.40.
	Minor uint32
	// PerConn is how many streams share a connection; 0 means 1.
	PerConn int
	// Routes and Endpoints are how often each change is made.
	Routes, Endpoints int
	// Idle is how long nothing happens before memory is read.
	Idle time.Duration
	// Args are further arguments of the control plane.
	Args []string
	// Profile makes CPU profiles of the control plane: cold.pprof, routes.pprof
	// and endpoints.pprof in Dir, and heap.pprof.
	Profile bool
}

// Subject is what is measured.
type Subject string

// The subjects.
const (
	Ours     Subject = ""
	Linear   Subject = "linear"   // go-control-plane, a LinearCache for each type
	Snapshot Subject = "snapshot" // the same, its SnapshotCache
	Limit    Subject = "limit"    // one message, encoded beforehand, to everybody
)

// Sizes are those of messages, in bytes.
type Sizes struct{ Cold, Route, Endpoint int }

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

// Result is what a cell has measured.
type Result struct {
	Start     float64       `json:"start"` // seconds until the server was ready
	Empty     Usage         `json:"empty"` // of the server, with nobody connected
	Cold      Cost          `json:"cold"`
	Routes    []Cost        `json:"routes"`
	Endpoints []Cost        `json:"endpoints"`
	Idle      Usage         `json:"idle"` // of the server, at the end
	Totals    envoys.Totals `json:"totals"`
}

// quiet is how long nothing has to come for an event to have ended.
const quiet = 300 * time.Millisecond

// cell is a running one.
type cell struct {
	cfg      CellConfig
	address  string
	subject  subject
	fleet    *Fleet
	start    time.Duration // until the server was ready
	revision int
}

// RunCell runs one cell.
func RunCell(ctx context.Context, cfg CellConfig) (res Result, err error) {
	c := &cell{cfg: cfg}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.begin(ctx); err != nil {
		return res, err
	}
	res.Start = c.start.Seconds()
	if res.Empty, err = c.subject.proc().usage(); err != nil {
		return res, err
	}
	if res.Cold, err = c.cold(ctx); err != nil {
		return res, err
	}
	if res.Routes, err = c.repeat(ctx, Route, cfg.Routes); err != nil {
		return res, err
	}
	if res.Endpoints, err = c.repeat(ctx, Endpoint, cfg.Endpoints); err != nil {
		return res, err
	}
	if err := pause(ctx, cfg.Idle); err != nil {
		return res, err
	}
	if res.Idle, err = c.subject.proc().usage(); err != nil {
		return res, err
	}
	if cfg.Profile {
		if err := c.subject.save(ctx, 0, filepath.Join(cfg.Dir, "heap.pprof")); err != nil {
			return res, err
		}
	}
	res.Totals, err = c.fleet.Totals()
	return res, err
}

// begin starts the server and the fleet.
func (c *cell) begin(ctx context.Context) error {
	var err error
	if c.address, err = freePort(ctx); err != nil {
		return err
	}
	began := time.Now()
	switch c.cfg.Subject {
	case Ours:
		err = c.beginOurs(ctx)
	case Linear, Snapshot:
		c.subject, err = startPeer(ctx, c.cfg, c.address)
	case Limit:
		c.subject, err = startLimit(ctx, c.cfg, c.address)
	default:
		err = fmt.Errorf("no subject %q", c.cfg.Subject)
	}
	if err != nil {
		return err
	}
	c.start = time.Since(began)
	if c.fleet, err = StartFleet(ctx, c.cfg.Dir, FleetConfig{
		Address: c.address, World: c.cfg.World, Size: c.cfg.World.Proxies, Minor: c.cfg.Minor, PerConn: c.cfg.PerConn,
	}); err != nil {
		return err
	}
	return pause(ctx, time.Second)
}

// beginOurs writes the mesh and starts the control plane.
func (c *cell) beginOurs(ctx context.Context) error {
	mesh := filepath.Join(c.cfg.Dir, "mesh")
	if err := os.RemoveAll(mesh); err != nil {
		return fmt.Errorf("clearing: %w", err)
	}
	if err := c.cfg.World.Write(mesh); err != nil {
		return err
	}
	o := &ours{world: c.cfg.World, mesh: mesh}
	// Every revision is 0: the peers' changes are of the same length.
	if _, err := o.change(ctx, Endpoint, 0); err != nil {
		return err
	}
	var err error
	o.server, err = StartServer(ctx, ServerConfig{
		Binary: c.cfg.Binary, Dir: c.cfg.Dir, Mesh: mesh, Plaintext: c.address, TLS: "127.0.0.1:0",
		// Debounce is a setting; what is measured is what comes before and after.
		Args: append([]string{"--debounce-after", "1ms"}, c.cfg.Args...),
	})
	if err == nil {
		c.subject = o
	}
	return err
}

func (c *cell) close(ctx context.Context) error {
	var errs []error
	if c.fleet != nil {
		errs = append(errs, c.fleet.Stop(ctx))
	}
	if c.subject != nil {
		errs = append(errs, c.subject.close(ctx))
	}
	return errors.Join(errs...)
}

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
	times, err := c.fleet.Ready(c.cfg.World.Proxies, time.Second)
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

// change makes one change and waits until every stream has it.
func (c *cell) change(ctx context.Context, kind Kind) (Cost, error) {
	c.revision++
	m, err := c.measure()
	if err != nil {
		return Cost{}, err
	}
	if err := c.fleet.Arm(marker(c.cfg.World, kind, c.revision)); err != nil {
		return Cost{}, err
	}
	at, err := c.subject.change(ctx, kind, c.revision)
	if err != nil {
		return Cost{}, err
	}
	times, err := c.fleet.Probe(c.cfg.World.Proxies)
	if err != nil {
		return Cost{}, err
	}
	if _, err := c.fleet.Ready(c.cfg.World.Proxies, quiet); err != nil {
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
