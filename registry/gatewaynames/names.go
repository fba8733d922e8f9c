package gatewaynames

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/localaddr"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// refreshAfter is the time between two lookups of a name: Istio's shortest.
	refreshAfter = 30 * time.Second
	// retryAfter is the same after one that failed.
	retryAfter = 5 * time.Second
	// timeout bounds one lookup.
	timeout = 5 * time.Second
	// maxAtOnce bounds lookups at a time.
	maxAtOnce = 8
	// maxAddresses bounds the addresses of one name: each is an endpoint of every service in the
	// network.
	maxAddresses = 16
	// maxFile bounds the file, in bytes.
	maxFile = 4 << 20

	fileVersion = 1
)

// Lookup returns the addresses of a name with a final dot.
type Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

// Config configures Names.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Path is the file of the last good answers; empty means that nothing survives a restart.
	Path string
	// Lookup may be nil: then the system's nameservers and its file of hosts are asked.
	Lookup Lookup
}

// Names looks up names of gateways.
type Names struct {
	// Constant after New.
	cfg     Config
	log     *slog.Logger
	wants   chan []string // the latest of Want
	changed chan struct{}

	current atomic.Pointer[state]
}

// state is what is known at one time. It is immutable.
type state struct {
	addresses *mesh.GatewayAddresses
	// settled has the names that were looked up at least once, or are known from the disk.
	settled map[string]bool
	status  []Status
	unsaved string
}

// Status is how one name stands.
type Status struct {
	Name string `json:"name"`
	// Addresses are those in force.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Err is why the last lookup failed; empty if it did not. Since is when the first one in a row
	// failed.
	Err   string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// New makes Names and reads the last good answers. It starts nothing.
func New(c Config) (*Names, error) {
	if c.Logger == nil {
		return nil, errors.New("gatewaynames: Config.Logger is missing")
	}
	if c.Lookup == nil {
		c.Lookup = System
	}
	n := &Names{cfg: c, log: c.Logger.With("component", "registry/gatewaynames"), wants: make(chan []string, 1), changed: make(chan struct{}, 1)}
	n.current.Store(&state{addresses: mesh.NewGatewayAddresses(nil)})
	return n, nil
}

// Want replaces the wanted names; in lower case, without a final dot. Only one goroutine may call it.
func (n *Names) Want(names []string) {
	select {
	case <-n.wants:
	default:
	}
	n.wants <- names
}

// Addresses are those in force. The same ones are the same pointer.
func (n *Names) Addresses() *mesh.GatewayAddresses { return n.current.Load().addresses }

// Settled reports whether each name has addresses, or was looked up at least once.
func (n *Names) Settled(names []string) bool {
	settled := n.current.Load().settled
	return !slices.ContainsFunc(names, func(name string) bool { return !settled[name] })
}

// Changed receives after Addresses or Settled may have changed.
func (n *Names) Changed() <-chan struct{} { return n.changed }

// Status is how the wanted names stand, sorted by name.
func (n *Names) Status() []Status {
	if n == nil {
		return nil // asked during the start
	}
	return n.current.Load().status
}

// Unsaved is why the answers in force are not on disk; empty if they are.
func (n *Names) Unsaved() string {
	if n == nil {
		return ""
	}
	return n.current.Load().unsaved
}

// name is the state of one name.
type name struct {
	addresses []netip.Addr // the last good answer, sorted
	known     bool         // there was an answer, good or not, or it comes from the disk
	asking    bool
	due       time.Time
	err       string
	since     time.Time
}

// answer is the result of a lookup.
type answer struct {
	name      string
	addresses []netip.Addr
	err       error
}

// loop is the state of Run.
type loop struct {
	*Names

	names  map[string]*name
	stored map[string][]netip.Addr // answers on disk of names that nobody wanted yet
	asking int
	dirty  bool // what is on disk differs
}

// Run looks up names until ctx is done.
func (n *Names) Run(ctx context.Context) error {
	l := &loop{Names: n, names: map[string]*name{}, stored: n.load()}
	g, lookups := errgroup.WithContext(ctx)
	answers := make(chan answer)
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return g.Wait()
		case names := <-n.wants:
			l.want(names)
		case a := <-answers:
			l.take(a, time.Now())
		case <-wake.C:
		}
		next := l.ask(time.Now(), func(name string) {
			g.Go(func() error {
				a := answer{name: name}
				a.addresses, a.err = Once(lookups, n.cfg.Lookup, name)
				select {
				case answers <- a:
				case <-lookups.Done():
				}
				return nil
			})
		})
		l.publish()
		if next.IsZero() {
			wake.Stop()
		} else {
			wake.Reset(time.Until(next))
		}
	}
}

