package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
)

func newTokenList() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List join tokens: for which host, until when, used or not",
		Long: `Lists the join tokens that the server has on record. The server has only a hash of each token, so the
token itself is never shown. ID is for "fairlead token revoke".

  STATE     unused; used: a host joined with it; expired: nobody used it in time
  EXPIRES   until when a host can use it for the first time
  OPTIONS   direct, replace, and the addresses that it proves

A token stays in the list for at least a day after it was used or expired.`,
		Example: "  fairlead token list\n  fairlead token list -o json",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var tokens []server.TokenStatus
		if err := ask().Do(cmd.Context(), http.MethodGet, "/v1/tokens", nil, &tokens); err != nil {
			return err
		}
		if output == "json" {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(tokens)
		}
		return table(cmd.OutOrStdout(), "ID\tHOST\tTYPE\tWORKLOADS\tSTATE\tEXPIRES\tOPTIONS\tFAULT", func(w io.Writer) {
			for _, t := range tokens {
				state, expires := t.State, until(t.Expires)
				if t.State == jointoken.Used {
					state, expires = "used "+ago(t.Used), "-"
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", t.ID, t.Host, t.Type, strings.Join(t.Workloads, ","), state, expires,
					dash(strings.Join(optionsOf(t), ",")), dash(t.Fault))
			}
		})
	}
	return cmd
}

// optionsOf are the options with which a token was made.
func optionsOf(t server.TokenStatus) []string {
	var out []string
	if t.Direct {
		out = append(out, "direct")
	}
	if t.Replace {
		out = append(out, "replace")
	}
	return append(out, some(t.Addresses, 5)...)
}

func newTokenRevoke() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke ID…",
		Short: "Revoke join tokens, so that no host can use them",
		Long: `Revokes join tokens by the ids that "fairlead token list" shows. The first characters of an id are enough
if no other token's id begins with them: at least ` + strconv.Itoa(jointoken.MinID) + `.

A host that already joined with the token stays in the mesh: "fairlead host remove" removes it.`,
		Example: "  fairlead token revoke 5f2b8c1e9a3d7046",
		Args:    wantArgs(0),
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, true, tokenIDs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client := ask()
		var errs []error
		for _, id := range args {
			var t server.TokenStatus
			if err := client.Do(cmd.Context(), http.MethodDelete, "/v1/tokens/"+url.PathEscape(id), nil, &t); err != nil {
				errs = append(errs, err)
				continue
			}
			text := fmt.Sprintf("join token %s for host %s revoked", t.ID, t.Host)
			if t.State == jointoken.Used {
				text += fmt.Sprintf("; it was used %s, and the host that joined with it stays: `fairlead host remove %s` removes it", ago(t.Used), t.Host)
			}
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), text); err != nil {
				return err
			}
		}
		return errors.Join(errs...)
	}
	return cmd
}
