package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

func newAddresses() *cobra.Command {
	var output, etcHosts string
	cmd := &cobra.Command{
		Use:   "addresses [HOST…]",
		Short: "List the virtual addresses of hosts",
		Long: `Lists the virtual addresses of all hosts of the mesh, or of some. A proxy that captures traffic knows a host by them.

The addresses are those of the ServiceEntry (addresses) or of the catalog. A host without any gets an IPv4
and an IPv6 address from the server, which keeps them.

  FROM      manifest: the addresses are the host's own; server: the server chose them
  NOTE      what to know of them:
            "may differ on other servers": the address that the name stands for was taken. With several servers,
            write the addresses into the ServiceEntry
            "refused: …": the host has addresses in its manifest that another host has, so that they are not used

With --etc-hosts, it prints lines for /etc/hosts instead, for programs on hosts that have no other way to
resolve the names of the mesh: "virtual" for hosts with capture, "loopback" for agents with
--loopback-addresses. Wildcard hosts have no line.`,
		Example: "  fairlead addresses\n  fairlead addresses api.shop.internal -o json\n  fairlead addresses --etc-hosts loopback",
		Args:    cobra.ArbitraryArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.Flags().StringVar(&etcHosts, "etc-hosts", "", "print lines for /etc/hosts: virtual or loopback")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if etcHosts != "" && etcHosts != "virtual" && etcHosts != "loopback" {
			return fmt.Errorf("--etc-hosts %q: choose virtual or loopback", etcHosts)
		}
		var all []server.HostAddresses
		if err := ask().Do(cmd.Context(), http.MethodGet, "/v1/addresses", nil, &all); err != nil {
			return err
		}
		list, err := someHosts(all, args)
		if err != nil {
			return err
		}
		if etcHosts != "" {
			return writeHostsLines(cmd.OutOrStdout(), list, etcHosts == "loopback")
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
		}
		return table(cmd.OutOrStdout(), "HOST\tNAMESPACE\tADDRESSES\tFROM\tNOTE", func(w io.Writer) {
			for _, x := range list {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.Host, x.Namespace, dash(strings.Join(x.Addresses, ",")), addressesFrom(x), dash(addressesNote(x)))
			}
		})
	}
	return cmd
}

// writeHostsLines writes an address and a host on each line, as in hosts(5).
func writeHostsLines(to io.Writer, list []server.HostAddresses, loopback bool) error {
	for _, x := range list {
		if strings.HasPrefix(string(x.Host), "*") {
			continue
		}
		list := x.Addresses
		if loopback {
			list = []string{x.Loopback}
		}
		for _, a := range list {
			if a == "" || strings.Contains(a, "/") { // a range
				continue
			}
			if _, err := fmt.Fprintf(to, "%s %s\n", a, x.Host); err != nil {
				return err
			}
		}
	}
	return nil
}

// someHosts are those of the list that are named; all if none is. A name that is not in it is
// an error.
func someHosts(all []server.HostAddresses, names []string) ([]server.HostAddresses, error) {
	if len(names) == 0 {
		return all, nil
	}
	out := []server.HostAddresses{}
	for _, name := range names {
		found := false
		for _, x := range all {
			if strings.EqualFold(string(x.Host), name) {
				out, found = append(out, x), true
			}
		}
		if !found {
			return nil, fmt.Errorf("host %q: no service of the mesh has it: `fairlead addresses` lists all", name)
		}
	}
	return out, nil
}

func addressesFrom(x server.HostAddresses) string {
	switch {
	case x.Allocated:
		return "server"
	case len(x.Addresses) > 0:
		return "manifest"
	default:
		return "-"
	}
}

func addressesNote(x server.HostAddresses) string {
	var notes []string
	if x.Moved {
		notes = append(notes, "may differ on other servers")
	}
	if len(x.Refused) > 0 {
		notes = append(notes, "refused: "+strings.Join(x.Refused, ","))
	}
	if x.Why != "" {
		notes = append(notes, x.Why)
	}
	return strings.Join(notes, "; ")
}
