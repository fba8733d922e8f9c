package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/tracing"
	"github.com/fairlead/fairlead/internal/loglevel"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/gatewaynames"
)

// Config is what a control plane is made from. Every field is a flag of
// `fairlead server`.
type Config struct {
	Logger *slog.Logger // must be non-nil
	// Version is that of the program, for metrics; empty means unknown.
	Version string
	// LogLevels are those of the Logger, which admin.sock can change; nil means that nobody can.
	LogLevels *loglevel.Levels

	// Roots are the directories of manifests. At least one, unless Consul is read.
	Roots []files.Root
	// Consul is what is read of Consul, and comes after the directories: where
	// both have something, theirs counts.
	Consul Consul
	// MeshConfigFile is a file of MeshConfig fields; empty means Istio's defaults.
	MeshConfigFile string
	// MeshNetworksFile is a file of MeshNetworks; empty means that the mesh has one network.
	MeshNetworksFile string
	// Keys says where the keys of issuers come from.
	Keys Keys
	// StateDir holds what must survive: the authority, entitlements, tokens and
	// the last good manifests.
	StateDir string
	// RunDir holds admin.sock.
	RunDir string
	// XDSAddress is where xDS and the signing API are served over TLS.
	XDSAddress string
	// PlaintextAddress is a loopback address where xDS is served to anybody on this
	// machine, without a proof of identity; empty means nowhere.
	PlaintextAddress string
	// HTTPAddress is where health and metrics are served in plaintext; empty
	// means nowhere.
	HTTPAddress string
	// PrometheusSD serves the list of proxies at HTTPAddress, in plaintext, as /sd/prometheus;
	// otherwise it is on admin.sock only.
	PrometheusSD bool
	// lookupGateway looks up names of gateways; nil means that the system does.
	lookupGateway gatewaynames.Lookup
	// Tracer takes what is known of each change; nil means that nobody does.
	Tracer *tracing.Tracer
	// FileSD is a file that the same list is written to; empty means none.
	FileSD string
	// Advertise are the HOST:PORT of the server for agents, in
	// join tokens; empty means XDSAddress, or this machine's name where that has
	// no host.
	Advertise []string

	// CertificateTTL is the life of leaves; 0 means 24 h.
	CertificateTTL time.Duration
	// MaxConnectionAge is how long connections with mTLS live between workloads; 0
	// means half of CertificateTTL for HTTP, and no limit for TCP.
	MaxConnectionAge time.Duration
	// DualStackDNS is that of [view.Settings].
	DualStackDNS bool
	// QUICListeners is that of [view.Settings].
	QUICListeners bool
	// CaptureDetectionTimeout is that of [view.Settings].
	CaptureDetectionTimeout time.Duration
	// ReadoptUntil is until when, by RFC 3339, hosts whose records are lost are
	// admitted by their certificates; empty means not at all. ReadoptRemoved is a
	// file with the names of hosts that stay out.
	ReadoptUntil, ReadoptRemoved string
	// RefuseSharedHostKeys refuses a host whose key two hold; otherwise that is
	// reported.
	RefuseSharedHostKeys bool
	// AcceptUnenforced lets requests through that a security policy which is not
	// in force selects.
	AcceptUnenforced bool

	// RequireProvenAddresses refuses a stream whose host has not proven that the
	// address of its workload is its own, and ClaimLease is how long the workload
	// stays its host's after the last stream; 0 means agents.DefaultClaimLease.
	RequireProvenAddresses bool
	ClaimLease             time.Duration
	// AbsentAfter is how long after the start of the server a host on record that has not
	// connected counts as absent; 0 means DefaultAbsentAfter.
	AbsentAfter time.Duration

	// MaxConnections bounds the connections of hosts; 0 means
	// DefaultMaxConnections.
	MaxConnections int
	// These bound connections of peers that present no certificate of a host of
	// the mesh, and are of package accept; zero means its defaults.
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int
	UnauthenticatedTimeout                           time.Duration
	// These are of package xds; zero means its defaults.
	MaxStreams, MaxStreamsPerHost, MaxNewStreams, MaxRequestsPerHost int
	// MaxMiBPerHost and MaxMiB bound what is kept of what hosts say; zero means the
	// defaults of package xds.
	MaxMiBPerHost, MaxMiB int
	SlowProxyTimeout      time.Duration
	// VirtualHosts is VirtualHostsAuto or VirtualHostsOff; empty means the former.
	VirtualHosts string

	// These are of package registry; zero means its defaults.
	DebounceAfter, DebounceMax, SourceWait, ReleaseEmptyAfter time.Duration
	RemovalShare                                              float64
	RemovalWindow                                             time.Duration
	// HostsOnly says that bound sources had no hosts but those of their patterns before, either, so that
	// no record of an earlier release counts. BindRoot says that one may be bound to the root namespace.
	HostsOnly, BindRoot bool
	// MaxExpansion bounds what all objects of a bound source make after expansion; 0 means the
	// default of package lastgood.
	MaxExpansion int
	// AddressRange is the range of IPv4 addresses for hosts that have no addresses of their own;
	// empty means the default of package addresses.
	AddressRange string
	// ScanInterval is of package files; zero means its default.
	ScanInterval time.Duration
	// LossAfter is of package files; zero means its default.
	LossAfter time.Duration
}

