package main

import (
	"context"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/safetext"
)

// completionWait is how long a shell waits for names that a server has.
const completionWait = 2 * time.Second

// maxCompletions limits the names that a shell is given.
const maxCompletions = 1000

// completion gives the arguments of a command to a shell: one function an argument, of which the
// last one counts for all further ones if repeat is set. A server that does not answer gives none.
func completion(cmd *cobra.Command, ask func() *admin.Client, repeat bool, arguments ...func(context.Context, *admin.Client) []string) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		at := len(args)
		if repeat {
			at = min(at, len(arguments)-1)
		}
		if at >= len(arguments) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		_ = applySettings(cmd, os.Environ()) // --run-dir may be there; the command itself reports errors
		ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
		defer cancel()
		names := arguments[at](ctx, ask())
		slices.Sort(names)
		names = slices.DeleteFunc(slices.Compact(names), func(n string) bool { return n == "" || slices.Contains(args, n) || safetext.Sanitize(n, 256) != n })
		return names[:min(len(names), maxCompletions)], cobra.ShellCompDirectiveNoFileComp
	}
}

// namesFrom asks a server for a list, and takes names from it.
func namesFrom[T any](path string, names func(T) []string) func(context.Context, *admin.Client) []string {
	return func(ctx context.Context, client *admin.Client) []string {
		var out T
		if err := client.Do(ctx, http.MethodGet, path, nil, &out); err != nil {
			return nil
		}
		return names(out)
	}
}

// Names that a server has.
var (
	hostNames = namesFrom("/v1/hosts", func(hosts []server.Host) (names []string) { //nolint:gochecknoglobals // a function
		for _, h := range hosts {
			names = append(names, h.Name)
		}
		return names
	})
	proxyNames = namesFrom("/v1/proxies", func(p server.Proxies) (names []string) { //nolint:gochecknoglobals // a function
		for _, x := range p.Proxies {
			names = append(names, x.Name, x.Host)
		}
		return names
	})
	refusedNames = namesFrom("/v1/proxies", func(p server.Proxies) (names []string) { //nolint:gochecknoglobals // a function
		for _, r := range p.Refused {
			names = append(names, r.Host)
		}
		return names
	})
	tokenIDs = namesFrom("/v1/tokens", func(tokens []server.TokenStatus) (names []string) { //nolint:gochecknoglobals // a function
		for _, t := range tokens {
			names = append(names, t.ID)
		}
		return names
	})
	sourceNames = namesFrom("/v1/sources", func(s server.Sources) (names []string) { //nolint:gochecknoglobals // a function
		for _, x := range s.Registry.Sources {
			names = append(names, x.Name)
		}
		return names
	})
)

// typeNames are the types of resources.
func typeNames(context.Context, *admin.Client) []string { return proxyconfig.Names() }
