package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/hashicorp/consul/api"
)

const (
	// maxAnswer bounds an answer that is kept, in bytes, and maxStream one that is
	// read piece by piece: whoever may register a service decides how much is
	// said of it, in lists that are of all.
	maxAnswer = 64 << 20
	maxStream = 512 << 20
)

// Unusable says why an answer cannot be used. The next one may be the same.
type Unusable string //nolint:errname // it is a state, too

// Error implements error.
func (u Unusable) Error() string { return string(u) }

func tooLong(most int64) Unusable {
	return Unusable(fmt.Sprintf("the answer is longer than %d bytes", most))
}

// bounded is a body that ends with an error where it is too long.
type bounded struct {
	io.ReadCloser
	left, most int64
}

func bound(body io.ReadCloser, most int64) *bounded { return &bounded{body, most, most} }

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
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

// consume has an answer read by whoever asked for that, and says whether
// somebody did.
func consume(ctx context.Context, resp *http.Response) (bool, error) {
	read, ok := ctx.Value(streamKey{}).(func(io.Reader) error)
	if !ok || resp.StatusCode != http.StatusOK {
		return false, nil
	}
	err := read(bound(resp.Body, maxStream))
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return true, err
	}
	resp.Body = io.NopCloser(strings.NewReader("null"))
	return true, nil
}
