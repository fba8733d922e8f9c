package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
		file   string
	)
	cmd := &cobra.Command{
		Use:   "create --host NAME --workload NAMESPACE/SERVICEACCOUNT…",
		Short: "Make a join token for one host",
		Long: `Makes a join token: a string that gives one host its identity, once, and entitles it to the
workload identities that are named. It also carries where the server is and by what key to
know it, so that "fairlead agent --token" needs nothing else. The server keeps only a hash
of it: it cannot be shown again. With --out it goes into a file that only this user can
read, and is not shown at all.`,
		Example: "  fairlead token create --host orders-1 --workload shop/orders --out orders-1.token\n" +
			"  fairlead token create --host orders-1 --workload shop/orders | ssh orders-1 fairlead agent --token-file -\n" +
			"  fairlead token create --host orders-1 --workload shop/orders --replace --out orders-1.token   # the host was set up anew",
		Args: noArgs,
	}
	ask := adminFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&in.Host, "host", "", "the host's name in the mesh")
	f.StringSliceVar(&in.Workloads, "workload", nil, "an identity the host may have, NAMESPACE/SERVICEACCOUNT; may be repeated")
	f.StringSliceVar(&in.Addresses, "address", nil, "an IP address of the host's workloads, ADDRESS or NETWORK/ADDRESS: the token proves that it is this host's; may be repeated")
	f.DurationVar(&in.TTL, "ttl", time.Hour, "how long the token may be redeemed")
	f.BoolVar(&in.Direct, "direct", false, "for a client without an agent: the token gives the one workload's certificate itself")
	f.BoolVar(&in.Replace, "replace", false, "let the token take a name that is in use")
	f.StringVar(&in.Type, "type", "sidecar", "what the host's proxies are: sidecar or router")
	f.StringVar(&file, "out", "", "a file for the token, which only this user can read; empty means standard output")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		switch {
		case in.Host == "" && !in.Direct:
			return errors.New("--host is required: the name of the host")
		case len(in.Workloads) == 0:
			return errors.New("--workload is required: NAMESPACE/SERVICEACCOUNT of each workload of the host")
		}
		var to *secretFile
		if file != "" {
			if to, err = newSecretFile(file); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, to.close()) }()
		}
		var out madeToken
		if err := ask().Do(cmd.Context(), http.MethodPost, "/v1/tokens", in, &out); err != nil {
			return err
		}
		if to != nil {
			if err := to.write(out.Token.Token + "\n"); err != nil {
				return fmt.Errorf("the token is made and could not be kept; it ends by itself: make another: %w", err)
			}
			out.Token.Token, out.File = "", file
		}
		return out.print(cmd.OutOrStdout(), output)
	}
	return cmd
}

// madeToken is a token and where it is.
type madeToken struct {
	server.Token

	File string `json:"file,omitempty"`
}

func (t madeToken) print(w io.Writer, output string) error {
	switch {
	case output == "json":
		return json.NewEncoder(w).Encode(t)
	case t.File != "":
		_, err := fmt.Fprintf(w, "join token for host %s written to %s, to be used until %s\n", t.Host, t.File, t.Expires.Local().Format(time.DateTime))
		return err
	default:
		_, err := fmt.Fprintln(w, t.Token.Token)
		return err
	}
}

func newHost() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "The hosts of the mesh and what they are entitled to"}
	cmd.AddCommand(newHostList(), newHostRemove(), newHostExport(), newHostImport())
	return cmd
}
