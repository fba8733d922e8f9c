package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/xds"
)

// Bounds of what is kept and of what one trace has.
const (
	maxChanges  = 64 // snapshots without an answer of all proxies
	maxReadings = 16 // sources with spans in a trace
	maxObjects  = 8  // changed objects named in a trace
)

// flushFor is how long the end of the process waits for the last spans to be sent.
const flushFor = 2 * time.Second

// Config says where traces go.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Endpoint is the URL of a receiver of OTLP by gRPC, such as http://127.0.0.1:4317; with
	// https, over TLS. Empty means that of OpenTelemetry's variables, see [Endpoint].
	Endpoint string
	// Version is that of the program.
	Version string
}

// Endpoint is the receiver of traces that OpenTelemetry's variables name, or empty.
func Endpoint() string {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if v := os.Getenv(name); v != "" {
			return v
		}
	}
	return ""
}

// Tracer makes and sends traces. Its methods return at once.
type Tracer struct {
	log      *slog.Logger
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer

	mu       sync.Mutex // guards all following fields
	composed map[string]files.Composed
	changes  []change // by generation
}

// change is what is known of a snapshot that is on its way to the proxies.
type change struct {
	registry.Publication

	composed map[string]files.Composed
}

// New makes a tracer. All other settings, such as headers, certificates and sampling, are
// those of OpenTelemetry's variables (OTEL_…).
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if v := os.Getenv(name); v != "" && v != "grpc" {
			return nil, fmt.Errorf("%s=%q: traces are sent by gRPC only: leave it out, and name a port for gRPC", name, v)
		}
	}
	var opts []otlptracegrpc.Option
	if cfg.Endpoint != "" {
		u, err := url.Parse(cfg.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("%q is no receiver of OTLP: write http://HOST:PORT, or https:// for TLS", cfg.Endpoint)
		}
		opts = append(opts, otlptracegrpc.WithEndpointURL(cfg.Endpoint))
	}
	exporter, err := otlptracegrpc.New(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("making the exporter of traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "fairlead-server"), attribute.String("service.version", cfg.Version)), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("describing this process for traces: %w", err), exporter.Shutdown(ctx))
	}
	t := &Tracer{
		log: cfg.Logger.With("component", "tracing"), composed: map[string]files.Composed{},
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)),
	}
	// The SDK reports errors of its exporters to one handler of the process.
	limit := &loglimit.Limiter{Burst: 1, Every: time.Minute}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		if omitted, ok := limit.Allow(time.Now()); ok {
			t.log.WarnContext(context.WithoutCancel(ctx), "sending traces failed; they are dropped", "err", err, "left_out", omitted)
		}
	}))
	t.tracer = t.provider.Tracer("github.com/fairlead/fairlead")
	return t, nil
}

// Run sends traces until ctx ends.
func (t *Tracer) Run(ctx context.Context) error {
	<-ctx.Done()
	return t.Close(context.WithoutCancel(ctx))
}

// Close sends what is left, for a short time.
func (t *Tracer) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushFor)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.WarnContext(ctx, "sending the last traces failed", "err", err)
	}
	return nil
}

// Composed takes the report of a source of files.
func (t *Tracer) Composed(c files.Composed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, ok := t.composed[c.Source]; ok { // no snapshot has the one before yet
		c.Noticed, c.Decoded = before.Noticed, before.Decoded
	}
	t.composed[c.Source] = c
}

// Published takes the report of the registry.
func (t *Tracer) Published(p registry.Publication) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := change{Publication: p, composed: map[string]files.Composed{}}
	for _, r := range p.Readings {
		if f, ok := t.composed[r.Source]; ok && !f.Sent.After(r.Last) {
			c.composed[r.Source] = f
			delete(t.composed, r.Source)
		}
	}
	t.changes = append(t.changes, c)
	if n := len(t.changes) - maxChanges; n > 0 {
		t.changes = slices.Delete(t.changes, 0, n)
	}
}

// Answered takes the report of a rollout that has ended, and makes its trace.
func (t *Tracer) Answered(r xds.Rollout) {
	t.mu.Lock()
	var c change
	if i := slices.IndexFunc(t.changes, func(c change) bool { return c.Generation == r.Generation }); i >= 0 {
		c = t.changes[i]
		t.changes = slices.Delete(t.changes, i, i+1)
	}
	t.mu.Unlock()
	t.emit(c, r)
}

