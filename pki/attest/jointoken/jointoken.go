package jointoken

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

const (
	// DefaultTTL is how long a token may be redeemed when nothing else is said.
	DefaultTTL = time.Hour
	// MaxTTL is the longest that may be said.
	MaxTTL = 30 * 24 * time.Hour
	// ReplayFor is how long after its first use a token works again for the key
	// it is bound to.
	ReplayFor = 10 * time.Minute
	// keepFor is how long a token that is over is kept, so that the log can say
	// why it does not work.
	keepFor = 24 * time.Hour
	// DefaultMax is how many tokens are kept.
	DefaultMax = 10_000
)

// Reasons why a token is not redeemed. They are for the log: the caller over the
// network learns none of them.
var (
	ErrUnknown = errors.New("unknown join token: never made here, revoked, or expired long ago")
	ErrExpired = errors.New("join token has expired: make another")
	ErrUsed    = errors.New("join token was used before by another key: if that was not this host, remove the host that has the name; make another token")
	ErrReplay  = errors.New("join token was used more than 10 minutes ago: make another")
)

// Grant is what a token entitles to.
type Grant struct {
	// Host is the name that the host or the direct client is recorded under.
	Host  string         `json:"host"`
	Pairs []profile.Pair `json:"pairs"`
	// Type is sidecar or router.
	Type string `json:"type"`
	// Direct is for one client with a workload's identity and no host's.
	Direct bool `json:"direct,omitempty"`
	// Replace lets the token take a name that is in use.
	Replace bool `json:"replace,omitempty"`
}

// Check says what is wrong with the grant.
func (g Grant) Check() error {
	if err := profile.CheckHostName(g.Host); err != nil {
		return err
	}
	for _, p := range g.Pairs {
		if err := p.Check(); err != nil {
			return err
		}
	}
	switch {
	case len(g.Pairs) == 0 || len(g.Pairs) > svid.MaxPairs:
		return fmt.Errorf("%d workloads: want 1 to %d", len(g.Pairs), svid.MaxPairs)
	case g.Direct && len(g.Pairs) != 1:
		return fmt.Errorf("%d workloads for a direct client: want one", len(g.Pairs))
	case g.Type != "sidecar" && g.Type != "router":
		return fmt.Errorf("type %q: want sidecar or router", g.Type)
	}
	return nil
}

