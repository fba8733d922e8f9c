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
		Long: `Hosts say what their clocks show when they connect. Where the median of at least three is more
than five minutes off the server's clock, the server signs nothing until they agree, or until
"fairlead clock accept", and names here who outvotes it. Exits with 1 while signing is on hold or an alarm stands.`,
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
		Short: "Say that the server's clock is right: signing resumes",
		Long: `Ends an alarm about the server's clock, and lets signing go on although the hosts' clocks differ,
for as long as they differ by as much as they do now. Check the server's clock first: certificates
are signed by it.`,
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
