package peercred

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/loglimit"
	"github.com/fairlead/fairlead/internal/unixsocket"
)

// Config configures a listener.
type Config struct {
	// Logger must be non-nil.
	Logger *slog.Logger
	// Path is the socket's; the directory must exist.
	Path string
	// UID is the only user whose processes may connect. The socket file becomes
	// theirs where the agent may give it away.
	UID uint32
	// Allowed reports whether processes of a user may connect; then the file stays the process's,
	// and its group may connect, too. nil means UID alone.
	Allowed func(uid uint32) bool
	// Guard limits the connections that have not shown its token; nil means no limit.
	Guard *Guard
}

// Listen opens the socket, see [unixsocket.Listen]. Its file is made again if it is removed.
func Listen(ctx context.Context, c Config) (net.Listener, error) {
	file := unixsocket.Config{Logger: c.Logger, Path: c.Path, Mode: 0o600, UID: c.UID}
	if c.Allowed == nil {
		c.Allowed = func(uid uint32) bool { return uid == c.UID }
	} else {
		file.Mode, file.UID = 0o660, uint32(os.Geteuid())
	}
	l, err := unixsocket.Listen(ctx, file)
	if err != nil {
		return nil, err
	}
	own := &listener{Listener: l, c: c, lines: &loglimit.Limiter{Burst: 5, Every: logInterval}}
	if c.Guard == nil {
		return own, nil
	}
	c.Guard.socket.Store(l)
	return c.Guard.listen(own), nil
}

type listener struct {
	net.Listener
	c     Config
	lines *loglimit.Limiter // of connections that are refused
}

// Accept returns the next connection of a process whose user may connect.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		cred, err := caller(conn)
		if err == nil && l.c.Allowed(cred.Uid) {
			return conn, nil
		}
		l.refuse(cred, err)
		_ = conn.Close()
	}
}

func (l *listener) refuse(cred *unix.Ucred, err error) {
	omitted, ok := l.lines.Allow(time.Now())
	switch {
	case !ok:
	case err != nil:
		l.c.Logger.Warn("connection rejected: reading the peer's user from the kernel failed", "path", l.c.Path, "err", err, "left_out", omitted)
	default:
		l.c.Logger.Warn("connection rejected: the socket is for another user",
			"path", l.c.Path, "uid", cred.Uid, "pid", cred.Pid, "want_uid", l.c.UID, "left_out", omitted)
	}
}

// Process is the id of the process that opened a connection to a unix socket; 0 if it is in
// another PID namespace.
func Process(conn net.Conn) (pid int, err error) {
	cred, err := caller(conn)
	if err != nil {
		return 0, fmt.Errorf("reading the peer's credentials: %w", err)
	}
	return int(cred.Pid), nil
}

// User is the user whose process opened a connection to a unix socket.
func User(conn net.Conn) (uid uint32, err error) {
	cred, err := caller(conn)
	if err != nil {
		return 0, fmt.Errorf("reading the peer's credentials: %w", err)
	}
	return cred.Uid, nil
}

func caller(conn net.Conn) (*unix.Ucred, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, asked)
}
