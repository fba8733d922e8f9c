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
	// Subscribe gives a doorbell that rings after every new snapshot, until
	// cancel is called.
	Subscribe() (bell <-chan struct{}, cancel func())
}

// Admission knows who is at the other end of a stream.
type Admission interface {
	// Admit gives the authenticated peer of a gRPC context. Its error is logged and
	// shown to operators, never to the peer.
	Admit(ctx context.Context) (Peer, error)
}

// Address is one that a host's join token names, in any network or in one.
type Address struct {
	IP        netip.Addr
	InNetwork bool
	Network   string
}

// Peer is who is at the other end of a stream, and what it may claim to be.
type Peer struct {
	// Host is the name of the host, or of what else was authenticated.
	Host string
	// Address is where it comes from, for people; may be empty.
	Address string
	ID      spiffeid.ID
	// Binding tells the machine that has the host's name from the one before.
	Binding string
	// Source is the address that it connects from, and Addresses those that its join
	// token names: they prove that a workload is its own. Both may be empty.
	Source    netip.Addr
	Addresses []Address
	// Direct is a client without an agent: what it says of its clock does not count.
	Direct bool
	// Anonymous means that it has proven nothing, because it came in by a port
	// that asks for no proof: it may look at the configuration of any workload,
	// and is believed nothing else. Its health reports are not taken, and all
	// such peers together are not bounded as one host is.
	Anonymous bool
	// Pairs are the identities that its proxies may have.
	Pairs []mesh.ServiceAccount
	// Types are the types of proxy that it may run; empty means sidecars.
	Types []view.ProxyType
	// Until is when its certificate ends; zero means never.
	Until time.Time
	// Revoked is closed when the identity is revoked; nil means that it cannot be.
	Revoked <-chan struct{}
	// Hangup breaks the connection that the stream came by; nil means that it cannot
	// be broken. It is for who does not even read that its stream has ended.
	Hangup func()
}

// Health takes what agents report of their workloads on their streams, and knows
// which host a workload is of. It is called from the goroutines of streams and must
// not block.
type Health interface {
	// StreamOpened says that the agent of a workload is connected, which it claims.
	// An error refuses the stream, and says why. end is called, from any goroutine,
	// when the workload becomes another host's.
	StreamOpened(stream uint64, c mesh.Claim, end func(reason string)) error
	// ReportProbe takes what the workload's agent has found out by its probe, and
	// ReportEnvoy what has become of its Envoy, in the words of bootstrap.EnvoyState.
	// They return the health that follows from all that the stream has reported.
	ReportProbe(stream uint64, health mesh.Health, reason string) (mesh.Health, string)
	ReportEnvoy(stream uint64, state string) (mesh.Health, string)
	// StreamClosed says that nothing is known any more.
	StreamClosed(stream uint64)
	// HeldByOther reports whether a workload is of another host than this one, which
	// connects from source.
	HeldByOther(host string, source netip.Addr, w *mesh.Workload) bool
}

// Clocks takes what hosts say that their clocks show, when a stream begins. It is
// called from the goroutines of streams and must not block.
type Clocks interface {
	// HostTime is told that the clock of a host at an address showed clock at about the
	// moment at; forget is called when the stream has ended.
	HostTime(host, address string, clock, at time.Time) (forget func())
}

// What a Config's zero values mean.
const (
	DefaultMaxStreams = 20_000
	DefaultMaxPerHost = 64
	DefaultMaxNew     = 64
	// DefaultMaxRequests is far more than a host with a dozen proxies says while
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

	// Health may be nil: reports of health are not taken.
	Health Health
	// Clocks may be nil: what hosts say of the time is not read.
	Clocks Clocks
	// Registerer takes the metrics; nil means that none are published.
	Registerer prometheus.Registerer
	// MaxStreams bounds the streams; 0 means DefaultMaxStreams.
	MaxStreams int
	// MaxPerHost bounds the streams of one host; 0 means DefaultMaxPerHost.
	MaxPerHost int
	// MaxNew bounds the streams that are new at a time: that have not been sent all
	// they lack, and get on with it. Others wait, so that those that are served are not starved when a
	// fleet comes at once. 0 means DefaultMaxNew.
	MaxNew int
	// MaxRequests bounds what one host may ask for in a second, and ten times that at
	// once; who asks for more is heard later. 0 means DefaultMaxRequests.
	MaxRequests int
	// MaxKeptPerHost bounds, in bytes, what is kept of what the proxies of one host
	// say: names, versions, refusals. MaxKept bounds the same for all. 0 means
	// DefaultMaxKeptPerHost and DefaultMaxKept.
	MaxKeptPerHost, MaxKept int
	// SlowTimeout is how long a peer may go without reading 64 KiB, or all that there
	// is, of what it is sent before its stream is ended; 0 means DefaultSlowTimeout.
	SlowTimeout time.Duration
	// WholeTables has all route tables travel whole, whatever a proxy can take.
	WholeTables bool
	// NodeTimeout bounds the time until the first request; 0 means
	// DefaultNodeTimeout.
	NodeTimeout time.Duration
	// GateTimeout is that of package stream; 0 means its default.
	GateTimeout time.Duration
	// AcceptUnenforced is that of view.Proxy, for every proxy.
	AcceptUnenforced bool
	// Settings are those of the views of all proxies.
	Settings view.Settings

	turnIdle time.Duration // 0 means defaultTurnIdle
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
	c.turnIdle = cmp.Or(c.turnIdle, defaultTurnIdle)
	return c, errors.Join(errs...)
}

// isReport reports whether a request is one by which an agent reports, of a type
// that is never answered.
func isReport(typeURL string) bool {
	return typeURL == bootstrap.HealthType || typeURL == bootstrap.EnvoyStateType
}
