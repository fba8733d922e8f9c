package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/health"
	"github.com/fairlead/fairlead/agent/metrics"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/svid"
)

type agentFlags struct {
	cfg           agent.Config
	tokenFile     string
	workload      string
	address       string
	adminAddress  string
	httpAddress   string
	appMetrics    string
	envoyLogLevel string
	dnsAddresses  []string

	accessLogMaxMiB int
	probe           probeFlags
	app             *url.URL // of the application's metrics, or nil
}

func newAgent() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent --token-file FILE",
		Short: "Run on each host: get its identity and configuration, and run Envoy",
		Long: `Joins this host to the mesh with a join token, renews its certificates, and runs Envoy beside the
application. Later starts need only the state directory, and work without the control plane.

A new join token in --token-file is used without a restart if the control plane rejects the host, or
if the token grants other workloads.

The agent finds Envoy in $PATH and the usual directories. If a default port is in use, it takes a
free one and logs that.`,
		Example: "  fairlead agent --token-file /etc/fairlead/token --probe-http 8080/healthz\n" +
			"  fairlead agent                     # has joined before",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runAgent(cmd, f) },
	}
	f.bind(cmd)
	cmd.AddCommand(newAgentCheck())
	return cmd
}

func (f *agentFlags) bind(cmd *cobra.Command) {
	fl, c := cmd.Flags(), &f.cfg
	fl.StringVar(&c.Token, "token", "", "join token. Every user of the machine can read it on the command line; prefer --token-file")
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the join token, or - for standard input")
	fl.StringVar(&c.StateDir, "state-dir", defaultStateDir("agent"), "directory of persistent state: identities and the accepted configuration")
	fl.StringVar(&c.RunDir, "run-dir", defaultRunDir("agent"), "directory of the sockets; the path must be short")
	fl.StringVar(&f.workload, "workload", "", "identity of the application, NAMESPACE/SERVICEACCOUNT; required if the join token grants several")
	fl.StringVar(&c.Name, "name", "", "name of the workload's instance; empty means the host's name")
	fl.StringVar(&f.address, "address", "", "this host's address in the mesh; empty means the source address of its route to the control plane")
	fl.StringSliceVar(&c.Servers, "server", nil, "HOST:PORT of the control plane; empty means the servers in the join token")
	fl.BoolVar(&c.Capture, "capture", false, "connections come to Envoy by packet capture (fairlead capture): Envoy listens at ports 15001 and 15006, and no longer at the ports of services")
	fl.StringVar(&c.CaptureSocket, "capture-socket", "/run/fairlead-capture/"+captureSocket, "socket of the capture service (fairlead capture run), where an agent with --capture reports that its Envoy is alive; empty means that it does not")
	fl.Uint16Var(&c.CapturePort, "capture-port", 15001, "outbound-port of this workload in capture.yaml, for --capture-socket")
	fl.Uint16Var(&c.HTTPProxyPort, "http-proxy-port", 0, "port of 127.0.0.1 at which Envoy is an HTTP proxy for this host's programs, such as 15080 (http_proxy=http://127.0.0.1:15080): they call services by name, without capture. Every user of the machine can use it. 0 means proxyHttpPort of MeshConfig, or none")
	fl.BoolVar(&c.LoopbackAddresses, "loopback-addresses", false, "Envoy listens for each service at an address of 127.0.0.0/8 of its own and at the service's ports, without capture. Every user of the machine can use them. fairlead addresses --etc-hosts loopback prints lines for /etc/hosts")
	fl.BoolVar(&c.DNS, "dns", false, "answer DNS queries of this host's applications: names of hosts of the mesh; all others are forwarded to the nameservers of --dns-resolv-conf")
	fl.StringSliceVar(&f.dnsAddresses, "dns-address", []string{"127.0.0.1:15053", "[::1]:15053"}, "IP:PORT at which --dns answers, by UDP and TCP; loopback addresses only; may be repeated")
	fl.StringVar(&c.DNSResolvConf, "dns-resolv-conf", "/etc/resolv.conf", "file that names the nameservers to which --dns forwards; read again when it changes. If it names the stub of systemd-resolved, /run/systemd/resolve/resolv.conf is read")
	fl.StringVar(&c.CredentialsDir, "credentials-dir", "/etc/fairlead/credentials", "directory with a folder for each credentialName of Gateways and DestinationRules: tls.crt, tls.key, ca.crt, ca.crl. The keys never leave the host; empty means none")
	fl.StringVar(&c.Network, "network", "", "name of the network that this host is in")
	fl.StringVar(&c.Envoy, "envoy", "", "Envoy binary to run; empty means the first usable one in $PATH and the usual directories")
	fl.StringVar(&f.envoyLogLevel, "envoy-log-level", "warning", "Envoy's log level")
	fl.StringVar(&c.EnvoyLog, "envoy-log", "", "where Envoy's output goes, and access logs at /dev/stdout; empty means envoy.log in --run-dir, - means the agent's own standard output, which is the journal under systemd")
	fl.IntVar(&f.accessLogMaxMiB, "access-log-max-mib", 100, "size in MiB at which an access log that Envoy writes to a file is rotated, and Envoy's output")
	fl.IntVar(&c.AccessLogFiles, "access-log-files", 5, "how many rotated files are kept of each access log that Envoy writes to a file, and of Envoy's output; 0 means that the agent rotates nothing, as for hosts with a logrotate of their own")
	fl.StringSliceVar(&c.EnvoyEnv, "envoy-env", nil, "names of environment variables that Envoy inherits from the agent, in addition to the usual ones such as TZ; it inherits no others")
	fl.StringArrayVar(&c.EnvoyIncludeStats, "envoy-include-stats", nil, "regular expression (RE2) of names of Envoy's statistics, such as circuit_breakers, which Envoy has in addition to the usual ones; may be repeated, and . means all")
	fl.IntVar(&c.EnvoyMaxHeapMiB, "envoy-max-heap-mib", 0, "limit of Envoy's heap in MiB. Near the limit Envoy answers new requests with 503, and then accepts no new connections. 0 means half of the memory of the host or its cgroup, -1 no limit")
	fl.IntVar(&c.EnvoyMaxConnections, "envoy-max-connections", 0, "limit of Envoy's downstream connections, from applications of this host and from other hosts; further ones are closed. 0 means one for each 64 KiB of Envoy's heap limit, at most 500000; -1 means no limit")
	fl.StringVar(&f.adminAddress, "admin-address", "", "IP:PORT for Envoy's admin interface, open to every user of the machine; empty means a unix socket below --run-dir that only Envoy's user can open")
	fl.IntVar(&c.StatsPort, "stats-port", 0, "port of --address for Envoy's metrics; 0 means 15090 or a free one, -1 none")
	fl.IntVar(&c.HealthPort, "health-port", 0, "port of --address for Envoy's health; 0 means 15021 or a free one, -1 none")
	fl.StringVar(&f.httpAddress, "http-address", usualAgentHTTP, "IP:PORT for the agent's health and for all metrics of the host (/stats/prometheus), in plaintext; empty means off. Without the flag the port is statusPort of the ProxyConfig, or a free one if that is in use")
	fl.StringVar(&f.appMetrics, "app-metrics-url", "", "URL of the application's metrics, such as http://127.0.0.1:8080/metrics, to add to /stats/prometheus; its host must be a loopback address or the address of the workload")
	fl.IntVar(&c.MaxRequestSeries, "max-request-series", metrics.DefaultMaxSeries, "limit of the label sets of Istio's metrics of requests and TCP connections, each of which has up to 67 series; what is beyond counts as overflow")
	fl.DurationVar(&c.DrainTime, "drain-time", 5*time.Second, "how long a stopping Envoy waits for its connections to end; if it is not given, the terminationDrainDuration of the ProxyConfig counts")
	fl.BoolVar(&c.LeaveRunning, "leave-running", false, "keep Envoy running when the agent stops; the next agent takes it over")
	fl.DurationVar(&c.TTL, "certificate-ttl", 0, "lifetime of certificates to request; 0 means the default of the server")
	f.probe.bind(cmd)
}

