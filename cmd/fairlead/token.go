package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Join tokens, by which hosts come into the mesh"}
	cmd.AddCommand(newTokenCreate())
	return cmd
}

func newTokenCreate() *cobra.Command {
	var (
		in     server.TokenRequest
		output string
	)
	cmd := &cobra.Command{
		Use:   "create --host NAME --workload NAMESPACE/SERVICEACCOUNT…",
		Short: "Make a join token for one host",
		Long: `Makes a join token: a string that gives one host its identity, once, and entitles it to the
workload identities that are named. It also carries where the server is and by what key to
know it, so that "fairlead agent --token" needs nothing else. The server keeps only a hash
of it: it cannot be shown again.`,
		Example: "  fairlead token create --host orders-1 --workload shop/orders\n" +
			"  fairlead token create --host orders-1 --workload shop/orders --replace   # the host was set up anew",
		Args: noArgs,
	}
	ask := adminFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&in.Host, "host", "", "the host's name in the mesh")
	f.StringSliceVar(&in.Workloads, "workload", nil, "an identity the host may have, NAMESPACE/SERVICEACCOUNT; may be repeated")
	f.DurationVar(&in.TTL, "ttl", time.Hour, "how long the token may be redeemed")
	f.BoolVar(&in.Direct, "direct", false, "for a client without an agent: the token gives the one workload's certificate itself")
	f.BoolVar(&in.Replace, "replace", false, "let the token take a name that is in use")
	f.StringVar(&in.Type, "type", "sidecar", "what the host's proxies are: sidecar or router")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case in.Host == "" && !in.Direct:
			return errors.New("which host? Name it with --host NAME")
		case len(in.Workloads) == 0:
			return errors.New("what may the host be? Name its workloads with --workload NAMESPACE/SERVICEACCOUNT")
		}
		var out server.Token
		if err := ask().Do(cmd.Context(), http.MethodPost, "/v1/tokens", in, &out); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(out)
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), out.Token)
		return err
	}
	return cmd
}

func newHost() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "The hosts of the mesh and what they are entitled to"}
	cmd.AddCommand(newHostList(), newHostRemove())
	return cmd
}
