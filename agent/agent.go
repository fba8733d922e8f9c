package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/agent/capture/beat"
	"github.com/fairlead/fairlead/agent/collectors"
	"github.com/fairlead/fairlead/agent/dns"
	"github.com/fairlead/fairlead/agent/health"
	"github.com/fairlead/fairlead/agent/logrotate"
	"github.com/fairlead/fairlead/agent/metrics"
	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Config is what an Agent needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// StateDir has what must survive a reboot: identities and the accepted configuration.
	// RunDir has sockets and the records of processes; its path must be short. Both are made
	// if they do not exist.
	StateDir, RunDir string

	// Token is the join token. A host that has joined uses it if the control plane no longer
	// knows the host, or if the token grants something else; it may be given again.
	Token string
	// ReadToken returns the current join token, empty if there is none. If it is set it
	// replaces Token: it is called at the start and again while the agent runs. May be nil.
	ReadToken func() (string, error)
	// Workload is the identity of the application, one of those that the token grants; the
	// zero value means the only one, or the one used last.
	Workload svid.Pair
	// Name names the workload's instance; empty means the host's name.
	Name string
	// Address is the host's address in the mesh; the zero value means the source address of
	// the route to the control plane.
	Address netip.Addr
	// Servers are host:port of the control plane; empty means the token's.
	Servers []string
	// DNSDomain is the domain of the mesh; empty means cluster.local.
	DNSDomain string
	// Capture says that connections come to Envoy by packet capture: INTERCEPTION_MODE is
	// REDIRECT. A gateway has none.
	Capture bool
	// CaptureSocket is the socket of the capture service, where the agent reports that its Envoy is
	// alive, and CapturePort the outbound port of its Envoy there; empty means that it reports nothing.
	CaptureSocket string
	CapturePort   uint16
	// HTTPProxyPort is where Envoy listens, at 127.0.0.1, for applications that use an HTTP proxy; 0
	// means MeshConfig's proxyHttpPort.
	HTTPProxyPort uint16
	// LoopbackAddresses has Envoy listen for each service at an address of 127.0.0.0/8, for hosts
	// without capture.
	LoopbackAddresses bool
	// DNS has the agent answer DNS queries of this host's applications, at DNSAddresses, which are
	// loopback addresses; nil means [dns.DefaultAddresses]. DNSResolvConf names the nameservers for
	// all other names; empty means /etc/resolv.conf. A gateway answers no names of the mesh.
	DNS           bool
	DNSAddresses  []netip.AddrPort
	DNSResolvConf string
	// CredentialsDir has a folder for each credential that Gateways and DestinationRules name by
	// credentialName, with its key and certificates; empty means that there are none.
	CredentialsDir string
	// MeshID, ClusterID, Network, Labels and Locality are sent to the control plane in the
	// node; all may be empty.
	MeshID, ClusterID, Network string
	Labels                     map[string]string
	Locality                   bootstrap.Locality
	// Version is Fairlead's own, for the node; may be empty.
	Version string

	// Envoy is the binary; empty means the first usable one that is found.
	Envoy string
	// EnvoyArgs are further arguments of Envoy; nil means a log level of warning.
	EnvoyArgs []string
	// EnvoyLog is where Envoy's output goes; empty means envoy.log in RunDir.
	EnvoyLog string
	// EnvoyOutput gets what Envoy writes to its output; then the file above is only a buffer. nil
	// means that the output stays in the file.
	EnvoyOutput io.Writer
	// AccessLogFiles is how many rotated files are kept of each access log of Envoy and of its
	// output, and AccessLogMaxSize the size in bytes at which they are rotated; 0 files means that
	// the agent rotates nothing. 0 bytes means 100 MiB.
	AccessLogFiles   int
	AccessLogMaxSize int64
	// Environ is the agent's own environment, as NAME=value. Envoy gets the variables of
	// [proxy.UsualEnvironment] and those that EnvoyEnv names; nil means none.
	Environ, EnvoyEnv []string
	// AdminAddress is the address of Envoy's admin interface; the zero value means a unix
	// socket in RunDir with a random name.
	AdminAddress netip.AddrPort
	// StatsPort and HealthPort are ports of Address; 0 means 15090 and 15021, or free ports if
	// these are in use, -1 none.
	StatsPort, HealthPort int
	// EnvoyMaxHeapMiB and EnvoyMaxConnections limit Envoy; 0 means a limit by the memory of
	// the host, negative no limit.
	EnvoyMaxHeapMiB, EnvoyMaxConnections int
	// DrainTime is how long a stop waits for connections to end; zero means what the ProxyConfig
	// says, or 5 s.
	DrainTime time.Duration
	// EnvoyIncludeStats are regular expressions of the names of further statistics of Envoy.
	EnvoyIncludeStats []string
	// MaxRequestSeries limits the label sets of metrics of requests and TCP connections; 0 means
	// [metrics.DefaultMaxSeries].
	MaxRequestSeries int
	// LeaveRunning keeps Envoy running when Run ends.
	LeaveRunning bool
	// Probe says how to probe the application; nil means as the ProxyConfig says.
	Probe *health.Probe
	// TTL is the lifetime of certificates to request; zero means the default of the server.
	TTL time.Duration
}

