package metrics

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/fairlead/fairlead/internal/loglimit"
)

// Limits of the page: pages at a time, and what is read of an application.
const (
	maxPages = 4
	appTime  = 4 * time.Second
	maxApp   = 32 << 20
)

// scrapeHeader is in requests to the application: a page that is its own application would
// request itself without end.
const scrapeHeader = "X-Fairlead-Scrape"

// The parts of the page, in its order.
const (
	partEnvoy = iota
	partApplication
	partAgent
	parts
)

func partNames() [parts]string { return [parts]string{"envoy", "application", "agent"} }

// HandlerConfig is what a [Handler] needs. Logger, Collector and Own are needed.
type HandlerConfig struct {
	Logger *slog.Logger
	// Collector is that of the Envoy that runs; nil before there is one.
	Collector func() *Collector
	// Own are the agent's own metrics.
	Own prometheus.Gatherer
	// App is where the application has its metrics now; nil means that it has none. See
	// [ParseApp]. It may be nil itself.
	App func() *url.URL
	// Address is the workload's address, for the application; the zero value is unknown. It may
	// be nil.
	Address func() netip.Addr
}

// Handler serves one page with the metrics of Envoy, of the application and of the agent. A
// part that cannot be read is missing, which the agent's part and the log say. It is a
// [prometheus.Collector] of metrics about itself.
type Handler struct {
	c      HandlerConfig
	log    *slog.Logger
	client *http.Client
	pages  chan struct{}

	failures, dropped [parts]atomic.Uint64
	lines             [parts]loglimit.Limiter

	failed, left, series, overflowed, ignored, lost *prometheus.Desc
}

