package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// readSlots is how many reads, which Consul answers at once, are in flight at the
	// same time.
	readSlots = 16 - 1 // the heartbeat is the sixteenth
	// readTimeout bounds a read. A server without a
	// leader holds on to it for 7 s. longReadTimeout is for those with very long answers.
	readTimeout     = 15 * time.Second
	longReadTimeout = time.Minute
)

// Client reaches one Consul agent or server. It may be used from any goroutine.
type Client struct {
	// Constant after New.
	cfg    Config
	log    *slog.Logger
	target target
	api    *api.Client
	pool   *pool
	token  tokenFile
	tls    *tlsFiles
	slots  chan struct{}
	// bodies bounds the answers that are read at the same time.
	bodies     chan struct{}
	visibility visibility

	counts counts
	// protocol is the HTTP version of the latest answer, or 0.
	protocol atomic.Int32
	// lastAnswer is when the latest answer came, in Unix nanoseconds.
	lastAnswer atomic.Int64
	// pausedUntil is when reads start again after status 429, in Unix nanoseconds.
	pausedUntil atomic.Int64
	// leaderOnly is until when no stale answer is used, in Unix nanoseconds.
	leaderOnly atomic.Int64
	// down says that the heartbeat gets no answer.
	down atomic.Bool

	mu            sync.Mutex // guards all following fields
	generation    *generation
	recovered     chan struct{} // closed when something that failed works again
	recoveredAt   time.Time
	followers     int
	pendingReads  int                // reads that have a slot or wait for one
	drained       chan struct{}      // closed when there are none any more; nil while there are none
	stopHeartbeat context.CancelFunc // or nil
	heartbeatDone chan struct{}
	check         chan struct{} // asks the heartbeat for a beat now
}

type counts struct{ reads, throttled, failed, denied, resets, restores, restarts atomic.Uint64 }

// Stats are counters, which only grow, and what there is now.
type Stats struct {
	// Reads are answers, Throttled, Failed and Denied queries that got none,
	// Resets indexes that went backwards, Restores the times when Consul replaced its state by
	// that of a snapshot, and Restarts the times when all queries were restarted.
	Reads, Throttled, Failed, Denied, Resets, Restores, Restarts uint64
	// Connections and Followers are those there are now.
	Connections, Followers int
	// Down says that nothing answers.
	Down bool
}

// New checks the configuration, and that the files it names can be used. It
// starts nothing and asks nobody.
func New(c Config) (*Client, error) {
	cfg, at, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	files := &tlsFiles{ca: cfg.CAFile, cert: cfg.CertFile, key: cfg.KeyFile, server: cfg.ServerName, log: cfg.Logger.With("component", "consul")}
	if files.server == "" {
		files.server = at.host
	}
	if _, _, err := files.current(); err != nil && at.scheme == "https" {
		return nil, fmt.Errorf("consul: %w (--consul-ca-file, --consul-cert-file, --consul-key-file)", err)
	}
	cl := &Client{
		cfg: cfg, log: cfg.Logger.With("component", "consul"), target: at, token: tokenFile{path: cfg.TokenFile, log: files.log}, tls: files,
		pool: newPool(at, cfg.MaxConnections, files), slots: make(chan struct{}, readSlots), bodies: make(chan struct{}, maxBodies),
		generation: newGeneration(1), recovered: make(chan struct{}), check: make(chan struct{}, 1),
	}
	if _, err := cl.token.current(); err != nil {
		return nil, fmt.Errorf("consul: %w (--consul-token-file)", err)
	}
	cl.api, err = api.NewClient(&api.Config{
		Address: at.address, Scheme: at.scheme, PathPrefix: at.prefix, HttpClient: &http.Client{Transport: roundTripper{cl}, CheckRedirect: noRedirect},
		Datacenter: cfg.Datacenter, Namespace: cfg.Namespace, Partition: cfg.Partition,
		// Keeps the package from looking for one in the environment.
		Token: "-",
	})
	if err != nil {
		return nil, fmt.Errorf("making a client of Consul: %w", err)
	}
	return cl, nil
}

// noRedirect keeps a name from leading to another query than the one meant.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// API is the client of Consul's own package, with our connections and token. The
// environment counts for nothing.
func (c *Client) API() *api.Client { return c.api }

// HTTP2 reports whether many queries share a connection: as the server has it,
// and before anything was answered, whether it may be so.
func (c *Client) HTTP2() bool {
	if v := c.protocol.Load(); v != 0 {
		return v == 2
	}
	return c.target.scheme == "https"
}

