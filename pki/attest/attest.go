package attest

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// DefaultMaxHosts is how many hosts are recorded.
const DefaultMaxHosts = 100_000

// keptKeys is how many of a host's last keys are remembered: the one it has and,
// because an answer can be lost, the one before.
const keptKeys = 2

// Reasons for a refusal. They are for the log and for the command line.
var (
	ErrInUse    = errors.New("host name is in use")
	ErrNotFound = errors.New("no such host")
	// ErrNotSaved is no refusal: nothing is promised that is not on the disk, and the
	// disk does not take it. Trying again helps once it does.
	ErrNotSaved = durable.ErrNotSaved
)

// Host is a host, or a direct client, and what it is entitled to.
type Host struct {
	Name string `json:"name"`
	// Direct is a client that has a workload's identity and no host's.
	Direct bool           `json:"direct,omitempty"`
	Pairs  []profile.Pair `json:"pairs"`
	// Type is sidecar or router.
	Type    string          `json:"type"`
	Binding profile.Binding `json:"binding"`
	Joined  time.Time       `json:"joined"`
	// Keys are hashes of the last public keys that were certified, newest first.
	Keys []jointoken.Hash `json:"keys"`

	// Addresses are those that the host's token names as its own. They are in a file
	// of their own.
	Addresses []Address `json:"-"`

	// Readopted is when it was admitted by its certificates, because its record was
	// lost; zero if it was not. It is in a file of its own.
	Readopted time.Time `json:"-"`
	// Fault is why the record cannot be used; empty when it can.
	Fault string `json:"-"`
	// Seen and NotAfter are of the last certificate since the server started;
	// zero when there was none.
	Seen     time.Time `json:"-"`
	NotAfter time.Time `json:"-"`
}

// HasKey says whether the key is one of the last that were certified.
func (h Host) HasKey(key profile.KeyHash) bool { return slices.Contains(h.Keys, jointoken.Hash(key)) }

// Allows says whether the host is entitled to the workload.
func (h Host) Allows(pair profile.Pair) bool { return slices.Contains(h.Pairs, pair) }

// Config is what Entitlements needs.
type Config struct {
	// Dir is the authority's directory; hosts/ and tokens/ are made in it. The
	// authority's lock must be held.
	Dir    string
	Logger *slog.Logger
	// MaxHosts and MaxTokens bound what is kept; zero means the defaults.
	MaxHosts  int
	MaxTokens int
	// Readopt admits hosts that are not on record; zero means none.
	Readopt Readopt
	// FS writes the files; nil means the operating system's.
	FS durable.FS
}

// Entitlements has the records of the hosts and their identities.
type Entitlements struct {
	logger *slog.Logger
	store  hostStore
	named  addressStore
	tokens *jointoken.Tokens
	max    int
	marks  markStore

	readopt Readopt
	removed *removedList // guarded by change

	// change puts changes in order, writes to the disk included. It is taken
	// before mu and before the lock of tokens. New hosts share it, each with the lock
	// of its name: a disk takes many small files in the time of one.
	change  sync.RWMutex
	names   [nameLocks]sync.Mutex // by hash; taken after change
	seed    maphash.Seed
	mu      sync.RWMutex // guards all following fields; never held during I/O
	hosts   map[string]*entry
	bound   map[profile.Binding]*entry
	joining int // hosts that have a place and are not on the disk yet
}

// nameLocks is how many hosts may be on their way to the disk.
const nameLocks = 256

type entry struct {
	host    Host
	revoked chan struct{}
}

// New loads what is on the disk.
func New(cfg Config) (*Entitlements, error) {
	if cfg.Dir == "" || cfg.Logger == nil {
		return nil, errors.New("entitlements without a directory or a logger")
	}
	if cfg.FS == nil {
		cfg.FS = durable.OS{}
	}
	if cfg.MaxHosts == 0 {
		cfg.MaxHosts = DefaultMaxHosts
	}
	dir := filepath.Join(cfg.Dir, "hosts")
	if err := durable.MakeDir(dir); err != nil {
		return nil, err
	}
	tokenStore, err := jointoken.NewFileStore(filepath.Join(cfg.Dir, "tokens"), cfg.FS)
	if err != nil {
		return nil, err
	}
	tokens, err := jointoken.New(jointoken.Config{Store: tokenStore, Logger: cfg.Logger, Max: cfg.MaxTokens})
	if err != nil {
		return nil, err
	}
	named, err := newAddressStore(filepath.Join(cfg.Dir, "addresses"), cfg.FS)
	if err != nil {
		return nil, err
	}
	removed, err := openRemoved(cfg.Dir, cfg.FS)
	if err != nil {
		return nil, err
	}
	e := &Entitlements{
		readopt: cfg.Readopt, removed: removed, marks: markStore{filepath.Join(cfg.Dir, "readopted"), cfg.FS},
		logger: cfg.Logger.With("component", "attest"), tokens: tokens, max: cfg.MaxHosts, named: named,
		store: hostStore{dir: dir, fsys: cfg.FS},
		hosts: map[string]*entry{}, bound: map[profile.Binding]*entry{}, seed: maphash.MakeSeed(),
	}
	hosts, err := e.store.load()
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if h.Fault != "" {
			e.logger.Error("host record is unusable; remove the host and let it join again", "host", h.Name, "err", h.Fault)
		}
		if h.Addresses, err = e.named.ofHost(h); err != nil {
			e.logger.Error("address proofs of a host are lost: make a new token with --address", "host", h.Name, "err", err)
		}
		if h.Readopted, err = e.marks.of(h); err != nil {
			e.logger.Warn("reading whether a host was readmitted by its certificates failed", "host", h.Name, "err", err)
		}
		e.set(h)
	}
	return e, nil
}

