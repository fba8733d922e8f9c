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
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/xds"
)

func newServer() *cobra.Command {
	var (
		cfg     server.Config
		dirs    []string
		catalog catalogFlags
		bound   boundFlags
	)
	cmd := &cobra.Command{
		Use:   "server {--config-dir DIR | --consul-address ADDRESS}…",
		Short: "The control plane: serve a mesh to its hosts",
		Long: `Reads directories of Istio-API YAML and the catalog of Consul, makes one mesh of both, and
serves what every Envoy of it has to do, and the identities of hosts and workloads, over TLS.
Everything that must survive is in the state directory. It is administered by admin.sock in
the runtime directory.

Consul is read with --consul-address: nothing is written to it, and no registration has to be
changed. Its token is in a file (--consul-token-file). Where both have a host, the directories
count.`,
		Example: "  fairlead server --config-dir /etc/fairlead/mesh\n" +
			"  fairlead server --config-dir mesh --config-dir teams/shop=shop --mesh-config mesh.yaml\n" +
			"  fairlead server --config-dir mesh --consul-address https://127.0.0.1:8501 --consul-ca-file ca.pem --consul-token-file token",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, d := range dirs {
				root, err := files.ParseRoot(d)
				if err != nil {
					return fmt.Errorf("--config-dir: %w", err)
				}
				if root.Path, err = filepath.Abs(root.Path); err != nil {
					return fmt.Errorf("--config-dir %q: %w", d, err)
				}
				catalog.hostPaths.allow(&root)
				cfg.Roots = append(cfg.Roots, root)
			}
			if err := bound.give(cfg.Roots); err != nil {
				return err
			}
			cfg.HostsOnly = bound.hostsOnly
			if err := catalog.hostPaths.check(cfg.Roots, catalog.KVPrefix); err != nil {
				return err
			}
			if err := checkServerFlags(cmd, cfg); err != nil {
				return err
			}
			log, err := newLogger(cmd)
			if err != nil {
				return err
			}
			cfg.Logger = log
			if cfg.Consul, err = catalog.read(cmd, log); err != nil {
				return err
			}
			defer untilSignal(cmd)()
			s, err := server.New(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return runNotified(cmd.Context(), s.Run, s.Starting)
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&dirs, "config-dir", nil, "a directory of manifests, or DIR=NAMESPACE,… to refuse objects of other namespaces; may be repeated")
	bound.add(f)
	f.BoolVar(&cfg.BindRoot, "bind-root-namespace", false, "let a source be bound to the root namespace, in which what it writes holds for the whole mesh")
	f.DurationVar(&cfg.HostRest, "host-rest", registry.DefaultHostRest, "how long a host stays reserved for its namespace after its last declaration, against other namespaces that directories are bound to")
	catalog.add(f)
	f.DurationVar(&catalog.SweepInterval, "consul-sweep-interval", 0, "how often all services of the catalog are looked at where Consul has no watch for each, for what no event tells; 0 means the default")
	addServerFlags(f, &cfg)
	return cmd
}

// addServerFlags adds those that are not about where the mesh is read from.
func addServerFlags(f *pflag.FlagSet, cfg *server.Config) {
	f.StringVar(&cfg.MeshConfigFile, "mesh-config", "", "a file of Istio's MeshConfig fields; empty means Istio's defaults")
	f.StringVar(&cfg.StateDir, "state-dir", defaultStateDir("server"), "directory of persistent state: the authority, entitlements, last good manifests")
	f.StringVar(&cfg.RunDir, "run-dir", defaultRunDir("server"), "directory of admin.sock")
	f.StringVar(&cfg.XDSAddress, "xds-address", ":15012", "address that hosts connect to, over TLS")
	f.StringVar(&cfg.PlaintextAddress, "xds-plaintext-address", "", "a loopback IP:PORT, usually 127.0.0.1:15010, for xDS without TLS, open to every user of this machine; empty: off")
	f.StringVar(&cfg.HTTPAddress, "http-address", "127.0.0.1:15014", "address of the health and metrics endpoints, in plaintext; empty: off")
	f.StringSliceVar(&cfg.Advertise, "advertise", nil, "HOST:PORT that join tokens tell agents to connect to; empty means --xds-address or this machine's names")
	f.DurationVar(&cfg.CertificateTTL, "certificate-ttl", 24*time.Hour, "lifetime of certificates; they are renewed at half of it")
	f.DurationVar(&cfg.MaxConnectionAge, "max-connection-age", 0, "how long connections with mTLS live between workloads: HTTP is drained and TCP is closed; 0 means half of --certificate-ttl for HTTP, and no limit for TCP")
	f.StringVar(&cfg.ReadoptUntil, "readopt-until", "", "a time such as 2030-01-02T15:04:05Z: until then hosts whose records are lost are admitted by their certificates; empty means not at all")
	f.StringVar(&cfg.ReadoptRemoved, "readopt-removed", "", "with --readopt-until: a file of who was removed lately and stays out, one a line: names of hosts, and NAMESPACE/SERVICEACCOUNT for direct clients")
	f.BoolVar(&cfg.RefuseSharedHostKeys, "refuse-shared-host-keys", false, "refuse a host whose key is in use in two places, both of them; the default reports it")
	f.BoolVar(&cfg.AcceptUnenforced, "accept-unenforced", false, "let requests through that a security policy which is not in force would judge; the default denies them")
	f.DurationVar(&cfg.DebounceAfter, "debounce-after", 100*time.Millisecond, "how long changes must have been quiet before they are pushed")
	f.DurationVar(&cfg.DebounceMax, "debounce-max", 10*time.Second, "the longest that a change waits for quiet")
	f.DurationVar(&cfg.SourceWait, "source-wait", time.Minute, "how long a starting server waits for all sources to load")
	f.DurationVar(&cfg.ReleaseEmptyAfter, "release-empty-after", 0, "remove the objects of a source that became empty after this time; 0: only after `fairlead release`")
	f.Float64Var(&cfg.RemovalShare, "removal-share", 0.3, "the share of a source's objects, or a service's endpoints, whose removal is held until it is confirmed")
	f.DurationVar(&cfg.ScanInterval, "scan-interval", 5*time.Second, "how often files are scanned, whether or not an event reported a change")
	f.BoolVar(&cfg.RequireProvenAddresses, "require-proven-addresses", false, "refuse a host that claims the address of a workload and proves it neither by the WorkloadEntry's annotation, nor by its join token (token create --address), nor by connecting from it")
	f.DurationVar(&cfg.ClaimLease, "claim-lease", agents.DefaultClaimLease, "how long a workload stays the host's that claimed it, after the last stream of that host")
	f.IntVar(&cfg.MaxConnections, "max-connections", server.DefaultMaxConnections, "the most connections of hosts; one more is closed, or one that is not authenticated gives way to it")
	f.IntVar(&cfg.MaxUnauthenticated, "max-unauthenticated", accept.DefaultMaxUnauthenticated, "the most connections that have made the TLS handshake without the certificate of a host of this mesh, as hosts do that join; the oldest gives way to a new one")
	f.IntVar(&cfg.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", accept.DefaultMaxUnauthenticatedPerAddress, "the most unauthenticated connections of one address; also how many certificate requests with neither a certificate nor a valid join token it may make at once, and a fifth of them each second. Raise it where hosts join from behind one address")
	f.DurationVar(&cfg.UnauthenticatedTimeout, "unauthenticated-timeout", accept.DefaultTimeout, "how long an unauthenticated connection lives, its TLS handshake included")
	f.IntVar(&cfg.MaxStreams, "max-streams", xds.DefaultMaxStreams, "the most proxies that are served; one more is refused and told when to come again")
	f.IntVar(&cfg.MaxStreamsPerHost, "max-streams-per-host", xds.DefaultMaxPerHost, "how many streams one host may have")
	f.IntVar(&cfg.MaxNewStreams, "max-new-streams", xds.DefaultMaxNew, "how many proxies are sent their first configuration at a time, so that a fleet that comes at once does not starve those that are served")
	f.IntVar(&cfg.MaxRequestsPerHost, "max-requests-per-host", xds.DefaultMaxRequests, "how many requests a second are taken of one host, ten times as many at once; who sends more is read more slowly")
	f.IntVar(&cfg.MaxMiBPerHost, "max-mib-per-host", xds.DefaultMaxKeptPerHost>>20, "MiB that are kept of what the proxies of one host say: names, versions, refusals; one that says more is refused")
	f.IntVar(&cfg.MaxMiB, "max-mib", xds.DefaultMaxKept>>20, "MiB that are kept of what the proxies of all hosts say; content that several hosts share counts once")
	f.DurationVar(&cfg.SlowProxyTimeout, "slow-proxy-timeout", xds.DefaultSlowTimeout, "how long a proxy may take to read 64 KiB, or the rest, of what it is sent before its stream is ended")
	f.StringVar(&cfg.VirtualHosts, "virtual-hosts", server.VirtualHostsAuto, "auto: send virtual hosts separately (VHDS) to proxies that support it; off: send whole route configurations")
}

// checkServerFlags refuses, by the names that people know, what no part of the
// server could work with, and what would silently be the default.
func checkServerFlags(cmd *cobra.Command, cfg server.Config) error {
	errs := []error{checkNotNegative(cmd, "debounce-after", "debounce-max", "source-wait", "release-empty-after", "scan-interval", "claim-lease", "host-rest", "consul-stale", "consul-sweep-interval")}
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
			errs = append(errs, fmt.Errorf("--%s %d: nobody could be served: write 1 or more, or leave it out for %d", n.flag, n.value, n.usual))
		}
	}
	if cfg.SlowProxyTimeout < server.MinSlowProxyTimeout {
		errs = append(errs, fmt.Errorf("--slow-proxy-timeout %s: proxies that do read would be cut off: write %s or more, or leave it out for %s",
			cfg.SlowProxyTimeout, server.MinSlowProxyTimeout, xds.DefaultSlowTimeout))
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

// runNotified runs a process and tells systemd when it is ready, and that it is
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
