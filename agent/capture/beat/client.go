package beat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/fairlead/fairlead/internal/loglimit"
)

func bounded(r io.Reader) io.Reader { return io.LimitReader(r, maxStatus) }

// Every is how often an agent reports that its Envoy is alive.
const Every = 2 * time.Second

// A report has so long to be sent; no reader takes longer than this that is alive.
const sendTime = time.Second

// Client reports that an Envoy is alive, or that an agent answers DNS queries.
type Client struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Path is the socket of the service.
	Path string
	// Port is that of Envoy for captured outbound connections, or of the agent's DNS.
	Port uint16
	// Every is the time between two reports; zero means [Every].
	Every time.Duration
	// Alive returns nil if what is at Port serves; must be non-nil. It gets a second.
	Alive func(context.Context) error
}

// Run reports until ctx ends. A service that is not there is no error: without it nobody needs
// the reports.
func (c *Client) Run(ctx context.Context) error {
	lines := loglimit.Limiter{Burst: 1, Every: time.Hour}
	var conn net.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	reported := false
	tick := time.NewTicker(cmp.Or(c.Every, Every))
	defer tick.Stop()
	for {
		if c.serves(ctx) {
			var err error
			if conn, err = c.report(ctx, conn); err != nil {
				if omitted, ok := lines.Allow(time.Now()); ok && ctx.Err() == nil {
					c.Logger.InfoContext(ctx, "no capture service; in open mode connections go directly, and DNS queries do in any mode", "path", c.Path, "err", err, "left_out", omitted)
				}
				reported = false
			} else if !reported {
				reported = true
				c.Logger.InfoContext(ctx, "reporting to the capture service", "path", c.Path)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *Client) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.Alive(ctx) == nil
}

// report sends one message, on a connection that is kept; nil means a new one.
func (c *Client) report(ctx context.Context, conn net.Conn) (net.Conn, error) {
	send := func() error {
		err := conn.SetDeadline(time.Now().Add(sendTime))
		if err == nil {
			_, err = fmt.Fprintf(conn, "%s%d\n", aliveWord, c.Port)
		}
		return err
	}
	if conn != nil {
		if send() == nil {
			return conn, nil
		}
		_ = conn.Close() // the service was started again
	}
	d := net.Dialer{Timeout: sendTime}
	fresh, err := d.DialContext(ctx, "unix", c.Path)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the path
	}
	conn = fresh
	if err := send(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
