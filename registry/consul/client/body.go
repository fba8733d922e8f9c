package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// maxAnswer bounds an answer that is kept, in bytes, and maxStream one that is
	// read piece by piece: whoever may register a service decides how much is
	// said of it, in lists that are of all.
	maxAnswer = 64 << 20
	maxStream = 512 << 20
	// maxBodies is how many answers are read at the same time: thousands of watches
	// may wake at once.
	maxBodies = 32
)

// errStalled is what becomes of an answer that begins and does not end.
var errStalled = errors.New("an answer has begun and does not end")

type bodyKey struct{}

// limitBody bounds the time in which a body is read. It waits until fewer than
// maxBodies others are.
func (c *Client) limitBody(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser) (io.ReadCloser, error) {
	b := &timedBody{ReadCloser: body, ctx: ctx, done: func() { cancel(nil) }}
	within, ok := ctx.Value(bodyKey{}).(time.Duration)
	if !ok { // it is short, and bounded by whoever asks
		return b, nil
	}
	select {
	case c.bodies <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), b.Close())
	}
	timer := time.AfterFunc(within, func() { cancel(errStalled) })
	release := sync.OnceFunc(func() { <-c.bodies })
	stop := context.AfterFunc(ctx, release) // also where nobody closes it
	b.done = func() {
		timer.Stop()
		stop()
		release()
		cancel(nil)
	}
	return b, nil
}

// timedBody is a body whose query is released when it is closed.
type timedBody struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // the body's life is that of the query
	done func()
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && errors.Is(context.Cause(b.ctx), errStalled) {
		err = errStalled
	}
	return n, err
}

// Close implements io.Closer.
func (b *timedBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// Unusable says why an answer cannot be used. The next one may be the same.
type Unusable string //nolint:errname // it is a state, too

// Error implements error.
func (u Unusable) Error() string { return string(u) }

func tooLong(most int64) Unusable {
	return Unusable(fmt.Sprintf("the answer is longer than %d bytes", most))
}

// boundedBody is a body that ends with an error where it is too long.
type boundedBody struct {
	io.ReadCloser
	left, most int64
}

func boundBody(body io.ReadCloser, most int64) *boundedBody { return &boundedBody{body, most, most} }

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// What ends here is not too long.
		switch n, err := io.ReadFull(b.ReadCloser, make([]byte, 1)); {
		case n > 0:
			return 0, tooLong(b.most)
		default:
			return 0, err
		}
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err
}

type streamKey struct{}

// Streamed are options that have the answer read by a func, as it comes. What it
// keeps is all that is kept: package api sees a null in its place. It is not
// called for an answer that is known.
func Streamed(q *api.QueryOptions, read func(io.Reader) error) *api.QueryOptions {
	return q.WithContext(context.WithValue(q.Context(), streamKey{}, read))
}

// streamBody has the answer read by the func of [Streamed], and reports whether
// somebody did.
func streamBody(ctx context.Context, resp *http.Response) (bool, error) {
	read, ok := ctx.Value(streamKey{}).(func(io.Reader) error)
	if !ok || resp.StatusCode != http.StatusOK {
		return false, nil
	}
	err := read(boundBody(resp.Body, maxStream))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return true, err
	}
	resp.Body = io.NopCloser(strings.NewReader("null"))
	return true, nil
}
