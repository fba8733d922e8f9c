package accept

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/peeraddr"
)

// Defaults, see [Config].
const (
	DefaultMaxUnauthenticated           = 1536
	DefaultMaxUnauthenticatedPerAddress = 1024
	DefaultTimeout                      = 10 * time.Second
)

// What an unauthenticated connection may send, as it is on the wire: before its
// handshake begins, for the rest of it, and for calls. A ClientHello has 2 KiB at
// most of those who come here, the rest of a handshake with a client certificate
// 4 KiB, and the largest certificate request 16 KiB (profile.MaxCSR).
const (
	helloBytes     = 4 << 10
	handshakeBytes = 16 << 10
	requestBytes   = 64 << 10
)

// minHandshakes is how many handshakes may wait, and how many may be under way, at
// least, where there is room for so many connections.
const minHandshakes = 1024

// leastKnown is how many addresses of authenticated peers are remembered at least.
const leastKnown = 1 << 14

// Config is what an [Acceptor] needs.
type Config struct {
	Logger *slog.Logger
	// TLS are the settings of the handshake.
	TLS *tls.Config
	// Identify says whom a client certificate proves, and whether it proves
	// somebody. The chain has been checked as TLS says, and is not empty.
	Identify func(chain []*x509.Certificate) (identity string, ok bool)
	// Opened, if it is not nil, is called for each authenticated connection whose
	// certificate was proven in its handshake, which began at that time. It gives
	// what is to be called when the connection is closed.
	Opened func(chain []*x509.Certificate, peer string, began time.Time, hangup func()) (closed func())
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer

	// MaxConnections bounds all connections. Must be positive.
	MaxConnections int
	// MaxPerIdentity bounds the authenticated connections of one identity. Must
	// be positive.
	MaxPerIdentity int
	// MaxUnauthenticated bounds the connections that have made the handshake and
	// are not authenticated; 0 means DefaultMaxUnauthenticated.
	MaxUnauthenticated int
	// MaxUnauthenticatedPerAddress bounds those of one address; 0 means
	// DefaultMaxUnauthenticatedPerAddress.
	MaxUnauthenticatedPerAddress int
	// Timeout is how long a connection lives that is not authenticated; 0 means
	// DefaultTimeout.
	Timeout time.Duration
}

// Acceptor accepts connections. See the package's comment.
type Acceptor struct {
	cfg          Config
	handshake    credentials.TransportCredentials
	metrics      *metrics
	lines        [reasons]loglimit.Limiter
	admission    *admission
	handed       [stages]*listener // of handshaking there is none
	done         chan struct{}     // closed when Run ends
	calm         chan struct{}     // see Calm
	floodChanged chan struct{}     // see Crowd

	mu    sync.Mutex // guards all following fields
	by    map[string]*conn
	of    map[string]int // authenticated connections, by identity
	pools [pools]*pool
	count [stages]int
	peak  int // of unauthenticated connections, since there were few
	// crowded: there are many whose handshake has begun, and few have not been there since.
	flooded bool
	// here are the authenticated connections by address, and known the addresses that had
	// some last: who comes from many does not make those of others forgotten that are here.
	here  map[string]int
	known *simplelru.LRU[string, struct{}]
}

// New makes an Acceptor for a listener at an address. It accepts nothing before Run.
func New(cfg Config, addr net.Addr) (*Acceptor, error) {
	if cfg.Logger == nil || cfg.TLS == nil || cfg.Identify == nil || cfg.MaxConnections <= 0 || cfg.MaxPerIdentity <= 0 {
		return nil, errors.New("accepting connections without a logger, TLS settings, a way to identify peers, or limits")
	}
	cfg.Logger = cfg.Logger.With("component", "accept")
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	a := &Acceptor{
		cfg: cfg, handshake: credentials.NewTLS(withAdmission(cfg.TLS)), admission: newAdmission(), done: make(chan struct{}), calm: make(chan struct{}, 1), floodChanged: make(chan struct{}, 1),
		by: map[string]*conn{}, of: map[string]int{}, here: map[string]int{},
	}
	var err error
	if a.known, err = newKnown(cfg.MaxConnections); err != nil {
		return nil, fmt.Errorf("remembering addresses of authenticated peers: %w", err)
	}
	for i := range a.lines {
		a.lines[i].Burst, a.lines[i].Every = 1, 10*time.Second
	}
	for s := unauthenticated; s < stages; s++ {
		a.handed[s] = &listener{addr: addr, conns: make(chan *conn), done: a.done}
	}
	a.pools[waitingPool] = newPool(max(minHandshakes, cfg.MaxConnections/4), 0)
	unauthenticated := cmp.Or(cfg.MaxUnauthenticated, DefaultMaxUnauthenticated)
	a.pools[begunPool] = newPool(max(minHandshakes, unauthenticated), 0)
	a.pools[callPool] = newPool(unauthenticated, cmp.Or(cfg.MaxUnauthenticatedPerAddress, DefaultMaxUnauthenticatedPerAddress))
	a.metrics, err = newMetrics(cfg.Registerer, a)
	return a, err
}

