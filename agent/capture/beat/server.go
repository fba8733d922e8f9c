package beat

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
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

// Bounds of connections. A connection beyond those of a user is closed at once. Beyond the most of
// all, the user with the most loses its oldest: the agent opens another one for its next report.
// Root's do not count, so that people always get in.
const (
	longest = 64 // bytes of a message
	each    = 128
	most    = 512
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
	// Alive takes a report of a user that what is at this port is alive; must be non-nil. It may
	// be called from several goroutines.
	Alive func(uid uint32, port uint16)
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
	open := openConns{of: map[uint32][]net.Conn{}}
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
		uid, err := peercred.User(conn)
		drop, of := conn, uid
		if err == nil {
			drop, of = open.add(uid, conn)
		}
		if drop != nil {
			if omitted, ok := lines.Allow(time.Now()); ok && err != nil {
				s.Logger.WarnContext(ctx, "connection closed: its user is unknown", "path", s.Path, "err", err, "left_out", omitted)
			} else if ok {
				s.Logger.WarnContext(ctx, "connection closed: its user has too many of them", "path", s.Path, "uid", of, "left_out", omitted)
			}
			_ = drop.Close()
		}
		if drop == conn {
			continue
		}
		group.Go(func() {
			defer open.remove(uid, conn)
			end := context.AfterFunc(ctx, func() { _ = conn.Close() })
			defer end()
			defer func() { _ = conn.Close() }()
			s.serve(ctx, uid, conn)
		})
	}
}

// openConns are the open connections by user, the oldest first.
type openConns struct {
	mu sync.Mutex // guards of
	of map[uint32][]net.Conn
}

// add adds a connection, and returns the one to close for it, with its user: itself, if its user has
// all that it may have, or nil.
func (o *openConns) add(uid uint32, conn net.Conn) (drop net.Conn, of uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.of[uid]) >= each {
		return conn, uid
	}
	all, largest := 0, uid
	for id, list := range o.of {
		if id == 0 {
			continue
		}
		all += len(list)
		if n, m := len(list), len(o.of[largest]); n > m || n == m && id < largest {
			largest = id
		}
	}
	if uid != 0 && all >= most {
		drop = o.of[largest][0]
		o.of[largest] = slices.Delete(o.of[largest], 0, 1)
	}
	o.of[uid] = append(o.of[uid], conn)
	return drop, largest
}

// remove forgets a connection that has ended.
func (o *openConns) remove(uid uint32, conn net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[uid] = slices.DeleteFunc(o.of[uid], func(c net.Conn) bool { return c == conn })
	if len(o.of[uid]) == 0 {
		delete(o.of, uid)
	}
}

// serve reads messages until one is wrong, or none comes.
func (s *Server) serve(ctx context.Context, uid uint32, conn net.Conn) {
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
		s.Alive(uid, uint16(port))
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
