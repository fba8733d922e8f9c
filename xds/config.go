package xds

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// Snapshots is where the state of the mesh comes from.
type Snapshots interface {
	// Snapshot is the newest, or nil before the first.
	Snapshot() *mesh.Snapshot
	// Subscribe returns a notification channel that receives after every new snapshot,
	// until cancel is called.
	Subscribe() (changed <-chan struct{}, cancel func())
}

// Admission authenticates peers.
type Admission interface {
	// Admit returns the authenticated peer of a gRPC context. Its error is logged and
	// shown to operators, never to the peer.
	Admit(ctx context.Context) (Peer, error)
}

// Address is an address in a host's join token, in any network or in one.
type Address struct {
	IP        netip.Addr
	InNetwork bool
	Network   string
}

// Peer is the authenticated peer of a stream, and what it is entitled to.
type Peer struct {
	// Host is the name of the host, or of another authenticated client.
	Host string
	// Address is the remote address, for people; may be empty.
	Address string
	ID      spiffeid.ID
	// Binding distinguishes machines that have used the host's name.
	Binding string
	// Source is the address from which it connects, and Addresses those in its join token:
	// they prove that a workload is its own. Both may be empty.
	Source    netip.Addr
	Addresses []Address
	// Direct is a client without an agent: what it says of its clock does not count.
	Direct bool
	// Anonymous means that the peer is not authenticated: it connected to the plaintext
	// port. It may read the configuration of any workload, and nothing else that it says
	// counts. Its health reports are ignored. All such peers share one limit of streams.
	Anonymous bool
	// Pairs are the service accounts that its proxies may have.
	Pairs []mesh.ServiceAccount
	// Types are the types of proxy that it may run; empty means sidecars only.
	Types []view.ProxyType
	// Until is when its certificate ends; zero means never.
	Until time.Time
	// Revoked is closed when the identity is revoked; nil means that it cannot be.
	Revoked <-chan struct{}
	// Hangup closes the connection of the stream; nil means that it cannot be closed. It
	// is used if the peer does not even read that its stream has ended.
	Hangup func()
	// Resume lets the connection of the stream be read to the end; nil means that it is
	// anyway. Until then only a part of the first request is read.
	Resume func()
}

func (p Peer) resume() {
	if p.Resume != nil {
		p.Resume()
	}
}

// Health receives what agents report of their workloads, and decides which host a workload
// belongs to. It is called from the goroutines of streams and must not block.
type Health interface {
	// StreamOpened reports that the agent of a workload is connected, which is its claim
	// to the workload. An error rejects the stream. end may be called from any goroutine,
	// when the workload becomes another host's.
	StreamOpened(stream uint64, c mesh.Claim, end func(reason string)) error
	// ReportProbe takes the result of the agent's probe, and ReportEnvoy the state of its
	// Envoy, a bootstrap.EnvoyState. They return the health that follows from all reports
	// of the stream.
	ReportProbe(stream uint64, health mesh.Health, reason string) (mesh.Health, string)
	ReportEnvoy(stream uint64, state string) (mesh.Health, string)
	// StreamClosed reports that the stream has ended.
	StreamClosed(stream uint64)
	// HeldByOther reports whether a workload belongs to another host than this one, which
	// connects from source.
	HeldByOther(host string, source netip.Addr, w *mesh.Workload) bool
}

// Clocks receives the times that hosts report when a stream begins. It is called from the
// goroutines of streams and must not block.
type Clocks interface {
	// HostTime reports that the clock of a host at an address showed clock at about the
	// time at. forget is called when the stream has ended.
	HostTime(host, address string, clock, at time.Time) (forget func())
}

// Defaults of Config.
const (
	DefaultMaxStreams = 20_000
	DefaultMaxPerHost = 64
	DefaultMaxNew     = 64
	// DefaultMaxRequests is far more than a host with a dozen proxies sends while
	// everything changes.
	DefaultMaxRequests    = 500
	DefaultMaxKeptPerHost = 64 << 20
	DefaultMaxKept        = 1 << 30
	DefaultNodeTimeout    = 10 * time.Second
	DefaultSlowTimeout    = 3 * time.Minute
)

