package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// Credentials authenticate the host to the servers, and the servers to the host. Both methods
// may be called from any goroutine.
type Credentials interface {
	// TLS is the configuration for the next connection.
	TLS() *tls.Config
	// NotAfter is the expiry of the certificate that TLS uses now.
	NotAfter() time.Time
}

// Config is what a Relay needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Node is the node of the bootstrap, with the version of the Envoy that is
	// going to connect, as far as it is known.
	Node *corev3.Node
	// Stamp adds to the node of a stream's first request what is true only at that moment; may
	// be nil.
	Stamp func(node *corev3.Node)
	// Metadata is sent to the server with each stream, as pairs of key and value; nil
	// means nothing.
	Metadata func() []string
	// Servers are host:port of the control plane, in order of preference.
	Servers []string
	// Credentials must be non-nil.
	Credentials Credentials
	// Socket is the unix socket that Envoy connects to, and UID the only user
	// that may.
	Socket string
	UID    uint32
	// Guard asks every Envoy for the token; it must be non-nil.
	Guard *peercred.Guard
	// StoreFile has the accepted configuration.
	StoreFile string
	// Refused is called when a server rejects the host, and Answered when one answers. Both
	// may be nil, and must not wait.
	Refused  func()
	Answered func(server string)
	// Configure takes the ProxyConfig of the host's proxy, encoded, whenever the control plane
	// sends another one. An error rejects it: the last one stays in force. A nil body means that
	// the control plane has none, as earlier releases. It may be nil, and must not wait. The relay
	// knows nothing of the content.
	Configure func(body []byte) error
	// Inbound reports whether a listener, encoded, takes requests for the workload. While Envoy
	// serves none of those that the control plane declared, the workload is reported as unhealthy.
	// It may be nil: then nothing is concluded. The relay knows nothing of the content.
	Inbound func(body []byte) bool
	// Names takes what the agent answers to DNS queries; nil means that it answers none, and that
	// the control plane sends none.
	Names NameTable
	// Returned is called when a server can be reached after none could. It may be nil, and must
	// not wait.
	Returned func()
	// EnvoyRunning means that an Envoy is serving already and will reconnect. It is not
	// reported absent before it had time to.
	EnvoyRunning bool
}

// Relay is one workload's relay.
type Relay struct {
	c        Config
	log      *slog.Logger
	commands chan command
	health   atomic.Pointer[Health]
	wake     chan struct{} // signals that health, credentials or withdrawn has changed
	// credentials is what is reported of the credentials of this host; nil before the first.
	credentials atomic.Pointer[bootstrap.Credentials]
	status      atomic.Pointer[Status]
	// listeners are those that Envoy has accepted, with the number of the change.
	listeners atomic.Pointer[acceptedListeners]
	// clusters are those that Envoy has accepted; nil before the first.
	clusters atomic.Pointer[stream.Set]
	// withdrawn means that Envoy is about to be stopped.
	withdrawn atomic.Bool
}

// Health is what is reported of the workload behind Envoy.
type Health struct {
	Healthy bool
	// Message says why not; for people.
	Message string
}

