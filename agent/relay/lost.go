package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/plain"
)

// Bounds on what a server can make grow that refuses: the bytes kept of its words,
// and how many different ones are told.
const (
	maxWords = 1024
	maxTold  = 16
)

// lost tells people, once a connection, why there is none any more.
func (r *Relay) lost(ctx context.Context, server string, err error, answered bool, lasted time.Duration) {
	why := explain(err)
	switch {
	case errors.Is(err, errNewNode) || errors.Is(err, errRenew):
		r.log.InfoContext(ctx, "reconnecting", "server", server, "reason", err)
	case answered:
		r.log.WarnContext(ctx, "control plane unreachable: Envoy keeps its configuration, reconnecting", "server", server, "err", why, "lasted", lasted)
	default:
		r.log.DebugContext(ctx, "connecting to a server failed", "server", server, "err", why)
	}
	if code := status.Code(err); r.c.Refused != nil && (code == codes.PermissionDenied || code == codes.Unauthenticated) {
		r.c.Refused()
	}
	r.tell(ctx, func(c *core, now time.Time) {
		if c.up.Server != "" || c.up.Since.IsZero() {
			c.up.Since = now
		}
		switch {
		case refuses(err) && c.told.first(server, err):
			// Said already, if the stream ended with these words.
			if !answered {
				r.log.WarnContext(ctx, "control plane rejected this host: serving the stored configuration, retrying",
					"server", server, "err", why)
			}
		case !refuses(err) && !answered && c.up.LastError == "":
			r.log.WarnContext(ctx, "no control plane reachable: serving the stored configuration, retrying",
				"server", server, "err", why)
		}
		c.upstream = nil
		c.up.Server, c.up.LastError = "", why
	})
}

// refuses reports whether a server ended a stream, or did not begin it, for a
// reason that somebody has to mend, and not because it is away or busy.
func refuses(err error) bool {
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.Unknown:
		return false
	case codes.Unavailable:
		return hintOf(err) > 0
	default:
		return true
	}
}

// told are the refusals that were told since there was a connection: a server that
// refuses is asked again every few seconds.
type told map[string]struct{}

// first reports whether a refusal has not been told yet, and notes it. Numbers do
// not make another one of it.
func (t told) first(server string, err error) bool {
	st, _ := status.FromError(err)
	words := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, plain.Words(st.Message(), maxWords))
	k := server + " " + st.Code().String() + " " + words
	if _, ok := t[k]; ok || len(t) >= maxTold {
		return false
	}
	t[k] = struct{}{}
	return true
}

// explain turns the opaque answer of a server into what a person can act on, on one
// line.
func explain(err error) string {
	words := plain.Words(err.Error(), maxWords)
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "rejected by the control plane (its log has the reason): " + words
	case codes.ResourceExhausted:
		if hint := hintOf(err); hint > 0 {
			return fmt.Sprintf("control plane is at a limit, retrying in about %s: %s", hint.Round(100*time.Millisecond), words)
		}
		return "control plane is at a limit: " + words
	default:
		return words
	}
}
