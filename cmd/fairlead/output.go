package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/loglevel"
	"github.com/fairlead/fairlead/internal/logpipe"
)

// outputFlag adds -o text|json.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "output format: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	prior := cmd.PreRunE
	cmd.PreRunE = func(c *cobra.Command, args []string) error {
		if *output != "text" && *output != "json" {
			return fmt.Errorf("--output %q: choose text or json", *output)
		}
		if prior != nil {
			return prior(c, args)
		}
		return nil
	}
}

// table writes rows in columns.
func table(w io.Writer, head string, rows func(w io.Writer)) error {
	tw := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	if _, err := fmt.Fprintln(tw, head); err != nil {
		return err
	}
	rows(tw)
	return tw.Flush()
}

// newLogger writes to the command's standard error, by levels that can be changed.
func newLogger(cmd *cobra.Command) (*slog.Logger, *loglevel.Levels, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cmd.Flag("log-level").Value.String())); err != nil {
		return nil, nil, errors.New("--log-level: choose debug, info, warn or error")
	}
	levels := loglevel.New(level)
	handler := func(to io.Writer) slog.Handler { return slog.NewTextHandler(to, nil) }
	switch format := cmd.Flag("log-format").Value.String(); format {
	case "text":
	case "json":
		handler = func(to io.Writer) slog.Handler { return slog.NewJSONHandler(to, nil) }
	default:
		return nil, nil, fmt.Errorf("--log-format %q: choose text or json", format)
	}
	// A journal that hangs must not stop the process.
	to := logpipe.New(cmd.ErrOrStderr(), func(lost int) []byte {
		var line bytes.Buffer
		slog.New(handler(&line)).Warn("standard error was not read; log lines are lost", "count", lost)
		return line.Bytes()
	})
	return slog.New(levels.Handler(handler(to))), levels, nil
}

// defaultStateDir is where a process keeps what must survive it.
func defaultStateDir(process string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/fairlead-" + process
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "fairlead", process)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = "."
	}
	return filepath.Join(home, ".local", "state", "fairlead", process)
}

// defaultRunDir is where a process has its sockets.
func defaultRunDir(process string) string {
	if os.Geteuid() == 0 {
		return "/run/fairlead-" + process
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "fairlead", process)
	}
	return filepath.Join(defaultStateDir(process), "run")
}