// span makes a span of something that is over.
func (t *Tracer) span(ctx context.Context, name string, from, to time.Time, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	if to.Before(from) { // the clock was set
		to = from
	}
	ctx, s := t.tracer.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(attrs...))
	s.End(trace.WithTimestamp(to))
	return ctx, s
}

// emit makes the spans of a change.
func (t *Tracer) emit(c change, r xds.Rollout) {
	began := r.Started
	earlier := func(times ...time.Time) {
		for _, at := range times {
			if !at.IsZero() && at.Before(began) {
				began = at
			}
		}
	}
	earlier(c.Merging)
	debounced := c.Merging
	for _, s := range c.Readings {
		earlier(s.First, c.composed[s.Source].Noticed)
		if s.First.Before(debounced) {
			debounced = s.First
		}
	}
	ctx, root := t.tracer.Start(context.Background(), "change", trace.WithNewRoot(), trace.WithTimestamp(began), trace.WithAttributes(
		attribute.Int64("fairlead.generation", int64(r.Generation)), attribute.Int("fairlead.changes", len(r.Changes)), attribute.StringSlice("fairlead.objects", objects(r)),
		attribute.Int("fairlead.proxies", r.Affected), attribute.Int("fairlead.accepted", r.Accepted), attribute.Int("fairlead.proxies_left_out", r.ClassesMore),
	))
	for _, s := range c.Readings[:min(len(c.Readings), maxReadings)] {
		source := attribute.String("fairlead.source", s.Source)
		if f, ok := c.composed[s.Source]; ok {
			t.span(ctx, "decode", f.Noticed, f.Decoded, source)
			t.span(ctx, "fragment", f.Decoded, s.First, source)
		}
	}
	if !c.Merging.IsZero() {
		t.span(ctx, "debounce", debounced, c.Merging)
		t.span(ctx, "snapshot", c.Merging, c.Merged)
	}
	built := []attribute.KeyValue{
		attribute.Int64("fairlead.views_built", int64(r.Work.ViewsBuilt)), attribute.Int64("fairlead.views_kept", int64(r.Work.ViewsKept)), attribute.Int64("fairlead.classes", int64(r.Work.Classes)),
	}
	for kind, n := range r.Work.Built {
		built = append(built, attribute.Int64("fairlead.encoded_bytes."+kind.Short(), int64(n.Bytes)))
	}
	t.span(ctx, "views and encode", r.Started, r.Updated, built...)
	for i := range r.Classes {
		t.class(ctx, &r, &r.Classes[i])
	}
	if n := len(r.Rejected) + r.RejectedMore; n > 0 {
		root.SetStatus(codes.Error, fmt.Sprintf("%d resources were rejected", n))
	}
	root.End(trace.WithTimestamp(later(began, r.Done)))
}

// class makes the span of a class of proxies, from the announcement to the last answer.
func (t *Tracer) class(ctx context.Context, r *xds.Rollout, c *xds.RolloutClass) {
	end := c.Last
	if end.IsZero() { // its proxies left
		end = r.Done
	}
	ctx, s := t.tracer.Start(ctx, "class", trace.WithTimestamp(r.Started), trace.WithAttributes(
		attribute.String("fairlead.proxy", c.Proxy), attribute.Int("fairlead.proxies", c.Proxies), attribute.Int("fairlead.rejected", c.Rejected)))
	if !c.Sent.IsZero() {
		t.span(ctx, "encode and send", r.Started, c.Sent)
		t.span(ctx, "answer", c.Sent, end)
	}
	if !c.First.IsZero() {
		s.AddEvent("first answer", trace.WithTimestamp(c.First))
	}
	if c.Rejected > 0 {
		s.SetStatus(codes.Error, "a proxy rejected resources")
	}
	s.End(trace.WithTimestamp(later(r.Started, end)))
}

func later(a, b time.Time) time.Time {
	if b.Before(a) {
		return a
	}
	return b
}

// objects names some of the changed objects.
func objects(r xds.Rollout) (names []string) {
	for _, c := range r.Changes[:min(len(r.Changes), maxObjects)] {
		names = append(names, c.Key.String())
	}
	return names
}
