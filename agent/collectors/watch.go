package collectors

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Limits of a reading.
const (
	interval      = 30 * time.Second // Envoy goes through all of its statistics for each
	readTime      = 5 * time.Second
	maxStatistics = 4 << 20 // bytes
	maxCollectors = 64      // those beyond are not watched
	// Of so many readings, so many must have losses until a collector counts as failing: one that
	// restarts does not.
	recent, mostly = 2, 2
)

// Config is what a Watch needs.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Open begins to read a path of the admin interface of Envoy.
	Open func(ctx context.Context, path string) (io.ReadCloser, error)
	// Configured reports whether Envoy has a cluster that it sends spans or logs to: one that IsCollector
	// knows. Without one, Envoy is not asked.
	Configured func() bool
	// Process identifies the Envoy that runs; empty means that none does. adopted means that it ran
	// before this agent: what it counted until then is not counted again.
	Process func() (id string, adopted bool)
}

// Status is what collectors did not take.
type Status struct {
	// Calls are requests and calls with spans or logs, LogEntries lines for access log services, and
	// Spans segments for SkyWalking.
	Calls      uint64 `json:"calls"`
	LogEntries uint64 `json:"log_entries"`
	Spans      uint64 `json:"spans"`
	// Collectors are those that get something, sorted by name.
	Collectors []Collector `json:"collectors,omitempty"`
}

// Collector is one of a host's collectors.
type Collector struct {
	// Name is HOST:PORT, and Form is that of its cluster: grpc, http or stream.
	Name string `json:"name"`
	Form string `json:"form"`
	// Waiting are requests, calls and streams without an end, now.
	Waiting uint64 `json:"waiting"`
	// Dropped were not sent because too many waited, Unanswered took too long, and Failed ended in
	// another way, such as without a connection.
	Dropped    uint64 `json:"dropped"`
	Unanswered uint64 `json:"unanswered"`
	Failed     uint64 `json:"failed"`
	// Failing says that it did not take what it was sent in the last minute, with the numbers of
	// that minute; or nil.
	Failing *Losses `json:"failing,omitempty"`
}

// Losses are those of about a minute.
type Losses struct {
	Dropped    uint64 `json:"dropped"`
	Unanswered uint64 `json:"unanswered"`
	Failed     uint64 `json:"failed"`
	// Entries are lines and spans that a stream did not take. Envoy counts them for all streams
	// together, so each of its collectors has all of them.
	Entries uint64 `json:"entries,omitempty"`
}

func (l Losses) any() bool { return l != Losses{} }

// Watch reads what Envoy counts.
type Watch struct {
	c      Config
	log    *slog.Logger
	status atomic.Pointer[Status]

	// The goroutine of Run owns all following fields.
	process string
	last    map[string]uint64 // of the process, by the statistic's name
	sums    Status
	known   map[string]*watched
}

// watched is a collector with its last readings, the newest last.
type watched struct {
	Collector
	readings []Losses
}

// New checks the configuration.
func New(c Config) (*Watch, error) {
	if c.Logger == nil || c.Open == nil || c.Configured == nil || c.Process == nil {
		return nil, errors.New("configuring the watch of collectors: Logger, Open, Configured and Process are needed")
	}
	return &Watch{c: c, log: c.Logger.With("component", "agent/collectors"), known: map[string]*watched{}}, nil
}

// Status is that of the last reading.
func (w *Watch) Status() Status {
	if s := w.status.Load(); s != nil {
		return *s
	}
	return Status{}
}

// Run reads until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.read(ctx) // an Envoy that does not answer is others' to report
		}
	}
}

// names are the statistics that are read. A cluster's name ends in ";" there.
const names = `^(?:cluster\.outbound\|\d+\|telemetry_[a-z]+\|.+;\.upstream_rq_(?:active|5xx|pending_overflow|active_overflow|max_duration_reached|timeout)` +
	`|access_logs\.\w+\.logs_dropped|tracing\.\w+\.segments_dropped)$`

// IsCollector reports whether a cluster is one of collectors.
func IsCollector(cluster string) bool {
	direction, rest, _ := strings.Cut(cluster, "|")
	_, subset, _ := strings.Cut(rest, "|")
	return direction == "outbound" && strings.HasPrefix(subset, "telemetry_")
}

var clusterStat = regexp.MustCompile(`^cluster\.outbound\|(\d+)\|telemetry_([a-z]+)\|(.+);\.upstream_rq_(\w+)$`)

// read takes one reading.
func (w *Watch) read(ctx context.Context) {
	id, adopted := w.c.Process()
	if id == "" || !w.c.Configured() && len(w.known) == 0 { // the reading after the last one forgets it
		return
	}
	now, err := w.statistics(ctx)
	if again, _ := w.c.Process(); err != nil || again != id {
		return
	}
	before := w.sums.LogEntries + w.sums.Spans
	first := w.process == "" && adopted
	if w.process != id {
		w.process, w.last = id, map[string]uint64{}
	}
	round := map[string]growth{}
	for name, n := range now {
		grown := n
		if was := w.last[name]; n >= was {
			grown -= was
		}
		if first {
			grown = 0
		}
		w.count(name, n, grown, round)
	}
	w.last = now
	w.evaluate(ctx, round, w.sums.LogEntries+w.sums.Spans-before)
}