// Agent runs one workload's Envoy on a host.
type Agent struct {
	c   Config
	log *slog.Logger

	saver *saver
	// names and dns answer DNS queries, or are nil.
	names *dns.Table
	dns   *dns.Server
	// refused signals that a server rejected the host, returned that one can be reached again,
	// answered has the server that answered last, and named that the control plane may have a name
	// for the workload.
	refused, returned, named chan struct{}
	answered                 chan string
	// configured signals that the control plane has said which ProxyConfig there is, reprobe that
	// it is another one.
	configured, reprobe chan struct{}

	// Constant after the start of Run. clock is set under mu.
	clock        *svid.Clock
	previousHost *svid.Identity // the host's identity before the one on disk, or nil
	// mayWait means that the next start of Envoy may wait for the ProxyConfig. It belongs to
	// the goroutine that starts Envoy.
	mayWait bool

	metricsPort atomic.Uint32 // 0 while nobody has set it
	portChosen  atomic.Bool   // a flag says so
	wantedPort  atomic.Uint32 // of the ProxyConfig; 0 if it has none

	host     atomic.Pointer[svid.Identity] // nil until it has joined
	workload atomic.Pointer[svid.Identity] // nil until there is one
	config   atomic.Pointer[hostConfig]    // nil until the control plane has sent one

	stopping atomic.Bool // Run ends
	overload overload

	mu      sync.Mutex // guards all following fields
	status  Status     // without the parts that come from the components
	relay   *relay.Relay
	proxy   *proxy.Process
	admin   *proxy.Admin
	guards  []*peercred.Guard
	secrets *workload.Server
	metrics *metrics.Collector
	logs    *logrotate.Rotator
	reports *collectors.Watch
	// nodeAddress is the address of the host in the mesh, set with metrics.
	nodeAddress netip.Addr
	known       envoySecrets     // set with admin
	envoyLimits bootstrap.Limits // set with admin
	started     *startSettings   // of the Envoy that runs, or nil
	// adminPaths are those of Envoy's admin socket, set with admin.
	adminPaths adminPaths
}