// Authenticated has the connections of authenticated peers.
func (a *Acceptor) Authenticated() net.Listener { return a.handed[authenticated] }

func newKnown(connections int) (*simplelru.LRU[string, struct{}], error) {
	return simplelru.NewLRU[string, struct{}](max(leastKnown, connections), nil) //nolint:wrapcheck // its caller says what for
}

// knowsLocked reports whether there are hosts at an address, or were not long ago.
func (a *Acceptor) knowsLocked(group string) bool {
	return a.here[group] > 0 || a.known.Contains(group)
}

// Unauthenticated has those of all others.
func (a *Acceptor) Unauthenticated() net.Listener { return a.handed[unauthenticated] }

// Calm has a value when many unauthenticated connections have come and gone: what
// they took may be given back.
func (a *Acceptor) Calm() <-chan struct{} { return a.calm }

// Run accepts from l until ctx ends, and closes it and every connection then.
func (a *Acceptor) Run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var handshakes sync.WaitGroup
	defer handshakes.Wait()
	defer a.closeAll()
	defer cancel()
	handshakes.Go(func() { a.closeLost(ctx) })
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	wait := time.Duration(0)
	for {
		raw, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = raw.Close()
			}
			return nil
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("accepting connections of hosts: %w", err)
			}
			if exhausted(err) {
				a.makeRoom()
			}
			a.logLimited(reasonAccept, "accepting a connection failed", "err", err)
			if wait = min(max(2*wait, time.Millisecond), time.Second); !sleep(ctx, wait) {
				return nil
			}
			continue
		}
		wait = 0
		keepAlive(raw)
		if c := a.add(raw); c != nil {
			handshakes.Go(func() { a.shake(c) })
		}
	}
}

