package xds

import (
	"log/slog"
	"time"
)

// Limits of the log lines about the streams of one host. The burst is as many lines as a
// host may have streams by default.
const (
	hostLogBurst    = 64
	hostLogInterval = 10 * time.Second
)

// log logs an event of a stream that its host can cause as often as it likes; skipped is
// how many lines the stream has suppressed before. Lines over the host's limit are logged
// on debug level and counted in the next line.
func (c *conn) log(level slog.Level, text string, skipped int, attrs ...any) {
	write := c.server.log.Debug
	if level >= slog.LevelInfo {
		omitted, ok := c.quota.logLines.Allow(time.Now())
		switch {
		case !ok:
			c.quota.logLines.Omit(skipped)
		case level >= slog.LevelWarn:
			write, skipped = c.server.log.Warn, skipped+omitted
		default:
			write, skipped = c.server.log.Info, skipped+omitted
		}
	}
	if skipped > 0 {
		attrs = append(attrs, "left_out", skipped)
	}
	write(text, attrs...)
}
