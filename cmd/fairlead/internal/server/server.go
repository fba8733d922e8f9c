package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/accept"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/pki/timecheck"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/gatewaynames"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// Server is a control plane.
type Server struct {
	cfg       Config
	metrics   *prometheus.Registry
	settings  *mesh.MeshConfig // those that count until a source gives some
	authority *pki.Authority
	entitled  *attest.Entitlements
	serials   *serials.Book
	issuer    *issue.Service
	clock     *timecheck.Check
	files     []*files.Source    // the directories, and before them the mesh configuration
	immutable *immutableSettings // or nil
	catalogs  catalogs           // what is read of Consul
	agents    *agents.Source
	presence  *presence // of hosts, for the streams
	keys      *jwks.Store
	names     *gatewaynames.Names
	registry  *registry.Registry
	bound     map[string]*mesh.Binding // of sources that are bound to namespaces
	xds       *xds.Server
	listener  net.Listener
	hosts     *hosts     // who is served there
	plaintext *plaintext // or nil
	advertise []string
	admin     *admin.Server
	started   time.Time
	recent    recentConditions
	unserved  unservedSince
	targets   targetList // of proxies, for Prometheus
}

// New makes all parts and binds the listeners; it does not serve yet.
func New(ctx context.Context, cfg Config) (*Server, error) {
	cfg, err := cfg.check()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, metrics: prometheus.NewRegistry(), started: time.Now()}
	s.targets.list = s.sdTargets
	s.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	// What a flag may be wrong about comes before the authority, which is for ever.
	for _, step := range []func(context.Context) error{
		s.newFiles, s.newCatalogs, s.bind, s.fitDescriptors, s.newAdmin, s.newAuthority, s.newKeys, s.newNames, s.newRegistry, s.reportCatalogOwners, s.newXDS, s.newHosts, s.newPlaintext,
	} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Close gives back what New has taken, where Run is never called.
func (s *Server) Close() error {
	var errs []error
	if s.listener != nil {
		errs = append(errs, s.listener.Close())
	}
	if s.plaintext != nil {
		errs = append(errs, s.plaintext.listener.Close())
	}
	if s.admin != nil {
		errs = append(errs, s.admin.Close())
	}
	if s.authority != nil {
		errs = append(errs, s.authority.Close())
	}
	return errors.Join(errs...)
}

func (s *Server) pkiDir() string { return filepath.Join(s.cfg.StateDir, "pki") }

func (s *Server) newAuthority(context.Context) error {
	td, err := s.trustDomain()
	if err != nil {
		return err
	}
	readopt, err := s.cfg.readopt(wallclock.Now())
	if err != nil {
		return err
	}
	s.authority, err = pki.New(pki.Config{Dir: s.pkiDir(), TrustDomain: td, Logger: s.cfg.Logger, DefaultTTL: s.cfg.CertificateTTL}, wallclock.Now())
	if err != nil {
		return err
	}
	s.entitled, err = attest.New(attest.Config{Dir: s.pkiDir(), Logger: s.cfg.Logger, Readopt: readopt})
	if err != nil {
		return err
	}
	if err := s.newSerials(); err != nil {
		return err
	}
	s.clock, err = timecheck.New(timecheck.Config{Logger: s.cfg.Logger, Path: filepath.Join(s.cfg.StateDir, "clock.json")})
	if err != nil {
		return err
	}
	s.metrics.MustRegister(newClockCollector(s.clock.Status))
	s.issuer, err = issue.New(issue.Config{
		Authority: s.authority, Entitlements: s.entitled, Serials: s.serials, Logger: s.cfg.Logger, Registerer: s.metrics, Hold: s.clock.Hold, Workload: s.workloadName,
		UnauthenticatedBurst: cmp.Or(s.cfg.MaxUnauthenticatedPerAddress, accept.DefaultMaxUnauthenticatedPerAddress),
		Answering:            func(peer string) (done func()) { return s.hosts.acceptor.Answering(peer) },
	})
	return err
}

