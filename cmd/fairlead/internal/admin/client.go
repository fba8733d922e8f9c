package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxAnswer bounds what a client reads from a process.
const maxAnswer = 1 << 30

// notServed is what [http.ServeMux] says of a path that nobody serves.
const notServed = "404 page not found"

// Client asks a process by its admin.sock.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient asks the process that serves the socket. Nothing is opened yet.
func NewClient(socket string) *Client {
	var d net.Dialer
	return &Client{socket: socket, http: &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.DialContext(ctx, "unix", socket)
			},
		},
	}}
}

// Do sends in as JSON, unless it is nil, and decodes the answer into out, unless
// that is nil. The error is the process's own words where it gave any.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader = http.NoBody
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://admin"+path, body)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if errors.Is(err, fs.ErrPermission) {
		return &fs.PathError{Op: "connecting to admin.sock at", Path: c.socket, Err: rootCause(err)}
	}
	if err != nil {
		return fmt.Errorf("connecting to admin.sock at %q: %w: is the process running, and is --run-dir right?", c.socket, rootCause(err))
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("reading the answer of %q: %w", c.socket, err)
	}
	if res.StatusCode == http.StatusMethodNotAllowed || res.StatusCode == http.StatusNotFound && strings.TrimSpace(string(b)) == notServed {
		return fmt.Errorf("the process behind %q does not know this request: it is another kind of process, or another version; is --run-dir right?", c.socket)
	}
	if res.StatusCode != http.StatusOK {
		return errors.New(strings.TrimSpace(string(b)))
	}
	if out == nil {
		return nil
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = b
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decoding the answer of %q: %w", c.socket, err)
	}
	return nil
}

// rootCause leaves the URL out of an error of net/http, which names a host that
// does not exist.
func rootCause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
