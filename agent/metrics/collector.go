package metrics

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/internal/loglimit"
)

// readInterval is the time between two readings of Envoy's counters if nobody scrapes. It is
// shorter than the time after which Envoy drops series that do not change.
const readInterval = 30 * time.Second

// Limits of one reading of Envoy: its time, its size in bytes, that of a line, and that of all
// lines that are not counters of requests.
const (
	envoyTime = 4 * time.Second
	maxEnvoy  = 256 << 20
	maxLine   = 128 << 10
	maxOthers = 32 << 20
)

// Process is a run of Envoy.
type Process struct {
	// PID is 0 while there is none.
	PID int
	// Since is when it was started, or taken over.
	Since time.Time
	// Birth identifies the process, also among those of other boots; empty if it is not known.
	Birth string
	// Adopted means that an earlier agent started it, and published what it counted until then.
	Adopted bool
}

// is reports whether both are one run. Its birth does not count: the kernel forgets it when the
// process ends.
func (p Process) is(o Process) bool { return p.PID == o.PID && p.Since.Equal(o.Since) }

// Config is what a [Collector] needs. All fields but Listeners, StateFile, Owner, LossesFile and
// MaxSeries are needed.
type Config struct {
	Logger *slog.Logger
	// Open begins to read a path of Envoy's admin interface.
	Open func(ctx context.Context, path string) (io.ReadCloser, error)
	// Process is the Envoy that runs now.
	Process func() Process
	// Workload is the workload of this host, as it is known now.
	Workload func() Workload
	// Listeners are those that Envoy accepted; nil means that nobody knows what Envoy did not report.
	Listeners func() Listeners
	// Socket is the unix socket of the access log service, and UID the only user that may
	// connect.
	Socket string
	UID    uint32
	// Guard requires the token of every caller.
	Guard *peercred.Guard
	// StateFile has the counters while no agent runs, and Owner says whose they are; an empty
	// StateFile means that they begin with 0.
	StateFile, Owner string
	// LossesFile has how often counts were lost; empty means that nobody knows after a restart.
	LossesFile string
	// MaxSeries limits label sets; 0 means [DefaultMaxSeries].
	MaxSeries int
}

// Collector has a host's metrics of requests and connections.
type Collector struct {
	c     Config
	log   *slog.Logger
	store *store
	logs  *accessLog
	// uncounted finds what Envoy did not report. The store's mu guards it.
	uncounted *uncounted
	// reads has one element: whoever has it reads Envoy, and owns the intake and the epoch.
	reads  chan struct{}
	intake *intake
	epoch  Process // that was read last
	// saved is what the agent before this one saved, until Envoy is read first; or nil. It does
	// not change.
	saved *state
	// savedOpen are its connections, until it is known which Envoy runs. The store's mu guards it.
	savedOpen []stateOpen
	// left is what the agent before this one saved if it left its Envoy running, until an Envoy
	// runs; or nil. It, followed, replaced and lastRead are owned by whoever reads Envoy.
	left *state
	// followed is the Envoy that was seen last, and lastRead when it was read last. replaced was
	// read before its end.
	followed, replaced Process
	lastRead           time.Time
	losses             losses

	failures, malformed atomic.Uint64
	failureLines        loglimit.Limiter
}

// New checks the configuration, and takes what the agent before this one saved; it starts
// nothing.
func New(c Config) (*Collector, error) {
	if c.Logger == nil || c.Open == nil || c.Process == nil || c.Workload == nil || c.Socket == "" || c.Guard == nil {
		return nil, errors.New("configuring metrics: Logger, Open, Process, Workload, Socket and Guard are needed")
	}
	if c.MaxSeries == 0 {
		c.MaxSeries = DefaultMaxSeries
	}
	if c.MaxSeries < 0 {
		return nil, fmt.Errorf("configuring metrics: the limit of series is %d: it must be at least 1", c.MaxSeries)
	}
	s := newStore(c.MaxSeries)
	u := newUncounted(s)
	x := &Collector{
		c: c, log: c.Logger.With("component", "agent/metrics"), store: s, uncounted: u, reads: make(chan struct{}, 1), intake: newIntake(s, u),
		failureLines: loglimit.Limiter{Burst: 1, Every: time.Minute},
	}
	x.logs = newAccessLog(x, time.Now())
	x.reads <- struct{}{}
	since, err := x.losses.open(c.LossesFile)
	if err != nil {
		x.log.Warn("the number of losses of counters is unusable; it begins with 0", "path", c.LossesFile, "err", err)
	}
	saved, err := x.restore(time.Now())
	if err != nil {
		x.log.Warn("saved counters of requests are unusable; they begin with 0", "path", c.StateFile, "err", err)
	}
	if !saved {
		x.lose(agentEnded, since)
	}
	return x, nil
}