// Config is what a Server needs.
type Config struct {
	Logger    *slog.Logger // must be non-nil
	Snapshots Snapshots    // must be non-nil
	Admission Admission    // must be non-nil

	// Health may be nil: health reports are ignored.
	Health Health
	// Clocks may be nil: the times that hosts report are ignored.
	Clocks Clocks
	// Registerer registers the metrics; nil means that none are published.
	Registerer prometheus.Registerer
	// Observe receives each rollout that has ended, if it began with a connected proxy. It must
	// return at once. Nil means that nobody observes, and that no classes are kept.
	Observe func(Rollout)
	// MaxStreams bounds the streams; 0 means DefaultMaxStreams.
	MaxStreams int
	// MaxPerHost bounds the streams of one host; 0 means DefaultMaxPerHost.
	MaxPerHost int
	// MaxNew is the number of admission slots: streams that receive their first
	// configuration at one time. Others wait, so that a fleet that connects at once does
	// not slow down streams that are served already. 0 means DefaultMaxNew.
	MaxNew int
	// MaxRequests bounds the requests of one host a second, and ten times that at once; a
	// host that exceeds it is throttled. 0 means DefaultMaxRequests.
	MaxRequests int
	// MaxKeptPerHost bounds, in bytes, what is kept of what the proxies of one host send:
	// names, versions, error messages. MaxKept bounds the same for all hosts. 0 means
	// DefaultMaxKeptPerHost and DefaultMaxKept.
	MaxKeptPerHost, MaxKept int
	// SlowTimeout is how long a peer may take to read 64 KiB of what it is sent, or all of
	// it if that is less, before its stream is ended; 0 means DefaultSlowTimeout.
	SlowTimeout time.Duration
	// InlineRoutes delivers all route configurations with inline virtual hosts, whatever a
	// proxy supports.
	InlineRoutes bool
	// NodeTimeout bounds the time until the first request; 0 means
	// DefaultNodeTimeout.
	NodeTimeout time.Duration
	// GateTimeout is that of package stream; 0 means its default.
	GateTimeout time.Duration
	// AcceptUnenforced is that of view.Proxy, for every proxy.
	AcceptUnenforced bool
	// Settings are for the views of all proxies.
	Settings view.Settings

	slotIdle time.Duration // 0 means defaultTurnIdle
}

func (c Config) check() (Config, error) {
	var errs []error
	for what, missing := range map[string]bool{"Logger": c.Logger == nil, "Snapshots": c.Snapshots == nil, "Admission": c.Admission == nil} {
		if missing {
			errs = append(errs, errors.New("config: "+what+" is missing"))
		}
	}
	c.MaxStreams = cmp.Or(c.MaxStreams, DefaultMaxStreams)
	c.MaxPerHost = cmp.Or(c.MaxPerHost, DefaultMaxPerHost)
	c.MaxNew = cmp.Or(c.MaxNew, DefaultMaxNew)
	c.MaxRequests = cmp.Or(c.MaxRequests, DefaultMaxRequests)
	c.MaxKeptPerHost = cmp.Or(c.MaxKeptPerHost, DefaultMaxKeptPerHost)
	c.MaxKept = cmp.Or(c.MaxKept, DefaultMaxKept)
	c.SlowTimeout = cmp.Or(c.SlowTimeout, DefaultSlowTimeout)
	c.NodeTimeout = cmp.Or(c.NodeTimeout, DefaultNodeTimeout)
	c.slotIdle = cmp.Or(c.slotIdle, defaultSlotIdle)
	return c, errors.Join(errs...)
}

// isReport reports whether a request is a report of an agent, which gets no response.
func isReport(typeURL string) bool {
	return typeURL == bootstrap.HealthType || typeURL == bootstrap.EnvoyStateType
}