// Record is what is kept of a token.
type Record struct {
	// Hash is the SHA-256 of the secret.
	Hash    Hash      `json:"hash"`
	Grant   Grant     `json:"grant"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	// Use is nil until the token is redeemed.
	Use *Use `json:"use,omitempty"`
}

// Use is the first use of a token.
type Use struct {
	Key     Hash            `json:"key"`
	Binding profile.Binding `json:"binding"`
	At      time.Time       `json:"at"`
}

// MinID is how much of an id says which token is meant, in characters.
const MinID = 8

// ID names a token without giving it away: the first 8 bytes of the hash, in hex.
func (r Record) ID() string { return r.Hash.String()[:16] }

// States of a token.
const (
	Unused  = "unused"
	Used    = "used"
	Expired = "expired"
)

// State says whether a token can be redeemed for the first time, was redeemed, or ended before.
func (r Record) State(now time.Time) string {
	switch {
	case r.Use != nil:
		return Used
	case now.Before(r.Expires):
		return Unused
	default:
		return Expired
	}
}

// Hash is a SHA-256, in hex when it is written.
type Hash [32]byte

// String is the hash in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hash) UnmarshalText(text []byte) error {
	if hex.DecodedLen(len(text)) != len(h) {
		return errors.New("hash of the wrong length")
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// Store keeps records. Put is on the disk when it returns.
type Store interface {
	// Load gives every record that can be read, and the faults of the others.
	Load() ([]Record, error)
	Put(Record) error
	Delete(Hash) error
}

// Config is what Tokens needs.
type Config struct {
	Store  Store
	Logger *slog.Logger
	// Max bounds how many tokens are kept; zero means DefaultMax.
	Max int
}

// Tokens makes and redeems tokens.
type Tokens struct {
	store  Store
	logger *slog.Logger
	max    int

	// mu guards all following fields, and puts the writes to the store in order, but
	// for those that bind tokens: what is in memory is on the disk.
	mu      sync.Mutex
	records map[Hash]Record
	// binding are the tokens that are being bound on the disk. Nobody else looks at
	// them, or deletes any token, until that is done.
	binding map[Hash]bool
	bound   *sync.Cond // of mu
}

// New loads the store. A record that cannot be read is a token that does not
// work: that is logged and hurts no other.
func New(cfg Config) (*Tokens, error) {
	if cfg.Store == nil || cfg.Logger == nil {
		return nil, errors.New("join tokens without a store or a logger")
	}
	t := &Tokens{store: cfg.Store, logger: cfg.Logger.With("component", "jointoken"), max: cfg.Max, records: map[Hash]Record{}, binding: map[Hash]bool{}}
	t.bound = sync.NewCond(&t.mu)
	if t.max == 0 {
		t.max = DefaultMax
	}
	records, err := cfg.Store.Load()
	if err != nil {
		t.logger.Error("join token records are unreadable; these tokens will not work", "err", err)
	}
	for _, r := range records {
		t.records[r.Hash] = r
	}
	return t, nil
}

// Create makes a token that may be redeemed for ttl, zero meaning DefaultTTL.
func (t *Tokens) Create(g Grant, ttl time.Duration, now time.Time) (svid.Secret, Record, error) {
	if err := g.Check(); err != nil {
		return svid.Secret{}, Record{}, fmt.Errorf("making a join token: %w", err)
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < time.Second || ttl > MaxTTL {
		return svid.Secret{}, Record{}, fmt.Errorf("making a join token: life of %s: must be between 1s and %s", ttl, MaxTTL)
	}
	secret, err := svid.NewSecret()
	if err != nil {
		return svid.Secret{}, Record{}, err
	}
	g.Pairs = slices.Clone(g.Pairs)
	slices.SortFunc(g.Pairs, profile.Pair.Compare)
	g.Pairs = slices.Compact(g.Pairs)
	r := Record{Hash: secret.Hash(), Grant: g, Created: now.UTC(), Expires: now.Add(ttl).UTC()}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.binding) > 0 {
		t.bound.Wait()
	}
	t.sweep(now)
	if len(t.records) >= t.max {
		return svid.Secret{}, Record{}, fmt.Errorf("making a join token: there are %d already; wait until some expire, or revoke some (`fairlead token list`, `fairlead token revoke`)", len(t.records))
	}
	if err := t.put(r); err != nil {
		return svid.Secret{}, Record{}, fmt.Errorf("making a join token: %w", err)
	}
	return secret, r, nil
}

// Redeem binds the token to the key, or finds it bound to it. admit is asked
// before, so that a token is not spent on a host that is refused anyway; it runs
// under the lock of Tokens. Others redeem theirs while the disk takes the binding.
func (t *Tokens) Redeem(secret svid.Secret, key profile.KeyHash, now time.Time, admit func(Record) error) (Record, error) {
	hash := Hash(secret.Hash())
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.binding[hash] {
		t.bound.Wait()
	}
	// The lookup is by a hash that the caller cannot steer, so its time tells
	// nothing about other secrets.
	r, ok := t.records[hash]
	if !ok {
		return Record{}, ErrUnknown
	}
	if err := r.usable(key, now); err != nil {
		return r, err
	}
	if err := admit(r); err != nil {
		return r, err
	}
	if r.Use != nil {
		return r, nil
	}
	use := Use{Key: key, At: now.UTC()}
	if _, err := rand.Read(use.Binding[:]); err != nil {
		return r, fmt.Errorf("drawing a binding: %w", err)
	}
	r.Use = &use
	t.binding[hash] = true
	t.mu.Unlock()
	err := t.store.Put(r)
	t.mu.Lock()
	delete(t.binding, hash)
	t.bound.Broadcast()
	if err != nil {
		return r, err
	}
	t.records[hash] = r
	return r, nil
}

// Host is whom a token is for.
func (t *Tokens) Host(secret svid.Secret) (name string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.records[Hash(secret.Hash())]
	return r.Grant.Host, ok
}

// Pending reports whether some key may redeem a token now. It waits for no disk: while
// records are written it may say that none may.
func (t *Tokens) Pending(secret svid.Secret, now time.Time) bool {
	if !t.mu.TryLock() {
		return false
	}
	defer t.mu.Unlock()
	r, ok := t.records[Hash(secret.Hash())]
	switch {
	case !ok:
		return false
	case r.Use == nil:
		return now.Before(r.Expires)
	default:
		return now.Sub(r.Use.At) <= ReplayFor
	}
}

// usable says why the token does nothing for that key, if so.
func (r Record) usable(key profile.KeyHash, now time.Time) error {
	switch {
	case r.Use == nil && !now.Before(r.Expires):
		return ErrExpired
	case r.Use == nil:
		return nil
	case subtle.ConstantTimeCompare(r.Use.Key[:], key[:]) != 1:
		return ErrUsed
	case now.Sub(r.Use.At) > ReplayFor:
		return ErrReplay
	}
	return nil
}

// Withdraw deletes the tokens that gone says yes to.
func (t *Tokens) Withdraw(gone func(Record) bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.binding) > 0 {
		t.bound.Wait()
	}
	var faults []error
	for hash, r := range t.records {
		if !gone(r) {
			continue
		}
		if err := t.store.Delete(hash); err != nil {
			faults = append(faults, err)
			continue
		}
		delete(t.records, hash)
	}
	return errors.Join(faults...)
}

// List is what is kept, by host and time.
func (t *Tokens) List() []Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Record, 0, len(t.records))
	for _, r := range t.records {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int {
		if c := strings.Compare(a.Grant.Host, b.Grant.Host); c != 0 {
			return c
		}
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Hash.String(), b.Hash.String())
	})
	return out
}

func (t *Tokens) put(r Record) error {
	if err := t.store.Put(r); err != nil {
		return err
	}
	t.records[r.Hash] = r
	return nil
}

// sweep deletes what has been over for long.
func (t *Tokens) sweep(now time.Time) {
	for hash, r := range t.records {
		over := r.Expires
		if r.Use != nil {
			over = r.Use.At.Add(ReplayFor)
		}
		if now.Sub(over) < keepFor {
			continue
		}
		if err := t.store.Delete(hash); err != nil {
			t.logger.Warn("deleting an expired join token failed", "err", err)
			continue
		}
		delete(t.records, hash)
	}
}
