package svid

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

// Clock is what a host knows of the time besides its own clock: a lower bound that
// the authority has proven, by a certificate that it signed for a new key. Such a
// certificate cannot have been made before the host asked for it, whatever either
// clock shows, so a newer one always counts, and may lower the bound: the one before
// may have been signed while the server's clock was ahead.
//
// The bound is on disk, so that a host without a battery for its clock boots with a
// plausible time. Nothing is ever learned from the own clock.
type Clock struct {
	path string
	fsys durable.FS
	boot string // of this boot, or empty

	mu      sync.Mutex // guards all following fields
	proven  time.Time  // or zero
	learned time.Time  // when, with a monotonic reading
	renewed bool       // a certificate came since this boot
}

// clockFile is the format of the file.
type clockFile struct {
	Version int       `json:"version"`
	Proven  time.Time `json:"proven"`
	// Boot is the boot in which it was proven.
	Boot string `json:"boot,omitempty"`
}

const (
	clockFileVersion = 1
	maxClockFile     = 4 << 10
)

// OpenClock reads what is known from dir. boot names the present boot of the
// machine; empty means that it is not known. fsys may be nil: the operating system's.
// A file that cannot be read is an error and a Clock that knows nothing: it is
// learned again.
func OpenClock(dir, boot string, fsys durable.FS) (*Clock, error) {
	if fsys == nil {
		fsys = durable.OS{}
	}
	c := &Clock{path: filepath.Join(dir, "clock.json"), fsys: fsys, boot: boot}
	data, err := durable.ReadFile(c.path, maxClockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	var f clockFile
	if err := json.Unmarshal(data, &f); err != nil {
		return c, fmt.Errorf("reading %q: %w: the next renewal replaces it", c.path, err)
	}
	if f.Version != clockFileVersion {
		return c, fmt.Errorf("reading %q: version %d, this program knows %d: the next renewal replaces it", c.path, f.Version, clockFileVersion)
	}
	c.proven, c.learned = f.Proven, time.Now()
	c.renewed = boot != "" && f.Boot == boot
	return c, nil
}

// Now is the time where the own clock shows own: that, or the lower bound if the own
// clock is behind it.
func (c *Clock) Now(own time.Time) time.Time {
	if bound := c.bound(); own.Before(bound) {
		return bound
	}
	return own
}

// Behind reports whether the own clock, which shows own, is behind what the
// authority has proven: one of the two is wrong.
func (c *Clock) Behind(own time.Time) bool { return own.Before(c.bound()) }

// bound is the lower bound now. What was proven grows older by a clock that nobody
// sets.
func (c *Clock) bound() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proven.IsZero() {
		return time.Time{}
	}
	return c.proven.Add(time.Since(c.learned))
}

// Renewed reports whether the authority has certified something for this host since
// the machine booted. Before that the own clock may not have been set yet.
func (c *Clock) Renewed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renewed
}

// Certified learns from an identity that was just received for a new key.
func (c *Clock) Certified(id *Identity) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// The server's time, less the backdating: no less than that skew is allowed for.
	c.proven, c.learned, c.renewed = id.Leaf().NotBefore, time.Now(), true
}

// Joined notes that the authority has just certified this host, for a key that may
// not be new: that proves no time.
func (c *Clock) Joined() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewed = true
}

// Path is the file of the lower bound.
func (c *Clock) Path() string { return c.path }

// Save writes what is known.
func (c *Clock) Save() error {
	c.mu.Lock()
	f := clockFile{Version: clockFileVersion, Proven: c.proven.UTC()}
	if c.renewed {
		f.Boot = c.boot
	}
	c.mu.Unlock()
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encoding what is known of the time: %w", err)
	}
	return durable.WriteFile(c.fsys, c.path, append(data, '\n'), 0o600)
}
