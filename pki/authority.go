package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

// Names in the state directory.
const (
	lockFile    = "lock"
	currentFile = "current.pem"
	bundleFile  = "bundle.pem"
)

const (
	maxSlotFile = 64 << 10
	// warnBefore is how long before the expiry of the root the log warns.
	warnBefore = 180 * 24 * time.Hour
)

// ErrExpired says that the authority's own certificate has ended.
var ErrExpired = errors.New("the authority's certificate has expired")

// Config is what an Authority needs.
type Config struct {
	// Dir is the authority's own directory. It is made when it is not there.
	Dir         string
	TrustDomain spiffeid.TrustDomain
	Logger      *slog.Logger
	// DefaultTTL is the life of a leaf when none is asked for; zero means 24 h.
	DefaultTTL time.Duration
	// MaxTTL is the longest life that is given; zero means the greater of 24 h
	// and DefaultTTL. What is asked for beyond it is cut, not refused.
	MaxTTL time.Duration
	// FS writes the files; nil means the operating system's.
	FS durable.FS
}

// Authority signs certificates of one trust domain.
type Authority struct {
	cfg     Config
	lock    io.Closer
	current *slot
	bundle  []*x509.Certificate
}

// New opens the authority in cfg.Dir, and makes it when the directory is empty.
// The directory is locked until Close.
func New(cfg Config, now time.Time) (*Authority, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making directory %q: %w", cfg.Dir, err)
	}
	lock, err := durable.Lock(filepath.Join(cfg.Dir, lockFile))
	if errors.Is(err, durable.ErrLocked) {
		return nil, fmt.Errorf("%w: another server uses the state directory %q; stop it, or give this one a directory of its own", err, cfg.Dir)
	}
	if err != nil {
		return nil, err
	}
	a := &Authority{cfg: cfg, lock: lock}
	if err := a.open(now); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return a, nil
}

func (c *Config) complete() error {
	switch {
	case c.Dir == "":
		return errors.New("authority without a directory")
	case c.TrustDomain.IsZero():
		return errors.New("authority without a trust domain")
	case c.Logger == nil:
		return errors.New("authority without a logger")
	}
	c.Logger = c.Logger.With("component", "pki")
	if c.DefaultTTL == 0 {
		c.DefaultTTL = profile.DefaultTTL
	}
	if c.MaxTTL == 0 {
		c.MaxTTL = max(profile.DefaultTTL, c.DefaultTTL)
	}
	if c.DefaultTTL < profile.MinTTL || c.DefaultTTL > c.MaxTTL || c.MaxTTL > profile.MaxTTL {
		return fmt.Errorf("certificate life of %s, at most %s: must be between %s and %s, the first no longer than the second",
			c.DefaultTTL, c.MaxTTL, profile.MinTTL, profile.MaxTTL)
	}
	if c.FS == nil {
		c.FS = durable.OS{}
	}
	return nil
}

// open runs under the lock, so sweeping away unfinished files is safe.
func (a *Authority) open(now time.Time) error {
	if err := durable.MakeDir(a.cfg.Dir); err != nil {
		return err
	}
	path := filepath.Join(a.cfg.Dir, currentFile)
	data, warning, err := durable.ReadKey(path, maxSlotFile)
	if warning != "" {
		a.cfg.Logger.Warn("authority key is readable by a group", "reason", warning)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := a.create(path, now); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		if err := a.load(data, now); err != nil {
			return fmt.Errorf("opening the authority in %q: %w", path, err)
		}
	}
	a.bundle = []*x509.Certificate{a.current.cert}
	return a.publish()
}

// create makes the authority. It refuses when the directory shows that there has
// been one.
func (a *Authority) create(path string, now time.Time) error {
	entries, err := os.ReadDir(a.cfg.Dir)
	if err != nil {
		return fmt.Errorf("reading directory %q: %w", a.cfg.Dir, err)
	}
	for _, e := range entries {
		if e.Name() != lockFile {
			return fmt.Errorf("the authority's key %q is gone, but %q shows that it was in use: restore it from a backup; a new authority is made only in an empty directory, and every host must then join again", path, e.Name())
		}
	}
	s, err := newSlot("current", a.cfg.TrustDomain, now)
	if err != nil {
		return err
	}
	data, err := s.encode()
	if err != nil {
		return err
	}
	if err := durable.WriteFile(a.cfg.FS, path, data, 0o600); err != nil {
		return err
	}
	a.current = s
	a.cfg.Logger.Info("authority made", "path", path, "trust_domain", a.cfg.TrustDomain.Name(), "authority", s)
	return nil
}

