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
	// waitFor is how long a question waits at Consul for a change; a fifth of it
	// is taken off at random, so that questions that began together do not end
	// together. Consul adds up to a sixteenth. A question that we gave up goes on
	// there for the rest of that time.
	waitFor = 5 * time.Minute
	// firstRetry and lastRetry bound the pause after a failure; it doubles. Who
	// waits is woken as soon as somebody else gets an answer again.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Second
	// retryShare is by how much longer lastRetry is for each question that is
	// followed.
	retryShare = 5 * time.Millisecond
	// throttlePause is for how long nothing new is asked after 429.
	throttlePause = time.Second
	// uselessPause is for how long nothing is asked again that Consul cannot answer,
	// or not so that it can be used.
	uselessPause = 10 * time.Second
	// restFor is how long a patient question lets others be asked first at most, and
	// openShare by how much later the last of them begins to wait for each that is
	// followed.
	restFor   = 10 * time.Second
	openShare = 400 * time.Microsecond
	// everyFor is the least time between two answers of a question, burst how many
	// may come faster.
	everyFor = 100 * time.Millisecond
	burst    = 4
	// earlyMost bounds the pause after an answer that says nothing and came at once.
	earlyMost = 5 * time.Second
)

// Query is a question of which the answer changes.
type Query[T any] struct {
	// Name is for logs.
	Name string
	// Read asks. It must pass the options on; it may set those that choose.
	Read func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)
	// Told, if not nil, is called with what goes wrong, and with nil when it is
	// over; from the goroutine that calls Follow.
	Told func(error)
	// Every is the least time between two answers where they come all the time; 0
	// means 100 ms. The first few of a burst are not held up.
	Every time.Duration
	// Urgent says that others depend on it: it is never asked less often than
	// every second while it fails.
	Urgent bool
	// Patient says that there are very many of its kind: after its first answer it
	// waits for a change only when all others have theirs, too.
	Patient bool
	// Long says that the answer may be very long.
	Long bool
}

// Follow asks until ctx is done, by blocking queries, and calls got with each new
// answer, in order, from the goroutine that calls Follow.
//
// It keeps the rules of Consul's documentation: the index is forgotten when it
// goes backwards, after a failure, with another token, and when there is another
// leader; and it never asks with an index of 0 as if it had one.
func Follow[T any](ctx context.Context, c *Client, q Query[T], got func(T, Meta)) {
	c.join(ctx)
	defer c.leave()
	every := q.Every
	if every <= 0 {
		every = everyFor
	}
	f := &following{
		c: c, urgent: q.Urgent, limiter: rate.NewLimiter(rate.Every(every), burst),
		retry: newBackOff(firstRetry, lastRetry), useless: newBackOff(everyFor, earlyMost),
	}
	for ctx.Err() == nil {
		turn := c.present()
		if turn != f.turn {
			f.index, f.turn = 0, turn
		}
		v, m, err := step(ctx, f, q)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && turn.over():
			continue // it was given up so as to ask anew
		case err != nil:
			f.failed(ctx, err, q.Told)
			continue
		}
		f.worked(q.Told)
		if m.Index < f.index {
			c.counts.resets.Add(1)
			f.index = 0
			f.spend(ctx)
			continue
		}
		if m.Index != f.index || m.Fresh {
			got(v, m)
		}
		if m.Fresh && q.Patient {
			f.rest(ctx)
		}
		f.early(ctx, m)
		// An endpoint that has no index would be asked without a pause.
		f.index = max(m.Index, 1)
		f.spend(ctx)
	}
}

