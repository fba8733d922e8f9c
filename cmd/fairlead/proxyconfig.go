package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
)

func newProxyConfig() *cobra.Command {
	var output, hostRun string
	cmd := &cobra.Command{
		Use:     "proxy-config TYPE PROXY",
		Aliases: []string{"pc"},
		Short:   "Show the configuration of a proxy",
		Long: `Shows what the server has sent to a proxy: TYPE is ` + strings.Join(server.TypeNames(), ", ") + ` or all, PROXY is
a host, NAME.NAMESPACE or a node id. FROM is the line of YAML from which a resource was made.

With --agent-run-dir, on the host, it shows Envoy's own config_dump with secrets masked. PROXY is then
not needed.`,
		Example: "  fairlead proxy-config route orders-1\n  fairlead proxy-config all orders-1 -o json\n" +
			"  fairlead proxy-config all --agent-run-dir /run/fairlead-agent",
		Args: wantArgs(2),
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, false, typeNames, proxyNames)
	cmd.Flags().StringVar(&hostRun, "agent-run-dir", "", "runtime directory of an agent on this machine, which is asked for Envoy's config_dump")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if hostRun != "" {
			var raw []byte
			err := admin.NewClient(hostRun+"/admin.sock").Do(cmd.Context(), http.MethodGet, "/v1/config_dump?type="+url.QueryEscape(args[0]), nil, &raw)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(raw)
			return err
		}
		if len(args) < 2 {
			return errors.New("PROXY is required: `fairlead proxy-status` lists them")
		}
		var entries []server.ConfigEntry
		path := "/v1/config/" + url.PathEscape(args[1]) + "?type=" + url.QueryEscape(args[0])
		if err := ask().Do(cmd.Context(), http.MethodGet, path, nil, &entries); err != nil {
			return err
		}
		if output == "json" {
			enc := json.NewEncoder(cmd.OutOrStdout())
			enc.SetIndent("", "  ")
			return enc.Encode(entries)
		}
		return table(cmd.OutOrStdout(), "TYPE\tNAME\tVERSION\tACCEPTED\tFROM", func(w io.Writer) {
			for _, e := range entries {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", e.Type, e.Name, e.Version, accepted(e), dash(strings.Join(some(e.Origins, maxOrigins), " ")))
			}
		})
	}
	return cmd
}

func accepted(e server.ConfigEntry) string {
	switch {
	case e.Rejected != "":
		return "rejected: " + safetext.Sanitize(e.Rejected, 256)
	case e.Accepted:
		return "yes"
	default:
		return "not yet"
	}
}
