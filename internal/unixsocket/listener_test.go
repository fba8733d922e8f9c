package unixsocket

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/parallel"
	"github.com/fairlead/fairlead/internal/race"
)

func TestMain(m *testing.M) {
	parallel.Waiting()
	goleak.VerifyTestMain(m)
}

// echo is a listener whose connections answer each line with a word.
type echo struct {
	*Listener
	path, dir string
	log       *envoytest.Log
}

func newEcho(tb testing.TB) *echo {
	tb.Helper()
	top := envoytest.ShortDir(tb)
	e := &echo{dir: filepath.Join(top, "run"), log: &envoytest.Log{}}
	e.path = filepath.Join(e.dir, "s")
	if err := errors.Join(os.Mkdir(e.dir, 0o750), os.Chmod(e.dir, 0o750)); err != nil {
		tb.Fatal(err)
	}
	var err error
	e.Listener, err = Listen(tb.Context(), Config{
		Logger: slog.New(slog.NewTextHandler(e.log, nil)), Path: e.path, Mode: 0o600, UID: uint32(os.Geteuid()),
	})
	if err != nil {
		tb.Fatal(err)
	}
	serveWord(tb, e.Listener, "ours")
	return e
}

func serveWord(tb testing.TB, l net.Listener, word string) {
	tb.Helper()
	tb.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for b := make([]byte, 1); ; {
					if _, err := conn.Read(b); err != nil {
						return
					}
					if _, err := io.WriteString(conn, word); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// ask asks on a connection, or on a new one to a path.
func ask(tb testing.TB, conn net.Conn) (string, error) {
	tb.Helper()
	if err := conn.SetDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.WriteString(conn, "?"); err != nil {
		return "", err
	}
	b := make([]byte, 64)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

func dial(tb testing.TB, path string) (net.Conn, error) {
	tb.Helper()
	conn, err := (&net.Dialer{}).DialContext(tb.Context(), "unix", path)
	if err == nil {
		tb.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// awaitAnswer waits until the path leads to who answers with the word.
func awaitAnswer(tb testing.TB, path, word string) {
	tb.Helper()
	envoytest.Eventually(tb, envoytest.Patience, func() error {
		conn, err := dial(tb, path)
		if err != nil {
			return err
		}
		got, err := ask(tb, conn)
		if err == nil && got != word {
			err = fmt.Errorf("%q answers, want %q", got, word)
		}
		return err
	})
}

func (e *echo) awaitProblem(tb testing.TB, want string) {
	tb.Helper()
	envoytest.Eventually(tb, envoytest.Patience, func() error {
		if p := e.Problem(); want == "" && p != "" || !strings.Contains(p, want) {
			return fmt.Errorf("problem = %q, want %q", p, want)
		}
		return nil
	})
}

func check(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

// removeAll removes a directory. A socket that is made again meanwhile is removed, too.
func removeAll(tb testing.TB, dir string) {
	tb.Helper()
	envoytest.Eventually(tb, envoytest.Patience, func() error { return os.RemoveAll(dir) })
}

// TestRemovedSocketIsMadeAgain removes the file in each way; connections stay.
func TestRemovedSocketIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t *testing.T, e *echo){
		"file": func(t *testing.T, e *echo) {
			t.Helper()
			check(t, os.Remove(e.path))
		},
		"file_renamed": func(t *testing.T, e *echo) {
			t.Helper()
			check(t, os.Rename(e.path, e.path+".old"))
		},
		"directory": func(t *testing.T, e *echo) {
			t.Helper()
			removeAll(t, e.dir)
		},
		"directory_renamed": func(t *testing.T, e *echo) {
			t.Helper()
			check(t, os.Rename(e.dir, e.dir+".old"))
		},
		"directory_and_parent": func(t *testing.T, e *echo) {
			t.Helper()
			removeAll(t, filepath.Dir(e.dir))
		},
		"directory_replaced": func(t *testing.T, e *echo) {
			t.Helper()
			// In one step: between two, the listener may make the directory itself.
			check(t, os.Mkdir(e.dir+".old", 0o750), unix.Renameat2(unix.AT_FDCWD, e.dir+".old", unix.AT_FDCWD, e.dir, unix.RENAME_EXCHANGE))
		},
		"dead_socket_instead": func(t *testing.T, e *echo) {
			t.Helper()
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: e.path + "2", Net: "unix"})
			check(t, err)
			l.SetUnlinkOnClose(false)
			check(t, l.Close(), os.Rename(e.path+"2", e.path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho(t)
			for round := range 2 { // the second shows that it watches what it made
				old, err := dial(t, e.path)
				check(t, err)
				_, err = ask(t, old)
				check(t, err)
				remove(t, e)
				awaitAnswer(t, e.path, "ours")
				if got, err := ask(t, old); err != nil || got != "ours" {
					t.Errorf("an old connection: %q, %v", got, err)
				}
				if fi, err := os.Stat(e.path); err != nil || fi.Mode().Perm() != 0o600 {
					t.Errorf("socket is %v, %v", fi, err)
				}
				if fi, err := os.Stat(e.dir); err != nil || fi.Mode().Perm() != 0o750 {
					t.Errorf("directory is %v, %v", fi, err)
				}
				check(t, os.RemoveAll(e.path+".old"), os.RemoveAll(e.dir+".old"))
				envoytest.Eventually(t, envoytest.Patience, func() error {
					if n := strings.Count(e.log.String(), "made again"); n < round+1 {
						return fmt.Errorf("%d lines after %d removals: %s", n, round+1, e.log)
					}
					if n := e.Remade(); n < uint64(round)+1 {
						return fmt.Errorf("made again %d times after %d removals", n, round+1)
					}
					return nil
				})
			}
			e.awaitProblem(t, "")
			if strings.Contains(e.log.String(), "ERROR") || !strings.Contains(e.log.String(), "path="+e.path) {
				t.Error(e.log)
			}
		})
	}
}

// TestOthersFilesAreKept puts a living socket, and files that are no sockets, in the place of ours.
func TestOthersFilesAreKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		put     func(t *testing.T, at string)
		says    string
		answers string
	}{
		"living_socket": {func(t *testing.T, at string) {
			t.Helper()
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
			check(t, err)
			l.SetUnlinkOnClose(false)
			serveWord(t, l, "theirs")
		}, "another process serves there", "theirs"},
		"file": {func(t *testing.T, at string) {
			t.Helper()
			check(t, os.WriteFile(at, []byte("precious"), 0o600))
		}, "no socket", ""},
		"link": {func(t *testing.T, at string) {
			t.Helper()
			check(t, os.Symlink("/nonexistent", at))
		}, "no socket", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho(t)
			c.put(t, e.path+"2")
			before, err := os.Lstat(e.path + "2")
			check(t, err)
			check(t, os.Rename(e.path+"2", e.path))
			e.awaitProblem(t, c.says)
			if c.answers != "" {
				awaitAnswer(t, e.path, c.answers)
			}
			if now, err := os.Lstat(e.path); err != nil || !os.SameFile(before, now) {
				t.Errorf("the other's file is %v, %v", now, err)
			}
			if n := strings.Count(e.log.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d errors in the log: %s", n, e.log)
			}
			check(t, os.Remove(e.path))
			awaitAnswer(t, e.path, "ours")
			e.awaitProblem(t, "")
			// Close leaves what is another's.
			c.put(t, e.path+"2")
			check(t, os.Rename(e.path+"2", e.path))
			check(t, e.Close())
			if _, err := os.Lstat(e.path); err != nil {
				t.Errorf("Close removed a file that is not its own: %v", err)
			}
		})
	}
}