// System asks the system's nameservers and its file of hosts.
func System(ctx context.Context, name string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// Once looks a name up once: its addresses at which other hosts can connect.
func Once(ctx context.Context, lookup Lookup, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	list, err := lookup(ctx, name+".") // without the domains of resolv.conf
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	what := ""
	for _, a := range list {
		a = a.Unmap().WithZone("")
		if local := localaddr.What(a.String()); local != "" || a.IsMulticast() {
			what = fmt.Sprintf(": %s is not one that other hosts can connect to", a)
			continue
		}
		out = append(out, a)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the answer has no usable address%s", what)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	out = slices.Compact(out)
	return slices.Clip(out[:min(len(out), maxAddresses)]), nil
}

// want replaces the wanted names.
func (l *loop) want(names []string) {
	next := make(map[string]*name, len(names))
	for _, text := range names {
		x := l.names[text]
		if x == nil {
			x = &name{addresses: l.stored[text], known: len(l.stored[text]) > 0}
		}
		next[text] = x
	}
	l.dirty = l.dirty || len(next) != len(l.names) && len(l.names) > 0
	l.names, l.stored = next, nil
}

// ask looks up what is due, and returns when more will be; zero means not before something happens.
func (l *loop) ask(now time.Time, lookUp func(name string)) (next time.Time) {
	// Who waits longest is first, so that many names without an answer keep no other from its turn.
	order := slices.SortedFunc(maps.Keys(l.names), func(a, b string) int {
		return cmp.Or(l.names[a].due.Compare(l.names[b].due), cmp.Compare(a, b))
	})
	for _, text := range order {
		x := l.names[text]
		switch {
		case x.asking:
		case x.due.After(now):
			if next.IsZero() || x.due.Before(next) {
				next = x.due
			}
		case l.asking < maxAtOnce: // else an answer wakes the loop
			x.asking = true
			l.asking++
			lookUp(text)
		}
	}
	return next
}

// take takes an answer.
func (l *loop) take(a answer, now time.Time) {
	l.asking--
	x := l.names[a.name]
	if x == nil || !x.asking {
		return // nobody wants it any more
	}
	x.asking, x.known = false, true
	if a.err != nil {
		if x.err == "" {
			x.since = now
			l.log.Warn("looking up a gateway of networks failed", "name", a.name, "count", len(x.addresses), "err", a.err)
		}
		x.err, x.due = a.err.Error(), now.Add(retryAfter)
		return
	}
	if x.err != "" {
		l.log.Info("gateway of networks is looked up again", "name", a.name, "lasted", now.Sub(x.since).Round(time.Second).String())
	}
	x.err, x.since, x.due = "", time.Time{}, now.Add(refreshAfter)
	if !slices.Equal(x.addresses, a.addresses) {
		l.log.Info("gateway of networks has other addresses", "name", a.name, "address", fmt.Sprint(a.addresses))
		x.addresses, l.dirty = a.addresses, true
	}
}

// publish makes the state visible, and saves it.
func (l *loop) publish() {
	was := l.current.Load()
	next := &state{settled: map[string]bool{}, unsaved: was.unsaved}
	addresses := map[string][]netip.Addr{}
	for _, text := range slices.Sorted(maps.Keys(l.names)) {
		x := l.names[text]
		if x.known {
			next.settled[text] = true
		}
		if len(x.addresses) > 0 {
			addresses[text] = x.addresses
		}
		next.status = append(next.status, Status{Name: text, Addresses: x.addresses, Err: x.err, Since: x.since})
	}
	if next.addresses = was.addresses; !was.addresses.Equal(addresses) {
		next.addresses = mesh.NewGatewayAddresses(addresses)
	}
	if l.dirty {
		next.unsaved = l.save(addresses, was.unsaved)
		l.dirty = next.unsaved != "" // and tried again after the next lookup
	}
	l.current.Store(next)
	if next.addresses != was.addresses || !maps.Equal(next.settled, was.settled) {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// file is what is on disk.
type file struct {
	Version int                     `json:"version"`
	Names   map[string][]netip.Addr `json:"names"`
}

func (n *Names) load() map[string][]netip.Addr {
	if n.cfg.Path == "" {
		return nil
	}
	var f file
	err := durable.Unseal(n.cfg.Path, &f, maxFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && f.Version != fileVersion:
		err = fmt.Errorf("it is of version %d, and this release knows %d", f.Version, fileVersion)
	}
	if err != nil {
		n.log.Error("reading gateway-addresses.json failed: gateways of networks have no addresses until their names are looked up", "err", err)
		return nil
	}
	return f.Names
}

// save writes the answers, and returns why that failed.
func (l *loop) save(addresses map[string][]netip.Addr, was string) string {
	if l.cfg.Path == "" {
		return ""
	}
	err := durable.Seal(l.cfg.Path, file{fileVersion, addresses}, maxFile)
	switch {
	case err != nil && was == "":
		l.log.Error("saving gateway-addresses.json failed: after a restart gateways of networks may have no addresses", "err", err)
	case err == nil && was != "":
		l.log.Info("saving gateway-addresses.json works again", "names", len(addresses))
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
