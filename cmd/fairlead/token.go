package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

func newToken() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Manage join tokens, with which hosts join the mesh"}
	cmd.AddCommand(newTokenCreate(), newTokenList(), newTokenRevoke())
	return cmd
}

func newTokenCreate() *cobra.Command {
	var (
		in     server.TokenRequest
		output string
		file   string
	)
	cmd := &cobra.Command{
		Use:   "create --host NAME --workload NAMESPACE/SERVICEACCOUNT… | HOST=NAMESPACE/SERVICEACCOUNT…",
		Short: "Create a join token for one host",
		Long: `Creates a join token. One host can use it once, to get its identity and to be entitled to the listed
workload identities. The token also has the addresses of the server and the hash of its key, so
"fairlead agent --token-file" needs nothing else.

The server stores only a hash of the token, so it cannot be shown again. With --out the token is written
to a file with mode 0600, and not printed. With HOST=NAMESPACE/SERVICEACCOUNT, once for each of several
hosts, the token of a host is in HOST.token.`,
		Example: "  fairlead token create --host orders-1 --workload shop/orders --out orders-1.token\n" +
			"  fairlead token create --host orders-1 --workload shop/orders | ssh orders-1 fairlead agent --token-file -\n" +
			"  fairlead token create --host orders-1 --workload shop/orders --replace --out orders-1.token   # the host was set up anew\n" +
			"  fairlead token create web-1=shop/web orders-1=shop/orders   # files web-1.token and orders-1.token",
	}
	ask := adminFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&in.Host, "host", "", "name of the host in the mesh")
	f.StringSliceVar(&in.Workloads, "workload", nil, "workload identity that the host may have, NAMESPACE/SERVICEACCOUNT; may be repeated")
	f.StringSliceVar(&in.Addresses, "address", nil, "IP address of the host's workloads, ADDRESS or NETWORK/ADDRESS, which the token proves to be the host's; may be repeated")
	f.DurationVar(&in.TTL, "ttl", time.Hour, "how long the token is valid")
	f.BoolVar(&in.Direct, "direct", false, "create a token for a client without an agent, which gives it the certificate of one workload")
	f.BoolVar(&in.Replace, "replace", false, "allow a host name that is in use: the new host replaces the old one")
	f.StringVar(&in.Type, "type", "sidecar", "type of the host's proxies: sidecar or router")
	f.StringVar(&file, "out", "", "file for the token, with mode 0600; empty means standard output")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, hosts []string) error {
		if len(hosts) > 0 {
			if in.Host != "" || len(in.Workloads) > 0 || len(in.Addresses) > 0 || file != "" {
				return errors.New("HOST=NAMESPACE/SERVICEACCOUNT makes HOST.token for each host: --host, --workload, --address and --out are for one host")
			}
			return createTokens(cmd, ask(), in, hosts, output)
		}
		switch {
		case in.Host == "" && !in.Direct:
			return errors.New("--host is required: the name of the host")
		case len(in.Workloads) == 0:
			return errors.New("--workload is required: NAMESPACE/SERVICEACCOUNT of each workload of the host")
		}
		return createToken(cmd, ask(), in, file, output)
	}
	return cmd
}

// createTokens makes a token for each of HOST=NAMESPACE/SERVICEACCOUNT, and writes it to HOST.token.
func createTokens(cmd *cobra.Command, to *admin.Client, common server.TokenRequest, hosts []string, output string) error {
	list := make([]server.TokenRequest, len(hosts))
	for i, text := range hosts {
		host, workload, ok := strings.Cut(text, "=")
		if !ok || host == "" || workload == "" || host != filepath.Base(host) {
			return fmt.Errorf("%q: write HOST=NAMESPACE/SERVICEACCOUNT", text)
		}
		list[i] = common
		list[i].Host, list[i].Workloads = host, []string{workload}
	}
	for _, in := range list {
		if err := createToken(cmd, to, in, in.Host+".token", output); err != nil {
			return err
		}
	}
	return nil
}

// createToken makes a token, and writes it to a file, if there is one.
func createToken(cmd *cobra.Command, ask *admin.Client, in server.TokenRequest, file, output string) (err error) {
	var to *secretFile
	if file != "" {
		if to, err = newSecretFile(file); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, to.close()) }()
	}
	var out madeToken
	if err := ask.Do(cmd.Context(), http.MethodPost, "/v1/tokens", in, &out); err != nil {
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
		_, err := fmt.Fprintf(w, "join token for host %s written to %s, to be used until %s; its id is %s\n", t.Host, t.File, t.Expires.Local().Format(time.DateTime), t.ID)
		return err
	default:
		_, err := fmt.Fprintln(w, t.Token.Token)
		return err
	}
}

func newHost() *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "Manage the hosts of the mesh"}
	cmd.AddCommand(newHostList(), newHostRemove(), newHostForget(), newHostExport(), newHostImport())
	return cmd
}
