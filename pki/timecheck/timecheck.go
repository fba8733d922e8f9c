package timecheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/durable"
)

// How often things happen.
const (
	lookEvery = 5 * time.Second
	saveEvery = 5 * time.Minute
	// With many votes the median is taken anew this often at most.
	medianEvery = time.Second
	manyVotes   = 256
)

// Config is what a Check needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Path is the file of what must survive a restart.
	Path string
	// FS writes it; nil means the operating system's.
	FS durable.FS
}

// Check is what is known of the server's wall clock.
type Check struct {
	cfg Config

	mu       sync.Mutex // guards all following fields
	votes    map[uint64]vote
	next     uint64
	changed  bool          // votes have, since median was taken
	taken    time.Duration // when that was, by the kernel's clock
	median   time.Time     // the origin by the votes, or zero
	voters   int
	last     time.Time      // the origin by the wall clock, as of the last look
	alarm    *Alarm         // or nil
	accepted *time.Duration // by how much hosts may be off: a person said that they are wrong
	held     bool           // as of the last look, for the log
	unsaved  bool           // that was logged
}

// Alarm is a wall clock that was set, or is behind the saved time.
type Alarm struct {
	// Off is how far it went; negative is back.
	Off time.Duration `json:"off"`
	// Since is when that was noticed, by the wall clock then.
	Since time.Time `json:"since"`
	// Reason says against what.
	Reason string `json:"reason"`
}

// Status is how the clock stands.
type Status struct {
	Now time.Time `json:"now"`
	// Voters is how many votes there are, one a host and address.
	Voters int `json:"voters"`
	// Off is how far the median of the votes is ahead of the server; it counts from
	// MinVotes votes on.
	Off time.Duration `json:"off"`
	// Held is why nothing is signed, or empty.
	Held string `json:"held,omitempty"`
	// Against are hosts that outvote the server while nothing is signed, the farthest
	// off first, and AgainstMore how many there are besides.
	Against     []Voter `json:"against,omitempty"`
	AgainstMore int     `json:"against_more,omitempty"`
	// Accepted is by how much a person accepted hosts to be off, or nil.
	Accepted *time.Duration `json:"accepted,omitempty"`
	Alarm    *Alarm         `json:"alarm,omitempty"`
}

// reading is what both clocks show at one moment.
type reading struct {
	wall time.Time
	// kernel is a clock that nobody sets, and that goes on while the machine sleeps.
	kernel time.Duration
}

// origin is the time by the wall clock at which the kernel's clock began: it changes
// when the wall clock is set, and only then.
func (r reading) origin() time.Time { return r.wall.Add(-r.kernel) }

func read() reading {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return reading{wallclock.Now(), time.Since(processStart)}
	}
	return reading{wallclock.Now(), time.Duration(ts.Nano())}
}

// processStart serves where the kernel has no such clock.
var processStart = time.Now() //nolint:gochecknoglobals // constant

// savedState is the file.
type savedState struct {
	Version  int            `json:"version"`
	Time     time.Time      `json:"time"`
	Accepted *time.Duration `json:"accepted,omitempty"`
}

const (
	stateVersion = 1
	maxState     = 4 << 10
)

// New reads what was saved. A file that cannot be read is told of, and no reason not
// to start.
func New(cfg Config) (*Check, error) {
	if cfg.Logger == nil || cfg.Path == "" {
		return nil, errors.New("checking the clock: Logger and Path are needed")
	}
	if cfg.FS == nil {
		cfg.FS = durable.OS{}
	}
	cfg.Logger = cfg.Logger.With("component", "clock")
	c := &Check{cfg: cfg, votes: map[uint64]vote{}}
	c.start(read())
	return c, nil
}

func (c *Check) start(r reading) {
	c.last = r.origin()
	saved, err := c.load()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		c.cfg.Logger.Warn("reading the saved time failed; writing a new one", "err", err)
		return
	}
	c.accepted = saved.Accepted
	if back := saved.Time.Sub(r.wall); back > stepAlarm {
		c.raise(r, -back, "the time saved before the start")
	}
}

