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
	if level >= slog.LevelInfo {
		omitted, ok := c.account.lines.Allow(time.Now())
		switch {
		case !ok:
			c.account.lines.Omit(skipped)
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
