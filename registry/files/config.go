package files

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Root is one directory that is read.
type Root struct {
	// Path is the directory. It may be, or lie below, a symbolic link.
	Path string
	// Namespaces are the only ones that objects of this directory may be in;
	// empty means any. With exactly one, it is also the namespace of objects
	// that name none.
	Namespaces []string
	// Hosts are patterns of hosts that belong to the directory if it is bound to namespaces.
	// This package does not use them.
	Hosts []mesh.Hostname
	// UnixSockets lets objects name unix sockets although the directory is bound to
	// namespaces; those of an unbound one always may.
	UnixSockets bool
	// Files also lets them name files of the hosts, and LocalAddresses endpoints at addresses that each
	// host has for itself.
	Files, LocalAddresses bool
	// Credentials are those that proxies of other namespaces use for the directory if it is bound
	// to namespaces. This package does not use them.
	Credentials []string
	// RoutesOnly is [mesh.Binding.RoutesOnly].
	RoutesOnly bool
}

// Binding is the namespaces and hosts of the directory; nil if it is bound to no namespace.
func (r Root) Binding() *mesh.Binding {
	if len(r.Namespaces) == 0 {
		return nil
	}
	return &mesh.Binding{Namespaces: slices.Sorted(slices.Values(r.Namespaces)), Hosts: r.Hosts, Credentials: r.Credentials, RoutesOnly: r.RoutesOnly, Source: r.Path}
}

// NoUnixSockets reports whether objects of this directory may not name unix sockets: the
// authors of a bound directory do not run the hosts.
func (r Root) NoUnixSockets() bool { return len(r.Namespaces) > 0 && !r.UnixSockets }

// NoFiles reports whether objects of this directory may not name files of the hosts.
func (r Root) NoFiles() bool { return len(r.Namespaces) > 0 && !r.Files }

// NoLocalAddresses reports whether objects of this directory may have no endpoints at addresses that
// each host has for itself.
func (r Root) NoLocalAddresses() bool { return len(r.Namespaces) > 0 && !r.LocalAddresses }

// ParseRoot reads the form DIR or DIR=NS,NS2 that the command line uses.
func ParseRoot(s string) (Root, error) {
	path, namespaces, err := manifest.ParseBound(s, "DIR")
	return Root{Path: path, Namespaces: namespaces}, err
}

// AddHosts reads DIR=PATTERN,… and gives the patterns to the root of that
// directory.
func AddHosts(roots []Root, s string) error {
	path, list, found := strings.Cut(s, "=")
	if !found || path == "" || list == "" {
		return fmt.Errorf("reading %q: write DIR=HOST,… such as teams/shop=*.shop.internal", s)
	}
	i := slices.IndexFunc(roots, func(r Root) bool { return samePath(r.Path, path) })
	if i < 0 {
		return fmt.Errorf("reading %q: %q is none of the directories that are read", s, path)
	}
	hosts, err := ParseHosts(list)
	if err != nil {
		return fmt.Errorf("reading %q: %w", s, err)
	}
	roots[i].Hosts = append(roots[i].Hosts, hosts...)
	return nil
}