// Streams is how many queries share a connection, as the server has it; 0 where
// nothing was answered yet.
func (c *Client) Streams() int { return int(c.pool.streams.Load()) }

// Stats are the counters now.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	followers := c.followers
	c.mu.Unlock()
	return Stats{
		Reads: c.counts.reads.Load(), Throttled: c.counts.throttled.Load(), Failed: c.counts.failed.Load(), Denied: c.counts.denied.Load(),
		Resets: c.counts.resets.Load(), Restores: c.counts.restores.Load(), Restarts: c.counts.restarts.Load(), Connections: c.pool.size(), Followers: followers, Down: c.down.Load(),
	}
}

// Close gives up idle connections. A client may be used after it.
func (c *Client) Close() { c.pool.drop()() }

// roundTripper is the client as an http.RoundTripper: the token of now, nothing of
// the environment, and answers of bounded length.
type roundTripper struct{ c *Client }

// RoundTrip implements http.RoundTripper.
func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := r.c.token.current()
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Del("X-Consul-Token")
	if token != "" {
		req.Header.Set("X-Consul-Token", token)
	}
	if escaped, _ := req.Context().Value(escapedKey{}).(bool); escaped {
		if path, err := url.PathUnescape(req.URL.Path); err == nil {
			req.URL.Path, req.URL.RawPath = path, req.URL.Path
		}
	}
	if r.c.cfg.Namespace == "" || r.c.cfg.Partition == "" { // of the environment, if any
		q := req.URL.Query()
		changed := r.c.cfg.Namespace == "" && q.Has("ns") || r.c.cfg.Partition == "" && q.Has("partition")
		if r.c.cfg.Namespace == "" {
			q.Del("ns")
		}
		if r.c.cfg.Partition == "" {
			q.Del("partition")
		}
		if changed {
			req.URL.RawQuery = q.Encode()
		}
	}
	req.Header.Set("Cache-Control", "no-cache")
	resp, err := r.roundTrip(req)
	if err != nil {
		return nil, err
	}
	r.c.protocol.Store(int32(min(resp.ProtoMajor, 3)))
	r.c.lastAnswer.Store(time.Now().UnixNano())
	if index := resp.Header.Get("X-Consul-Index"); index != "" && index == req.URL.Query().Get("index") {
		if err := dropUnchanged(resp); err != nil {
			return nil, err
		}
		return resp, nil
	}
	switch done, err := streamBody(req.Context(), resp); { //nolint:contextcheck // it is the one of the query
	case err != nil:
		return nil, err
	case !done:
		resp.Body = boundBody(resp.Body, maxAnswer)
	}
	return resp, nil
}

// roundTrip gets an answer of which the body has to come within a time, and not
// beside too many others.
func (r roundTripper) roundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	resp, err := r.c.pool.RoundTrip(req.WithContext(ctx))
	if err != nil {
		cancel(nil)
		if r.c.tls.certificateAsked.Load() && req.Context().Err() == nil {
			err = fmt.Errorf("%w: it may want a certificate of ours (--consul-cert-file, --consul-key-file)", err)
		}
		return nil, err
	}
	if resp.Body, err = r.c.limitBody(ctx, cancel, resp.Body); err != nil {
		return nil, err
	}
	if age := resp.Header.Get("Age"); age != "" && age != "0" {
		return nil, errors.Join(fmt.Errorf("%w: an answer comes from a cache on the way, and is %.20q seconds old: name the address of Consul itself", ErrUnavailable, age), resp.Body.Close())
	}
	return resp, nil
}

// dropUnchanged replaces the body of an answer that is the one before, which nobody
// will look at: reading it is what costs.
func dropUnchanged(resp *http.Response) error {
	_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	resp.Body = io.NopCloser(strings.NewReader("null"))
	return nil
}

type escapedKey struct{}

// Escaped are options that say that the path of a query to Consul is escaped
// already, by url.PathEscape of its parts: package api escapes no slash within a
// name.
func Escaped(q *api.QueryOptions) *api.QueryOptions {
	return q.WithContext(context.WithValue(q.Context(), escapedKey{}, true))
}

// Meta is what Consul says of an answer.
type Meta struct {
	// Index is Consul's, of the table or service that was asked for.
	Index uint64
	// Filtered says that the token may not see all of it.
	Filtered bool
	// LastContact is how long ago the server heard from the leader; 0 where it is
	// the leader.
	LastContact time.Duration
	// Generation numbers the times between an outage, another token or another leader;
	// answers of one generation continue one another.
	Generation uint64
	// Fresh says that the answer is no continuation of the one before: it is the
	// first, or the first after the index went backwards, after a failure, with
	// another token or of another leader.
	Fresh bool
	// Asked is when it was asked for. What is asked for after another answer came,
	// and is Fresh, is no older than that one, whatever the indexes say.
	Asked time.Time
}

