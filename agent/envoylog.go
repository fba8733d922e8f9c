package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/agent/proxy"
)

// LogChange asks for other log levels of Envoy.
type LogChange struct {
	// Levels are set after the reset.
	Levels []LoggerLevel `json:"levels,omitempty"`
	// Reset sets all loggers to the levels that the agent starts Envoy with.
	Reset bool `json:"reset,omitempty"`
}

// LoggerLevel is the level of one of Envoy's loggers. The logger "" means all.
type LoggerLevel struct {
	Logger string `json:"logger"`
	Level  string `json:"level"`
}

// envoyLevels are the levels that Envoy's admin interface takes; it knows "warn" only as an
// argument of its start.
func envoyLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// SetEnvoyLogging changes log levels of the running Envoy. Its next start has those of the
// agent's flags again. A level or logger that Envoy does not have changes nothing.
func (a *Agent) SetEnvoyLogging(ctx context.Context, c LogChange) error {
	text, err := a.EnvoyLogging(ctx)
	if err != nil {
		return err
	}
	var queries []string
	if c.Reset {
		all, components := proxy.LogLevels(a.envoyArgs())
		queries = append(queries, "level="+all)
		if components != "" {
			queries = append(queries, "paths="+components)
		}
	}
	// What goes into the query is one of a few words: nobody adds another parameter.
	known := loggers(text)
	var one []string
	for _, l := range c.Levels {
		if !slices.Contains(envoyLevels(), l.Level) {
			return fmt.Errorf("Envoy has no log level %q: choose %s", l.Level, strings.Join(envoyLevels(), ", "))
		}
		switch {
		case l.Logger == "":
			queries, one = append(queries, "level="+l.Level), nil // it overrides those before it
		case slices.Contains(known, l.Logger):
			one = append(one, l.Logger+":"+l.Level)
		default:
			return fmt.Errorf("Envoy has no logger %q: `fairlead proxy-config log` lists them", l.Logger)
		}
	}
	if len(one) > 0 {
		queries = append(queries, "paths="+strings.Join(one, ","))
	}
	if len(queries) == 0 {
		return errors.New("no log level is given, and no reset")
	}
	for _, q := range queries {
		if _, err := a.askEnvoy(ctx, (*proxy.Admin).Post, "/logging?"+q); err != nil {
			return err
		}
	}
	a.log.WarnContext(ctx, "Envoy's log levels changed by a command", "levels", strings.Join(queries, " "))
	return nil
}

// loggers are the names in Envoy's list of loggers.
func loggers(list []byte) (names []string) {
	for line := range strings.Lines(string(list)) {
		if name, level, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && level != "" {
			names = append(names, name)
		}
	}
	return names
}
