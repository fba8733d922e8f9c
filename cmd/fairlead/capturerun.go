package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/agent/capture/beat"
	"github.com/fairlead/fairlead/agent/capture/keeper"
	"github.com/fairlead/fairlead/internal/safetext"
)

// captureSocket is the name of the service's socket in its run directory.
const captureSocket = "capture.sock"

func (f *captureFlags) bindRun(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.runDir, "capture-run-dir", "/run/fairlead-capture", "directory of the socket of the capture service")
}

func newCaptureRun() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Keep the confirmed table: the process of fairlead-capture.service",
		Long: `Loads the table that was confirmed, before the network is there and without looking up any name, and keeps it:
if another program changes or deletes it, or the routes of the virtual addresses, it is put back and
counted. A table that was applied and is not confirmed in time is replaced by the one confirmed before.

In open mode agents report to it that their Envoy is alive. Connections of a workload whose Envoy was not
reported for 10 seconds go directly, also if this process is killed. So do, in any mode, DNS queries of a
workload whose agent was not reported to answer them.

It needs CAP_NET_ADMIN, and no other capability. When it ends, the table stays.

Exit code 0: it was stopped; 2: it could not run, or could not load the confirmed table.`,
		Example: "  fairlead capture run",
		Args:    noArgs,
	}
	f.bindState(cmd)
	f.bindRun(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, _, err := newLogger(cmd)
		if err != nil {
			return err
		}
		defer untilSignal(cmd)()
		k, err := keeper.New(keeper.Config{Logger: log, Dir: f.stateDir, Socket: filepath.Join(f.runDir, captureSocket)})
		if err != nil {
			return err
		}
		return runNotified(cmd.Context(), k.Run, k.NotReady)
	}
	return cmd
}

func newCaptureStatus() *cobra.Command {
	var f captureFlags
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether capture is as declared, and what was captured",
		Long: `Reads the table of the kernel, and asks the service that keeps it.

Exit code 0: new connections are captured as declared, and the service keeps the table; 1: something of
this is not so; 2: could not run.`,
		Example: "  fairlead capture status\n  fairlead capture status -o json",
		Args:    noArgs,
	}
	outputFlag(cmd, &output)
	f.bindState(cmd)
	f.bindRun(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		st, err := f.status(cmd.Context())
		if err != nil {
			return err
		}
		if output == "json" {
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(st); err != nil {
				return err
			}
		} else {
			st.write(cmd.OutOrStdout())
		}
		if len(st.Wrong) > 0 {
			return errInvalid
		}
		return nil
	}
	return cmd
}

// captureStatus is what `fairlead capture status` prints.
type captureStatus struct {
	capture.State

	// Declared is whether a table was confirmed.
	Declared bool `json:"declared"`
	// Service is what the service says; nil if it does not run.
	Service *keeper.Status `json:"service,omitempty"`
	// Wrong says what is not as declared; empty if all is well.
	Wrong []string `json:"wrong,omitempty"`
}

func (f *captureFlags) status(ctx context.Context) (*captureStatus, error) {
	var st captureStatus
	var err error
	if st.State, err = (capture.Kernel{}).State(); err != nil {
		return nil, err
	}
	confirmed, err := capture.LoadConfirmed(f.stateDir)
	switch {
	case err == nil:
		st.Declared = true
	case !errors.Is(err, fs.ErrNotExist):
		st.Wrong = append(st.Wrong, err.Error())
	}
	if confirmed != nil {
		others, err := conflicting(confirmed)
		if err != nil {
			return nil, err
		}
		st.Wrong = append(st.Wrong, others...)
	}
	var asked keeper.Status
	err = beat.Ask(ctx, filepath.Join(f.runDir, captureSocket), &asked)
	if err == nil {
		st.Service = &asked
	}
	st.Wrong = append(st.Wrong, st.wrong(confirmed, err)...)
	return &st, nil
}

