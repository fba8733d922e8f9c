package agent

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestEnvoyLogLevels changes the levels of real Envoys, and resets them to those of the agent's
// flags.
func TestEnvoyLogLevels(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := envoytest.Start(t, envoytest.Config{Version: version, Bootstrap: []byte(`{"admin":` + envoytest.AdminJSON + `}`)})
			a := &Agent{log: slog.New(slog.DiscardHandler), c: Config{EnvoyArgs: proxy.LogArgs("warn")}, admin: proxy.NewAdmin("tcp", e.AdminAddress())}
			level := func(logger string) string {
				t.Helper()
				b, err := a.EnvoyLogging(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for line := range strings.Lines(string(b)) {
					if name, level, _ := strings.Cut(strings.TrimSpace(line), ": "); name == logger {
						return level
					}
				}
				t.Fatalf("no logger %q: %s", logger, b)
				return ""
			}
			want := func(when string, levels map[string]string) {
				t.Helper()
				for logger, want := range levels {
					if got := level(logger); got != want {
						t.Errorf("%s: the level of %s is %s, want %s", when, logger, got, want)
					}
				}
			}
			set := func(c LogChange) {
				t.Helper()
				if err := a.SetEnvoyLogging(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			set(LogChange{Levels: []LoggerLevel{{"rbac", "debug"}, {"", "error"}, {"http", "trace"}, {"jwt", "off"}}})
			want("all and some", map[string]string{"rbac": "error", "http": "trace", "jwt": "off", "misc": "error", "upstream": "error"})
			for _, wrong := range []LogChange{
				{},
				{Reset: true, Levels: []LoggerLevel{{"http", "loud"}}},
				{Reset: true, Levels: []LoggerLevel{{"http", "info"}, {"htpp", "debug"}}},
				{Levels: []LoggerLevel{{"http", "info&level=trace"}}},
				{Levels: []LoggerLevel{{"http:info,rbac", "debug"}}},
			} {
				if err := a.SetEnvoyLogging(t.Context(), wrong); err == nil {
					t.Errorf("%v was accepted", wrong)
				}
			}
			want("after wrong changes", map[string]string{"rbac": "error", "http": "trace", "jwt": "off"})
			set(LogChange{Reset: true, Levels: []LoggerLevel{{"rbac", "debug"}}})
			want("after a reset", map[string]string{"rbac": "debug", "http": "warning", "misc": "error"})
		})
	}
}
