package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/pki/timecheck"
)

func newClock() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "clock",
		Short: "Compare the server's clock with the hosts' clocks",
		Long: `Hosts report their clocks when they connect. If the median of at least three hosts differs from the
server's clock by more than five minutes, signing is on hold: the server signs no certificates until
the clocks agree, or until "fairlead clock accept". The output names the hosts that differ.

Exit code 0: the clock is right; 1: signing is on hold, or there is an alarm about the server's clock;
2: could not run.`,
		Example: "  fairlead clock\n  fairlead clock -o json",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var st timecheck.Status
		if err := ask().Do(cmd.Context(), http.MethodGet, "/v1/clock", nil, &st); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(st)
		}
		return writeClock(cmd, &st)
	}
	cmd.AddCommand(newClockAccept())
	return cmd
}

func newClockAccept() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Confirm that the server's clock is right, and resume signing",
		Long: `Ends an alarm about the server's clock, and resumes signing although the hosts' clocks differ, for as
long as the difference stays the same. Check the server's clock first: it determines from when to
when certificates are valid.`,
		Example: "  fairlead clock accept",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var st timecheck.Status
		if err := ask().Do(cmd.Context(), http.MethodPost, "/v1/clock/accept", struct{}{}, &st); err != nil {
			return err
		}
		return writeClock(cmd, &st)
	}
	return cmd
}

func writeClock(cmd *cobra.Command, st *timecheck.Status) error {
	out := cmd.OutOrStdout()
	_, _ = fmt.Fprintf(out, "server:  %s\n", st.Now.Format(time.RFC3339))
	if st.Voters < timecheck.MinVotes {
		_, _ = fmt.Fprintf(out, "hosts:   %d of at least %d votes\n", st.Voters, timecheck.MinVotes)
	} else {
		_, _ = fmt.Fprintf(out, "hosts:   %s, %+.0f s, by %d votes\n", st.Now.Add(st.Off).Format(time.RFC3339), st.Off.Seconds(), st.Voters)
	}
	for _, r := range st.Remarks() {
		_, _ = fmt.Fprintf(out, "%s\n", r)
	}
	if who := st.Outvoted(); who != "" {
		_, _ = fmt.Fprintf(out, "%s\n", who)
	}
	if st.Held != "" || st.Alarm != nil {
		return errInvalid
	}
	return nil
}
