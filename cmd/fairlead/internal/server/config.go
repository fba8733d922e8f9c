package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/fairlead/fairlead/registry/files"
)

// Config is what a control plane is made from. Every field is a flag of
// `fairlead server`.
type Config struct {
	Logger *slog.Logger // must be non-nil

	// Roots are the directories of manifests. At least one.
	Roots []files.Root
	// MeshConfigFile is a file of MeshConfig fields; empty means Istio's defaults.
	MeshConfigFile string
	// StateDir holds what must survive: the authority, entitlements, tokens and
	// the last good manifests.
	StateDir string
	// RunDir holds admin.sock.
	RunDir string
	// XDSAddress is where xDS and the signing API are served over TLS.
	XDSAddress string
	// HTTPAddress is where health and metrics are served in plaintext; empty
	// means nowhere.
	HTTPAddress string
	// Advertise are the HOST:PORT that agents are told to find the server at, in
	// join tokens; empty means XDSAddress, or this machine's name where that has
	// no host.
	Advertise []string

	// CertificateTTL is the life of leaves; 0 means 24 h.
	CertificateTTL time.Duration
	// AcceptUnenforced lets requests through that a security policy which is not
	// in force would judge.
	AcceptUnenforced bool

	// These are of package registry; zero means its defaults.
	DebounceAfter, DebounceMax, SourceWait, ReleaseEmptyAfter time.Duration
	RemovalShare                                              float64
	// ScanInterval is of package files; zero means its default.
	ScanInterval time.Duration
}

func (c Config) check() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("config: Logger is missing"))
	}
	if len(c.Roots) == 0 {
		errs = append(errs, errors.New("no directory of manifests: name one with --config-dir"))
	}
	for _, r := range c.Roots {
		if fi, err := os.Stat(r.Path); err == nil && !fi.IsDir() {
			errs = append(errs, fmt.Errorf("--config-dir %q is not a directory: name the directory that the file is in", r.Path))
		}
	}
	for flag, dir := range map[string]string{"--state-dir": c.StateDir, "--run-dir": c.RunDir, "--xds-address": c.XDSAddress} {
		if dir == "" {
			errs = append(errs, fmt.Errorf("%s is empty", flag))
		}
	}
	return c, errors.Join(errs...)
}

// advertise is where agents find the server, with the port that was bound.
func (c *Config) advertise(ctx context.Context, bound net.Addr) ([]string, error) {
	if len(c.Advertise) > 0 {
		for _, a := range c.Advertise {
			if _, _, err := net.SplitHostPort(a); err != nil {
				return nil, fmt.Errorf("--advertise %q: write HOST:PORT: %w", a, err)
			}
		}
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