func (c *Check) load() (savedState, error) {
	var s savedState
	data, err := durable.ReadFile(c.cfg.Path, maxState)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("reading %q: %w", c.cfg.Path, err)
	}
	if s.Version != stateVersion {
		return s, fmt.Errorf("reading %q: version %d, this program knows %d", c.cfg.Path, s.Version, stateVersion)
	}
	return s, nil
}

// Run looks at the clocks until ctx ends, and saves the time.
func (c *Check) Run(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var saved time.Duration
	for {
		r := read()
		c.look(r)
		if saved == 0 || r.kernel-saved >= saveEvery {
			saved = r.kernel
			c.save(r)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			c.save(read())
			return nil
		}
	}
}

func (c *Check) save(r reading) {
	c.mu.Lock()
	s := savedState{Version: stateVersion, Time: r.wall.UTC(), Accepted: c.accepted}
	was := c.unsaved
	c.mu.Unlock()
	data, err := json.Marshal(s)
	if err == nil {
		err = durable.WriteFile(c.cfg.FS, c.cfg.Path, append(data, '\n'), 0o600)
	}
	if err != nil && !was {
		c.cfg.Logger.Warn("saving the time failed: a clock that is set back while the server is down would not be detected", "path", c.cfg.Path, "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsaved = err != nil
}

// HostTime takes the vote of a host: its clock showed clock at about the moment at,
// which has a monotonic reading. forget takes the vote back, when the stream ends.
func (c *Check) HostTime(host, address string, clock, at time.Time) (forget func()) {
	r := read()
	return c.vote(vote{host, peeraddr.Host(address), clock.Add(-(r.kernel - time.Since(at)))})
}

func (c *Check) vote(v vote) (forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	stream := c.next
	c.votes[stream] = v
	c.changed = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.votes, stream)
		c.changed = true
	}
}

// Hold is why nothing may be signed now, or nil.
func (c *Check) Hold() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holdLocked(read())
}

// Held reports whether nothing may be signed now.
func (c *Check) Held() bool { return c.Hold() != nil }

// Estimate is the time by the hosts' clocks, whose vote is no proof, where this
// machine's shows wall; it is wall if there is no vote, or they agree.
func (c *Check) Estimate(wall time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	off, n := c.offLocked(read())
	if n == 0 || off.Abs() <= Tolerance {
		return wall
	}
	return wall.Add(off)
}

// offLocked is how far the median is ahead of the wall clock.
func (c *Check) offLocked(r reading) (time.Duration, int) {
	if c.changed && (len(c.votes) < manyVotes || r.kernel-c.taken >= medianEvery) {
		c.median, c.voters = median(c.votes, r.origin())
		c.changed, c.taken = false, r.kernel
	}
	if c.voters == 0 {
		return 0, 0
	}
	return c.median.Sub(r.origin()), c.voters
}

func (c *Check) holdLocked(r reading) error {
	off, n := c.offLocked(r)
	if n < MinVotes || off.Abs() <= Tolerance {
		return nil
	}
	if c.accepted != nil && (off-*c.accepted).Abs() <= Tolerance {
		return nil
	}
	return &heldError{off: off, voters: n}
}

// heldError says why signing is on hold.
type heldError struct {
	off    time.Duration
	voters int
}

// Error implements error.
func (e *heldError) Error() string {
	return fmt.Sprintf("signing is on hold: by the clocks of %d hosts this server's clock is %s; set the clock that is wrong, and signing resumes by itself; "+
		"if the server's is right, `fairlead clock accept` lets signing go on; if hosts lie, remove them: `fairlead clock` names them", e.voters, aheadOrBehind(-e.off))
}

func aheadOrBehind(d time.Duration) string {
	if d < 0 {
		return (-d).Round(time.Second).String() + " behind"
	}
	return d.Round(time.Second).String() + " ahead"
}