// Run reads Envoy's counters now and then, and serves the access log service, until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.logs.run(ctx) })
	group.Go(func() error {
		ticker := time.NewTicker(readInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_, _ = c.read(ctx, requestsOnly, nil) // logged and counted
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// Paths of Envoy's admin interface. The second leaves out what never counted, as the page of
// Envoy's own port does.
const (
	requestsOnly = "/stats/prometheus?filter=" + `^istio\.`
	everything   = "/stats/prometheus?usedonly"
)

var (
	errNoEnvoy  = errors.New("Envoy is not running")
	errReplaced = errors.New("Envoy was replaced while it was asked")
	errFinished = errors.New("the agent is stopping")
	errTooLarge = errors.New("the answer is too large")
)

// read reads Envoy's counters of requests into the store. Lines of other metrics are given to
// others, if it is not nil; the line is valid until it returns.
func (c *Collector) read(ctx context.Context, path string, others func(line []byte)) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, envoyTime)
	defer cancel()
	select {
	case <-c.reads:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { c.reads <- struct{}{} }()
	defer func() {
		if err != nil && !errors.Is(err, errNoEnvoy) {
			c.noteFailure(ctx, err)
		}
	}()
	running := c.c.Process()
	if c.isFinished() {
		return 0, errFinished // and Envoy may be stopped
	}
	if c.follow(running); running.PID == 0 {
		return 0, errNoEnvoy
	}
	now := time.Now()
	c.store.mu.Lock()
	c.resumeConnections(now, running)
	c.uncounted.follow(running)
	c.store.mu.Unlock()
	before, totalsErr := c.readTotals(ctx, now)
	if totalsErr != nil {
		c.noteFailure(ctx, totalsErr)
	}
	body, err := c.c.Open(ctx, path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }()
	if c.c.Process() != running {
		return 0, errReplaced // whose answer it is, is not known
	}
	first := c.epoch == (Process{})
	if c.epoch != running {
		c.logs.forget(now, running.Since)
		c.epoch = running
	}
	c.intake.begin(now, fmt.Sprint(running.PID, running.Since.UnixNano()), c.c.Workload(), first && running.Adopted)
	if first && c.saved.resumes(running) {
		c.intake.resume(c.saved.Known)
	}
	c.saved = nil
	malformed := c.intake.malformed
	long, err := eachLine(body, maxEnvoy, func(line []byte) {
		if !c.intake.take(line) && others != nil {
			others(line)
		}
	})
	if c.intake.end(err == nil); err == nil {
		c.lastRead = now
		if before != nil {
			c.settle(now, before)
		}
	}
	c.logs.expire(now)
	c.malformed.Add(c.intake.malformed - malformed + uint64(long))
	return long, err
}

// noteFailure counts and logs a reading that failed.
func (c *Collector) noteFailure(ctx context.Context, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	c.failures.Add(1)
	if left, ok := c.failureLines.Allow(time.Now()); ok {
		c.log.WarnContext(ctx, "reading Envoy's metrics failed; counters go on with the next reading", "err", err, "left_out", left)
	}
}

// eachLine calls each for every line, which is valid until it returns. It skips lines that are
// longer than maxLine, and returns their number.
func eachLine(r io.Reader, limit int64, each func(line []byte)) (long int, err error) {
	limited := &io.LimitedReader{R: r, N: limit + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	skipping, ended := false, false
	for !ended {
		line, err := lines.ReadSlice('\n')
		ended = errors.Is(err, io.EOF)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if !skipping {
				long++
			}
			skipping = true
			continue
		case err != nil && !ended:
			return long, fmt.Errorf("reading metrics: %w", err)
		case limited.N == 0:
			return long, fmt.Errorf("%w: more than %d MiB", errTooLarge, limit>>20)
		}
		if !skipping && len(line) > 0 {
			each(bytes.TrimSuffix(line, []byte("\n")))
		}
		skipping = false
	}
	return long, nil
}
