package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/accept"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/tracing"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

func newServer() *cobra.Command {
	var (
		cfg     server.Config
		dirs    []string
		catalog catalogFlags
		bound   boundFlags
		otlp    string
	)
	cmd := &cobra.Command{
		Use:   "server {--config-dir DIR | --consul-address ADDRESS}…",
		Short: "Run the control plane",
		Long: `Reads Istio YAML from directories and services from the catalog of Consul, and merges both into one
mesh. Over TLS it serves the configuration of every Envoy, and issues the certificates of hosts and
workloads.

State that must survive a restart is in --state-dir; back it up. The commands that administer the
server use admin.sock in --run-dir.

With --consul-address the server reads Consul. It writes nothing to Consul, and registrations need no
change. The ACL token is in a file (--consul-token-file). If a directory and Consul both define a host,
the directory wins.`,
		Example: "  fairlead server --config-dir /etc/fairlead/mesh\n" +
			"  fairlead server --config-dir mesh --config-dir teams/shop=shop --mesh-config mesh.yaml\n" +
			"  fairlead server --config-dir mesh --consul-address https://127.0.0.1:8501 --consul-ca-file ca.pem --consul-token-file token",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			roots, err := readRoots(dirs, &catalog.hostPaths)
			if err != nil {
				return err
			}
			if err := bound.give(roots); err != nil {
				return err
			}
			cfg.Roots, cfg.HostsOnly, cfg.MaxExpansion = roots, bound.hostsOnly, bound.maxExpansion
			if err := errors.Join(bound.check(), catalog.hostPaths.check(roots, catalog.KVPrefix), checkServerFlags(cmd, cfg)); err != nil {
				return err
			}
			log, levels, err := newLogger(cmd)
			if err != nil {
				return err
			}
			cfg.Logger, cfg.LogLevels, cfg.Version = log, levels, version
			if cmd.Flags().Changed("host-rest") {
				log.WarnContext(cmd.Context(), "flag has no effect: bound directories and keys own the hosts of their patterns only", "flag", "--host-rest")
			}
			if cmd.Flags().Changed("config-hosts-only") {
				log.WarnContext(cmd.Context(), "flag is the default: needed only at the first start after an upgrade, of a server that had it before", "flag", "--config-hosts-only")
			}
			if cfg.Consul, err = catalog.read(cmd, log); err != nil {
				return err
			}
			defer untilSignal(cmd)()
			if endpoint := tracing.Endpoint(); otlp != "" || endpoint != "" {
				if cfg.Tracer, err = tracing.New(cmd.Context(), tracing.Config{Logger: log, Endpoint: otlp, Version: version}); err != nil {
					return fmt.Errorf("traces (--otlp-endpoint, OTEL_EXPORTER_OTLP_…): %w", err)
				}
			}
			s, err := server.New(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return runNotified(cmd.Context(), s.Run, s.Starting)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&dirs, "config-dir", nil, "directory of manifests; DIR=NAMESPACE,… accepts only objects of these namespaces; may be repeated")
	f.StringVar(&otlp, "otlp-endpoint", "", "URL of a receiver of OTLP by gRPC, such as http://127.0.0.1:4317 or https://…, to which the server sends a trace of each change; empty means that of OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT, or off")
	bound.add(f)
	f.BoolVar(&cfg.BindRoot, "bind-root-namespace", false, "allow a directory or prefix to be bound to the root namespace, whose policies hold for the whole mesh")
	f.Duration("host-rest", 0, "has no effect: hosts belong to namespaces by patterns, and are not reserved any more")
	catalog.add(f)
	f.DurationVar(&catalog.SweepInterval, "consul-sweep-interval", 0, "how often the server checks all Consul services that have no watch of their own; 0 means the default")
	addServerFlags(f, &cfg)
	return cmd
}

// readRoots reads the values of --config-dir.
func readRoots(dirs []string, hostPaths *hostPathFlags) ([]files.Root, error) {
	var out []files.Root
	for _, d := range dirs {
		root, err := files.ParseRoot(d)
		if err != nil {
			return nil, fmt.Errorf("--config-dir: %w", err)
		}
		if root.Path, err = filepath.Abs(root.Path); err != nil {
			return nil, fmt.Errorf("--config-dir %q: %w", d, err)
		}
		hostPaths.allow(&root)
		out = append(out, root)
	}
	return out, nil
}

// addServerFlags adds those that are not about where the mesh is read from.
func addServerFlags(f *pflag.FlagSet, cfg *server.Config) {
	f.StringVar(&cfg.MeshConfigFile, "mesh-config", "", "file of Istio MeshConfig fields; empty means Istio's defaults")
	f.StringVar(&cfg.MeshNetworksFile, "mesh-networks", "", meshNetworksHelp)
	f.StringVar(&cfg.Keys.Dir, "jwks-dir", "", "directory of key sets of token issuers, as files; then none is fetched over the network. The keys of https://login.example.com/oauth2/keys are in login.example.com/oauth2/keys.json below it")
	f.StringVar(&cfg.Keys.CAFile, "jwks-ca-file", "", "PEM file of authorities, besides those of the system, that the servers of token issuers may have certificates of")
	f.StringVar(&cfg.Keys.Proxy, "jwks-proxy", "", "URL of an HTTP, HTTPS or SOCKS5 proxy through which key sets of token issuers are fetched. The proxy looks names up, so it has to refuse internal addresses. The environment's proxies are not used")
	f.BoolVar(&cfg.Keys.BoundPrivate, "jwks-bound-private", false, "allow objects of directories and prefixes that are bound to namespaces to name key sets at private addresses, such as 10.0.0.0/8")
	f.StringVar(&cfg.StateDir, "state-dir", defaultStateDir("server"), "directory of persistent state: the certificate authority, records of hosts, last good manifests")
	f.StringVar(&cfg.RunDir, "run-dir", defaultRunDir("server"), "runtime directory, which has admin.sock")
	f.StringVar(&cfg.XDSAddress, "xds-address", ":15012", "address that agents connect to, over TLS")
	f.StringVar(&cfg.PlaintextAddress, "xds-plaintext-address", "", "loopback IP:PORT for xDS without TLS, usually 127.0.0.1:15010, open to every user of this machine; empty means off")
	f.StringVar(&cfg.HTTPAddress, "http-address", "127.0.0.1:15014", "address of the health and metrics endpoints, in plaintext; empty means off")
	f.BoolVar(&cfg.PrometheusSD, "prometheus-sd", false, "serve the list of proxies for Prometheus (http_sd) at --http-address as /sd/prometheus: names, addresses and versions, to everybody who can connect. admin.sock always has it")
	f.StringVar(&cfg.FileSD, "file-sd", "", "file to which the list of proxies for Prometheus (file_sd) is written; its mode is 0640; empty means none")
	f.StringSliceVar(&cfg.Advertise, "advertise", nil, "HOST:PORT of this server in join tokens, for agents to connect to; empty means --xds-address or the names of this machine")
	f.DurationVar(&cfg.CertificateTTL, "certificate-ttl", 24*time.Hour, "lifetime of certificates; agents renew them at half of it")
	f.DurationVar(&cfg.MaxConnectionAge, "max-connection-age", 0, "maximum age of mTLS connections between workloads: HTTP is drained, TCP is closed; 0 means half of --certificate-ttl for HTTP, and no limit for TCP")
	f.BoolVar(&cfg.DualStackDNS, "dual-stack-dns", false, "connect proxies that have IPv4 and IPv6 addresses to the addresses of both families of a DNS name; the default connects them to IPv4 addresses only")
	f.DurationVar(&cfg.CaptureDetectionTimeout, "capture-detection-timeout", view.DefaultCaptureDetectionTimeout, "how long a captured inbound connection that may be plaintext TCP waits for the client's first bytes, at least 1s: applications that speak first are reached only then. MeshConfig's protocolDetectionTimeout overrides it")
	f.BoolVar(&cfg.QUICListeners, "quic-listeners", false, "gateways listen for HTTP/3 (QUIC, over UDP) at the port of each HTTPS server of mode SIMPLE, too, and announce it by the header alt-svc")
	f.StringVar(&cfg.ReadoptUntil, "readopt-until", "", "time, such as 2030-01-02T15:04:05Z, until which hosts whose records were lost are admitted by their certificates; empty means not at all")
	f.StringVar(&cfg.ReadoptRemoved, "readopt-removed", "", "file of recently removed hosts that --readopt-until must not admit, one on each line: the name of a host, or NAMESPACE/SERVICEACCOUNT of a direct client")
	f.BoolVar(&cfg.RefuseSharedHostKeys, "refuse-shared-host-keys", false, "reject both users of a host key that is in use in two places; the default only reports it")
	f.BoolVar(&cfg.AcceptUnenforced, "accept-unenforced", false, "allow requests to workloads that are selected by a security policy of a kind that is not in force; the default denies them")
	f.DurationVar(&cfg.DebounceAfter, "debounce-after", 100*time.Millisecond, "debounce: a change of configuration is pushed when no other has followed for this time")
	f.DurationVar(&cfg.DebounceMax, "debounce-max", 10*time.Second, "debounce: the longest time that a change of configuration waits while others follow")
	f.DurationVar(&cfg.SourceWait, "source-wait", time.Minute, "how long a starting server waits for all sources to load")
	f.DurationVar(&cfg.ReleaseEmptyAfter, "release-empty-after", 0, "remove the objects of a source that became empty after this time; 0 means only after `fairlead release`")
	f.Float64Var(&cfg.RemovalShare, "removal-share", 0.3, "share of a source's objects, or of a service's endpoints; the removal of more at once is on hold until it is confirmed")
	f.DurationVar(&cfg.RemovalWindow, "removal-window", registry.DefaultRemovalWindow, "time over which removals are summed for --removal-share, so that many small ones count like a large one")
	f.StringVar(&cfg.AddressRange, "address-range", addresses.DefaultRange, "range of the IPv4 addresses that hosts without addresses of their own get, within 240.0.0.0/4, of /8 to /24. Hosts get other addresses if it changes")
	f.DurationVar(&cfg.LossAfter, "loss-after", 10*time.Second, "how long a file that was written in place must rest before objects that it lacks and that restrict, such as policies, are removed; 0 means 10s. Files that are renamed into place do not wait")
	f.DurationVar(&cfg.ScanInterval, "scan-interval", 5*time.Second, "how often all files are scanned, in addition to file system events")
	f.BoolVar(&cfg.RequireProvenAddresses, "require-proven-addresses", false, "reject a host that claims the address of a workload without proof. A proof is the annotation of the WorkloadEntry, the join token (token create --address), or a connection from the address")
	f.DurationVar(&cfg.ClaimLease, "claim-lease", agents.DefaultClaimLease, "how long a workload stays claimed by its host after the host's last stream ended")
	f.DurationVar(&cfg.AbsentAfter, "absent-after", server.DefaultAbsentAfter, "how long after its start the server waits for the hosts on record; a host that has not connected by then is listed as absent")
	f.IntVar(&cfg.MaxConnections, "max-connections", server.DefaultMaxConnections, "limit of connections to the port for hosts; at the limit an unauthenticated connection is closed for a new one, or else the new one is closed")
	f.IntVar(&cfg.MaxUnauthenticated, "max-unauthenticated", accept.DefaultMaxUnauthenticated, "limit of connections without a certificate of this mesh after the TLS handshake, such as those of hosts that join; at the limit the oldest is closed for a new one")
	f.IntVar(&cfg.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", accept.DefaultMaxUnauthenticatedPerAddress, "limit of unauthenticated connections of one address. It is also the burst of certificate requests without a certificate or valid join token, with a fifth of it each second. Raise it if many hosts join from behind one address")
	f.DurationVar(&cfg.UnauthenticatedTimeout, "unauthenticated-timeout", accept.DefaultTimeout, "lifetime of an unauthenticated connection, including its TLS handshake")
	f.IntVar(&cfg.MaxStreams, "max-streams", xds.DefaultMaxStreams, "limit of proxies that are served; further ones are rejected with a time to retry")
	f.IntVar(&cfg.MaxStreamsPerHost, "max-streams-per-host", xds.DefaultMaxPerHost, "limit of xDS streams of one host")
	f.IntVar(&cfg.MaxNewStreams, "max-new-streams", xds.DefaultMaxNew, "how many proxies get their first configuration at a time, so that a fleet that connects at once does not delay the connected proxies")
	f.IntVar(&cfg.MaxRequestsPerHost, "max-requests-per-host", xds.DefaultMaxRequests, "limit of xDS requests a second of one host, with a burst of ten times as many; a host that sends more is read more slowly")
	f.IntVar(&cfg.MaxMiBPerHost, "max-mib-per-host", xds.DefaultMaxKeptPerHost>>20, "limit in MiB of the memory for what the proxies of one host send: names, versions, error messages; a stream that needs more is rejected")
	f.IntVar(&cfg.MaxMiB, "max-mib", xds.DefaultMaxKept>>20, "limit in MiB of the memory for what the proxies of all hosts send: names, versions, error messages; content that several hosts share counts once")
	f.DurationVar(&cfg.SlowProxyTimeout, "slow-proxy-timeout", xds.DefaultSlowTimeout, "time in which a proxy must read 64 KiB, or the rest, of a response; after that its stream is closed")
	f.StringVar(&cfg.VirtualHosts, "virtual-hosts", server.VirtualHostsAuto, "auto: send virtual hosts separately (VHDS) to proxies that support it; off: send whole route configurations")
}

// checkServerFlags refuses, by the names that people know, what no part of the
// server could work with, and what would silently be the default.
func checkServerFlags(cmd *cobra.Command, cfg server.Config) error {
	errs := []error{checkNotNegative(cmd, "debounce-after", "debounce-max", "source-wait", "release-empty-after", "removal-window", "scan-interval", "loss-after", "claim-lease", "absent-after", "host-rest", "consul-stale", "consul-sweep-interval")}
	if !(cfg.RemovalShare > 0 && cfg.RemovalShare <= 1) { // or NaN
		errs = append(errs, fmt.Errorf("--removal-share %v: a share is more than 0 and at most 1, such as 0.3; 1 switches it off", cfg.RemovalShare))
	}
	for _, n := range []struct {
		flag         string
		value, usual int
	}{
		{"max-connections", cfg.MaxConnections, server.DefaultMaxConnections},
		{"max-unauthenticated", cfg.MaxUnauthenticated, accept.DefaultMaxUnauthenticated},
		{"max-unauthenticated-per-address", cfg.MaxUnauthenticatedPerAddress, accept.DefaultMaxUnauthenticatedPerAddress},
		{"max-streams", cfg.MaxStreams, xds.DefaultMaxStreams},
		{"max-streams-per-host", cfg.MaxStreamsPerHost, xds.DefaultMaxPerHost},
		{"max-new-streams", cfg.MaxNewStreams, xds.DefaultMaxNew},
		{"max-requests-per-host", cfg.MaxRequestsPerHost, xds.DefaultMaxRequests},
		{"max-mib-per-host", cfg.MaxMiBPerHost, xds.DefaultMaxKeptPerHost >> 20},
		{"max-mib", cfg.MaxMiB, xds.DefaultMaxKept >> 20},
	} {
		if n.value < 1 {
			errs = append(errs, fmt.Errorf("--%s %d: no proxy could be served: write 1 or more, or leave it out for %d", n.flag, n.value, n.usual))
		}
	}
	if cfg.PrometheusSD && cfg.HTTPAddress == "" {
		errs = append(errs, errors.New("--prometheus-sd needs --http-address, where the list is served; use --file-sd, or admin.sock"))
	}
	if cfg.SlowProxyTimeout < server.MinSlowProxyTimeout {
		errs = append(errs, fmt.Errorf("--slow-proxy-timeout %s: proxies that do read would be cut off: write %s or more, or leave it out for %s",
			cfg.SlowProxyTimeout, server.MinSlowProxyTimeout, xds.DefaultSlowTimeout))
	}
	if cfg.CaptureDetectionTimeout < view.DefaultCaptureDetectionTimeout {
		errs = append(errs, fmt.Errorf("--capture-detection-timeout %s: TLS of slow clients would be taken for plaintext: write %s or more, or leave it out for %s",
			cfg.CaptureDetectionTimeout, view.DefaultCaptureDetectionTimeout, view.DefaultCaptureDetectionTimeout))
	}
	if cfg.UnauthenticatedTimeout < server.MinUnauthenticatedTimeout {
		errs = append(errs, fmt.Errorf("--unauthenticated-timeout %s: hosts could not join: write %s or more, or leave it out for %s",
			cfg.UnauthenticatedTimeout, server.MinUnauthenticatedTimeout, accept.DefaultTimeout))
	}
	if cfg.VirtualHosts == "" {
		errs = append(errs, fmt.Errorf("--virtual-hosts %q: write %s or %s", "", server.VirtualHostsAuto, server.VirtualHostsOff))
	}
	return errors.Join(errs...)
}

// runNotified runs a process and notifies systemd when it is ready, and that it is
// alive.
func runNotified(ctx context.Context, run func(context.Context) error, notReady func() []string) error {
	g, ctx := errgroup.WithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	g.Go(func() error {
		defer cancel()
		return run(ctx)
	})
	g.Go(func() error { return notify(ctx, notReady) })
	return g.Wait()
}

// adminFlag adds --run-dir to a command that asks a running server.
func adminFlag(cmd *cobra.Command) func() *admin.Client {
	var dir string
	cmd.Flags().StringVar(&dir, "run-dir", defaultRunDir("server"), "the runtime directory of the server")
	return func() *admin.Client { return admin.NewClient(filepath.Join(dir, "admin.sock")) }
}
