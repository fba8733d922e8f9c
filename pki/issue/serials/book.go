package serials

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

const (
	maxFile     = 64 << 10
	fileSuffix  = ".json"
	fileVersion = 1
	// repeatInterval is how long the same event is not logged or written again.
	repeatInterval = time.Minute
)

// Config is what a Book needs.
type Config struct {
	// Dir is a directory of its own; it is made.
	Dir    string
	Logger *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// Known reports which hosts exist: records of others are deleted.
	Known func(host string) bool
	// Refuse closes the connections of a host whose key is in use in two places.
	Refuse bool
	// FS writes the files; nil means the operating system's.
	FS durable.FS
}

// Book has the chains of all hosts.
type Book struct {
	cfg     Config
	log     *slog.Logger
	returns prometheus.Counter

	mu     sync.Mutex // guards all following fields; never held during I/O
	chains map[string]*entry
}

type entry struct {
	chain

	writing sync.Mutex // puts writes in order; taken before Book.mu
	// All following fields are guarded by Book.mu.
	loggedAt time.Time
	unsaved  bool
}

// State is what is known of one host.
type State struct {
	// Returns counts how often it used a certificate again after a newer one, Returned is the
	// last time.
	Returns  int
	Returned time.Time
	// Fork is nil unless its key is in use in two places.
	Fork *Fork
}

// New loads the records. Unreadable ones are ignored.
func New(cfg Config) (*Book, error) {
	if cfg.Dir == "" || cfg.Logger == nil || cfg.Known == nil {
		return nil, errors.New("serial numbers of hosts without a directory, a logger or a way to know hosts")
	}
	if cfg.FS == nil {
		cfg.FS = durable.OS{}
	}
	if err := durable.MakeDir(cfg.Dir); err != nil {
		return nil, err
	}
	b := &Book{cfg: cfg, log: cfg.Logger.With("component", "serials"), chains: map[string]*entry{}}
	b.returns = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "fairlead_host_certificate_returns_total", Help: "Connections of hosts with a certificate that is older than one they used before (a restored disk, or a copied key).",
	})
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("reading directory %q: %w", cfg.Dir, err)
	}
	for _, e := range entries {
		host, ok := strings.CutSuffix(e.Name(), fileSuffix)
		if !ok {
			continue
		}
		if err := b.load(host); err != nil {
			b.log.Warn("certificate history of a host is unusable; restarting it at the next renewal", "host", host, "err", err)
		}
	}
	if cfg.Registerer == nil {
		return b, nil
	}
	forks := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fairlead_shared_host_keys", Help: "Hosts whose private key is in use in two places at once.",
	}, func() float64 { return float64(b.forks()) })
	for _, c := range []prometheus.Collector{b.returns, forks} {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("registering a metric: %w", err)
		}
	}
	return b, nil
}

func (b *Book) load(host string) error {
	path := b.path(host)
	if !b.cfg.Known(host) {
		return durable.Remove(b.cfg.FS, path)
	}
	data, err := durable.ReadFile(path, maxFile)
	if err != nil {
		return err
	}
	e := &entry{}
	if err := json.Unmarshal(data, &e.chain); err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	if e.Version != fileVersion || e.Host != host || len(e.Nodes) == 0 || len(e.Nodes) > maxNodes {
		return fmt.Errorf("reading %q: not a record of host %q that this version knows", path, host)
	}
	e.conns = map[*connection]struct{}{}
	b.chains[host] = e
	if e.Fork != nil {
		b.logFork(e, e.Fork.Peers[1], e.Fork.Serials[1])
	}
	return nil
}

// Issued records a certificate of a host, before it is sent. shown is the certificate of the
// request; nil if it had a join token.
func (b *Book) Issued(host string, binding profile.Binding, shown, leaf *x509.Certificate) {
	b.mu.Lock()
	e := b.chains[host]
	if e == nil || e.Binding != binding {
		e = &entry{chain: chain{Version: fileVersion, Host: host, Binding: binding, conns: map[*connection]struct{}{}}}
		if shown != nil {
			e.Head = SerialOf(shown)
		}
		b.chains[host] = e
	}
	n := node{Serial: SerialOf(leaf), Issued: issuedAt(leaf)}
	if shown != nil {
		n.Parent = SerialOf(shown)
		e.add(node{Serial: n.Parent, Issued: issuedAt(shown)})
	}
	e.add(n)
	b.mu.Unlock()
	b.write(e)
}