// NewHandler checks the configuration.
func NewHandler(c HandlerConfig) (*Handler, error) {
	if c.Logger == nil || c.Collector == nil || c.Own == nil {
		return nil, errors.New("configuring the page of metrics: Logger, Collector and Own are needed")
	}
	h := &Handler{
		c: c, log: c.Logger.With("component", "agent/metrics"), pages: make(chan struct{}, maxPages),
		failed:     prometheus.NewDesc("fairlead_agent_stats_failures_total", "Failures to read a part of the page of metrics, by part: envoy, application, agent. The page lacks what could not be read.", []string{"part"}, nil),
		left:       prometheus.NewDesc("fairlead_agent_stats_dropped_lines_total", "Lines left out of the page of metrics, by part: malformed, or of a family that an earlier part has.", []string{"part"}, nil),
		series:     prometheus.NewDesc("fairlead_agent_request_label_sets", "Label sets of metrics of requests and TCP connections. Each has up to 67 series.", nil, nil),
		overflowed: prometheus.NewDesc("fairlead_agent_request_label_sets_overflowed_total", "Label sets that found no place within the limit and count as overflow.", nil, nil),
		ignored:    prometheus.NewDesc("fairlead_agent_access_log_entries_ignored_total", "Entries of Envoy's access log service that no metric is made of.", nil, nil),
		lost:       prometheus.NewDesc("fairlead_agent_request_counter_losses_total", "Times that counts of requests and connections may have been lost, by the process that ended without handing them over: envoy, agent. It goes on after restarts.", []string{"process"}, nil),
	}
	for i := range h.lines {
		h.lines[i] = loglimit.Limiter{Burst: 1, Every: time.Minute}
	}
	h.client = &http.Client{
		Transport: &http.Transport{
			DialContext: h.dial, DisableKeepAlives: true, DisableCompression: true,
			// The address is this host's, and certificates have no such name. Istio does the same.
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // G402: see above
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h, nil
}

// ParseApp reads the URL of an application's metrics: http or https, an address of this host
// or localhost. Whether an address that is not a loopback address is the workload's is checked
// with every request.
func ParseApp(s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("%q is no URL: write one such as http://127.0.0.1:8080/metrics", s)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
		return nil, fmt.Errorf("%q: write http or https, and an address of this host, such as http://127.0.0.1:8080/metrics", s)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil && u.Hostname() != "localhost" {
		return nil, fmt.Errorf("%q: %q is no IP address: write a loopback address, or the address of the workload", s, u.Hostname())
	}
	if u.Path == "" {
		u.Path = "/metrics"
	}
	return u, nil
}

// dial connects to an address of this host only.
func (h *Handler) dial(ctx context.Context, network, at string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return nil, fmt.Errorf("dialling the application: %w", err)
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	var errs []error
	for _, host := range hosts {
		addr, err := netip.ParseAddr(host)
		if err != nil {
			return nil, fmt.Errorf("dialling the application: %w", err)
		}
		if addr = addr.Unmap(); !addr.IsLoopback() && (h.c.Address == nil || addr != h.c.Address().Unmap()) {
			return nil, fmt.Errorf("dialling the application: %s is neither a loopback address nor the workload's", addr)
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, net.JoinHostPort(addr.String(), port))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ServeHTTP writes the page in Prometheus's text format.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(scrapeHeader) != "" {
		http.Error(w, "the URL of the application's metrics is that of this page", http.StatusLoopDetected)
		return
	}
	select {
	case h.pages <- struct{}{}:
		defer func() { <-h.pages }()
	default:
		http.Error(w, "too many requests for this page at one time", http.StatusServiceUnavailable)
		return
	}
	ctx := r.Context()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	out := bufio.NewWriterSize(w, 64<<10)
	m := newMerger(out)
	for _, name := range counterNames() {
		m.reserve(name, "counter")
	}
	for _, name := range histogramNames() {
		m.reserve(name, "histogram")
	}
	own, _ := h.c.Own.Gather() // its errors are seen below
	for _, f := range own {
		m.reserve(f.GetName(), strings.ToLower(f.GetType().String()))
	}
	if c := h.c.Collector(); c != nil {
		h.envoy(ctx, c, m)
		if m.err == nil {
			m.err = c.write(out)
		}
	}
	if m.err == nil && h.c.App != nil {
		if app := h.c.App(); app != nil {
			h.application(ctx, app, m)
		}
	}
	if m.err == nil && h.agent(ctx, out) == nil {
		_ = out.Flush() // who asked has gone
	}
}

// envoy reads Envoy's counters, and writes those that are not about requests. They are read
// whole first: who reads the page slowly must not hold up the next reading.
func (h *Handler) envoy(ctx context.Context, c *Collector, m *merger) {
	m.begin()
	var others bytes.Buffer
	var full error
	long, err := c.read(ctx, everything, func(line []byte) {
		if others.Len()+len(line) > maxOthers {
			full = fmt.Errorf("%w: more than %d MiB beside the metrics of requests", errTooLarge, maxOthers>>20)
			return
		}
		others.Write(line)
		others.WriteByte('\n')
	})
	for line := range bytes.Lines(others.Bytes()) {
		m.line(line)
	}
	h.dropped[partEnvoy].Add(m.dropped + uint64(long))
	if err = errors.Join(err, full); err != nil {
		h.fail(ctx, partEnvoy, err)
	}
}

func (h *Handler) application(ctx context.Context, app *url.URL, m *merger) {
	m.begin()
	ctx, cancel := context.WithTimeout(ctx, appTime)
	defer cancel()
	err := func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, app.String(), http.NoBody)
		if err != nil {
			return fmt.Errorf("requesting the application's metrics: %w", err)
		}
		req.Header.Set("Accept", "text/plain;version=0.0.4")
		req.Header.Set(scrapeHeader, "1")
		res, err := h.client.Do(req)
		if err != nil {
			return fmt.Errorf("requesting the application's metrics: %w", err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("requesting the application's metrics: %s", res.Status)
		}
		long, err := eachLine(res.Body, maxApp, m.line)
		h.dropped[partApplication].Add(uint64(long))
		return err
	}()
	h.dropped[partApplication].Add(m.dropped)
	if err != nil {
		h.fail(ctx, partApplication, err)
	}
}

func (h *Handler) agent(ctx context.Context, out *bufio.Writer) error {
	own, err := h.c.Own.Gather()
	if err != nil {
		h.fail(ctx, partAgent, err)
	}
	encoder := expfmt.NewEncoder(out, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range own {
		if err := encoder.Encode(f); err != nil {
			return fmt.Errorf("writing the agent's metrics: %w", err)
		}
	}
	return nil
}

func (h *Handler) fail(ctx context.Context, part int, err error) {
	h.failures[part].Add(1)
	if omitted, ok := h.lines[part].Allow(time.Now()); ok {
		h.log.WarnContext(ctx, "a part of the page of metrics is missing or cut off", "name", partNames()[part], "err", err, "left_out", omitted)
	}
}

// Describe implements [prometheus.Collector].
func (h *Handler) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{h.failed, h.left, h.series, h.overflowed, h.ignored, h.lost} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (h *Handler) Collect(ch chan<- prometheus.Metric) {
	for i, name := range partNames() {
		ch <- prometheus.MustNewConstMetric(h.failed, prometheus.CounterValue, float64(h.failures[i].Load()), name)
		ch <- prometheus.MustNewConstMetric(h.left, prometheus.CounterValue, float64(h.dropped[i].Load()), name)
	}
	c := h.c.Collector()
	if c == nil {
		return
	}
	rows, overflowed := c.store.size()
	ch <- prometheus.MustNewConstMetric(h.series, prometheus.GaugeValue, float64(rows))
	ch <- prometheus.MustNewConstMetric(h.overflowed, prometheus.CounterValue, float64(overflowed))
	ch <- prometheus.MustNewConstMetric(h.ignored, prometheus.CounterValue, float64(c.logs.ignored.Load()))
	times := c.losses.times()
	for i, name := range enderNames() {
		ch <- prometheus.MustNewConstMetric(h.lost, prometheus.CounterValue, float64(times[i]), name)
	}
}
