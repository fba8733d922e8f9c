package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Source is a place that objects come from.
type Source interface {
	// Name is unique in a registry, and the Source of every Fragment.
	Name() string
	// Run sends the whole of what the source has: first as soon as it could
	// read everything, then after every whole reading, also when nothing
	// changed: a removal that is held back waits for a second reading. It
	// sends nothing where it could not read everything. Run returns when ctx
	// is done; returning earlier, with an error or without, ends the process.
	Run(ctx context.Context, out chan<- *mesh.Fragment) error
}

// Releaser is a Source that holds something by itself and releases it when a person says so.
// Release reports whether there was anything.
type Releaser interface {
	Release() bool
}

// DecisionObserver is a Source that saves its content to disk. After every reading it learns
// how many of its removals the guard holds, so that it does not lose before a restart what is
// still in force. Decided must not block.
type DecisionObserver interface {
	Decided(reading *mesh.Fragment, held int)
}

// KeySets has the keys of issuers that RequestAuthentications name. Its methods are called by
// one goroutine and must not block.
type KeySets interface {
	// Want replaces what is wanted.
	Want(list []mesh.KeyRequest)
	// Current is what is in force; the same keys are the same pointer. settled says that each
	// key set of the last Want is there, or was asked for at least once.
	Current() (sets *mesh.KeySets, settled bool)
	// Changed receives after Current may have changed.
	Changed() <-chan struct{}
}

// keysWait is how long configuration waits for the keys that it needs: most issuers answer
// within it, and one that does not must not delay what else was changed by much. Tokens are
// refused until their keys are there.
const keysWait = 10 * time.Second

// DefaultSourceWait is how long the first snapshot waits for sources, where
// nothing else is said.
const DefaultSourceWait = time.Minute

// Config is what a Registry needs.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Sources are in the order in which they count: where two have an object of
	// the same kind, namespace and name, the first one's is in force. At least
	// one is required.
	Sources []Source
	// Observe receives what is known of the making of each snapshot, before the snapshot is
	// published. It must return at once. Nil means that nobody observes.
	Observe func(Publication)
	// Fallback is the MeshConfig, defaults filled in, that counts until a source
	// has one. Required.
	Fallback *mesh.MeshConfig
	// Bindings say, by name of a source, which namespaces it is bound to and what
	// hosts it has; or nil. A namespace that becomes empty is treated as a source that
	// does. See [mesh.Input.Bindings].
	Bindings map[string]*mesh.Binding
	// Grants keeps what namespaces had before owners were decided by patterns; nil means that they
	// had nothing.
	Grants GrantStore
	// KeySets may be nil: then the only keys are those that objects have inline.
	KeySets KeySets
	// GatewayNames may be nil: then gateways of networks that have a name have no address.
	GatewayNames GatewayNames
	// BoundPrivateKeys is that of [mesh.Input].
	BoundPrivateKeys bool
	// AddressRange is the range of the IPv4 addresses of hosts that have no addresses of their
	// own; the zero prefix means that no addresses are allocated. AddressStore saves them; nil
	// means that they are not saved.
	AddressRange netip.Prefix
	AddressStore AddressStore

	// DebounceAfter is how long configuration must have been quiet before it is
	// pushed; 0 means 100 ms. Two pushes of configuration are 200 ms apart or more;
	// those of a checkout of many files are a second apart.
	DebounceAfter time.Duration
	// DebounceMax is the longest that a change of configuration waits for quiet; 0
	// means 10 s.
	DebounceMax time.Duration
	// SourceWait is how long after the start the first snapshot waits for
	// sources that have not delivered; 0 means DefaultSourceWait.
	SourceWait time.Duration

	// RemovalShare is the part of a source's objects, or of a service's
	// endpoints, beyond which a removal is held back; 0 means 0.3, 1 or more
	// switches it off, but not what holds for a source that becomes empty.
	RemovalShare float64
	// RemovalWindow is the time over which losses are summed: a source may lose RemovalShare of
	// what it had when the window began; 0 means DefaultRemovalWindow.
	RemovalWindow time.Duration
	// RemovalFloor is the number of objects from which on a removal can be held
	// back at all; 0 means 5.
	RemovalFloor int
	// ConfirmAfter is the least time between two readings that must agree
	// before a held removal is applied; 0 means 10 s.
	ConfirmAfter time.Duration
	// ReleaseEmptyAfter is how long a source that became empty is held before
	// it is applied; 0 means until a person releases it.
	ReleaseEmptyAfter time.Duration

	// merge makes snapshots; nil means [mesh.Merge].
	merge func(mesh.Input) *mesh.Snapshot
	// inherit makes grants; nil means [mesh.InheritGrants].
	inherit func(mesh.Input, []mesh.Recorded) []mesh.Grant
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("registry: Config.Logger is missing"))
	}
	if c.Fallback == nil {
		errs = append(errs, errors.New("registry: Config.Fallback is missing"))
	}
	if len(c.Sources) == 0 {
		errs = append(errs, errors.New("registry: no source is configured"))
	}
	names := map[string]bool{}
	for _, s := range c.Sources {
		if names[s.Name()] {
			errs = append(errs, fmt.Errorf("registry: two sources have the name %q", s.Name()))
		}
		names[s.Name()] = true
	}
	errs = append(errs, c.checkBindings(names)...)
	if c.RemovalShare < 0 || c.RemovalFloor < 0 || c.DebounceAfter < 0 || c.DebounceMax < 0 || c.SourceWait < 0 ||
		c.ConfirmAfter < 0 || c.RemovalWindow < 0 || c.ReleaseEmptyAfter < 0 {
		errs = append(errs, errors.New("registry: a limit is negative"))
	}
	if c.inherit == nil {
		c.inherit = mesh.InheritGrants
	}
	if c.merge == nil {
		c.merge = mesh.Merge
	}
	c.DebounceAfter = cmp.Or(c.DebounceAfter, 100*time.Millisecond)
	c.DebounceMax = cmp.Or(c.DebounceMax, 10*time.Second)
	c.SourceWait = cmp.Or(c.SourceWait, DefaultSourceWait)
	c.RemovalShare = cmp.Or(c.RemovalShare, 0.3)
	c.RemovalWindow = cmp.Or(c.RemovalWindow, DefaultRemovalWindow)
	c.RemovalFloor = cmp.Or(c.RemovalFloor, 5)
	c.ConfirmAfter = cmp.Or(c.ConfirmAfter, 10*time.Second)
	return c, errors.Join(errs...)
}

// checkBindings wants bindings to be of sources, and no two to have patterns that
// cover the same host.
func (c *Config) checkBindings(names map[string]bool) []error {
	var errs []error
	sorted := slices.Sorted(maps.Keys(c.Bindings))
	for i, name := range sorted {
		if !names[name] {
			errs = append(errs, fmt.Errorf("registry: unknown source %q is bound to namespaces", name))
		}
		for _, other := range sorted[:i] {
			if p, q, overlap := mesh.Overlap(c.Bindings[other], c.Bindings[name]); overlap {
				errs = append(errs, fmt.Errorf("the host patterns of the sources %q and %q overlap (%q and %q): give each host to one source", other, name, p, q))
			}
		}
	}
	return errs
}