// statistics are those of this moment, by name.
func (w *Watch) statistics(ctx context.Context) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	body, err := w.c.Open(ctx, "/stats?filter="+url.QueryEscape(names))
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	out := map[string]uint64{}
	lines := bufio.NewScanner(io.LimitReader(body, maxStatistics))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out, lines.Err()
}

// growth is what the statistics of a collector grew by, by the end of their names.
type growth map[string]uint64

func (g growth) losses() Losses {
	out := Losses{Dropped: g["pending_overflow"] + g["active_overflow"], Unanswered: g["max_duration_reached"] + g["timeout"]}
	// Envoy answers these itself, with 503 and 504.
	out.Failed = g["5xx"] - min(g["5xx"], out.Dropped+g["timeout"])
	return out
}

// count adds what a statistic grew by.
func (w *Watch) count(name string, value, grown uint64, round map[string]growth) {
	m := clusterStat.FindStringSubmatch(name)
	switch {
	case strings.HasPrefix(name, "access_logs."):
		w.sums.LogEntries += grown
		return
	case strings.HasPrefix(name, "tracing."):
		w.sums.Spans += grown
		return
	case m == nil:
		return
	}
	key := m[3] + ":" + m[1] + " " + m[2]
	c := w.known[key]
	if c == nil {
		if len(w.known) == maxCollectors {
			return
		}
		c = &watched{Collector: Collector{Name: m[3] + ":" + m[1], Form: m[2]}}
		w.known[key] = c
	}
	if round[key] == nil {
		round[key] = growth{}
	}
	if round[key][m[4]] = grown; m[4] == "active" {
		c.Waiting = value
	}
}

// evaluate finds which collectors fail, and publishes the status.
func (w *Watch) evaluate(ctx context.Context, round map[string]growth, entries uint64) {
	for key, c := range w.known {
		g, there := round[key]
		if !there { // the configuration does not have it any more
			delete(w.known, key)
			continue
		}
		l := g.losses()
		if c.Form == "stream" {
			l.Entries = entries
		}
		c.Dropped, c.Unanswered, c.Failed = c.Dropped+l.Dropped, c.Unanswered+l.Unanswered, c.Failed+l.Failed
		if c.Form != "stream" {
			w.sums.Calls += l.Dropped + l.Unanswered + l.Failed
		}
		c.readings = append(c.readings, l)
		c.readings = c.readings[max(len(c.readings)-recent, 0):]
		w.evaluateOne(ctx, c)
	}
	out := w.sums
	for _, c := range w.known {
		out.Collectors = append(out.Collectors, c.Collector)
	}
	slices.SortFunc(out.Collectors, func(a, b Collector) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Form, b.Form)) })
	w.status.Store(&out)
}

func (w *Watch) evaluateOne(ctx context.Context, c *watched) {
	var sum Losses
	bad := 0
	for _, l := range c.readings {
		if l.any() {
			bad++
		}
		sum.Dropped, sum.Unanswered, sum.Failed, sum.Entries = sum.Dropped+l.Dropped, sum.Unanswered+l.Unanswered, sum.Failed+l.Failed, sum.Entries+l.Entries
	}
	was := c.Failing != nil
	c.Failing = nil
	if bad >= mostly || was && bad > 0 {
		c.Failing = &sum
	}
	switch is := c.Failing != nil; {
	case is && !was:
		w.log.WarnContext(ctx, "a collector does not take spans and logs of Envoy; requests are not affected", "name", c.Name, "reason", sum.reason())
	case !is && was:
		w.log.InfoContext(ctx, "a collector takes spans and logs of Envoy again", "name", c.Name)
	}
}

func (l Losses) reason() string {
	var out []string
	for _, x := range []struct {
		n    uint64
		text string
	}{
		{l.Unanswered, "not answered in time"},
		{l.Dropped, "dropped because too many waited for an answer"},
		{l.Failed, "failed, as without a connection"},
		{l.Entries, "lines or spans dropped because a stream takes no more"},
	} {
		if x.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	return strings.Join(out, ", ")
}

// Problems are the same for those who keep them: their words change only with what is so.
func (s Status) Problems() (out []string) {
	for _, c := range s.Collectors {
		switch l := c.Failing; {
		case l == nil:
		case l.Unanswered+l.Dropped+l.Entries > 0:
			out = append(out, fmt.Sprintf("the collector %s does not answer, or too late: Envoy drops spans or logs for it; requests are not affected. "+
				"Find out why its program hangs or is overloaded; it gets what is new when it answers again", c.Name))
		default:
			out = append(out, fmt.Sprintf("the collector %s takes no spans or logs of Envoy, which drops them: calls fail, as without a connection; requests are not affected. "+
				"Look whether it runs and is reachable from this host", c.Name))
		}
	}
	return out
}

// Remarks are problems that need action.
func (s Status) Remarks() (out []string) {
	for _, c := range s.Collectors {
		if c.Failing == nil {
			continue
		}
		what := "calls with spans or logs"
		if c.Form == "stream" {
			what = "streams of spans or logs"
		}
		out = append(out, fmt.Sprintf("the collector %s does not take what Envoy reports; requests are not affected. Of the %s of the last minute: %s. Look whether it runs, answers and is reachable from this host",
			c.Name, what, c.Failing.reason()))
	}
	return out
}