func (a *Authority) load(data []byte, now time.Time) error {
	s, err := decodeSlot("current", data)
	if err != nil {
		return err
	}
	if err := s.check(a.cfg.TrustDomain); err != nil {
		return err
	}
	if !now.Before(s.cert.NotAfter) {
		return fmt.Errorf("%w at %s: begin a new mesh with an empty state directory", ErrExpired, s.cert.NotAfter.UTC().Format(time.RFC3339))
	}
	if left := s.cert.NotAfter.Sub(now); left < warnBefore {
		a.cfg.Logger.Warn("authority certificate expires soon", "authority", s, "days_left", int(left.Hours()/24))
	}
	a.current = s
	return nil
}

// publish keeps bundle.pem in step with the slots. A bundle of another authority
// means that current.pem was exchanged: hosts would believe neither.
func (a *Authority) publish() error {
	path := filepath.Join(a.cfg.Dir, bundleFile)
	want := a.BundlePEM()
	have, err := durable.ReadFile(path, maxSlotFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return durable.WriteFile(a.cfg.FS, path, want, 0o644)
	case err != nil:
		return err
	case !bytes.Equal(have, want):
		return fmt.Errorf("%q holds another authority than %q: put back the pair that belongs together, or remove %q if the key is the right one", path, currentFile, bundleFile)
	}
	return nil
}

// Close gives the directory to another process.
func (a *Authority) Close() error { return a.lock.Close() }

// TrustDomain is the authority's.
func (a *Authority) TrustDomain() spiffeid.TrustDomain { return a.cfg.TrustDomain }

// Bundle is the roots to believe, the one that signs first. Nobody writes to it.
func (a *Authority) Bundle() []*x509.Certificate { return slices.Clip(a.bundle) }

// BundlePEM is Bundle in PEM.
func (a *Authority) BundlePEM() []byte {
	var out []byte
	for _, c := range a.bundle {
		out = append(out, encodeCert(c)...)
	}
	return out
}

// Pin is the SHA-256 of the SubjectPublicKeyInfo that a join token names.
func (a *Authority) Pin() (profile.KeyHash, error) {
	return profile.HashKey(a.current.cert.PublicKey)
}

// DefaultTTL is the life of a leaf when none is asked for.
func (a *Authority) DefaultTTL() time.Duration { return a.cfg.DefaultTTL }

// Sign makes the leaf and returns it with any intermediates, without the root. A
// life of zero is the default one, others are brought within the bounds. It may
// be shorter than asked for when the root ends first.
func (a *Authority) Sign(leaf profile.Leaf, now time.Time) ([]*x509.Certificate, error) {
	if leaf.TTL == 0 {
		leaf.TTL = a.cfg.DefaultTTL
	}
	leaf.TTL = min(max(leaf.TTL, profile.MinTTL), a.cfg.MaxTTL)
	root := a.current.cert
	if left := root.NotAfter.Sub(now); left < leaf.TTL {
		if left < profile.MinTTL {
			return nil, fmt.Errorf("%w at %s", ErrExpired, root.NotAfter.UTC().Format(time.RFC3339))
		}
		leaf.TTL = left
	}
	if leaf.Subject.ID.TrustDomain() != a.cfg.TrustDomain {
		return nil, fmt.Errorf("identity %s: not of trust domain %q", leaf.Subject.ID, a.cfg.TrustDomain.Name())
	}
	template, err := leaf.Template(now)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root, leaf.PublicKey, a.current.key)
	if err != nil {
		return nil, fmt.Errorf("signing for %s: %w", leaf.Subject.ID, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parsing what was signed for %s: %w", leaf.Subject.ID, err)
	}
	chain := []*x509.Certificate{cert}
	// Nothing leaves that we would not accept ourselves.
	got, err := profile.Verification{Bundle: a.bundle, TrustDomain: a.cfg.TrustDomain, Now: now}.Verify(chain)
	if err != nil {
		return nil, fmt.Errorf("checking what was signed for %s: %w", leaf.Subject.ID, err)
	}
	if got != leaf.Subject {
		return nil, fmt.Errorf("checking what was signed for %s: it names %s", leaf.Subject.ID, got.ID)
	}
	return chain, nil
}
