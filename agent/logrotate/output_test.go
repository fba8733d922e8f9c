package logrotate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// stdout is the access log that is Envoy's output.
const stdout = "/dev/stdout"

// TestOutputIsBounded: an access log at /dev/stdout is in the file that Envoy's output goes to. It
// is copied and emptied, because Envoy cannot open it again.
func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := startEnvoy(t, version, stdout)
			c := g.config(8<<10, 50)
			c.Output = g.output
			r := g.rotator(c)
			// Nothing is written while a file is emptied: what is written then may be lost.
			for range 10 {
				g.send(30)
				envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.output)) })
				r.step(t.Context(), time.Now())
				if fi, err := os.Stat(g.output); err != nil || fi.Size() != 0 {
					t.Fatalf("the output was not emptied: %v, %v; %+v", fi, err, r.Status())
				}
				if err := g.complete(all(t, g.output)); err != nil {
					t.Fatal(err)
				}
			}
			if s := r.Status(); s.Rotations != 10 || len(s.Problems) > 0 || len(s.Logs) > 0 || s.DroppedBytes != 0 {
				t.Errorf("status: %+v", s)
			}
			narrowModes(t, g.output+"*")
			// With fewer files, the rest goes.
			c.Files = 2
			g.send(30)
			envoytest.Eventually(t, deadline, func() error { return g.complete(all(t, g.output)) })
			g.rotator(c).step(t.Context(), time.Now())
			if n := len(all(t, g.output)); n != 3 {
				t.Errorf("%d files, want the output and two rotated ones", n)
			}
		})
	}
}

// slowWriter takes what it gets when it is allowed to.
type slowWriter struct {
	mu     sync.Mutex // guards all following fields
	buf    bytes.Buffer
	closed chan struct{} // blocks writes until it is closed; nil means that nothing does
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	wait := w.closed
	w.mu.Unlock()
	if wait != nil {
		<-wait
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *slowWriter) files() map[string][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return map[string][]byte{"writer": bytes.Clone(w.buf.Bytes())}
}

// TestOutputIsWrittenOn: with --envoy-log -, the agent's standard output gets every line once, from
// one agent or from several in turn.
func TestOutputIsWrittenOn(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, stdout)
	w := &slowWriter{}
	c := g.config(64<<10, 0)
	c.Output, c.CopyTo = g.output, w
	for range 5 {
		stop := g.run(g.rotator(c))
		g.send(20)
		stop()
		g.send(20) // nobody is there
		stop = g.run(g.rotator(c))
		envoytest.Eventually(t, deadline, func() error { return g.complete(w.files()) })
		stop()
	}
	// Too much of it, while nobody writes it: it is not kept.
	r := g.rotator(c)
	g.run(r)
	envoytest.Eventually(t, deadline, func() error {
		g.send(20)
		envoytest.Eventually(t, deadline, func() error { return g.complete(w.files()) })
		if r.Status().Rotations == 0 {
			return errors.New("the output was not emptied")
		}
		return nil
	})
	if s := r.Status(); s.DroppedBytes != 0 || len(s.Problems) > 0 {
		t.Errorf("status: %+v", s)
	}
	if n, err := filepath.Glob(g.output + ".[0-9]*"); err != nil || len(n) > 0 {
		t.Errorf("files: %q, %v", n, err)
	}
}