func (s *Server) newRegistry(context.Context) error {
	var err error
	s.agents, err = agents.New(agents.Config{
		Logger: s.cfg.Logger, Store: outages{filepath.Join(s.cfg.StateDir, "outages.json")},
		Claims: claims{filepath.Join(s.cfg.StateDir, "claims.json")}, Stands: s.stands,
		ClaimLease: s.cfg.ClaimLease, RequireProof: s.cfg.RequireProvenAddresses, Settle: cmp.Or(s.cfg.AbsentAfter, DefaultAbsentAfter),
	})
	if err != nil {
		return err
	}
	s.presence = newPresence(s.agents, s.cfg.AbsentAfter)
	sources, bound := s.sourceList()
	s.bound = bound
	addressRange, err := s.cfg.addressRange()
	if err != nil {
		return err
	}
	s.registry, err = registry.New(registry.Config{
		Logger: s.cfg.Logger, Sources: append(sources, s.agents), Fallback: s.settings,
		GatewayNames: s.names, KeySets: &keySets{store: s.keys}, BoundPrivateKeys: s.cfg.Keys.BoundPrivate,
		AddressRange: addressRange, AddressStore: s.hostAddresses(),
		Bindings: bound, Grants: s.hostGrants(), DebounceAfter: s.cfg.DebounceAfter, DebounceMax: s.cfg.DebounceMax,
		Observe: s.observePublished(), SourceWait: s.cfg.SourceWait, ReleaseEmptyAfter: s.cfg.ReleaseEmptyAfter, RemovalShare: s.cfg.RemovalShare, RemovalWindow: s.cfg.RemovalWindow,
	})
	return err
}

// viewSettings are the settings that views are made with.
func (s *Server) viewSettings() view.Settings {
	addressRange, _ := s.cfg.addressRange() // checked when the registry was made
	return view.Settings{
		CertificateTTL: s.cfg.CertificateTTL, MaxConnectionAge: s.cfg.MaxConnectionAge, DualStackDNS: s.cfg.DualStackDNS,
		CaptureDetectionTimeout: s.cfg.CaptureDetectionTimeout, AddressRange: addressRange, QUICListeners: s.cfg.QUICListeners,
	}
}

func (s *Server) newXDS(context.Context) error {
	var err error
	s.xds, err = xds.New(xds.Config{
		Logger: s.cfg.Logger, Snapshots: s.registry, Admission: admission{s.issuer, s.hangup, s.resume}, Health: s.presence, Clocks: s.clock,
		Observe: s.observeRollouts(), Registerer: s.metrics, AcceptUnenforced: s.cfg.AcceptUnenforced,
		Settings:   s.viewSettings(),
		MaxStreams: s.cfg.MaxStreams, MaxPerHost: s.cfg.MaxStreamsPerHost, MaxNew: s.cfg.MaxNewStreams,
		MaxRequests: s.cfg.MaxRequestsPerHost, MaxKeptPerHost: s.cfg.MaxMiBPerHost << 20, MaxKept: s.cfg.MaxMiB << 20,
		SlowTimeout: s.cfg.SlowProxyTimeout, InlineRoutes: s.cfg.VirtualHosts == VirtualHostsOff,
	})
	return err
}

func (s *Server) newAdmin(ctx context.Context) error {
	s.metrics.MustRegister(newStatusCollector(s))
	if s.cfg.Consul.Used() {
		s.metrics.MustRegister(newConsulCollector(&s.catalogs))
	}
	var err error
	s.admin, err = admin.New(ctx, admin.Config{
		Logger: s.cfg.Logger, Address: s.cfg.HTTPAddress, Socket: filepath.Join(s.cfg.RunDir, "admin.sock"),
		Levels: s.cfg.LogLevels, Registerer: s.metrics, Metrics: promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}), NotReady: s.NotReady, Remarks: s.remarks, Routes: s.routes(), Public: s.publicRoutes(),
	})
	return err
}

// NotReady says why the control plane cannot serve the mesh yet; nothing means
// that it can.
func (s *Server) NotReady() []string {
	var why []string
	status := s.registry.Status()
	if status.Generation == 0 {
		text := "nothing has been published yet"
		if m := status.SlowMerge; m != nil {
			text += fmt.Sprintf(": merging the sources has taken %s so far", m.Lasted(time.Now()).Round(time.Second))
		}
		why = append(why, text)
	}
	for _, m := range status.Missing {
		// The mesh is served without it by now, and no host loses anything: a team that makes its own
		// directory unreadable must not take the server out of service for all. Consul's key-value
		// store is nobody's alone.
		if s.bound[m] != nil && m != kvSource && status.Generation > 0 {
			continue
		}
		why = append(why, "source "+m+" has not delivered: "+s.whyMissing(m))
	}
	if _, err := s.authority.Pin(); err != nil {
		why = append(why, "the authority cannot sign: "+err.Error())
	}
	return why
}

// Starting says what the start still waits for. It ends, for who supervises the
// process, at the latest when the sources have been waited for: a server that is
// restarted because a catalog is away serves nobody for longer.
func (s *Server) Starting() []string {
	if time.Since(s.started) > cmp.Or(s.cfg.SourceWait, registry.DefaultSourceWait) {
		return nil
	}
	return s.NotReady()
}