// TestRemovalsInALoopCostLittle: there is a least time between two files, and few log lines.
func TestRemovalsInALoopCostLittle(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	e := newEcho(t)
	const times = 5
	began := time.Now()
	for range times {
		check(t, os.Remove(e.path))
		awaitAnswer(t, e.path, "ours")
	}
	if took := time.Since(began); took < (times-1)*minInterval {
		t.Errorf("made %d times within %v", times, took)
	}
	if n := strings.Count(e.log.String(), "\n"); n > 3 {
		t.Errorf("%d lines: %s", n, e.log)
	}
}

// TestUnsafeDirectoryIsNotUsed: a directory that somebody else could have made is no place for a
// socket; a safe one is used when it is there.
func TestUnsafeDirectoryIsNotUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		put  func(t *testing.T, at string)
		says string
	}{
		"link": {func(t *testing.T, at string) {
			t.Helper()
			check(t, os.Symlink(t.TempDir(), at))
		}, "symbolic link"},
		"others_may_write": {func(t *testing.T, at string) {
			t.Helper()
			check(t, os.Mkdir(at, 0o750), os.Chmod(at, 0o777))
		}, "other users may write"},
		"other_owner": {func(t *testing.T, at string) {
			t.Helper()
			if os.Geteuid() != 0 {
				envoytest.Missing(t, "only root can give a directory away")
			}
			check(t, os.Mkdir(at, 0o750), os.Chown(at, 12345, -1))
		}, "another user (uid 12345)"},
		"file": {func(t *testing.T, at string) {
			t.Helper()
			check(t, os.WriteFile(at, nil, 0o600))
		}, "not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho(t)
			c.put(t, e.dir+".new")
			// Both renames at once, else the listener makes the directory between them.
			check(t, exchange(e.dir, e.dir+".new"))
			e.awaitProblem(t, c.says)
			if entries, err := os.ReadDir(e.dir); err == nil && len(entries) > 0 {
				t.Errorf("there is %v in it", entries)
			}
			check(t, os.Remove(e.dir))
			awaitAnswer(t, e.path, "ours")
		})
	}
}

func TestCloseRemovesTheFile(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	check(t, e.Close())
	if _, err := os.Lstat(e.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := e.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept = %v", err)
	}
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// The directory may be replaced between the look at the file and that at the directory.
func TestUnsafeDirectoryIsNotTakenForTheOwn(t *testing.T) {
	t.Parallel()
	e := newEcho(t)
	check(t, e.Close())
	l := &Listener{c: Config{Path: e.path}, ctx: t.Context()}
	for name, c := range map[string]struct {
		mode  os.FileMode
		taken bool
	}{"safe": {0o750, true}, "unsafe": {0o777, false}} {
		var err error
		l.dir, err = look(e.dir)
		check(t, err, os.Mkdir(e.dir+".new", c.mode), os.Chmod(e.dir+".new", c.mode), exchange(e.dir, e.dir+".new"))
		check(t, os.WriteFile(e.path, nil, 0o600))
		st, err := stat(e.path)
		check(t, err)
		before := l.dir
		l.file = fileOf(st)
		if reason, err := l.missing(); reason != "" || err != nil {
			t.Errorf("%s: %q, %v", name, reason, err)
		}
		if taken := l.dir != before; taken != c.taken {
			t.Errorf("%s: the directory is taken: %v", name, taken)
		}
		check(t, os.Chmod(e.dir, 0o750), os.RemoveAll(e.dir+".new"))
	}
}