// conflicting says which captured ports another table redirects, since it was confirmed.
func conflicting(confirmed *capture.Saved) ([]string, error) {
	table, err := capture.Build(&confirmed.Settings, &confirmed.Facts)
	if err != nil {
		return nil, fmt.Errorf("reading the confirmed settings: %w", err)
	}
	found, err := capture.Kernel{}.Inspect(table)
	return found.Refused, err
}

// wrong says what is not as declared. noService is why the service did not answer, or nil.
func (st *captureStatus) wrong(confirmed *capture.Saved, noService error) []string {
	var out []string
	switch {
	case !st.Present:
		out = append(out, "there is no table: nothing is captured")
	case st.Draining:
		out = append(out, "draining: new connections go directly; `fairlead capture remove` ends it")
	case !st.Capturing:
		out = append(out, "expired: new connections go directly: the table was not confirmed in time; run `fairlead capture apply` again")
	case confirmed == nil && st.Remaining == 0:
		out = append(out, "a table is loaded that was not confirmed: run `fairlead capture apply` again, or `fairlead capture remove`")
	}
	if confirmed != nil && st.Capturing {
		for i := range confirmed.Settings.Workloads {
			w := &confirmed.Settings.Workloads[i]
			if left, open := st.Alive[w.OutboundPort]; open && left == 0 {
				out = append(out, fmt.Sprintf("workload %s: connections go directly: no agent reports that its Envoy is alive", w.Name))
			}
			if left, dns := st.Alive[w.DNSPort]; dns && left == 0 {
				out = append(out, fmt.Sprintf("workload %s: DNS queries go directly: no agent reports that it answers them at port %d (it needs --dns)", w.Name, w.DNSPort))
			}
		}
	}
	if s := st.Service; s != nil {
		if confirmed != nil && !s.Kept && !s.Pending {
			out = append(out, "the kernel has another table than the confirmed one")
		}
		for _, text := range []string{s.Problem, s.Fight} {
			if text != "" {
				out = append(out, text)
			}
		}
	} else if confirmed != nil {
		out = append(out, fmt.Sprintf("the service does not run: nobody puts the table back, also not after a reboot: systemctl enable --now fairlead-capture (%v)", noService))
	}
	return out
}

func (st *captureStatus) write(w io.Writer) {
	line := func(format string, args ...any) {
		_, _ = fmt.Fprintln(w, safetext.Sanitize(fmt.Sprintf(format, args...), 2048))
	}
	switch {
	case st.Capturing && st.Remaining > 0:
		line("capturing, for another %s: run `fairlead capture confirm` to keep it", st.Remaining.Round(time.Second))
	case st.Capturing:
		line("capturing")
	}
	for _, text := range st.Wrong {
		line("not as declared: %s", text)
	}
	if s := st.Service; s != nil {
		if s.Mode != "" {
			line("the service keeps the table since %s, mode %s", s.Since.UTC().Format(time.RFC3339), s.Mode)
		} else {
			line("the service runs, and no table was confirmed")
		}
		if !s.LastMended.IsZero() {
			by := ""
			if s.LastBy != "" {
				by = ", after " + s.LastBy + " had changed tables"
			}
			line("put back: the table %d times, routes %d times; last %s at %s%s", s.Mended["table"], s.Mended["routes"], s.LastWhat, s.LastMended.UTC().Format(time.RFC3339), by)
		}
	}
	for _, c := range []struct{ name, what string }{
		{"outbound", "connections of this host that went to Envoy"},
		{"inbound", "connections from elsewhere that went to Envoy"},
		{"self", "connections of Envoys to captured ports of this host, which went to Envoy"},
		{"dns", "DNS queries that went to the agent; several of one socket count once"},
		{"unanswered", "packets to virtual addresses that were refused, as they were not captured"},
		{"direct", "connections to the ports of Envoy itself that were refused"},
	} {
		if n, ok := st.Counts[c.name]; ok {
			line("%-12s %d %s", c.name, n, c.what)
		}
	}
}
