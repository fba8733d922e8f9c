package scenario

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/envoys"
	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
)

// CellConfig is one mesh, one fleet, and what is done with them.
type CellConfig struct {
	// Subject is what is measured; empty means our control plane.
	Subject Subject
	// Binary is the program of the control plane or of the peers, Dir a directory
	// for everything.
	Binary, Dir string
	Mesh        meshgen.Spec
	// Feed is a file of resources that the peers serve, of [WriteFeed].
	Feed string
	// Sizes are those of the limit's messages.
	Sizes Sizes
	// Minor is the release of Envoy that the fleet is of; 0 means 1.40.
	Minor uint32
	// PerConn is how many streams share a connection; 0 means 1, or as many as maxPlaintext
	// demands.
	PerConn int
	// TLS makes the streams be of hosts with identities of the control plane.
	TLS bool
	// Routes, Endpoints and Many are how often each change is made.
	Routes, Endpoints, Many int
	// GatewayRoutes is how often a route of a Gateway is edited, if there are gateway proxies.
	GatewayRoutes int
	// Idle is how long nothing happens before memory is read; 0 means that it is
	// not.
	Idle time.Duration
	// Debounced leaves the control plane's debounce as it is shipped; otherwise
	// there is none worth a name.
	Debounced bool
	// Args are further arguments of the control plane.
	Args []string
	// Reconnect makes the fleet come back when a connection has ended.
	Reconnect bool
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
type Sizes struct{ Cold, Route, Endpoint, Table int }

// Result is what a cell has measured.
type Result struct {
	Start     float64 `json:"start"` // seconds until the server was ready
	Empty     Usage   `json:"empty"` // of the server, with nobody connected
	Cold      Cost    `json:"cold"`
	Routes    []Cost  `json:"routes"`
	Endpoints []Cost  `json:"endpoints"`
	Many      []Cost  `json:"many"`
	// Gateways are edits of routes that only gateway proxies have. Each says what they were sent, and
	// Sidecars what the fleet was sent meanwhile, in bytes.
	Gateways []Cost        `json:"gateways,omitempty"`
	Sidecars int64         `json:"sidecars"`
	Idle     Usage         `json:"idle"` // of the server, at the end; zero where it was not waited for
	Totals   envoys.Totals `json:"totals"`
}

// cell is a running one.
type cell struct {
	cfg      CellConfig
	address  string
	subject  subject
	fleet    *Fleet
	gateways *Fleet        // or nil
	start    time.Duration // until the server was ready
	revision int
}

// RunCell runs one cell.
func RunCell(ctx context.Context, cfg CellConfig) (res Result, err error) {
	if w := cfg.Mesh; cfg.Endpoints > 0 && !w.Spare() {
		return res, fmt.Errorf("replacing endpoints: the last of %d services has only endpoints that are proxies, which would leave the mesh; "+
			"ask for no replacements, or for more endpoints", w.Services)
	}
	c := &cell{cfg: cfg}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	if err := c.begin(ctx); err != nil {
		return res, err
	}
	res.Start = c.start.Seconds()
	if res.Empty, err = c.subject.proc().usage(); err != nil {
		return res, err
	}
	if c.gateways != nil {
		if err := c.gateways.Connect(); err != nil {
			return res, err
		}
		if _, err := c.gateways.Ready(cfg.Mesh.GatewayProxies, time.Second); err != nil {
			return res, err
		}
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
	if res.Many, err = c.repeat(ctx, Many, cfg.Many); err != nil {
		return res, err
	}
	if c.gateways != nil && cfg.Mesh.Gateways > 0 {
		if res.Gateways, res.Sidecars, err = c.gatewayRoutes(ctx, cfg.GatewayRoutes); err != nil {
			return res, err
		}
	}
	if cfg.Idle > 0 {
		if err := pause(ctx, cfg.Idle); err != nil {
			return res, err
		}
		if res.Idle, err = c.subject.proc().usage(); err != nil {
			return res, err
		}
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
func (c *cell) begin(ctx context.Context) error { return c.beginWith(ctx, c.cfg.Mesh.Proxies) }

// beginWith starts a fleet of only the first proxies.
func (c *cell) beginWith(ctx context.Context, size int) error {
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
	if c.fleet, err = c.newFleet(ctx, 0, size); err != nil {
		return err
	}
	if n := c.cfg.Mesh.GatewayProxies; n > 0 {
		if c.cfg.TLS || c.cfg.Subject != Ours {
			return errors.New("gateway proxies are only measured without TLS, and of our control plane")
		}
		if c.gateways, err = c.newFleet(ctx, c.cfg.Mesh.Proxies, n); err != nil {
			return err
		}
	}
	return pause(ctx, time.Second)
}

// newFleet starts a process for some of the proxies.
func (c *cell) newFleet(ctx context.Context, first, size int) (*Fleet, error) {
	return c.newFleetWith(ctx, FleetConfig{First: first, Size: size})
}

// maxPlaintext is how many connections without TLS are made to a server, which accepts
// 1,024. With more proxies than that, several streams share a connection.
const maxPlaintext = 1000

// perConn is how many streams of a fleet share a connection.
func (c *cell) perConn() int {
	if c.cfg.TLS {
		return c.cfg.PerConn
	}
	return max(c.cfg.PerConn, (c.cfg.Mesh.Proxies+maxPlaintext-1)/maxPlaintext)
}

// newFleetWith is newFleet, with what else is to be said of it.
func (c *cell) newFleetWith(ctx context.Context, cfg FleetConfig) (*Fleet, error) {
	cfg.Address, cfg.Mesh, cfg.Minor, cfg.PerConn = c.address, c.cfg.Mesh, c.cfg.Minor, c.perConn()
	cfg.TLS, cfg.Reconnect = c.cfg.TLS, c.cfg.Reconnect
	if o, ok := c.subject.(*ours); ok && c.cfg.TLS {
		var err error
		if cfg.Tokens, err = o.server.tokens(ctx, cfg); err != nil {
			return nil, err
		}
	}
	return StartFleet(ctx, c.cfg.Dir, cfg)
}

// beginOurs writes the mesh and starts the control plane.
func (c *cell) beginOurs(ctx context.Context) error {
	mesh := c.dir()
	// The state of another mesh would be held against this one.
	for _, dir := range []string{mesh, filepath.Join(c.cfg.Dir, "state")} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clearing: %w", err)
		}
	}
	if err := c.cfg.Mesh.Write(mesh); err != nil {
		return err
	}
	o := &ours{spec: c.cfg.Mesh, mesh: mesh}
	// Every revision is 0: the peers' changes are of the same length.
	if o.spec.Spare() {
		if _, err := o.change(ctx, Endpoint, 0); err != nil {
			return err
		}
	}
	args := c.cfg.Args
	if !c.cfg.Debounced {
		// Debounce is a setting; what is measured is what comes before and after.
		args = append([]string{"--debounce-after", "1ms"}, args...)
	}
	o.cfg = ServerConfig{Binary: c.cfg.Binary, Dir: c.cfg.Dir, Mesh: mesh, Plaintext: c.address, TLS: "127.0.0.1:0", Args: args}
	var err error
	if c.cfg.TLS {
		o.cfg.Plaintext, o.cfg.TLS = "", c.address
	}
	o.server, err = StartServer(ctx, o.cfg)
	if err == nil {
		c.subject = o
	}
	return err
}

// dir is where the mesh is.
func (c *cell) dir() string { return filepath.Join(c.cfg.Dir, "mesh") }

func (c *cell) close(ctx context.Context) error {
	var errs []error
	if c.gateways != nil {
		errs = append(errs, c.gateways.Stop(ctx))
	}
	if c.fleet != nil {
		errs = append(errs, c.fleet.Stop(ctx))
	}
	if c.subject != nil {
		errs = append(errs, c.subject.close(ctx))
	}
	return errors.Join(errs...)
}
