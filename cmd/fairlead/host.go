package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

func newHostList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the hosts that have joined, and those that have an unused token",
		Example: "  fairlead host list\n  fairlead host list -o json",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var hosts []server.Host
		if err := ask().Do(cmd.Context(), http.MethodGet, "/v1/hosts", nil, &hosts); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(hosts)
		}
		return table(cmd.OutOrStdout(), "HOST\tTYPE\tWORKLOADS\tJOINED\tCERTIFICATE\tADDRESSES\tFAULT", func(w io.Writer) {
			for _, h := range hosts {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", h.Name, h.Type, strings.Join(h.Workloads, ","),
					joined(h), until(h.NotAfter), dash(addressesOf(h)), dash(h.Fault))
			}
		})
	}
	return cmd
}

// joined is when a host came, and by what if not by a token.
func joined(h server.Host) string {
	if h.Waiting && h.Joined.IsZero() && h.Readopted.IsZero() {
		return "not yet (token unused)"
	}
	if !h.Readopted.IsZero() {
		return ago(h.Readopted) + " by certificate"
	}
	return ago(h.Joined)
}

func newHostRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a host: close its streams and renew none of its certificates",
		Long: `Removes a host from the mesh. The server closes its xDS streams at once, and renews neither its
certificate nor those of its workloads.

Certificates that were issued before stay valid for traffic between workloads until they expire. The
host's Envoy keeps running with its last configuration, so also stop it on the host.`,
		Example: "  fairlead host remove orders-1",
		Args:    wantArgs(1),
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, false, hostNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := ask().Do(cmd.Context(), http.MethodDelete, "/v1/hosts/"+url.PathEscape(args[0]), nil, nil); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "host %s removed\n", args[0])
		return err
	}
	return cmd
}

func newHostForget() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "forget {NAME|ADDRESS|--all}",
		Short: "Forget that a host, or a peer at an address, was refused",
		Long: `Removes a host, or a peer that has proved no name, from the list of those that the server refused. Use
it after a mistake that is over. It changes nothing for the host: if it is refused again, it is listed
again.

A refusal also ends when it does not happen again for ten minutes, or for one minute after the host was
let in.`,
		Example: "  fairlead host forget orders-1\n  fairlead host forget 10.0.0.21\n  fairlead host forget --all",
		Args:    cobra.ArbitraryArgs,
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, false, refusedNames)
	cmd.Flags().BoolVar(&all, "all", false, "forget all refusals")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0 && !all:
			return errors.New("missing argument: name a host or an address, or write --all; `fairlead proxy-status` lists who is refused")
		case len(args) > 1 || all && len(args) > 0:
			return fmt.Errorf("unexpected argument %q: name one host or address, or write --all", args[len(args)-1])
		}
		q := url.Values{}
		if all {
			q.Set("all", "true")
		} else {
			q.Set("peer", args[0])
		}
		var out server.Forgotten
		if err := ask().Do(cmd.Context(), http.MethodDelete, "/v1/refusals?"+q.Encode(), nil, &out); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "forgotten: %s\n", plural(out.Forgotten, "refusal"))
		return err
	}
	return cmd
}

func newRelease() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "release SOURCE",
		Short: "Confirm removals that are on hold",
		Long: `Confirms that the objects of SOURCE that are on hold were removed on purpose. The server then removes
them from the mesh.

If a source loses many objects at once, it is probably broken. So the server keeps these objects in
force until a later reading or this command confirms the removal. "fairlead proxy-status" lists the
sources with removals on hold.

It also confirms files and keys that lost their end (FL0309), removals that wait for --loss-after
(FL0310), and a source whose saved versions are damaged while a file has an error.`,
		Example: "  fairlead release files",
		Args:    wantArgs(1),
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, false, sourceNames)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := ask().Do(cmd.Context(), http.MethodPost, "/v1/release/"+url.PathEscape(args[0]), struct{}{}, nil); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "removals of %s released\n", args[0])
		return err
	}
	return cmd
}

// addressesOf are the addresses that a host claims, with how it has proven them, and
// those of its token that it does not.
func addressesOf(h server.Host) string {
	var out []string
	claimed := map[string]bool{}
	for _, c := range h.Claims {
		at := c.Address
		if c.Network != "" {
			at = c.Network + "/" + c.Address
		}
		claimed[c.Address], claimed[c.Network+"/"+c.Address] = true, true
		out = append(out, at+" ("+c.Proof+")")
	}
	for _, a := range h.Addresses {
		if !claimed[a] {
			out = append(out, a+" (not claimed)")
		}
	}
	slices.Sort(out)
	return strings.Join(some(slices.Compact(out), 5), ",")
}

// ago is how long something is past, as people say it; "-" for never.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(time.Since(t)) + " ago"
}

// lasting is how long something has been so; "-" where that is unknown.
func lasting(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	if time.Since(since) < time.Second {
		return "less than 1s"
	}
	return short(time.Since(since))
}

// until is when something ends, as people say it; "-" for never.
func until(t time.Time) string {
	switch d := time.Until(t); {
	case t.IsZero():
		return "-"
	case d < 0:
		return "expired " + short(-d) + " ago"
	default:
		return "ends in " + short(d)
	}
}

// short is a duration in its largest unit or two.
func short(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
