package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
)

// lines are those of a log.
type lines struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// with are the lines that contain a text.
func (l *lines) with(words string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, words) {
			out = append(out, line)
		}
	}
	return out
}

// TestRejectionIsLoggedOnce has a connected server stop, come back and reject the host: each
// reason is logged once.
func TestRejectionIsLoggedOnce(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	for _, code := range []codes.Code{codes.ResourceExhausted, codes.PermissionDenied, codes.InvalidArgument} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			server, log := newServer(t), &lines{}
			h := newHost(t, server.addr)
			h.cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
			server.set(generation(t, 1, newShop(t).messages("one")))
			r, _ := h.relay()
			connected := func() error {
				if r.Status().Upstream.Server == "" {
					return errNotYet
				}
				return nil
			}
			envoytest.Eventually(t, deadline, connected)
			long := "\n\x1b[31mall of them" + strings.Repeat("!", 1<<14)
			for round := range 2 {
				before := len(server.refusedAt(t, 0))
				server.refuse(status.Error(code, "serves 2 streams"+long))
				server.kill()
				server.start()
				server.refusedAt(t, before+2)
				server.refuse(status.Error(code, "serves 3 streams"+long))
				server.refusedAt(t, before+3)
				server.refuse(status.Error(code, "something else"))
				envoytest.Eventually(t, deadline, func() error {
					if len(log.with("something else")) <= round {
						return errNotYet
					}
					return nil
				})
				if got := log.with("rejected this host"); len(got) != 2*(round+1) {
					t.Fatalf("%d times: %q", len(got), got)
				}
				server.refuse(nil)
				envoytest.Eventually(t, deadline, connected)
			}
			first := log.with("serves 2 streams")
			if len(first) == 0 || len(first[0]) > 2*maxReason || strings.Contains(first[0], "\x1b[") || len(log.with("something else")) != 2 {
				t.Errorf("the log says %q", first)
			}
		})
	}
}

// TestIsRejection distinguishes a server that rejects from one that is unreachable.
func TestIsRejection(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		errors.New("handshake failed"):                  false,
		status.Error(codes.Unavailable, "EOF"):          false,
		status.Error(codes.Canceled, "gone"):            false,
		status.Error(codes.ResourceExhausted, "limit"):  true,
		status.Error(codes.Unimplemented, "only delta"): true,
		full(t, time.Second):                            true,
	} {
		if got := isRejection(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
	logged := loggedRejections{}
	for i := range 3 * maxLogged {
		logged.first("a", status.Error(codes.Aborted, strings.Repeat("x", i)))
	}
	if len(logged) > maxLogged {
		t.Errorf("%d are kept", len(logged))
	}
}