func runAgent(cmd *cobra.Command, f agentFlags) error {
	log, levels, err := newLogger(cmd)
	if err != nil {
		return err
	}
	f.cfg.Logger, f.cfg.Version, f.cfg.Environ = log, version, os.Environ()
	f.cfg.EnvoyArgs = proxy.LogArgs(f.envoyLogLevel)
	if !cmd.Flags().Changed("drain-time") {
		f.cfg.DrainTime = 0 // as the ProxyConfig says
	}
	if err := f.parse(cmd); err != nil {
		return err
	}
	// What Envoy and the agent make is never for every user of the machine.
	syscall.Umask(syscall.Umask(0o077) | 0o027)
	defer untilSignal(cmd)() // after what waits for standard input
	stayShort()
	a, err := agent.New(f.cfg)
	if err != nil {
		return err
	}
	page, err := newAgentPage(a, f.app)
	if err != nil {
		return err
	}
	if f.cfg.Capture && f.cfg.CaptureSocket != "" {
		page.shared.MustRegister(newCaptureCollector(askService(f.cfg.CaptureSocket)))
	}
	ask := func(what func(context.Context) []string) func() []string {
		return func() []string {
			ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
			defer cancel()
			return what(ctx)
		}
	}
	starting := ask(a.Starting)
	chosen := cmd.Flags().Changed("http-address")
	f.httpAddress = agentHTTP(f.httpAddress, chosen, a.StatusPort())
	srv, err := newAgentAdmin(cmd.Context(), admin.Config{
		Logger: log, Address: f.httpAddress, Socket: filepath.Join(f.cfg.RunDir, "admin.sock"),
		Levels: levels, Registerer: page.shared, Sockets: func() map[string]uint64 { return a.Status().RemadeSockets },
		Metrics: page.own, Public: map[string]http.Handler{"GET /stats/prometheus": page.all}, NotReady: ask(a.NotReady), Remarks: a.Remarks,
		Routes: agentRoutes(a, page.all, f.cfg.Capture),
	}, chosen)
	if err != nil {
		return err
	}
	if at, err := netip.ParseAddrPort(srv.Address()); err == nil {
		a.ServeMetricsAt(at.Port(), chosen)
	}
	return runNotified(cmd.Context(), func(ctx context.Context) error {
		g, gctx := errgroup.WithContext(ctx)
		served, stop := context.WithCancel(gctx)
		g.Go(func() error {
			defer stop() // the agent drains with its admin interface still there
			return a.Run(gctx)
		})
		g.Go(func() error { return srv.Run(served) })
		g.Go(func() error {
			settled(served, starting, shrink)
			return nil
		})
		return g.Wait()
	}, starting)
}