// DefaultMaxConnections leaves room for connections that hold no stream, but ask
// for certificates.
const DefaultMaxConnections = 30_000

// MinConnectionAge is the shortest life of a connection that is worth its handshake.
const MinConnectionAge = time.Second

// MinSlowProxyTimeout is as long as a healthy proxy may be busy with something
// else.
const MinSlowProxyTimeout = time.Second

// MinUnauthenticatedTimeout is what a join takes on a slow network.
const MinUnauthenticatedTimeout = time.Second

// How route tables travel.
const (
	VirtualHostsAuto = "auto" // by virtual host, where the proxy can take that
	VirtualHostsOff  = "off"  // whole
)

func (c Config) check() (Config, error) {
	errs := []error{c.checkLimits(), c.Consul.Check(), c.CheckBindings(), c.Keys.check()}
	c.MaxConnections = cmp.Or(c.MaxConnections, DefaultMaxConnections)
	if c.Logger == nil {
		errs = append(errs, errors.New("config: Logger is missing"))
	}
	errs = append(errs, c.checkFiles()...)
	for _, f := range []struct{ flag, value string }{
		{"--state-dir", c.StateDir}, {"--run-dir", c.RunDir}, {"--xds-address", c.XDSAddress},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("%s is empty", f.flag))
		}
	}
	errs = append(errs, checkPlaintext(c.PlaintextAddress))
	addresses := append([]string{c.XDSAddress, c.HTTPAddress}, c.Advertise...)
	for i, a := range addresses {
		if a == "" {
			continue
		}
		if err := checkAddress(a); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: write HOST:PORT: %w", []string{"--xds-address", "--http-address", "--advertise"}[min(i, 2)], a, err))
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"--certificate-ttl", c.CertificateTTL},
		{"--max-connection-age", c.MaxConnectionAge},
		{"--debounce-after", c.DebounceAfter},
		{"--claim-lease", c.ClaimLease},
		{"--absent-after", c.AbsentAfter},
		{"--debounce-max", c.DebounceMax},
		{"--source-wait", c.SourceWait},
		{"--release-empty-after", c.ReleaseEmptyAfter},
		{"--removal-window", c.RemovalWindow},
		{"--scan-interval", c.ScanInterval},
		{"--loss-after", c.LossAfter},
		{"--slow-proxy-timeout", c.SlowProxyTimeout},
		{"--unauthenticated-timeout", c.UnauthenticatedTimeout},
	} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s %s: it cannot be negative", d.flag, d.value))
		}
	}
	if c.MaxConnectionAge > 0 && c.MaxConnectionAge < MinConnectionAge {
		errs = append(errs, fmt.Errorf("--max-connection-age %s: every request would need a new connection: write %s or more, or leave it out for half of --certificate-ttl",
			c.MaxConnectionAge, MinConnectionAge))
	}
	if c.DebounceMax > 0 && c.DebounceAfter > c.DebounceMax {
		errs = append(errs, fmt.Errorf("--debounce-after %s is longer than --debounce-max %s", c.DebounceAfter, c.DebounceMax))
	}
	if !(c.RemovalShare >= 0 && c.RemovalShare <= 1) { // or NaN
		errs = append(errs, fmt.Errorf("--removal-share %g: it is a share, from 0 to 1", c.RemovalShare))
	}
	return c, errors.Join(errs...)
}

