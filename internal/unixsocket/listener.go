package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/loglimit"
)

// MaxPath is how long the path of a unix socket may be on Linux.
const MaxPath = 107

// Config configures a listener.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Path is the socket's; the directory must exist.
	Path string
	// Mode is the mode of the file.
	Mode fs.FileMode
	// UID is the owner of the file, if the process may give it away.
	UID uint32
}

// Listener is a [net.Listener] whose file is made again when it is removed. Connections stay.
type Listener struct {
	// Constant after Listen.
	c     Config
	conns chan accepted
	ctx   context.Context //nolint:containedctx // the life of the goroutines, which Close ends
	end   context.CancelFunc
	group sync.WaitGroup
	lines loglimit.Limiter

	// Owned by the goroutine that watches.
	dir  directory
	made time.Time // when the file was made last

	mu      sync.Mutex // guards all following fields
	file    file
	current *net.UnixListener
	problem string
	remade  uint64
}

type accepted struct {
	conn net.Conn
	err  error
}

// file identifies a file. A listener keeps its inode, so no other file gets the same number.
type file struct{ dev, ino uint64 }

// Listen opens the socket. A socket that a killed process left is replaced; if a process still
// answers on it, that is an error.
func Listen(ctx context.Context, c Config) (*Listener, error) {
	if len(c.Path) > MaxPath {
		return nil, fmt.Errorf("listening on %q: the path has %d bytes and a unix socket's at most %d: choose a shorter run directory with --run-dir",
			c.Path, len(c.Path), MaxPath)
	}
	l := &Listener{c: c, conns: make(chan accepted), lines: loglimit.Limiter{Burst: 3, Every: time.Minute}}
	var err error
	if l.dir, err = look(filepath.Dir(c.Path)); err != nil {
		return nil, fmt.Errorf("listening on %q: %w", c.Path, err)
	}
	switch serves, err := answers(ctx, c.Path); {
	case serves:
		return nil, fmt.Errorf("listening on %q: another process serves there: stop it, or choose another run directory with --run-dir", c.Path)
	case errors.Is(err, fs.ErrNotExist):
	default:
		if err := os.Remove(c.Path); err != nil {
			return nil, fmt.Errorf("listening on %q: %w", c.Path, err)
		}
	}
	if l.current, l.file, err = bind(ctx, c); err != nil {
		return nil, fmt.Errorf("listening on %q: %w", c.Path, err)
	}
	l.ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	first := l.current
	l.group.Go(func() { l.accept(first) })
	l.group.Go(l.watch)
	return l, nil
}

// answers reports whether a process serves at a path, and the error of the attempt if not.
func answers(ctx context.Context, path string) (bool, error) {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		// A full queue is that of a process that is alive.
		return errors.Is(err, unix.EAGAIN), err //nolint:wrapcheck // the caller looks at it
	}
	_ = conn.Close()
	return true, nil
}

// bind makes the socket's file. It fails if there is one.
func bind(ctx context.Context, c Config) (*net.UnixListener, file, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", c.Path)
	if err != nil {
		return nil, file{}, err //nolint:wrapcheck // the callers say the path
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, file{}, errors.Join(errors.New("not a unix socket"), l.Close())
	}
	u.SetUnlinkOnClose(false) // by then the file may be another's
	st, err := stat(c.Path)
	if err == nil {
		err = os.Chmod(c.Path, c.Mode)
	}
	if err == nil && int(c.UID) != os.Geteuid() {
		err = os.Chown(c.Path, int(c.UID), -1)
	}
	if err != nil {
		return nil, file{}, errors.Join(err, u.Close())
	}
	return u, fileOf(st), nil
}

func stat(path string) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return &st, nil
}

func fileOf(st *unix.Stat_t) file { return file{dev: st.Dev, ino: st.Ino} }

// accept passes the connections of one socket on until it is closed.
func (l *Listener) accept(u *net.UnixListener) {
	closing := context.AfterFunc(l.ctx, func() { _ = u.Close() })
	defer func() {
		closing()
		_ = u.Close()
	}()
	for {
		conn, err := u.Accept()
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		select {
		case l.conns <- accepted{conn, err}:
		case <-l.ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// Accept implements [net.Listener].
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.conns:
		return a.conn, a.err
	case <-l.ctx.Done():
		return nil, &net.OpError{Op: "accept", Net: "unix", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Addr implements [net.Listener].
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.c.Path, Net: "unix"} }

// Close implements [net.Listener]. It removes the file, unless it is another's by now.
func (l *Listener) Close() error {
	l.end()
	l.group.Wait() // until then the file may be made again
	if st, err := stat(l.c.Path); err == nil && fileOf(st) == l.own() {
		return os.Remove(l.c.Path) //nolint:wrapcheck // it has the path
	}
	return nil
}

// Remade counts how often the file was made again because somebody had removed it.
func (l *Listener) Remade() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remade
}

// Problem says why nobody can open a connection, or is empty.
func (l *Listener) Problem() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}