// New checks the configuration; it starts nothing and writes nothing.
func New(c Config) (*Agent, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Logger == nil {
		bad("configuring the agent: Logger is needed")
	}
	for _, d := range []struct {
		flag string
		path *string
	}{{"--state-dir", &c.StateDir}, {"--run-dir", &c.RunDir}} {
		abs, err := filepath.Abs(*d.path)
		if err != nil || *d.path == "" {
			bad("%s is missing: name a directory", d.flag)
			continue
		}
		*d.path = abs
	}
	if n := len(filepath.Join(c.RunDir, longestSocket)); n > bootstrap.MaxSocketPath {
		bad("the run directory %q is too long: its sockets would have %d bytes, and a unix socket's path at most %d: choose a shorter one with --run-dir",
			c.RunDir, n, bootstrap.MaxSocketPath)
	}
	if c.Token != "" && c.ReadToken == nil {
		token, err := svid.ParseJoinToken(c.Token)
		switch {
		case err != nil:
			errs = append(errs, err)
		case token.Direct:
			errs = append(errs, errDirect)
		}
	}
	if c.Workload != (svid.Pair{}) {
		errs = append(errs, c.Workload.Check())
	}
	if c.AccessLogMaxSize == 0 {
		c.AccessLogMaxSize = defaultAccessLogMaxSize
	}
	if c.AccessLogMaxSize < 0 || c.AccessLogFiles < 0 {
		bad("access logs: %d files of %d bytes: neither may be negative", c.AccessLogFiles, c.AccessLogMaxSize)
	}
	if c.DNSDomain == "" {
		c.DNSDomain = "cluster.local"
	}
	if c.EnvoyLog == "" {
		c.EnvoyLog = filepath.Join(c.RunDir, "envoy.log")
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	log := c.Logger.With("component", "agent")
	var names *dns.Table
	var server *dns.Server
	if c.DNS {
		names = &dns.Table{}
		var err error
		server, err = dns.New(dns.Config{Logger: c.Logger, Table: names, Addresses: c.DNSAddresses, ResolvConf: c.DNSResolvConf})
		if err != nil {
			return nil, err
		}
	}
	return &Agent{c: c, log: log, names: names, dns: server, saver: newSaver(log), refused: make(chan struct{}, 1), returned: make(chan struct{}, 1), named: make(chan struct{}, 1), answered: make(chan string, 1), configured: make(chan struct{}, 1), reprobe: make(chan struct{}, 1)}, nil
}

// Names in RunDir. Envoy's admin socket is moved: see adminPaths.
const (
	xdsSocket     = "xds.sock"
	sdsSocket     = "sds.sock"
	alsSocket     = "als.sock"
	adminSocket   = "envoy-admin.sock"
	longestSocket = adminSocket
)

func (a *Agent) inRun(name string) string   { return filepath.Join(a.c.RunDir, name) }
func (a *Agent) inState(name string) string { return filepath.Join(a.c.StateDir, name) }

// Run joins if necessary, and serves until ctx ends. Then it drains and stops Envoy, unless
// Envoy is to be left running.
func (a *Agent) Run(ctx context.Context) error {
	if err := errors.Join(durable.MakeDir(a.c.StateDir), os.MkdirAll(a.c.RunDir, 0o750)); err != nil {
		return fmt.Errorf("making the agent's directories: %w", err)
	}
	lock, err := durable.Lock(a.inState("agent.lock"))
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("another agent uses the state directory %q: stop it, or give this one its own with --state-dir: %w", a.c.StateDir, err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	// Envoy is found by the run directory: a second agent would take it for its own.
	running, err := durable.Lock(a.inRun("run.lock"))
	if errors.Is(err, durable.ErrLocked) {
		return fmt.Errorf("another agent uses the run directory %q: stop it, or give this one its own with --run-dir: %w", a.c.RunDir, err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = running.Close() }()
	if a.dns == nil {
		return a.run(ctx)
	}
	if err := a.dns.Listen(ctx); err != nil {
		return fmt.Errorf("%w: another agent may use the port; choose one with --dns-address", err)
	}
	// Names are answered before the host has joined, and until Envoy has ended.
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.dns.Run(serving) })
	group.Go(func() error {
		defer end()
		return a.run(ctx)
	})
	return group.Wait()
}

// run is Run, without DNS.
func (a *Agent) run(ctx context.Context) error {
	binary, err := proxy.FindBinary(ctx, a.c.Envoy, proxy.Environment(a.c.Environ, a.c.EnvoyEnv))
	if err != nil {
		return err
	}
	a.openClock(ctx)
	who, err := a.enroll(ctx)
	if err != nil {
		return err
	}
	for {
		parts, err := a.assemble(ctx, who, binary)
		if err != nil {
			return err
		}
		// Envoy keeps serving meanwhile.
		if err := a.supervise(ctx, parts); !errors.Is(err, errWorkloadChanged) || ctx.Err() != nil {
			return err
		}
	}
}

// parts are the components of an agent.
type parts struct {
	ids     *identities
	secrets *workload.Server
	relay   *relay.Relay
	proxy   *proxy.Process
	metrics *metrics.Collector
	logs    *logrotate.Rotator
	reports *collectors.Watch
	checker *health.Checker // or nil: the ProxyConfig says whether to probe
	health  health.Reporter
}

// supervise runs all components. Envoy is stopped before the others, because it needs them
// while it drains.
func (a *Agent) supervise(ctx context.Context, p *parts) error {
	services, endServices := context.WithCancel(context.WithoutCancel(ctx))
	defer endServices()
	group, services := errgroup.WithContext(services)
	// If a component fails, Envoy keeps serving for the next agent.
	envoyParent, leave := context.WithCancelCause(context.WithoutCancel(ctx))
	defer leave(nil)
	defer context.AfterFunc(services, func() { leave(proxy.ErrLeave) })()
	group.Go(func() error {
		a.saver.run(services)
		return nil
	})
	group.Go(func() error { return p.ids.run(services) })
	group.Go(func() error { return p.secrets.Run(services) })
	group.Go(func() error { return p.relay.Run(services) })
	group.Go(func() error {
		a.reportHost(services, p.secrets.Credentials, p.relay.SetCredentials)
		return nil
	})
	group.Go(func() error { return p.metrics.Run(services) })
	group.Go(func() error { return p.logs.Run(services) })
	group.Go(func() error { return p.reports.Run(services) })
	if a.c.Capture && a.c.CaptureSocket != "" {
		client := beat.Client{Logger: a.log, Path: a.c.CaptureSocket, Port: a.c.CapturePort, Alive: a.envoyAnswers}
		group.Go(func() error { return client.Run(services) })
		a.reportDNS(services, group)
	}
	if p.checker != nil {
		group.Go(func() error { return p.checker.Run(services) })
	} else {
		group.Go(func() error { return a.runProbe(services, p.health) })
	}
	envoy, endEnvoy := context.WithCancelCause(envoyParent)
	defer endEnvoy(nil)
	group.Go(func() error {
		select {
		case <-ctx.Done():
			a.stopping.Store(true)
			if !a.c.LeaveRunning {
				a.withdraw(services, p.relay)
			}
			endEnvoy(nil)
		case <-services.Done():
		}
		return nil
	})
	group.Go(func() error {
		defer endServices()
		defer p.metrics.Finish(services, false) // if Envoy has ended by itself
		return p.proxy.Run(envoy)
	})
	return group.Wait()
}

// reportDNS has the capture service know that the agent answers DNS queries, so that it may send it
// those of the workload's users.
func (a *Agent) reportDNS(ctx context.Context, group *errgroup.Group) {
	if a.dns == nil {
		return
	}
	port, err := a.dns.CapturePort()
	if err != nil {
		a.log.InfoContext(ctx, "DNS queries are not captured", "err", err)
		return
	}
	client := beat.Client{Logger: a.log, Path: a.c.CaptureSocket, Port: port, Alive: a.dns.Answers}
	group.Go(func() error { return client.Run(ctx) })
}

// withdrawTime is the time for peers to learn that Envoy is about to stop.
const withdrawTime = 300 * time.Millisecond

func (a *Agent) withdraw(ctx context.Context, r *relay.Relay) {
	if r.Status().Upstream.Server == "" {
		return
	}
	r.Withdraw()
	timer := time.NewTimer(withdrawTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