// exhausted means that there are no descriptors or buffers for one more.
func exhausted(err error) bool {
	return slices.ContainsFunc([]error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// shake makes the handshake and hands the connection over.
func (a *Acceptor) shake(c *conn) {
	err := c.awaitFirst()
	if err == nil {
		c.secure, c.info, err = a.handshake.ServerHandshake(c)
	}
	if err != nil {
		c.releaseSlot()
		_ = c.Close()
		return
	}
	next, ok := a.admit(c)
	c.begun = false
	c.releaseSlot()
	if !ok {
		return
	}
	if next == unauthenticated {
		c.secure = newFramed(c.secure, c)
	} else {
		c.secure = a.gated(c)
	}
	select {
	case a.handed[next].conns <- c:
	case <-a.done:
		_ = c.Close()
	}
}

// admit counts a connection whose handshake is over in its next stage; false if it
// has been closed.
func (a *Acceptor) admit(c *conn) (next stage, ok bool) {
	identity, ok := a.identify(c.info)
	if !ok {
		return unauthenticated, a.await(c)
	}
	if !a.authenticate(c, identity) {
		a.drop(c, reasonIdentity)
		return authenticated, false
	}
	a.opened(c)
	return authenticated, true
}

// opened reports an authenticated connection. A session that was resumed proves
// nothing new.
func (a *Acceptor) opened(c *conn) {
	t, ok := c.info.(credentials.TLSInfo)
	if !ok || t.State.DidResume || a.cfg.Opened == nil {
		return
	}
	ended := a.cfg.Opened(t.State.PeerCertificates, c.at, c.began, func() { _ = c.Close() })
	a.mu.Lock()
	closed := c.closed
	if !closed {
		c.ended = ended
	}
	a.mu.Unlock()
	if closed {
		ended()
	}
}

func (a *Acceptor) identify(info credentials.AuthInfo) (string, bool) {
	t, ok := info.(credentials.TLSInfo)
	if !ok || len(t.State.PeerCertificates) == 0 {
		return "", false
	}
	return a.cfg.Identify(t.State.PeerCertificates)
}

// add counts a new connection; nil if there is no room for it.
func (a *Acceptor) add(raw net.Conn) *conn {
	at := raw.RemoteAddr().String()
	c := &conn{Conn: raw, in: a, at: at, group: peeraddr.Group(at), began: time.Now(), hello: headers{size: recordHeader}, gone: make(chan struct{})}
	c.left.Store(helloBytes)
	a.mu.Lock()
	var first *conn
	full := a.open() >= a.cfg.MaxConnections
	if full {
		first = a.victimLocked()
	}
	if full && first == nil {
		a.mu.Unlock()
		_ = raw.Close()
		a.refused(c)
		return nil
	}
	second := a.pools[waitingPool].add(c, a.knowsLocked(c.group))
	a.by[c.at] = c
	a.count[handshaking]++
	a.peak = max(a.peak, a.count[handshaking]+a.count[unauthenticated])
	c.until, c.spare = c.began.Add(a.cfg.Timeout), maxLate*a.cfg.Timeout
	c.expiry = time.AfterFunc(a.cfg.Timeout, func() { a.drop(c, reasonTime) })
	a.mu.Unlock()
	a.evict(first)
	a.evict(second)
	return c
}

// open is how many connections there are. Those that have to go count no more.
func (a *Acceptor) open() int {
	n := a.count[authenticated]
	for _, p := range a.pools {
		n += p.size
	}
	return n
}

// await has a connection wait for calls without an identity.
func (a *Acceptor) await(c *conn) bool {
	a.mu.Lock()
	if c.closed {
		a.mu.Unlock()
		return false
	}
	a.leaveLocked(c)
	victim := a.pools[callPool].add(c, a.knowsLocked(c.group))
	c.stage = unauthenticated
	a.count[unauthenticated]++
	a.checkFloodLocked()
	a.mu.Unlock()
	c.left.Store(requestBytes)
	a.evict(victim)
	return true
}

// authenticate counts a connection for an identity, if that may have one more.
func (a *Acceptor) authenticate(c *conn, identity string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.closed {
		return true // whoever uses it finds out
	}
	if a.of[identity] >= a.cfg.MaxPerIdentity {
		return false
	}
	a.leaveLocked(c)
	c.expiry.Stop()
	c.left.Store(-1)
	c.stage, c.who = authenticated, identity
	a.of[identity]++
	a.count[authenticated]++
	a.here[c.group]++
	return true
}

// leaveLocked takes a connection out of its stage.
func (a *Acceptor) leaveLocked(c *conn) {
	a.count[c.stage]--
	if c.pool != nil {
		c.pool.remove(c)
	}
	a.checkFloodLocked()
	if c.stage != authenticated {
		return
	}
	if a.of[c.who]--; a.of[c.who] == 0 {
		delete(a.of, c.who)
	}
	if a.here[c.group]--; a.here[c.group] == 0 {
		delete(a.here, c.group)
	}
	a.known.Add(c.group, struct{}{})
}

// remove forgets a connection that is closed, and gives what is to be called.
func (a *Acceptor) remove(c *conn) (ended func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended = c.ended
	c.ended = nil
	if c.closed {
		return ended
	}
	c.closed = true
	close(c.gone)
	c.expiry.Stop()
	a.leaveLocked(c)
	if a.by[c.at] == c {
		delete(a.by, c.at)
	}
	if left := a.count[handshaking] + a.count[unauthenticated]; a.peak >= many && left <= a.peak/8 {
		a.peak = left
		select {
		case a.calm <- struct{}{}:
		default: // it has one
		}
	}
	return ended
}

// many is from how many unauthenticated connections on it is worth to give back
// what they took.
const many = 16

// drop closes a connection against its will. One that has been authenticated
// meanwhile stays.
func (a *Acceptor) drop(c *conn, why reason) {
	a.mu.Lock()
	gone := c.closed || c.stage == authenticated
	a.mu.Unlock()
	if gone {
		return
	}
	a.metrics.dropped[why].Inc()
	if text := why.text(); text != "" {
		a.logLimited(why, text, "peer", c.at)
	}
	_ = c.Close() // whatever it says, it is closed
}

// refused counts a connection for which nobody could go.
func (a *Acceptor) refused(c *conn) {
	a.metrics.refused.Inc()
	a.logLimited(reasonFull, "--max-connections reached", "connections", a.cfg.MaxConnections, "peer", c.at)
}

// logLimited logs connections that were closed, at most once in ten seconds for each
// reason.
func (a *Acceptor) logLimited(why reason, text string, args ...any) {
	if n, ok := a.lines[why].Allow(time.Now()); ok {
		a.cfg.Logger.Warn("connection closed at a limit", append(args, "reason", text, "left_out", n)...)
	}
}

// Hangup closes the connection from an address, if there is one.
func (a *Acceptor) Hangup(address string) {
	a.mu.Lock()
	c := a.by[address]
	a.mu.Unlock()
	if c != nil {
		_ = c.Close() // whatever it says, it is closed
	}
}

// Resume opens the gate of the connection from an address, if there is one.
func (a *Acceptor) Resume(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.by[address]; c != nil && c.gate != nil {
		c.gate.Open()
	}
}

// gated puts a gate before a connection.
func (a *Acceptor) gated(c *conn) *Gate {
	g := NewGate(c.secure)
	a.mu.Lock()
	defer a.mu.Unlock()
	c.gate = g
	return g
}

func (a *Acceptor) closeAll() {
	close(a.done)
	a.admission.end()
	a.mu.Lock()
	all := make([]*conn, 0, len(a.by))
	for _, c := range a.by {
		all = append(all, c)
	}
	a.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// counts are the connections of each stage.
func (a *Acceptor) counts() [stages]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.count
}
