package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"
)

const (
	// waitTime is how long Consul holds a blocking query; a fifth of it is taken off
	// at random, so that queries that began together do not end together. Consul adds
	// up to a sixteenth. A query that was canceled goes on there for the rest of it.
	waitTime = 5 * time.Minute
	// firstRetry and lastRetry bound the back-off after a failure. A recovery ends it.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
	// retryEach is added to lastRetry for each follower.
	retryEach = 5 * time.Millisecond
	// throttlePause is how long no read starts after status 429.
	throttlePause = time.Second
	// unusablePause is the pause after an answer that cannot be used.
	unusablePause = 10 * time.Second
	// yieldTimeout is how long a bulk query waits for other reads at most, and
	// spreadEach how much the start of its blocking queries is spread for each follower.
	yieldTimeout = 10 * time.Second
	spreadEach   = 400 * time.Microsecond
	// minInterval is the least time between two answers of a query, burst how many
	// may come faster.
	minInterval = 100 * time.Millisecond
	burst       = 4
	// immediateMax bounds the back-off for a server that does not hold queries.
	immediateMax = 5 * time.Second
)

// Query is a blocking query.
type Query[T any] struct {
	// Name is for logs.
	Name string
	// Read asks. It must pass the options on; it may set those that choose.
	Read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)
	// OnError, if not nil, is called with each new error, and with nil after it; from
	// the goroutine that calls Follow.
	OnError func(error)
	// MinInterval is the least time between two answers where they come all the time; 0
	// means 100 ms. The first few of a burst are not held up.
	MinInterval time.Duration
	// Urgent says that others depend on it: it is never asked less often than
	// every second while it fails.
	Urgent bool
	// Bulk says that there are very many of its kind: its first blocking query waits
	// until the reads in flight have their answers.
	Bulk bool
	// Long says that the answer may be very long.
	Long bool
}

// Follow sends blocking queries until ctx is done, and calls got with each new
// answer, in order, from the goroutine that calls Follow.
//
// It keeps the rules of Consul's documentation: the index is forgotten when it
// goes backwards, after a failure, with another token, after a restored snapshot, and when there is another
// leader; and it never asks with an index of 0 as if it had one.
func Follow[T any](ctx context.Context, c *Client, q Query[T], got func(T, Meta)) {
	c.addFollower(ctx)
	defer c.removeFollower()
	every := q.MinInterval
	if every <= 0 {
		every = minInterval
	}
	f := &follower{
		c: c, urgent: q.Urgent, limiter: rate.NewLimiter(rate.Every(every), burst),
		retry: newBackOff(firstRetry, lastRetry), immediate: newBackOff(minInterval, immediateMax),
	}
	for ctx.Err() == nil {
		gen := c.currentGeneration()
		if gen != f.generation {
			f.index, f.generation = 0, gen
		}
		v, m, err := query(ctx, f, q)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && gen.over():
			continue // it was canceled by a restart
		case err != nil:
			f.onError(ctx, err, q.OnError)
			continue
		}
		f.onAnswer(q.OnError)
		if m.Index < f.index {
			c.counts.resets.Add(1)
			f.index = 0
			f.limitRate(ctx)
			continue
		}
		if m.Index != f.index || m.Fresh {
			got(v, m)
		}
		if m.Fresh && q.Bulk {
			f.yield(ctx)
		}
		f.slowDown(ctx, m)
		// An endpoint that has no index would be asked without a pause.
		f.index = max(m.Index, 1)
		f.limitRate(ctx)
	}
}

// query sends one query: a read if there is no index, else a blocking query.
func query[T any](ctx context.Context, f *follower, q Query[T]) (T, Meta, error) {
	ctx, leave := f.generation.context(ctx)
	defer leave()
	o, most := &api.QueryOptions{}, readTimeout
	if q.Long {
		most = longReadTimeout
	}
	if f.index > 0 {
		o.WaitIndex, o.WaitTime = f.index, waitTime-rand.N(waitTime/5) //nolint:gosec // no secret
		return send(ctx, f.c, request{o, o.WaitTime + o.WaitTime/8 + most, most}, q.Read)
	}
	if err := f.c.slot(ctx); err != nil {
		var none T
		return none, Meta{}, err
	}
	defer f.c.free()
	v, m, err := send(ctx, f.c, request{o, most, most}, q.Read)
	m.Fresh = true
	return v, m, err
}

// follower is the state of one Follow.
type follower struct {
	c          *Client
	generation *generation // in which index was learned
	index      uint64
	retry      backoff.ExponentialBackOff // after failures
	reported   string                     // the error that was reported, or empty

	immediate backoff.ExponentialBackOff // after answers that say nothing and came at once

	urgent  bool
	limiter *rate.Limiter // of answers
}

// yield lets the reads in flight go first: the start of a blocking query costs a
// server as much as an answer. A change meanwhile is answered at once.
func (f *follower) yield(ctx context.Context) {
	asked, followers := f.c.readsDrained()
	if asked == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, yieldTimeout)
	defer cancel()
	select {
	case <-asked:
	case <-f.generation.ended:
		return
	case <-within.Done():
	}
	_ = sleep(ctx, rand.N(time.Duration(followers+1)*spreadEach), f.generation.ended) //nolint:gosec // no secret
}

// slowDown backs off from a server, or a proxy before it, that does not hold blocking
// queries.
func (f *follower) slowDown(ctx context.Context, m Meta) {
	if m.Fresh || m.Index != f.index || time.Since(m.Asked) > waitTime/2 {
		f.immediate.Reset()
		return
	}
	_ = sleep(ctx, f.immediate.NextBackOff(), f.generation.ended) // the caller looks at ctx
}

// limitRate limits how often answers come.
func (f *follower) limitRate(ctx context.Context) {
	if wait := f.limiter.Reserve().Delay(); wait > 0 {
		_ = sleep(ctx, wait, f.generation.ended) // the caller looks at ctx
	}
}

// onError reports an error and backs off, until a recovery at most.
func (f *follower) onError(ctx context.Context, err error, report func(error)) {
	healed := f.c.recovery()
	if s := err.Error(); report != nil && s != f.reported {
		report(err)
		f.reported = s
	}
	if f.reported == "" {
		f.reported = err.Error()
	}
	f.index = 0
	if !f.urgent {
		f.retry.MaxInterval = lastRetry + time.Duration(f.c.Stats().Followers)*retryEach
	}
	pause := f.retry.NextBackOff()
	if errors.Is(err, ErrThrottled) {
		pause, healed = max(pause, jitter(throttlePause)), nil
	}
	if _, useless := errors.AsType[Unusable](err); useless || errors.Is(err, ErrFilter) {
		pause, healed = jitter(unusablePause), f.generation.ended
	}
	_ = sleep(ctx, pause, healed) // the caller looks at ctx
}

// onAnswer ends the back-off.
func (f *follower) onAnswer(report func(error)) {
	if f.reported == "" {
		return
	}
	f.reported = ""
	f.retry.Reset()
	if report != nil {
		report(nil)
	}
	f.c.noteRecovery()
}

// newBackOff is a pause that doubles, with jitter.
func newBackOff(first, most time.Duration) backoff.ExponentialBackOff {
	return backoff.ExponentialBackOff{InitialInterval: first, Multiplier: 2, RandomizationFactor: 0.25, MaxInterval: most}
}

// jitter is between three quarters and five quarters of d.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(max(1, d/2)) //nolint:gosec // no secret
}

// sleep waits for the time, for ctx, or for the wake, which may be nil.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake:
	case <-t.C:
	}
	return nil
}