// agentRoutes are what the agent serves at its socket, for people and commands.
func agentRoutes(a *agent.Agent, page http.Handler, capture bool) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /stats/prometheus": page,
		"GET /v1/status":        admin.JSON(func(context.Context, *http.Request, struct{}) (agent.Status, error) { return a.Status(), nil }),
		"GET /v1/problems": admin.JSON(func(ctx context.Context, _ *http.Request, _ struct{}) (agentProblems, error) {
			st := a.Status()
			return agentProblems{Server: connectedServer(st), Refusal: refusalOf(st), Address: addressOf(st), NotReady: a.NotReady(ctx), Remarks: a.Remarks(), Version: version, Envoy: st.EnvoyVersion, Capture: &capture}, nil
		}),
		"GET /v1/config_dump": envoySays(a.ConfigDump),
		"GET /v1/clusters":    envoySays(a.EnvoyClusters),
		"GET /v1/logging":     envoySays(a.EnvoyLogging),
		"POST /v1/logging": admin.JSON(func(ctx context.Context, _ *http.Request, in agent.LogChange) (struct{}, error) {
			return struct{}{}, a.SetEnvoyLogging(ctx, in)
		}),
	}
}

// The most that the flags of access logs may say.
const (
	maxAccessLogMiB   = 1 << 20
	maxAccessLogFiles = 1000
)

// envoySays serves an answer of Envoy.
func envoySays(ask func(context.Context) ([]byte, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := ask(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(answer)
	})
}