// CreateToken makes a join token, which proves that the addresses are the host's. A
// direct client without a name is given one.
func (e *Entitlements) CreateToken(g jointoken.Grant, ttl time.Duration, now time.Time, addresses ...Address) (svid.Secret, jointoken.Record, error) {
	if g.Direct && g.Host == "" {
		var b [6]byte
		if _, err := rand.Read(b[:]); err != nil {
			return svid.Secret{}, jointoken.Record{}, fmt.Errorf("drawing a name: %w", err)
		}
		g.Host = "direct-" + hex.EncodeToString(b[:])
	}
	if g.Type == "" {
		g.Type = "sidecar"
	}
	e.change.Lock()
	defer e.change.Unlock()
	if !g.Replace && e.find(g.Host) != nil {
		return svid.Secret{}, jointoken.Record{}, inUse(g.Host)
	}
	secret, r, err := e.tokens.Create(g, ttl, now)
	if err != nil || len(addresses) == 0 {
		return secret, r, err
	}
	e.named.sweep(e.tokens.List())
	if err := e.named.put(tokenFile(r.Hash), addresses); err != nil { // nobody has the token yet
		return svid.Secret{}, jointoken.Record{}, errors.Join(err, e.tokens.Withdraw(func(o jointoken.Record) bool { return o.Hash == r.Hash }))
	}
	return secret, r, nil
}

// Redeem admits whoever has the secret and the key. What it returns is on the
// disk: the token's binding to the key first, then the host. A crash between is
// mended by the same key redeeming again.
func (e *Entitlements) Redeem(secret svid.Secret, key profile.KeyHash, now time.Time) (Host, error) {
	name, ok := e.tokens.Host(secret)
	if !ok {
		return Host{}, jointoken.ErrUnknown
	}
	if h, done, err := e.redeemNew(name, secret, key, now); done {
		return h, err
	}
	e.change.Lock()
	defer e.change.Unlock()
	return e.redeem(secret, key, now)
}

// Pending reports whether somebody may redeem a secret now.
func (e *Entitlements) Pending(secret svid.Secret, now time.Time) bool {
	return e.tokens.Pending(secret, now)
}

// redeemNew is Redeem for a host that is not on record, beside those of other names;
// done is false if it is on record.
func (e *Entitlements) redeemNew(name string, secret svid.Secret, key profile.KeyHash, now time.Time) (h Host, done bool, err error) {
	e.change.RLock()
	defer e.change.RUnlock()
	own := &e.names[maphash.String(e.seed, name)%nameLocks]
	own.Lock()
	defer own.Unlock()
	if e.find(name) != nil {
		return Host{}, false, nil
	}
	h, err = e.redeem(secret, key, now)
	return h, true, err
}

// redeem is called with change, or with a share of it and the lock of the host's name.
func (e *Entitlements) redeem(secret svid.Secret, key profile.KeyHash, now time.Time) (Host, error) {
	placed := false
	defer func() {
		if placed {
			e.mu.Lock()
			e.joining--
			e.mu.Unlock()
		}
	}()
	r, err := e.tokens.Redeem(secret, key, now, func(r jointoken.Record) (err error) {
		placed, err = e.admit(r)
		return err
	})
	if err != nil {
		return Host{Name: r.Grant.Host}, err
	}
	old := e.find(r.Grant.Host)
	if old != nil && old.host.Binding == r.Use.Binding {
		return old.host, nil
	}
	if old != nil {
		// The tokens of the one before go first: none of them may take the
		// name back.
		before := old.host.Binding
		if err := e.tokens.Withdraw(func(t jointoken.Record) bool { return t.Use != nil && t.Use.Binding == before }); err != nil {
			return Host{Name: r.Grant.Host}, err
		}
	}
	h := Host{
		Name: r.Grant.Host, Direct: r.Grant.Direct, Pairs: r.Grant.Pairs, Type: r.Grant.Type,
		Binding: r.Use.Binding, Joined: r.Use.At, Keys: []jointoken.Hash{jointoken.Hash(key)},
	}
	// The addresses first: they count for this binding alone.
	if h.Addresses, err = e.named.redeem(r.Hash, h); err != nil {
		return Host{Name: h.Name}, err
	}
	if old != nil {
		e.noteRemoved(old.host, now)
	}
	if err := e.store.put(h); err != nil {
		return Host{Name: h.Name}, err
	}
	e.set(h)
	e.logger.Info("host joined", "host", h.Name, "direct", h.Direct, "pairs", h.Pairs, "type", h.Type, "replaced", old != nil)
	return h, nil
}

