package scenario

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/catalog"
	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
)

// CatalogConfig describes a measurement with one Consul.
type CatalogConfig struct {
	// Binary is the program of the control plane, Consul that of Consul, Dir a
	// directory for everything.
	Binary, Consul, Dir string
	Spec                catalog.Spec
	// Proxies is the size of the fleet, whose proxies see every service.
	Proxies int
	// Secure are the ways Consul is asked: false over plain HTTP, true over HTTPS.
	Secure []bool
	// Starts is how often the control plane is started with nothing on disk.
	Starts int
	// Flips is how often a check is made to fail, and to pass again; Added is how
	// often an instance is registered, and deregistered.
	Flips, Added int
	// Flap is for how long one check changes every second, Idle for how long
	// nothing happens.
	Flap, Idle time.Duration
	// Args are further arguments of the control plane.
	Args []string
	// Profile makes CPU profiles of the control plane, in Dir.
	Profile bool
}

// CatalogResult is what was measured.
type CatalogResult struct {
	// Fill is how many seconds all registrations took, Consul what the server
	// then holds.
	Fill   float64 `json:"fill"`
	Consul Usage   `json:"consul"`
	// Ways has an entry for each of the config's.
	Ways []CatalogWay `json:"ways"`
}

// CatalogWay is what was measured over HTTP, or over HTTPS.
type CatalogWay struct {
	Secure bool
	// Starts have an empty state directory, the last of them through the counter and all
	// others without it; Restart has the stored catalog of the last.
	Starts  []CatalogStart
	Restart CatalogStart
	// Fleet is until all proxies had everything, from their connecting on.
	Fleet float64 `json:"fleet"`
	// Cores are those that are used while nothing happens.
	Cores, CoresConsul float64
	IdleCounts         catalog.Counts
	IdlePeaks          catalog.Peaks
	Idle               Usage
	// Out and In are seconds from a write of a check to the endpoint's change on a
	// stream, AddedIn and AddedOut from a registration and a deregistration.
	Out, In, AddedIn, AddedOut []float64
	// AddedCPU is what all registrations and deregistrations cost.
	AddedCPU float64
	// Flapped is how often one check has changed, and what that cost.
	Flapped    int
	FlapCPU    float64
	FlapCounts catalog.Counts
	Throttled  int
}

// CatalogStart is one start of the control plane, until it is ready with the complete catalog.
type CatalogStart struct {
	// Counted says that Consul was asked through the counter, which takes its
	// time too; Counts and Peaks are zero otherwise.
	Counted bool
	Seconds float64
	// CPU and Peak are the control plane's, Consul the CPU seconds of Consul.
	CPU, Peak, Consul float64
	Counts            catalog.Counts
	Peaks             catalog.Peaks
}

// catalogRun is a control plane that reads a catalog.
type catalogRun struct {
	cfg     CatalogConfig
	consul  *consul
	certs   pair
	counter *catalog.Counter
	server  *Server
	fleet   *Fleet
	watch   *catalog.Watch
	xds     string
	end     []func() error // in reverse order
}

// RunCatalog fills a Consul and measures what it costs to follow it.
func RunCatalog(ctx context.Context, cfg CatalogConfig) (res CatalogResult, err error) {
	certs, err := newPair(cfg.Dir)
	if err != nil {
		return res, err
	}
	c, err := startConsul(ctx, cfg.Consul, cfg.Dir, cfg.Spec, certs)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, c.close(ctx)) }()
	begin := time.Now()
	if err := c.writer.Fill(ctx); err != nil {
		return res, err
	}
	res.Fill = time.Since(begin).Seconds()
	if res.Consul, err = c.usage(); err != nil {
		return res, err
	}
	for _, secure := range cfg.Secure {
		p := &catalogRun{cfg: cfg, consul: c, certs: certs}
		way, err := p.measure(ctx, secure)
		res.Ways = append(res.Ways, way)
		if err = errors.Join(err, p.close()); err != nil {
			return res, err
		}
	}
	return res, nil
}

func (p *catalogRun) close() error {
	var errs []error
	for _, f := range slices.Backward(p.end) {
		errs = append(errs, f())
	}
	p.end = nil
	return errors.Join(errs...)
}

func (p *catalogRun) measure(ctx context.Context, secure bool) (way CatalogWay, err error) {
	way.Secure = secure
	for range p.cfg.Starts - 1 {
		if err := errors.Join(p.begin(ctx, &way, false), p.close()); err != nil {
			return way, err
		}
	}
	if err := p.begin(ctx, &way, true); err != nil {
		return way, err
	}
	for _, step := range []func(context.Context, *CatalogWay) error{p.connect, p.idle, p.flips, p.flap, p.added, p.restart} {
		if err := step(ctx, &way); err != nil {
			return way, err
		}
	}
	return way, nil
}

// count puts a counting proxy before Consul and gives its URL.
func (p *catalogRun) count(ctx context.Context, secure bool) (string, error) {
	target, scheme := p.consul.http, "http://"
	if secure {
		target, scheme = p.consul.https, "https://"
	}
	to, err := url.Parse(target)
	if err != nil {
		return "", fmt.Errorf("counting: %w", err)
	}
	trust, err := p.certs.client()
	if err != nil {
		return "", err
	}
	transport := &http.Transport{TLSClientConfig: trust, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 256, DisableCompression: true}
	p.counter = catalog.NewCounter(to, transport)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("counting: %w", err)
	}
	s := p.counter.Server()
	done := make(chan error, 1)
	go func() {
		if secure {
			done <- s.ServeTLS(l, p.certs.cert, p.certs.key)
			return
		}
		done <- s.Serve(l)
	}()
	p.end = append(p.end, func() error {
		err := s.Close()
		if e := <-done; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		transport.CloseIdleConnections()
		return err
	})
	return scheme + l.Addr().String(), nil
}

