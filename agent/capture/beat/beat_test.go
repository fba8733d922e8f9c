package beat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type served struct {
	path   string
	port   atomic.Uint32 // reported last
	uid    atomic.Uint32 // by whom
	count  atomic.Int64  // reports
	log    *envoytest.Log
	server *Server
}

// newServed runs a server until the test ends.
func newServed(t *testing.T, allowed func(uint32) bool) *served {
	t.Helper()
	s := &served{path: filepath.Join(envoytest.ShortDir(t), "s"), log: &envoytest.Log{}}
	s.server = &Server{
		Logger: slog.New(slog.NewTextHandler(s.log, nil)), Path: s.path, Allowed: allowed,
		Alive:  func(uid uint32, port uint16) { s.port.Store(uint32(port)); s.uid.Store(uid); s.count.Add(1) },
		Status: func() any { return map[string]int{"answer": 42} },
	}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.server.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	envoytest.Eventually(t, envoytest.Patience, func() error {
		var got map[string]int
		return Ask(t.Context(), s.path, &got)
	})
	return s
}

func anyone(uint32) bool { return true }

// TestReportsArrive: an agent's reports come, also after the service was started again; while its
// Envoy is not alive it says nothing.
func TestReportsArrive(t *testing.T) {
	t.Parallel()
	s := newServed(t, anyone)
	var alive atomic.Bool
	asked := make(chan struct{}, 1)
	c := &Client{Logger: slog.New(slog.NewTextHandler(s.log, nil)), Path: s.path, Port: 15011, Every: time.Millisecond, Alive: func(context.Context) error {
		select {
		case asked <- struct{}{}:
		default:
		}
		if alive.Load() {
			return nil
		}
		return errors.New("no")
	}}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for range 3 {
		<-asked
	}
	if s.count.Load() != 0 {
		t.Error("a report of an Envoy that is not alive")
	}
	alive.Store(true)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if s.count.Load() < 2 || s.port.Load() != 15011 {
			return fmt.Errorf("%d reports, port %d", s.count.Load(), s.port.Load())
		}
		return nil
	})
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStatusIsAnswered: people get the status.
func TestStatusIsAnswered(t *testing.T) {
	t.Parallel()
	s := newServed(t, anyone)
	var got map[string]int
	if err := Ask(t.Context(), s.path, &got); err != nil || got["answer"] != 42 {
		t.Error(got, err)
	}
	if err := Ask(t.Context(), s.path+"x", &got); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// asUser runs a function as another user.
func asUser(uid int, do func() error) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		id := uintptr(uid)
		for _, call := range [][4]uintptr{{unix.SYS_SETGROUPS}, {unix.SYS_SETRESGID, id, id, id}, {unix.SYS_SETRESUID, id, id, id}} {
			if _, _, errno := unix.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 { // of this thread only
				err = errno
				return
			}
		}
		err = do()
	}()
	<-done
	return err
}

// reachable lets all users come to the socket.
func (s *served) reachable(t *testing.T) {
	t.Helper()
	for dir := filepath.Dir(s.path); dir != "/" && dir != "/tmp"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOneUserDoesNotTakeAll: a user that holds as many connections as it gets, or several such users,
// keep neither root nor another user from the socket. Who reports is the kernel's word.
func TestOneUserDoesNotTakeAll(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "other users need root")
	}
	s := newServed(t, anyone)
	s.reachable(t)
	if err := os.Chmod(s.path, 0o666); err != nil {
		t.Fatal(err)
	}
	dial := func(uid int) (conn net.Conn) {
		t.Helper()
		if err := asUser(uid, func() (err error) {
			conn, err = (&net.Dialer{}).DialContext(context.WithoutCancel(t.Context()), "unix", s.path)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var got map[string]int
	const first, users = 23001, most/each + 1 // more than there are places
	for uid := first; uid < first+users; uid++ {
		for range each + 10 {
			dial(uid)
		}
		for _, uid := range []int{0, first + users} {
			if err := asUser(uid, func() error { return Ask(context.WithoutCancel(t.Context()), s.path, &got) }); err != nil {
				t.Fatalf("user %d: %v", uid, err)
			}
		}
	}
	if _, err := io.WriteString(dial(first+users), "alive 15011\n"); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if s.uid.Load() != first+users || s.port.Load() != 15011 {
			return fmt.Errorf("user %d, port %d", s.uid.Load(), s.port.Load())
		}
		return nil
	})
}

// TestOthersAreRefused: by the mode of the file, and by the kernel's word for who connects.
func TestOthersAreRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "other users need root")
	}
	const other = 23001
	s := newServed(t, func(uid uint32) bool { return uid == 0 })
	as := func(uid int) error {
		var got map[string]int
		return asUser(uid, func() error { return Ask(context.WithoutCancel(t.Context()), s.path, &got) })
	}
	if info, err := os.Stat(s.path); err != nil || info.Mode().Perm() != 0o660 {
		t.Error(info.Mode(), err)
	}
	s.reachable(t)
	if err := as(other); !errors.Is(err, os.ErrPermission) {
		t.Errorf("by the mode: %v", err)
	}
	if err := os.Chmod(s.path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := as(other); err == nil || errors.Is(err, os.ErrPermission) {
		t.Errorf("by the credentials: %v", err)
	}
	if err := as(0); err != nil {
		t.Error(err)
	}
	if s.count.Load() != 0 || !strings.Contains(s.log.String(), "uid=23001") {
		t.Error(s.log.String())
	}
}

// TestMessagesAreBounded: whoever sends something else, or too much, is cut off, and others are
// still served.
func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	s := newServed(t, anyone)
	for _, text := range []string{"alive 0\n", "alive 65536\n", "alive -1\n", "alive\n", "alive 15001 capture all\n", "15001\n", "capture 8080\n", "\n", strings.Repeat("a", 1<<20), "alive " + strings.Repeat("0", longest) + "1\n"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
		_, _ = io.WriteString(conn, text)
		if n, err := bufio.NewReader(conn).ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.30q: %q %v", text, n, err)
		}
		_ = conn.Close()
	}
	if n := s.count.Load(); n != 0 {
		t.Errorf("%d reports", n)
	}
	var held []net.Conn
	for range each + 10 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	_ = held[len(held)-1].SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := held[len(held)-1].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one too many: %v", err)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		var got map[string]int
		return Ask(t.Context(), s.path, &got)
	})
}