// admit runs inside tokens.Redeem. A host that is new is counted until it is on the
// disk.
func (e *Entitlements) admit(r jointoken.Record) (placed bool, err error) {
	old := e.find(r.Grant.Host)
	switch {
	case old == nil:
		e.mu.Lock()
		defer e.mu.Unlock()
		if n := len(e.hosts) + e.joining; n >= e.max {
			return false, fmt.Errorf("there are %d hosts already: remove some that are gone", n)
		}
		e.joining++
		return true, nil
	case r.Use != nil && r.Use.Binding == old.host.Binding, r.Grant.Replace:
		return false, nil
	default:
		return false, inUse(r.Grant.Host)
	}
}

func inUse(name string) error {
	return fmt.Errorf("%w: %q; make the token with --replace to move the name to another host, or remove the host first", ErrInUse, name)
}

// Find gives the host that a binding belongs to, and a channel that is closed
// when the binding is revoked.
func (e *Entitlements) Find(b profile.Binding) (Host, <-chan struct{}, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	en, ok := e.bound[b]
	if !ok {
		return Host{}, nil, false
	}
	return en.host, en.revoked, true
}

// Issued remembers that a certificate for the key was made under the binding.
// Call it before the certificate is handed out. It writes only when the key is
// another one than before, and refuses when the host is gone meanwhile. Where there
// is nothing to write it does not wait for those who write.
func (e *Entitlements) Issued(b profile.Binding, key profile.KeyHash, notAfter, now time.Time) error {
	if e.issuedAgain(b, jointoken.Hash(key), notAfter, now) {
		return nil
	}
	e.change.Lock()
	defer e.change.Unlock()
	h, _, ok := e.Find(b)
	if !ok {
		return ErrNotFound
	}
	if h.Keys[0] != jointoken.Hash(key) {
		keys := append([]jointoken.Hash{jointoken.Hash(key)}, h.Keys...)
		h.Keys = keys[:min(len(keys), keptKeys)]
		if err := e.store.put(h); err != nil {
			return err
		}
	}
	h.Seen, h.NotAfter = now.UTC(), notAfter.UTC()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bound[b].host = h
	return nil
}

// issuedAgain is Issued for the key that was certified last; false if it is another
// one, or the host is gone.
func (e *Entitlements) issuedAgain(b profile.Binding, key jointoken.Hash, notAfter, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	en, ok := e.bound[b]
	if !ok || en.host.Keys[0] != key {
		return false
	}
	en.host.Seen, en.host.NotAfter = now.UTC(), notAfter.UTC()
	return true
}

// List is every host, by name.
func (e *Entitlements) List() []Host {
	e.mu.RLock()
	defer e.mu.RUnlock()
	out := make([]Host, 0, len(e.hosts))
	for _, en := range e.hosts {
		out = append(out, en.host)
	}
	slices.SortFunc(out, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Remove takes everything from the name: its entitlement, so that its streams
// end at once and its renewals are refused, and the join tokens for it.
func (e *Entitlements) Remove(name string) error {
	e.change.Lock()
	defer e.change.Unlock()
	had := e.find(name)
	// The tokens first: none may bring the name back after a crash between.
	withdrawn := false
	err := e.tokens.Withdraw(func(t jointoken.Record) bool {
		yes := t.Grant.Host == name
		withdrawn = withdrawn || yes
		return yes
	})
	if err != nil {
		return fmt.Errorf("removing host %q: %w", name, err)
	}
	if had == nil {
		if withdrawn {
			return nil
		}
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.noteRemoved(had.host, wallclock.Now())
	if err := e.store.remove(name); err != nil {
		return fmt.Errorf("removing host %q: %w", name, err)
	}
	if err := e.named.remove(hostFile(name)); err != nil {
		e.logger.Warn("deleting the address record of a removed host failed (harmless)", "host", name, "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropLocked(name)
	e.logger.Info("host removed", "host", name)
	return nil
}

func (e *Entitlements) find(name string) *entry {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.hosts[name]
}

// set puts a host in the place of whoever had the name, who is revoked.
func (e *Entitlements) set(h Host) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dropLocked(h.Name)
	en := &entry{host: h, revoked: make(chan struct{})}
	e.hosts[h.Name] = en
	if h.Fault == "" {
		e.bound[h.Binding] = en
	}
}

func (e *Entitlements) dropLocked(name string) {
	old, ok := e.hosts[name]
	if !ok {
		return
	}
	delete(e.hosts, name)
	delete(e.bound, old.host.Binding)
	close(old.revoked)
}