// proxies are the proxies of the fleet, in files.
func (p *catalogRun) proxies() meshgen.Spec {
	return meshgen.Spec{Services: 1, Endpoints: p.cfg.Proxies, Proxies: p.cfg.Proxies, Namespaces: 1, Clients: 1}
}

// begin starts the control plane with an empty state directory, and waits until it has the
// complete catalog.
func (p *catalogRun) begin(ctx context.Context, way *CatalogWay, counted bool) error {
	for _, dir := range []string{p.mesh(), filepath.Join(p.cfg.Dir, "state")} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("clearing: %w", err)
		}
	}
	if err := p.proxies().Write(p.mesh()); err != nil {
		return err
	}
	start, err := p.start(ctx, way.Secure, counted)
	way.Starts = append(way.Starts, start)
	return err
}

// restart starts the control plane with its state directory.
func (p *catalogRun) restart(ctx context.Context, way *CatalogWay) error {
	way.Throttled = p.counter.Counts().Throttled
	if err := p.close(); err != nil {
		return err
	}
	var err error
	way.Restart, err = p.start(ctx, way.Secure, false)
	return err
}

func (p *catalogRun) mesh() string { return filepath.Join(p.cfg.Dir, "mesh") }

func (p *catalogRun) start(ctx context.Context, secure, counted bool) (out CatalogStart, err error) {
	to := p.consul.http
	if secure {
		to = p.consul.https
	}
	if counted {
		if to, err = p.count(ctx, secure); err != nil {
			return out, err
		}
	}
	if p.xds, err = freePort(ctx); err != nil {
		return out, err
	}
	before, err := p.consul.usage()
	if err != nil {
		return out, err
	}
	args := []string{"--consul-address", to}
	if secure {
		args = append(args, "--consul-ca-file", p.certs.cert)
	}
	p.server, err = StartServer(ctx, ServerConfig{
		Binary: p.cfg.Binary, Dir: p.cfg.Dir, Mesh: p.mesh(), Plaintext: p.xds, TLS: "127.0.0.1:0", Args: append(args, p.cfg.Args...),
	})
	if err != nil {
		return out, err
	}
	p.end = append(p.end, func() error { return p.server.Stop(ctx) })
	usage, err := p.server.usage()
	if err != nil {
		return out, err
	}
	after, err := p.consul.usage()
	if err != nil {
		return out, err
	}
	out = CatalogStart{Counted: counted, Seconds: p.server.Start.Seconds(), CPU: usage.CPU, Peak: usage.Peak, Consul: after.CPU - before.CPU}
	if counted {
		out.Counts, out.Peaks = p.counter.Counts(), p.counter.Peaks()
	}
	return out, nil
}

// connect connects the fleet, and the stream that watches endpoints.
func (p *catalogRun) connect(ctx context.Context, way *CatalogWay) error {
	var err error
	cfg := FleetConfig{Address: p.xds, Mesh: p.proxies(), Size: p.cfg.Proxies, PerConn: 1}
	if p.fleet, err = StartFleet(ctx, p.cfg.Dir, cfg); err != nil {
		return err
	}
	p.end = append(p.end, func() error { return p.fleet.Stop(ctx) })
	begin := time.Now()
	if err := p.fleet.Connect(); err != nil {
		return err
	}
	times, err := p.fleet.Ready(p.cfg.Proxies, time.Second)
	if err != nil {
		return err
	}
	way.Fleet = time.Unix(0, times.Last).Sub(begin).Seconds()
	totals, err := p.fleet.Totals()
	if err != nil {
		return err
	}
	if held := totals.Held["CDS"][0]; held < p.cfg.Spec.Services || totals.Faults > 0 {
		return fmt.Errorf("connecting: a proxy has %d clusters of %d services: the first catalog was not complete: %+v", held, p.cfg.Spec.Services, totals)
	}
	p.watch, err = catalog.NewWatch(ctx, p.xds, cfg.decoded(0), p.flipped())
	if err != nil {
		return err
	}
	p.end = append(p.end, p.watch.Close)
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, s := range p.flipped() {
		if _, err := p.watch.Await(within, s, p.cfg.Spec.Address(s, 0), true); err != nil {
			return err
		}
	}
	return nil
}

// idle lets nothing happen.
func (p *catalogRun) idle(ctx context.Context, way *CatalogWay) error {
	if err := pause(ctx, min(settle, p.cfg.Idle)); err != nil {
		return err
	}
	p.counter.Peaks()
	before, counts := p.counter.Counts(), [2]Usage{}
	var err error
	if counts[0], err = p.server.usage(); err != nil {
		return err
	}
	if counts[1], err = p.consul.usage(); err != nil {
		return err
	}
	done := p.profile(ctx, way.Secure, "idle", p.cfg.Idle)
	begin := time.Now()
	if err := pause(ctx, p.cfg.Idle); err != nil {
		return err
	}
	took := time.Since(begin).Seconds()
	if way.Idle, err = p.server.usage(); err != nil {
		return err
	}
	now, err := p.consul.usage()
	if err != nil {
		return err
	}
	way.Cores, way.CoresConsul = (way.Idle.CPU-counts[0].CPU)/took, (now.CPU-counts[1].CPU)/took
	way.IdleCounts, way.IdlePeaks = p.counter.Counts().Minus(before), p.counter.Peaks()
	return done()
}