// step asks one time: for an answer at once where there is no index.
func step[T any](ctx context.Context, f *following, q Query[T]) (T, Meta, error) {
	ctx, leave := f.turn.with(ctx)
	defer leave()
	o, most := &api.QueryOptions{}, readFor
	if q.Long {
		most = longFor
	}
	if f.index > 0 {
		o.WaitIndex, o.WaitTime = f.index, waitFor-rand.N(waitFor/5) //nolint:gosec // no secret
		return ask(ctx, f.c, question{o, o.WaitTime + o.WaitTime/8 + most, most}, q.Read)
	}
	if err := f.c.slot(ctx); err != nil {
		var none T
		return none, Meta{}, err
	}
	defer f.c.free()
	v, m, err := ask(ctx, f.c, question{o, most, most}, q.Read)
	m.Fresh = true
	return v, m, err
}

// following is the state of one Follow.
type following struct {
	c     *Client
	turn  *turn // in which index was learned
	index uint64
	retry backoff.ExponentialBackOff // after failures
	told  string                     // the error that was told, or empty

	useless backoff.ExponentialBackOff // after answers that say nothing and came at once

	urgent  bool
	limiter *rate.Limiter // of answers
}

// rest lets those be asked first that have no answer yet: to begin to wait costs
// a server as much as an answer. What changes meanwhile is answered at once then.
func (f *following) rest(ctx context.Context) {
	asked, followers := f.c.asked()
	if asked == nil {
		return
	}
	within, cancel := context.WithTimeout(ctx, restFor)
	defer cancel()
	select {
	case <-asked:
	case <-f.turn.ended:
		return
	case <-within.Done():
	}
	_ = sleep(ctx, rand.N(time.Duration(followers+1)*openShare), f.turn.ended) //nolint:gosec // no secret
}

// early holds up where the server, or what is before it, does not wait for a
// change: nothing is heard sooner by asking it more often.
func (f *following) early(ctx context.Context, m Meta) {
	if m.Fresh || m.Index != f.index || time.Since(m.Asked) > waitFor/2 {
		f.useless.Reset()
		return
	}
	_ = sleep(ctx, f.useless.NextBackOff(), f.turn.ended) // the caller looks at ctx
}

// spend holds up answers that come all the time.
func (f *following) spend(ctx context.Context) {
	if wait := f.limiter.Reserve().Delay(); wait > 0 {
		_ = sleep(ctx, wait, f.turn.ended) // the caller looks at ctx
	}
}

// failed tells, and waits: until somebody gets an answer again, or for a time
// that grows.
func (f *following) failed(ctx context.Context, err error, tell func(error)) {
	healed := f.c.healing()
	if s := err.Error(); tell != nil && s != f.told {
		tell(err)
		f.told = s
	}
	if f.told == "" {
		f.told = err.Error()
	}
	f.index = 0
	if !f.urgent {
		f.retry.MaxInterval = lastRetry + time.Duration(f.c.Stats().Followers)*retryShare
	}
	pause := f.retry.NextBackOff()
	if errors.Is(err, ErrThrottled) {
		pause, healed = max(pause, jitter(throttlePause)), nil
	}
	if _, useless := errors.AsType[Unusable](err); useless || errors.Is(err, ErrFilter) {
		pause, healed = jitter(uselessPause), f.turn.ended
	}
	_ = sleep(ctx, pause, healed) // the caller looks at ctx
}

// worked notes an answer.
func (f *following) worked(tell func(error)) {
	if f.told == "" {
		return
	}
	f.told = ""
	f.retry.Reset()
	if tell != nil {
		tell(nil)
	}
	f.c.works()
}

// newBackOff is a pause that doubles, with jitter.
func newBackOff(first, most time.Duration) backoff.ExponentialBackOff {
	return backoff.ExponentialBackOff{InitialInterval: first, Multiplier: 2, RandomizationFactor: 0.25, MaxInterval: most}
}

// jitter is between three quarters and five quarters of d.
func jitter(d time.Duration) time.Duration {
	return d*3/4 + rand.N(max(1, d/2)) //nolint:gosec // no secret
}

// sleep waits for the time, for ctx, or for the bell, which may be nil.
func sleep(ctx context.Context, d time.Duration, bell <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-bell:
	case <-t.C:
	}
	return nil
}
