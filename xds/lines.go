package xds

import (
	"log/slog"
	"time"
)

// What the log gets of the streams of one host: they come and go, and refuse what
// they are sent, as often as it likes. As many as a host has by default may come at
// once.
const (
	linesAtOnce = 64
	linesEvery  = 10 * time.Second
)

// tell logs something that a host causes, on one of its streams; skipped is how many
// lines the stream left out before. What the host causes beyond its lines is logged on
// debug, and counted in the next one.
func (c *conn) tell(level slog.Level, text string, skipped int, attrs ...any) {
	write := c.server.log.Debug
	if omitted, ok := c.account.lines.Allow(time.Now()); ok {
		skipped += omitted
		switch {
		case level >= slog.LevelError:
			write = c.server.log.Error
		case level >= slog.LevelWarn:
			write = c.server.log.Warn
		default:
			write = c.server.log.Info
		}
	} else {
		c.account.lines.Omit(skipped)
	}
	if skipped > 0 {
		attrs = append(attrs, "left_out", skipped)
	}
	write(text, attrs...)
}