func issuedAt(c *x509.Certificate) time.Time { return profile.IssuedAt(c.NotBefore, c.NotAfter).UTC() }

// Connected records a connection that a host has opened, and returns a function to call when
// it is closed. began is the start of its handshake: the certificate was chosen after that.
func (b *Book) Connected(host string, binding profile.Binding, leaf *x509.Certificate, peer string, began time.Time, hangup func()) (closed func()) {
	peer = peeraddr.Host(peer)
	k := &connection{serial: SerialOf(leaf), peer: peer, began: began, hangup: hangup}
	now := time.Now()
	b.mu.Lock()
	e := b.chains[host]
	if e == nil || e.Binding != binding || len(e.Nodes) == 0 {
		b.mu.Unlock()
		return func() {}
	}
	was, known := e.Head, e.Fork != nil
	what := e.use(k, issuedAt(leaf), now)
	e.conns[k] = struct{}{}
	news := what >= returned && (now.Sub(e.loggedAt) >= repeatInterval || !known && e.Fork != nil)
	if news {
		e.loggedAt = now
	}
	write := what == progress || news
	var end []func()
	if e.Fork != nil && b.cfg.Refuse {
		for o := range e.conns {
			end = append(end, o.hangup)
		}
	}
	b.mu.Unlock()
	switch {
	case !news:
	case what == forked:
		b.logFork(e, peer, was)
	default:
		b.log.Warn("host used an older certificate than its latest (disk full or restored, clock set, or key copied); its next renewal repairs this",
			"host", host, "serial", k.serial.String(), "peer", peer)
	}
	if what >= returned {
		b.returns.Inc()
	}
	if write {
		b.write(e)
	}
	for _, f := range end {
		f()
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(e.conns, k)
	}
}

// logFork logs a key that is in use in two places.
func (b *Book) logFork(e *entry, peer string, was Serial) {
	b.log.Error("host key is in use in two places: two certificate chains alternate (copied disk or cloned machine)",
		"host", e.Host, "serial", was.String(), "peer", peer, "refused", b.cfg.Refuse,
		"command", Remedy(e.Host))
}

// Remedy is what ends a fork.
func Remedy(host string) string {
	return "on the host remove the agent's state directory, and join again with a token made by `fairlead token create --host " + host + " --replace`"
}

// State is what is known of a host under a binding.
func (b *Book) State(host string, binding profile.Binding) State {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.chains[host]
	if e == nil || e.Binding != binding {
		return State{}
	}
	s := State{Returns: e.Returns, Returned: e.Returned}
	if e.Fork != nil {
		f := *e.Fork
		s.Fork = &f
	}
	return s
}

// Refused says whether a host is refused because two hold its key.
func (b *Book) Refused(host string, binding profile.Binding) bool {
	return b.cfg.Refuse && b.State(host, binding).Fork != nil
}

func (b *Book) forks() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.chains {
		if e.Fork != nil {
			n++
		}
	}
	return n
}

// Forget drops what is known of a host that was removed.
func (b *Book) Forget(host string) error {
	b.mu.Lock()
	delete(b.chains, host)
	b.mu.Unlock()
	return durable.Remove(b.cfg.FS, b.path(host))
}

// write puts a chain on the disk as it is by then. That it could not be written is
// told once: it is in force until the server ends, and no reason to refuse anything.
func (b *Book) write(e *entry) {
	e.writing.Lock()
	defer e.writing.Unlock()
	b.mu.Lock()
	current := b.chains[e.Host] == e
	out := e.chain
	out.Nodes = slices.Clone(e.Nodes)
	b.mu.Unlock()
	if !current {
		return
	}
	data, err := json.Marshal(out)
	if err == nil {
		err = durable.WriteFile(b.cfg.FS, b.path(e.Host), append(data, '\n'), 0o600)
	}
	b.mu.Lock()
	news := (err != nil) != e.unsaved
	e.unsaved = err != nil
	b.mu.Unlock()
	if err != nil && news {
		b.log.Error("saving the certificate history of a host failed", "host", e.Host, "err", err)
	}
}

func (b *Book) path(host string) string { return filepath.Join(b.cfg.Dir, host+fileSuffix) }
