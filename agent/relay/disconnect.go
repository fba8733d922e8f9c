package relay

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/safetext"
)

// Limits of what a server that rejects the host can make the relay keep: the bytes of a
// reason, and the number of different reasons that are logged.
const (
	maxReason = 1024
	maxLogged = 16
)

// reportDisconnect logs why a connection ended, once a connection.
func (r *Relay) reportDisconnect(ctx context.Context, server string, err error, answered bool, lasted time.Duration) {
	why := explain(err)
	switch {
	case isPlanned(err):
		r.log.InfoContext(ctx, "reconnecting", "server", server, "reason", err)
	case answered:
		r.log.WarnContext(ctx, "control plane unreachable: Envoy keeps its configuration, reconnecting", "server", server, "err", why, "lasted", lasted)
	default:
		r.log.DebugContext(ctx, "connecting to a server failed", "server", server, "err", why)
	}
	if code := status.Code(err); r.c.Refused != nil && (code == codes.PermissionDenied || code == codes.Unauthenticated) {
		r.c.Refused()
	}
	r.submit(ctx, func(c *core, now time.Time) {
		if c.upstreamStatus.Server != "" || c.upstreamStatus.Since.IsZero() {
			c.upstreamStatus.Since = now
		}
		switch {
		case isRejection(err) && c.logged.first(server, err):
			// An answered stream that ended with this reason was logged above.
			if !answered {
				r.log.WarnContext(ctx, "control plane rejected this host: serving the stored configuration, retrying",
					"server", server, "err", why)
			}
		case !isRejection(err) && !answered && c.upstreamStatus.LastError == "":
			r.log.WarnContext(ctx, "no control plane reachable: serving the stored configuration, retrying",
				"server", server, "err", why)
		}
		c.upstream = nil
		c.upstreamStatus.Server, c.upstreamStatus.LastError, c.upstreamStatus.Rejected = "", why, isRejection(err)
	})
}

// isRejection reports whether a server rejected or ended a stream for a reason that somebody
// has to fix. An unreachable or busy server is none.
func isRejection(err error) bool {
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Internal, codes.Unknown:
		return false
	case codes.Unavailable:
		return retryDelay(err) > 0
	default:
		return true
	}
}

// loggedRejections are the rejections that were logged since the last connection. A server
// that rejects the host is asked again every few seconds.
type loggedRejections map[string]struct{}

// first reports whether a rejection has not been logged yet, and adds it. Reasons that differ
// only in numbers count as one.
func (t loggedRejections) first(server string, err error) bool {
	st, _ := status.FromError(err)
	words := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, safetext.Sanitize(st.Message(), maxReason))
	k := server + " " + st.Code().String() + " " + words
	if _, ok := t[k]; ok || len(t) >= maxLogged {
		return false
	}
	t[k] = struct{}{}
	return true
}

// explain turns the error of a server into one line that says what to do.
func explain(err error) string {
	words := safetext.Sanitize(err.Error(), maxReason)
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated:
		return "rejected by the control plane: " + safetext.Sanitize(status.Convert(err).Message(), maxReason)
	case codes.ResourceExhausted:
		if hint := retryDelay(err); hint > 0 {
			return fmt.Sprintf("control plane is at a limit, retrying in about %s: %s", hint.Round(100*time.Millisecond), words)
		}
		return "control plane is at a limit: " + words
	default:
		return words
	}
}
