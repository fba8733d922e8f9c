package beat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/internal/loglimit"
)

// The messages: one line each.
const (
	aliveWord  = "alive " // and the port of Envoy for captured outbound connections, or of the agent's DNS
	statusWord = "status" // asks for the status, as JSON
)

// Bounds of connections. A connection beyond the most is closed at once.
const (
	longest = 64 // bytes of a message
	most    = 128
	// idle is how long a connection may be silent; agents report more often.
	idle = 30 * time.Second
	// between is the least time between two messages of a connection that are read.
	between = 200 * time.Millisecond
)

// Server takes reports.
type Server struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Path is the socket's; its directory must exist. The group of the process may connect.
	Path string
	// Allowed reports whether processes of a user may speak; must be non-nil.
	Allowed func(uid uint32) bool
	// Alive takes a report that what is at this port is alive; must be non-nil. It may
	// be called from several goroutines.
	Alive func(port uint16)
	// Status returns what people get as JSON; must be non-nil.
	Status func() any
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	l, err := peercred.Listen(ctx, peercred.Config{Logger: s.Logger, Path: s.Path, Allowed: s.Allowed})
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	lines := loglimit.Limiter{Burst: 1, Every: time.Minute}
	var group sync.WaitGroup
	defer group.Wait()
	free := make(chan struct{}, most)
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // such as no file descriptors left
			if err := sleep(ctx, between); err != nil {
				return nil
			}
			continue
		}
		select {
		case free <- struct{}{}:
		default:
			if omitted, ok := lines.Allow(time.Now()); ok {
				s.Logger.WarnContext(ctx, "connection closed: too many of them", "path", s.Path, "left_out", omitted)
			}
			_ = conn.Close()
			continue
		}
		group.Go(func() {
			defer func() { <-free }()
			end := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer end()
			defer func() { _ = conn.Close() }()
			s.serve(ctx, conn)
		})
	}
}

// serve reads messages until one is wrong, or none comes.
func (s *Server) serve(ctx context.Context, conn net.Conn) {
	in := bufio.NewReaderSize(conn, longest)
	for {
		if err := conn.SetDeadline(time.Now().Add(idle)); err != nil {
			return
		}
		line, err := in.ReadSlice('\n') // at most the buffer
		if err != nil {
			return
		}
		text := strings.TrimSuffix(string(line), "\n")
		if text == statusWord {
			_ = json.NewEncoder(conn).Encode(s.Status())
			return
		}
		port, err := strconv.ParseUint(strings.TrimPrefix(text, aliveWord), 10, 16)
		if err != nil || !strings.HasPrefix(text, aliveWord) || port == 0 {
			return
		}
		s.Alive(uint16(port))
		if err := sleep(ctx, between); err != nil {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // only whether it ended
	}
}

// maxStatus bounds an answer, in bytes.
const maxStatus = 256 << 10

// Ask reads the status of the service at a socket into v.
func Ask(ctx context.Context, path string, v any) error {
	const patience = 5 * time.Second
	d := net.Dialer{Timeout: patience}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("asking the capture service: %w", err)
	}
	defer func() { _ = conn.Close() }()
	err = conn.SetDeadline(time.Now().Add(patience))
	if err == nil {
		_, err = fmt.Fprintln(conn, statusWord)
	}
	if err == nil {
		err = json.NewDecoder(bounded(conn)).Decode(v)
	}
	if err != nil {
		return fmt.Errorf("asking the capture service: %w", err)
	}
	return nil
}