// ParseHosts reads patterns of hosts, separated by commas.
func ParseHosts(list string) ([]mesh.Hostname, error) {
	var out []mesh.Hostname
	for s := range strings.SplitSeq(list, ",") {
		h, err := mesh.ParseHostPattern(s)
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

func samePath(a, b string) bool {
	x, err := filepath.Abs(a)
	y, err2 := filepath.Abs(b)
	return err == nil && err2 == nil && x == y
}

// namespace is the namespace of objects of this directory that name none.
func (r Root) namespace() string {
	if len(r.Namespaces) == 1 {
		return r.Namespaces[0]
	}
	return "default"
}

// Config configures a Source.
type Config struct {
	// Roots are the directories; they must not contain one another. Where two
	// give the same object, the earlier directory wins.
	Roots []Root
	// MeshConfigFile is the file of mesh settings; empty means that this source
	// has none. At least one of Roots, MeshConfigFile and MeshNetworksFile is required.
	MeshConfigFile string
	// MeshNetworksFile is the file of networks; empty means that this source has none.
	MeshNetworksFile string
	// Ignore are files that the directories skip, because they have the mesh settings or networks
	// of another source.
	Ignore []string
	// Logger is required.
	Logger *slog.Logger

	// Name is the name of the source; empty means "files".
	Name string
	// Domain is the suffix of short host names; empty means "cluster.local".
	Domain string
	// StateDir has the last good version of every file in StateDir/files/NAME; empty means
	// that nothing survives a restart.
	StateDir string
	// AwaitDecision makes the state directory wait for [Source.Decided]: for a receiver that
	// may hold removals.
	AwaitDecision bool
	// ScanInterval is the time between two scans of everything; 0 means 5 s.
	ScanInterval time.Duration
	// LossAfter is how long a file that was written in place, and lacks objects that restrict, has to
	// rest before that counts. 0 means 10 s.
	LossAfter time.Duration
	// MaxFiles bounds the files of the source, and its directories; more make
	// it unavailable. 0 means 50,000.
	MaxFiles int
	// MaxExpansion bounds what all objects of the source make after expansion; 0 means no bound.
	MaxExpansion int
	// MaxFileSize bounds one file in bytes; a larger one is a fault. 0 means
	// 16 MiB.
	MaxFileSize int64

	// Observe receives what is known of the making of each fragment. It must return at once. Nil
	// means that nobody observes.
	Observe func(Composed)

	// Decoder reads the files; nil means package manifest's.
	Decoder Decoder

	// newWatcher makes the receiver of events, which may make files in the
	// directory scratch; nil means the system's.
	newWatcher func(scratch string) (watcher, error)
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("files: Config.Logger is missing"))
	}
	if len(c.Roots) == 0 && c.MeshConfigFile == "" && c.MeshNetworksFile == "" {
		errs = append(errs, errors.New("files: no directory to read"))
	}
	if c.Decoder == nil {
		c.Decoder = manifests{}
	}
	if c.Name == "" {
		c.Name = "files"
	}
	if c.ScanInterval == 0 {
		c.ScanInterval = 5 * time.Second
	}
	if c.LossAfter == 0 {
		c.LossAfter = 10 * time.Second
	}
	if c.MaxFiles == 0 {
		c.MaxFiles = 50_000
	}
	if c.MaxFileSize == 0 {
		c.MaxFileSize = 16 << 20
	}
	if c.newWatcher == nil {
		c.newWatcher = newSystemWatcher
	}
	return c, errors.Join(errs...)
}

// newRoots checks the directories and makes their state.
func newRoots(c Config) ([]*root, error) {
	var (
		roots []*root
		errs  []error
	)
	add := func(r Root, kind mesh.Kind) {
		abs, err := filepath.Abs(r.Path)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading %q: %w", r.Path, err))
			return
		}
		for _, o := range roots {
			if kind == "" && (within(o.abs, abs) || within(abs, o.abs)) {
				errs = append(errs, fmt.Errorf("reading %q: the directory overlaps with %q; name each tree once", r.Path, o.Path))
			}
			if kind != "" {
				o.ignore(abs)
			}
		}
		roots = append(roots, newRoot(r, len(roots), abs, kind))
	}
	for _, r := range c.Roots {
		add(r, "")
	}
	if c.MeshConfigFile != "" {
		add(Root{Path: c.MeshConfigFile}, mesh.KindMeshConfig)
	}
	if c.MeshNetworksFile != "" {
		add(Root{Path: c.MeshNetworksFile}, mesh.KindMeshNetworks)
	}
	for _, file := range c.Ignore {
		abs, err := filepath.Abs(file)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading %q: %w", file, err))
		}
		for _, r := range roots {
			r.ignore(abs)
		}
	}
	return roots, errors.Join(errs...)
}

// CheckRoots says which of the directories of several sources overlap.
func CheckRoots(roots []Root) error {
	_, err := newRoots(Config{Roots: roots})
	return err
}