// old reports sources that serve an old state: that is no
// reason to serve nobody.
func (s *Server) old() []string {
	return append(s.catalogs.old(time.Now()), s.unsaved()...)
}

// remarks say what is not well although the mesh is served.
func (s *Server) remarks() []string {
	if s.clock == nil { // asked during the start
		return s.old()
	}
	out := append(s.old(), s.clock.Remarks()...)
	if line := sum(s.recentConditions()); line != "" {
		out = append(out, line)
	}
	return out
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	s.cfg.Logger.InfoContext(ctx, "control plane starting", "address", s.listener.Addr().String(), "advertise", s.advertise,
		"spiffe_id", s.authority.TrustDomain().IDString(), "http", s.admin.Address())
	process := ctx
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.keys.Run(ctx) })
	g.Go(func() error { return s.names.Run(ctx) })
	g.Go(func() error { return s.registry.Run(ctx) })
	g.Go(func() error { return s.xds.Run(ctx) })
	g.Go(func() error { return s.admin.Run(ctx) })
	g.Go(func() error { return s.serveGRPC(ctx) })
	g.Go(func() error { return s.trimMemory(ctx) })
	g.Go(func() error { return s.collectDuringFloods(ctx) })
	g.Go(func() error { return s.clock.Run(ctx) })
	g.Go(func() error { return s.writeFileSD(ctx) })
	g.Go(func() error { return s.watchUnserved(ctx) })
	if s.cfg.Tracer != nil {
		g.Go(func() error { return s.cfg.Tracer.Run(ctx) })
	}
	var ending time.Time
	g.Go(func() error {
		<-ctx.Done()
		ending = time.Now()
		s.cfg.Logger.InfoContext(ctx, "control plane stopping", "reason", context.Cause(ctx))
		return nil
	})
	err := errors.Join(s.wait(process, ctx, g), s.authority.Close())
	s.cfg.Logger.InfoContext(ctx, "control plane stopped", "took", time.Since(ending).Round(time.Millisecond).String())
	return err
}

// stopWithin is how long the end of the process waits for its parts. They end at once, but for one
// that is computing, such as a view or the objects of a large file: nobody needs what it makes, and
// a supervisor that waits would kill the process later. A write that has begun is another thing: it
// is what the next start has, such as the addresses of services, so a slow disk gets savedWithin, and
// the process ends when nothing has been written for savedAfter.
const (
	stopWithin  = 1500 * time.Millisecond
	savedWithin = 20 * time.Second
	savedAfter  = 100 * time.Millisecond
)

// wait waits for the parts of the process, whose context is ctx.
func (s *Server) wait(process, ctx context.Context, g *errgroup.Group) error {
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(stopWithin):
		if awaitWrites(ended) {
			return <-ended
		}
		s.cfg.Logger.WarnContext(ctx, "a part of the process is still computing: the process ends without it", "lasted", stopWithin.String())
		if process.Err() == nil {
			return context.Cause(ctx) // of the part that failed
		}
		return nil
	}
}

// awaitWrites waits until nothing is written any more, and reports whether all parts have ended
// meanwhile: their result is in ended again.
func awaitWrites(ended chan error) bool {
	tick := time.NewTicker(savedAfter / 5)
	defer tick.Stop()
	last := time.Now()
	if !durable.Writing() {
		return false
	}
	for began := last; time.Since(last) < savedAfter && time.Since(began) < savedWithin; {
		select {
		case err := <-ended:
			ended <- err
			return true
		case <-tick.C:
			if durable.Writing() {
				last = time.Now()
			}
		}
	}
	return false
}

// serveGRPC lets nobody in before there is a whole mesh to serve: a restarting
// control plane never serves half of one, and hosts live on what they have.
func (s *Server) serveGRPC(ctx context.Context) error {
	bell, cancel := s.registry.Subscribe()
	defer cancel()
	select {
	case <-ctx.Done():
		return nil
	case <-bell:
	}
	s.presence.begin(time.Now())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.reportAbsent(ctx) })
	s.hosts.run(ctx, g, s.listener)
	if s.plaintext != nil {
		g.Go(func() error { return serve(ctx, s.plaintext.grpc, s.plaintext.listener) })
	}
	return g.Wait()
}

func serve(ctx context.Context, server *grpc.Server, l net.Listener) error {
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, fs.ErrClosed) {
		return fmt.Errorf("serving hosts: %w", err)
	}
	return nil
}