// look notices what has changed, and logs it once.
func (c *Check) look(r reading) {
	c.mu.Lock()
	defer c.mu.Unlock()
	origin := r.origin()
	if step := origin.Sub(c.last); step.Abs() > stepAlarm {
		c.raise(r, step, "a clock that nobody sets")
	}
	c.last = origin
	off, n := c.offLocked(r)
	agreed := n >= MinVotes && off.Abs() <= Tolerance
	if agreed && c.accepted != nil {
		c.accepted = nil
		c.cfg.Logger.Info("clocks agree again; operator's acceptance cleared")
	}
	if agreed && c.alarm != nil {
		c.alarm = nil
		c.cfg.Logger.Info("clock alarm cleared: clock agrees with the hosts", "hosts", n)
	}
	err := c.holdLocked(r)
	if held := err != nil; held != c.held {
		c.held = held
		if held {
			named, more := against(c.votes, origin, off)
			c.cfg.Logger.Error("signing is on hold: the server's clock differs from the hosts'", "reason", err, "outvoted_by", named, "left_out", more,
				"command", "fairlead clock accept, or fairlead host remove for hosts that lie")
		} else {
			c.cfg.Logger.Info("signing resumed", "hosts", n, "off", off.Round(time.Second).String())
		}
	}
}

// raise is called with c.mu held, or before anybody else has c. A step back to where
// the clock was is the end of an alarm.
func (c *Check) raise(r reading, off time.Duration, against string) {
	if c.alarm != nil && (c.alarm.Off+off).Abs() <= stepAlarm {
		c.alarm = nil
		c.cfg.Logger.Info("clock alarm cleared: clock was set back", "off", off.Round(time.Second).String())
		return
	}
	if c.alarm != nil {
		off += c.alarm.Off
	}
	c.alarm = &Alarm{Off: off, Since: r.wall.UTC(), Reason: against}
	c.cfg.Logger.Error("clock jumped (set, or machine suspended); certificates are signed by this clock",
		"off", off.Round(time.Second).String(), "against", against, "command", "fairlead clock accept")
}

// Accept notes that a person holds this server's clock to be right: the alarm is over,
// and signing resumes, for as long as the hosts are off by what they are off by now.
func (c *Check) Accept() Status {
	r := read()
	c.mu.Lock()
	c.alarm = nil
	if off, n := c.offLocked(r); n >= MinVotes && off.Abs() > Tolerance {
		c.accepted = &off
	}
	c.mu.Unlock()
	c.save(r)
	c.look(r)
	return c.Status()
}

// Status is how the clock stands.
func (c *Check) Status() Status {
	r := read()
	c.mu.Lock()
	defer c.mu.Unlock()
	off, n := c.offLocked(r)
	s := Status{Now: r.wall.UTC(), Voters: n, Off: off}
	if err := c.holdLocked(r); err != nil {
		s.Held = err.Error()
		s.Against, s.AgainstMore = against(c.votes, r.origin(), off)
	}
	if c.accepted != nil {
		accepted := *c.accepted
		s.Accepted = &accepted
	}
	if c.alarm != nil {
		alarm := *c.alarm
		s.Alarm = &alarm
	}
	return s
}

// Remarks say what is not well, for people.
func (c *Check) Remarks() []string {
	s := c.Status()
	return s.Remarks()
}

// Outvoted says which hosts outvote the server, for people who may know their names;
// empty if none do.
func (s *Status) Outvoted() string {
	if len(s.Against) == 0 {
		return ""
	}
	names := make([]string, len(s.Against))
	for i, v := range s.Against {
		names[i] = v.String()
	}
	text := "outvoted by " + strings.Join(names, ", ")
	if s.AgainstMore > 0 {
		text += fmt.Sprintf(", and %d more", s.AgainstMore)
	}
	return text + "; if they are wrong: `fairlead clock accept`, and `fairlead host remove HOST` for one that lies"
}

// Remarks say what is not well, for people.
func (s *Status) Remarks() []string {
	var out []string
	if s.Held != "" {
		out = append(out, s.Held)
	}
	if a := s.Alarm; a != nil {
		out = append(out, fmt.Sprintf("the clock of this machine is %s of %s, since %s: check it; `fairlead clock accept` ends this alarm",
			aheadOrBehind(a.Off), a.Reason, a.Since.Format(time.RFC3339)))
	}
	if s.Accepted != nil {
		out = append(out, fmt.Sprintf("a person accepted that this server's clock is %s of the hosts'", aheadOrBehind(-*s.Accepted)))
	}
	return out
}