// New checks the configuration; it starts nothing and reads nothing.
func New(c Config) (*Relay, error) {
	var errs []error
	if c.Logger == nil || c.Credentials == nil || c.Guard == nil {
		errs = append(errs, errors.New("configuring the relay: Logger, Credentials and Guard are needed"))
	}
	if c.Socket == "" || c.StoreFile == "" || len(c.Servers) == 0 {
		errs = append(errs, errors.New("configuring the relay: Socket, StoreFile and at least one server are needed"))
	}
	if _, err := bootstrap.ParseNode(c.Node); err != nil {
		errs = append(errs, fmt.Errorf("configuring the relay: %w", err))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.Node = proto.CloneOf(c.Node)
	for _, feature := range []string{bootstrap.FeatureVirtualHosts, bootstrap.FeatureRetries} {
		if !slices.Contains(c.Node.GetClientFeatures(), feature) {
			c.Node.ClientFeatures = append(c.Node.ClientFeatures, feature)
		}
	}
	r := &Relay{c: c, log: c.Logger.With("component", "agent/relay"), commands: make(chan command), wake: make(chan struct{}, 1)}
	r.status.Store(&Status{Envoy: bootstrap.EnvoyAbsent})
	return r, nil
}

// SetHealth sets the health of the workload. The newest value is reported now, and on every
// new stream.
func (r *Relay) SetHealth(h Health) {
	r.health.Store(&h)
	r.wakeCore()
}

// SetCredentials sets the report of the host's credentials. The newest one is reported now, and on
// every new stream.
func (r *Relay) SetCredentials(c bootstrap.Credentials) {
	r.credentials.Store(&c)
	r.wakeCore()
}

// Withdraw reports the Envoy as absent from now on, although it still serves. Call it before
// Envoy is drained, so that peers stop sending to it first.
func (r *Relay) Withdraw() {
	r.withdrawn.Store(true)
	r.wakeCore()
}

func (r *Relay) wakeCore() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

type acceptedListeners struct {
	set    *stream.Set
	number uint64
}

// Listeners are those that Envoy has accepted, encoded, and a number that is another one whenever
// they are others; 0 before the first.
func (r *Relay) Listeners() (number uint64, bodies func() [][]byte) {
	now := r.listeners.Load()
	if now == nil {
		return 0, nil
	}
	return now.number, func() [][]byte {
		var out [][]byte
		for l := range now.set.All() {
			out = append(out, l.Body)
		}
		return out
	}
}

// Status is what the relay does now.
func (r *Relay) Status() Status { return *r.status.Load() }

// Run relays until ctx ends; then the newest accepted state is on disk. It
// returns an error only if its socket cannot be served.
func (r *Relay) Run(ctx context.Context) error {
	l, err := peercred.Listen(ctx, peercred.Config{Logger: r.log, Path: r.c.Socket, UID: r.c.UID, Guard: r.c.Guard})
	if err != nil {
		return err
	}
	stored := r.load()
	group, ctx := errgroup.WithContext(ctx)
	w := &writer{path: r.c.StoreFile, log: r.log, in: make(chan *state, 1), done: make(chan written, 1)}
	if stored != nil {
		w.release = stored.release()
	}
	core := newCore(r, w, stored)
	group.Go(func() error { return r.serve(ctx, l) })
	group.Go(func() error {
		r.dial(ctx)
		return nil
	})
	group.Go(func() error {
		w.run()
		return nil
	})
	group.Go(func() error {
		// The writer ends after it has written the core's last state.
		defer close(w.in)
		core.run(ctx)
		return nil
	})
	return group.Wait()
}

// load reads the store. A store that is unusable is moved aside and logged as an error, and
// the relay starts without one.
func (r *Relay) load() *state {
	s, err := readStore(r.c.StoreFile)
	switch {
	case err == nil && s.Who == who(r.c.Node):
		r.log.Info("serving the stored configuration until a control plane is reachable",
			"path", r.c.StoreFile, "saved_at", s.SavedAt, "generation", s.Generation, "resources", s.count())
		return s
	case err == nil:
		err = fmt.Errorf("it belongs to another workload, %q", s.Who)
	case errors.Is(err, errNoStore):
		return nil
	}
	aside, asideErr := setAside(r.c.StoreFile)
	r.log.Error("stored configuration is unusable and was moved aside; a restarted Envoy waits for a control plane",
		"path", r.c.StoreFile, "err", err, "aside", aside, "aside_err", asideErr)
	return nil
}

// who is for whom a state is: another workload's must not be served.
func who(n *corev3.Node) string {
	f := n.GetMetadata().GetFields()
	return n.GetId() + " " + f["NAMESPACE"].GetStringValue() + "/" + f["SERVICE_ACCOUNT"].GetStringValue()
}