// parse turns the flags that are text into what they mean.
func (f *agentFlags) parse(cmd *cobra.Command) error {
	var errs []error
	if err := f.readToken(cmd); err != nil {
		errs = append(errs, err)
	}
	if f.workload != "" {
		pair, err := svid.ParsePair(f.workload)
		if err != nil {
			errs = append(errs, fmt.Errorf("--workload %q: %w", f.workload, err))
		}
		f.cfg.Workload = pair
	}
	if f.address != "" {
		addr, err := netip.ParseAddr(f.address)
		if err != nil {
			errs = append(errs, fmt.Errorf("--address %q: write this host's IP address", f.address))
		}
		f.cfg.Address = addr
	}
	if f.adminAddress != "" {
		ap, err := netip.ParseAddrPort(f.adminAddress)
		if err != nil {
			errs = append(errs, fmt.Errorf("--admin-address %q: write IP:PORT, such as 127.0.0.1:15000", f.adminAddress))
		}
		f.cfg.AdminAddress = ap
	}
	for _, s := range f.dnsAddresses {
		ap, err := netip.ParseAddrPort(s)
		if err != nil || !ap.Addr().IsLoopback() {
			errs = append(errs, fmt.Errorf("--dns-address %q: write IP:PORT with a loopback address, such as 127.0.0.1:15053", s))
		}
		f.cfg.DNSAddresses = append(f.cfg.DNSAddresses, ap)
	}
	for _, s := range f.cfg.Servers {
		if _, _, err := net.SplitHostPort(s); err != nil {
			errs = append(errs, fmt.Errorf("--server %q: write HOST:PORT, such as 10.0.0.1:15012", s))
		}
	}
	if f.cfg.StatsPort > 0 && f.cfg.StatsPort == f.cfg.HealthPort {
		errs = append(errs, fmt.Errorf("--stats-port and --health-port are both %d: one port serves one of them", f.cfg.StatsPort))
	}
	for _, name := range f.cfg.EnvoyEnv {
		if name == "" || strings.ContainsAny(name, "= ") {
			errs = append(errs, fmt.Errorf("--envoy-env %q: write the name of a variable, such as OTEL_RESOURCE_ATTRIBUTES; its value is the agent's", name))
		}
	}
	for _, pattern := range f.cfg.EnvoyIncludeStats {
		if _, err := regexp.Compile(pattern); err != nil {
			errs = append(errs, fmt.Errorf("--envoy-include-stats %q: %w", pattern, err))
		}
	}
	if f.appMetrics != "" {
		app, err := metrics.ParseApp(f.appMetrics)
		if err != nil {
			errs = append(errs, fmt.Errorf("--app-metrics-url %w", err))
		}
		f.app = app
	}
	if f.cfg.EnvoyLog == "-" {
		f.cfg.EnvoyLog, f.cfg.EnvoyOutput = "", cmd.OutOrStdout()
	}
	f.cfg.AccessLogMaxSize = int64(f.accessLogMaxMiB) << 20
	errs = append(errs, f.checkLimits(), checkNotNegative(cmd, "drain-time", "certificate-ttl"))
	probe, err := f.probe.probe()
	f.cfg.Probe = probe
	return errors.Join(append(errs, err)...)
}

// checkLimits checks the limits of logs and metrics.
func (f *agentFlags) checkLimits() error {
	var errs []error
	if f.accessLogMaxMiB < 1 || f.accessLogMaxMiB > maxAccessLogMiB {
		errs = append(errs, fmt.Errorf("--access-log-max-mib %d: write a number from 1 to %d", f.accessLogMaxMiB, maxAccessLogMiB))
	}
	if f.cfg.AccessLogFiles < 0 || f.cfg.AccessLogFiles > maxAccessLogFiles {
		errs = append(errs, fmt.Errorf("--access-log-files %d: write a number from 0 to %d", f.cfg.AccessLogFiles, maxAccessLogFiles))
	}
	if f.cfg.MaxRequestSeries < 1 {
		errs = append(errs, fmt.Errorf("--max-request-series %d: write a number of at least 1", f.cfg.MaxRequestSeries))
	}
	return errors.Join(errs...)
}

// maxTokenFile bounds the file with a join token, in bytes.
const maxTokenFile = 64 << 10