func metaOf(m *api.QueryMeta) Meta {
	return Meta{Index: m.LastIndex, Filtered: m.ResultsFilteredByACLs, LastContact: m.LastContact}
}

// Get reads once. At most fifteen reads of a client are in flight at the same time;
// others wait.
func Get[T any](ctx context.Context, c *Client, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, Meta, error) {
	return get(ctx, c, readTimeout, read)
}

// GetLong is Get for a query with an answer that may be very long.
func GetLong[T any](ctx context.Context, c *Client, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, Meta, error) {
	return get(ctx, c, longReadTimeout, read)
}

func get[T any](ctx context.Context, c *Client, most time.Duration, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, Meta, error) {
	var none T
	if err := c.slot(ctx); err != nil {
		return none, Meta{}, err
	}
	defer c.free()
	gen := c.currentGeneration()
	asking, leave := gen.context(ctx)
	defer leave()
	v, m, err := send(asking, c, request{options: &api.QueryOptions{}, limit: most, body: most}, read)
	if err != nil && ctx.Err() == nil && gen.over() {
		err = fmt.Errorf("%w: a newer query replaced it", ErrUnavailable)
	}
	if err != nil {
		return none, Meta{}, err
	}
	m.Fresh = true
	return v, m, nil
}

// slot waits until a read may be sent.
func (c *Client) slot(ctx context.Context) error {
	c.countPending(1)
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		c.countPending(-1)
		return ctx.Err()
	}
	if wait := time.Until(time.Unix(0, c.pausedUntil.Load())); wait > 0 {
		if err := sleep(ctx, wait, nil); err != nil {
			c.free()
			return err
		}
	}
	return nil
}

func (c *Client) free() {
	<-c.slots
	c.countPending(-1)
}

// countPending counts the reads that have a slot or wait for one.
func (c *Client) countPending(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pendingReads == 0 {
		c.drained = make(chan struct{})
	}
	if c.pendingReads += by; c.pendingReads == 0 {
		close(c.drained)
		c.drained = nil
	}
}

// readsDrained is closed when no read has a slot or waits for one any more; it is nil
// if none does. The number is that of the followers.
func (c *Client) readsDrained() (<-chan struct{}, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drained, c.followers
}

// request has the options of a query, its timeout, and the timeout of the answer's
// body.
type request struct {
	options     *api.QueryOptions
	limit, body time.Duration
}

// send sends a query and classifies its error. If an answer is older than allowed,
// the leader is asked.
func send[T any](ctx context.Context, c *Client, q request, read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) (T, Meta, error) {
	var none T
	o := q.options
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, bodyKey{}, q.body), q.limit)
	defer cancel()
	gen, asked := c.currentGeneration(), time.Now()
	// A leader that has just started answers before it has read its own log, and
	// what was written last seems to be gone; asked for a consistent reading it
	// waits. With an index it cannot happen: what it says then is a later state.
	o.RequireConsistent = o.WaitIndex == 0
	o.AllowStale = c.cfg.Stale > 0 && !o.RequireConsistent && asked.UnixNano() >= c.leaderOnly.Load()
	v, m, err := read(c.api, o.WithContext(ctx))
	if err == nil && o.AllowStale && (m.LastContact > c.cfg.Stale || !m.KnownLeader) {
		o.AllowStale, o.RequireConsistent, o.WaitIndex, o.WaitTime = false, true, 0, 0
		v, m, err = read(c.api, o.WithContext(ctx))
	}
	if err == nil {
		c.counts.reads.Add(1)
		meta := metaOf(m)
		meta.Generation, meta.Asked = gen.number, asked
		return v, meta, nil
	}
	err = Classify(err)
	switch {
	case errors.Is(err, ErrThrottled):
		c.counts.throttled.Add(1)
		c.pausedUntil.Store(time.Now().Add(jitter(throttlePause)).UnixNano())
	case errors.Is(err, context.Canceled):
	case errors.Is(err, ErrUnavailable):
		c.counts.failed.Add(1)
		c.checkNow()
	default:
		c.counts.denied.Add(1)
	}
	return none, Meta{}, err
}

// MaxConnections is how many connections there may be.
func (c *Client) MaxConnections() int { return c.cfg.MaxConnections }