// TestNextAgentLosesNoLine: what was noted of an agent that was killed may be damaged, old or of
// another file. The next agent then writes lines twice, and loses none.
func TestNextAgentLosesNoLine(t *testing.T) {
	t.Parallel()
	const text = "first line\nsecond line\n"
	for name, c := range map[string]struct{ note, want string }{
		"nothing noted":        {note: "", want: ""}, // the lines were written for the file
		"yesterday's format":   {note: "DEV INO 11\n", want: "second line\n"},
		"today's format":       {note: "0000000DEV 00000000INO 00000000000000000011\n", want: "second line\n"},
		"an empty note":        {note: "EMPTY", want: text},
		"a damaged note":       {note: "DEV IN", want: text},
		"another file":         {note: "DEV 1 11\n", want: text},
		"emptied in between":   {note: "DEV INO 4096\n", want: text},
		"everything was there": {note: "DEV INO 23\n", want: ""},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(resolved(t.TempDir()), "envoy.log")
			write(t, path, text, 0o600)
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			id := idOf(&st)
			note := strings.NewReplacer("DEV", strconv.FormatUint(id.dev, 10), "INO", strconv.FormatUint(id.ino, 10), "EMPTY", "").Replace(c.note)
			if c.note != "" {
				write(t, path+".written", note, 0o600)
			}
			w := &slowWriter{}
			o := &output{path: path, to: w, log: slog.New(slog.DiscardHandler)}
			o.begin()
			if err := o.copyNew(); err != nil {
				t.Fatal(err)
			}
			if got := string(w.files()["writer"]); got != c.want {
				t.Errorf("written on: %q, want %q", got, c.want)
			}
		})
	}
}

// TestNoteIsAlwaysWhole: whenever an agent is killed, its note says up to where it wrote lines on.
func TestNoteIsAlwaysWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(resolved(t.TempDir()), "envoy.log")
	write(t, path, "a line\n", 0o600)
	o := &output{path: path, to: &slowWriter{}, log: slog.New(slog.DiscardHandler)}
	o.begin()
	first, err := os.ReadFile(o.noted())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for i := range int64(2000) {
			o.offset = i << (i % 40)
			if err := o.note(); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for {
		b, err := os.ReadFile(o.noted())
		if err != nil || len(b) != len(first) || b[len(b)-1] != '\n' {
			t.Fatalf("a note that is %q: %v", b, err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// TestBlockedWriterDoesNotStopEnvoy: what nobody takes is dropped and counted, and the file stays
// small.
func TestBlockedWriterDoesNotStopEnvoy(t *testing.T) {
	t.Parallel()
	g := startEnvoy(t, envoytest.Default, stdout)
	w := &slowWriter{closed: make(chan struct{})}
	c := g.config(64<<10, 0)
	c.Output, c.CopyTo = g.output, w
	r := g.rotator(c)
	stop := g.run(r)
	envoytest.Eventually(t, deadline, func() error {
		g.send(100)
		if s := r.Status(); s.Rotations < 3 || s.DroppedBytes < 64<<10 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	close(w.closed)
	stop()
}

// TestAgentEndsWithABlockedWriter: the last output is not waited for without end.
func TestAgentEndsWithABlockedWriter(t *testing.T) {
	t.Parallel()
	w := &slowWriter{closed: make(chan struct{})}
	path := filepath.Join(resolved(t.TempDir()), "envoy.log")
	g := &rig{tb: t, logged: &envoytest.Log{}}
	r := g.rotator(Config{
		Logger: slog.New(slog.DiscardHandler), MaxSize: 1 << 20, Output: path, CopyTo: w,
		Process: func() (int, string) { return 0, "" }, Reopen: func(context.Context) error { return io.EOF },
	})
	write(t, path, "a line\n", 0o600)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
	close(w.closed)
	envoytest.Eventually(t, deadline, func() error {
		if got := w.files()["writer"]; string(got) != "a line\n" {
			return fmt.Errorf("written: %q", got)
		}
		return nil
	})
}

// TestOutputWaitsForItsWriter: what was written while no agent ran is not dropped by the next one
// before it could be written on, unless it is far too much.
func TestOutputWaitsForItsWriter(t *testing.T) {
	t.Parallel()
	for size, left := range map[int64]int64{100 << 10: 100 << 10, 200 << 10: 0} {
		path := filepath.Join(resolved(t.TempDir()), "envoy.log")
		write(t, path, "", 0o600)
		r, err := New(Config{
			Logger: slog.New(slog.DiscardHandler), MaxSize: 64 << 10, Output: path, CopyTo: &slowWriter{},
			Process: func() (int, string) { return 0, "" }, Reopen: func(context.Context) error { return io.EOF },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		r.step(t.Context(), time.Now())
		if fi, err := os.Stat(path); err != nil || fi.Size() != left || r.Status().DroppedBytes != uint64(size-left) {
			t.Errorf("%d bytes: %v, %v, %+v", size, fi, err, r.Status())
		}
	}
}