func (f *agentFlags) readToken(cmd *cobra.Command) error {
	if f.tokenFile == "" {
		return nil
	}
	if f.cfg.Token != "" {
		return errors.New("--token and --token-file are both there: give one")
	}
	if f.tokenFile == "-" {
		var line string
		if _, err := fmt.Fscanln(cmd.InOrStdin(), &line); err != nil {
			return fmt.Errorf("reading the join token from standard input: %w", err)
		}
		f.cfg.Token = strings.TrimSpace(line)
		return nil
	}
	f.cfg.ReadToken = func() (string, error) { return tokenOf(f.tokenFile) }
	content, warning, err := durable.ReadToken(f.tokenFile, maxTokenFile)
	if warning != "" {
		f.cfg.Logger.Warn("join token file is readable by other users", "reason", warning)
	}
	switch {
	case err == nil:
		f.cfg.Token = strings.TrimSpace(string(content))
		if f.cfg.Token == "" {
			f.cfg.Logger.Warn("join token file is empty", "path", f.tokenFile)
		}
	case errors.Is(err, os.ErrNotExist):
		// A token is used once, and people remove it after that. An agent that has
		// not joined says what it lacks.
		f.cfg.Logger.Info("no join token file; continuing with the stored identity", "path", f.tokenFile)
	default:
		return fmt.Errorf("reading the join token (--token-file): %w", err)
	}
	return nil
}

// tokenOf is the join token in a file as it is now; empty where there is none.
func tokenOf(path string) (string, error) {
	content, _, err := durable.ReadToken(path, maxTokenFile) // warned of at the start
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(content)), err
}

// probeFlags describe how the application is asked how it is.
type probeFlags struct {
	http, tcp                          string
	delay, timeout, period             time.Duration
	successThreshold, failureThreshold int
}

func (p *probeFlags) bind(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&p.http, "probe-http", "", "PORT/PATH or HOST:PORT/PATH for an HTTP probe of the application; a status from 200 to 399 means healthy")
	fl.StringVar(&p.tcp, "probe-tcp", "", "PORT or HOST:PORT for a TCP probe of the application; an accepted connection means healthy")
	fl.DurationVar(&p.delay, "probe-initial-delay", 0, "time from the agent's start to the first probe of the application")
	fl.DurationVar(&p.timeout, "probe-timeout", time.Second, "how long one probe of the application may take")
	fl.DurationVar(&p.period, "probe-period", 10*time.Second, "time from one probe of the application to the next")
	fl.IntVar(&p.successThreshold, "probe-success-threshold", 1, "successful probes in a row until the application is healthy")
	fl.IntVar(&p.failureThreshold, "probe-failure-threshold", 1, "failed probes in a row until the application is unhealthy")
}

// probe is what the flags say, or nil.
func (p *probeFlags) probe() (*health.Probe, error) {
	out := &health.Probe{
		InitialDelay: p.delay, Timeout: p.timeout, Period: p.period,
		SuccessThreshold: p.successThreshold, FailureThreshold: p.failureThreshold,
	}
	switch {
	case p.http != "" && p.tcp != "":
		return nil, errors.New("--probe-http and --probe-tcp are both there: give one")
	case p.http != "":
		at, path, _ := strings.Cut(p.http, "/")
		host, port, err := hostPort(at)
		if err != nil {
			return nil, fmt.Errorf("--probe-http %q: write PORT/PATH, such as 8080/healthz: %w", p.http, err)
		}
		out.HTTP = &health.HTTPGet{Host: host, Port: port, Path: "/" + path}
	case p.tcp != "":
		host, port, err := hostPort(p.tcp)
		if err != nil {
			return nil, fmt.Errorf("--probe-tcp %q: write PORT, such as 8080: %w", p.tcp, err)
		}
		out.TCP = &health.TCPSocket{Host: host, Port: port}
	default:
		return nil, nil //nolint:nilnil // nobody asks the application
	}
	return out, nil
}

// hostPort reads PORT or HOST:PORT.
func hostPort(s string) (host string, port int, err error) {
	if i := strings.LastIndex(s, ":"); i >= 0 {
		host, s = s[:i], s[i+1:]
	}
	port, err = strconv.Atoi(s)
	if err != nil || port < 1 || port > 65535 {
		return "", 0, fmt.Errorf("%q is no port", s)
	}
	return host, port, nil
}