// checkFiles checks what is read. A directory that is not there is no mistake:
// its disk may be away.
func (c *Config) checkFiles() []error {
	var errs []error
	if len(c.Roots) == 0 && !c.Consul.Used() {
		errs = append(errs, errors.New("nothing to make a mesh of: name a directory of manifests with --config-dir, or a Consul with --consul-address"))
	}
	for _, r := range c.Roots {
		if fi, err := os.Stat(r.Path); err == nil && !fi.IsDir() {
			errs = append(errs, fmt.Errorf("--config-dir %q is not a directory: name the directory that the file is in", r.Path))
		}
	}
	if err := files.CheckRoots(c.Roots); err != nil && len(c.Roots) > 0 {
		errs = append(errs, fmt.Errorf("--config-dir: %w", err))
	}
	for _, f := range []struct{ flag, path string }{{"--mesh-config", c.MeshConfigFile}, {"--mesh-networks", c.MeshNetworksFile}} {
		if fi, err := os.Stat(f.path); err == nil && fi.IsDir() {
			errs = append(errs, fmt.Errorf("%s %q is a directory: name the file", f.flag, f.path))
		}
	}
	return errs
}

// checkLimits checks the limits for hosts.
func (c *Config) checkLimits() error {
	var errs []error
	for _, n := range []struct {
		flag  string
		value int
	}{
		{"--max-connections", c.MaxConnections},
		{"--max-unauthenticated", c.MaxUnauthenticated},
		{"--max-unauthenticated-per-address", c.MaxUnauthenticatedPerAddress},
		{"--max-streams", c.MaxStreams},
		{"--max-streams-per-host", c.MaxStreamsPerHost},
		{"--max-new-streams", c.MaxNewStreams},
		{"--max-requests-per-host", c.MaxRequestsPerHost},
		{"--max-mib-per-host", c.MaxMiBPerHost},
		{"--max-mib", c.MaxMiB},
	} {
		if n.value < 0 {
			errs = append(errs, fmt.Errorf("%s %d: it cannot be negative", n.flag, n.value))
		}
	}
	if c.SlowProxyTimeout > 0 && c.SlowProxyTimeout < MinSlowProxyTimeout {
		errs = append(errs, fmt.Errorf("--slow-proxy-timeout %s: proxies that do read would be cut off: write %s or more", c.SlowProxyTimeout, MinSlowProxyTimeout))
	}
	if c.UnauthenticatedTimeout > 0 && c.UnauthenticatedTimeout < MinUnauthenticatedTimeout {
		errs = append(errs, fmt.Errorf("--unauthenticated-timeout %s: hosts could not join: write %s or more", c.UnauthenticatedTimeout, MinUnauthenticatedTimeout))
	}
	switch c.VirtualHosts {
	case "", VirtualHostsAuto, VirtualHostsOff:
	default:
		errs = append(errs, fmt.Errorf("--virtual-hosts %q: write %s or %s", c.VirtualHosts, VirtualHostsAuto, VirtualHostsOff))
	}
	return errors.Join(errs...)
}

// checkPlaintext lets nothing but loopback through: whoever reaches the port
// reads the configuration of every workload.
func checkPlaintext(address string) error {
	if address == "" {
		return nil
	}
	if err := checkAddress(address); err != nil {
		return fmt.Errorf("--xds-plaintext-address %q: write IP:PORT: %w", address, err)
	}
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("--xds-plaintext-address %q: only a loopback address can be served without TLS, such as 127.0.0.1:15010", address)
	}
	return nil
}

func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("port %q is no number up to 65535", port)
	}
	return nil
}

// advertise is where agents find the server, with the port that was bound.
func (c *Config) advertise(ctx context.Context, bound net.Addr) ([]string, error) {
	if len(c.Advertise) > 0 {
		return c.Advertise, nil
	}
	host, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return nil, fmt.Errorf("reading the bound address: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return []string{bound.String()}, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("finding this machine's name: %w: set --advertise HOST:PORT", err)
	}
	names := []string{net.JoinHostPort(name, port)}
	for _, ip := range ownAddresses() {
		names = append(names, net.JoinHostPort(ip.String(), port))
	}
	var r net.Resolver
	if _, err := r.LookupHost(ctx, name); err != nil && len(names) > 1 {
		names = names[1:] // the name resolves nowhere: hosts would only lose time on it
	}
	return names, nil
}

// ownAddresses are this machine's global addresses, at most four.
func ownAddresses() []net.IP {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var out []net.IP
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && len(out) < 4 {
			out = append(out, n.IP)
		}
	}
	return out
}
