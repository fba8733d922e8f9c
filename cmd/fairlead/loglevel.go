package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/loglevel"
)

func newLogLevel() *cobra.Command {
	var output, hostRun string
	var levels levelFlags
	cmd := &cobra.Command{
		Use:   "log-level",
		Short: "Show and change log levels of a running server or agent",
		Long: `Shows the log levels of the server by component, after --level or --reset has changed them; with
--agent-run-dir those of the agent on this machine. The components are the values of "component" in
log lines; "default" has the lines without one. Changed levels last until the process ends.

For Envoy's log levels, use "fairlead proxy-config log --agent-run-dir DIR".`,
		Example: "  fairlead log-level\n  fairlead log-level --level xds:debug,registry:debug\n  fairlead log-level --level warn\n" +
			"  fairlead log-level --reset --agent-run-dir /run/fairlead-agent",
		Args: noArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.Flags().StringVar(&hostRun, "agent-run-dir", "", "runtime directory of an agent on this machine, which is asked instead of the server")
	levels.add(cmd, "debug, info, warn or error", "the level of the start (--log-level)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := ask()
		if hostRun != "" {
			client = admin.NewClient(hostRun + "/admin.sock")
		}
		list, err := levels.read()
		if err != nil {
			return err
		}
		method, in := http.MethodGet, any(nil)
		if levels.given() {
			method, in = http.MethodPost, loglevel.Change{Levels: list, Reset: levels.reset}
		}
		var now []loglevel.Component
		if err := client.Do(cmd.Context(), method, admin.LogLevelsPath, in, &now); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(now)
		}
		return table(cmd.OutOrStdout(), "COMPONENT\tLEVEL", func(w io.Writer) {
			for _, c := range now {
				_, _ = fmt.Fprintf(w, "%s\t%s\n", c.Name, c.Level)
			}
		})
	}
	return cmd
}

// levelFlags ask for other log levels.
type levelFlags struct {
	level string
	reset bool
}

func (f *levelFlags) add(cmd *cobra.Command, choices, start string) {
	cmd.Flags().StringVar(&f.level, "level", "", "set log levels: LEVEL for all, or NAME:LEVEL, several with commas; LEVEL is "+choices)
	cmd.Flags().BoolVar(&f.reset, "reset", false, "set all log levels to "+start+", before --level")
}

func (f *levelFlags) given() bool { return f.level != "" || f.reset }

func (f *levelFlags) read() ([]loglevel.Component, error) {
	if f.level == "" {
		return nil, nil
	}
	list, err := loglevel.Read(f.level)
	if err != nil {
		return nil, fmt.Errorf("--level: %w", err)
	}
	return list, nil
}
