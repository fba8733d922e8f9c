package main

import (
	"context"
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
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

func newProxyStatus() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "proxy-status",
		Aliases: []string{"ps"},
		Short:   "Show the state of every proxy",
		Long: `Lists every proxy that is connected or was connected recently.

  CDS, LDS, EDS, RDS   SYNCED: accepted; STALE: not answered yet; REJECTED: the proxy sent a NACK
  ENCRYPTED            what the proxy requires of traffic for its application
  ROUTES               whole: route configurations with their virtual hosts; by host: VHDS
  ADDRESS              the proof of the workload's address: annotation, token, source, or unproven

Below the table are the rejected resources, in Envoy's words, and the clients that the server rejected.

Exit code 0: all is well; 1: something is rejected, refused or stale; 2: could not run.`,
		Example: "  fairlead proxy-status\n  fairlead proxy-status -o json",
		Args:    noArgs,
	}
	ask := adminFlag(cmd)
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client := ask()
		var p server.Proxies
		if err := client.Do(cmd.Context(), http.MethodGet, "/v1/proxies", nil, &p); err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if output == "json" {
			if err := json.NewEncoder(w).Encode(p); err != nil {
				return err
			}
			w = io.Discard // the exit code is the same
		}
		bad, err := writeProxies(w, p)
		if err != nil {
			return err
		}
		faults, err := writeSources(cmd.Context(), w, client)
		if err != nil {
			return err
		}
		if bad || faults {
			return errInvalid
		}
		return nil
	}
	return cmd
}

func writeProxies(w io.Writer, p server.Proxies) (bad bool, err error) {
	err = table(w, "PROXY\tHOST\tENVOY\tCDS\tLDS\tEDS\tRDS\tENCRYPTED\tCERTIFICATE\tHEALTH\tROUTES\tADDRESS", func(w io.Writer) {
		for _, x := range p.Proxies {
			state := x.Envoy
			if !x.Connected {
				state = "left " + ago(x.Since)
			} else if state == "" {
				state = "no agent"
			}
			bad = bad || x.Connected && (!x.Synced || x.Health == "unhealthy")
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Host, state,
				typeState(x, "cluster"), typeState(x, "listener"), typeState(x, "endpoint"), worse(typeState(x, "route"), typeState(x, "virtual-host")),
				dash(x.Encryption), until(x.CertificateEnds), x.Health, routesTravel(x), dash(x.AddressProof))
		}
	})
	if err != nil {
		return bad, err
	}
	for _, x := range p.Proxies {
		if x.Stale != "" {
			_, _ = fmt.Fprintf(w, "\n%s is stale: %s\n", x.Name, x.Stale)
		} else if why := notSynced(x); why != "" {
			_, _ = fmt.Fprintf(w, "\n%s is not synced: %s\n", x.Name, why)
		}
		if x.Health == "unhealthy" {
			_, _ = fmt.Fprintf(w, "\n%s is unhealthy and gets no traffic: %s\n", x.Name, dash(x.HealthReason))
		}
	}
	bad = writeConflicts(w, p.Conflicts) || bad
	writeRejected(w, p.Proxies)
	for _, x := range p.Warnings {
		_, _ = fmt.Fprintf(w, "\n%s: warning %s, at %s: %s\n", safetext.Sanitize(x.Origin, 1024), x.Object, plural(x.Proxies, "proxy"), safetext.Sanitize(x.Message, 1024))
	}
	if len(p.Refused) == 0 {
		return bad, nil
	}
	_, _ = fmt.Fprintln(w)
	return true, table(w, "REFUSED\tOF\tLAST\tTIMES\tREASON", func(w io.Writer) {
		for _, r := range p.Refused {
			who := r.Host
			if who == "" {
				who = "unknown peer " + r.Peer
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", strings.TrimSpace(who), r.What, ago(r.Last), r.Count, r.Reason)
		}
	})
}

// notSynced is why a proxy is not synced, where no column says it.
func notSynced(p server.Proxy) string {
	if !p.Connected || p.Synced {
		return ""
	}
	asks := false
	for _, t := range p.Types {
		if len(t.Rejected) > 0 || t.Pending && t.Type != "virtual-host" || t.Pending && typeState(p, "route") == "SYNCED" {
			return ""
		}
		asks = asks || t.Type == "listener"
	}
	if !asks {
		return "it has not asked for listeners yet; its Envoy starts, or waits for a certificate of one of its clusters"
	}
	return "a newer configuration is on its way to it; ask again"
}

// writeConflicts lists the hosts that claim a workload of another host.
func writeConflicts(w io.Writer, list []agents.Conflict) (bad bool) {
	for _, c := range list[:min(len(list), manyConflicts)] {
		_, _ = fmt.Fprintf(w, "\nhost %s claims workload %s/%s at %s, %s, last %s: %s\n", safetext.Sanitize(c.Host, 256), c.Namespace, safetext.Sanitize(c.Workload, 256),
			safetext.Sanitize(c.Address, 64), plural(c.Count, "time"), ago(c.Last), safetext.Sanitize(c.Reason, 1024))
	}
	if more := len(list) - manyConflicts; more > 0 {
		_, _ = fmt.Fprintf(w, "\n… and %d more conflicting claims: -o json has all of them\n", more)
	}
	return len(list) > 0
}

// manyConflicts limits the claims that are listed.
const manyConflicts = 10

// worse is the worse one of the states of routes and of virtual hosts, which are
// one thing to a person.
func worse(routes, hosts string) string {
	if routes == "SYNCED" && hosts != "-" {
		return hosts
	}
	return routes
}

// routesTravel says how the route tables of a proxy travel.
func routesTravel(p server.Proxy) string {
	switch {
	case typeState(p, "route") == "-":
		return "-"
	case len(p.VirtualHosts) > 0:
		return "by host"
	default:
		return "whole"
	}
}

func typeState(p server.Proxy, name string) string {
	for _, t := range p.Types {
		switch {
		case t.Type != name:
		case len(t.Rejected) > 0:
			return "REJECTED"
		case t.Pending && p.Partial:
			return "PARTIAL"
		case t.Pending:
			return "STALE"
		default:
			return "SYNCED"
		}
	}
	return "-"
}

// manyHeld is the same for removals of one source, manyFaults for what is wrong
// in manifests: `fairlead validate` has all of it.
const (
	manyHeld   = 5
	manyFaults = 40
)

// writeSources reports problems of the sources, and nothing if there are none.
func writeSources(ctx context.Context, w io.Writer, client *admin.Client) (bad bool, err error) {
	var s server.Sources
	if err := client.Do(ctx, http.MethodGet, "/v1/sources", nil, &s); err != nil {
		return false, err
	}
	for _, why := range s.NotReady {
		_, _ = fmt.Fprintf(w, "\nnot ready: %s\n", safetext.Sanitize(why, 1024))
	}
	bad = len(s.NotReady) > 0
	bad = writeConsul(w, &s) || bad
	var faults []string
	errs := 0
	for _, src := range s.Files {
		if src.Reason != "" {
			bad = true
			_, _ = fmt.Fprintf(w, "\nsource %s is %s for %s: %s\n", src.Source, src.State, lasting(src.Since), safetext.Sanitize(src.Reason, 1024))
		}
		for _, f := range src.Faults {
			if f.Severity == manifest.Error {
				errs++
			}
			if f.Severity == manifest.Error || f.Code == lastgood.CodeKept { // what stands instead is half of the news
				faults = append(faults, f.String())
			}
			if f.Code == kv.CodeNoKeys { // a warning, and most likely a mistake
				bad = true
				_, _ = fmt.Fprintf(w, "\nsource %s: %s\n", src.Source, f)
			}
		}
	}
	if errs > 0 {
		_, _ = fmt.Fprintf(w, "\n%s in manifests:\n  %s\n", plural(errs, "error"), strings.Join(some(faults, manyFaults), "\n  "))
	}
	held := 0
	for _, src := range s.Registry.Sources {
		held += src.HeldCount
		for _, h := range src.Held[:min(len(src.Held), manyHeld)] {
			_, _ = fmt.Fprintf(w, "\nthe removal of %s is on hold for %s (%s): confirm it with `fairlead release %s`\n", h.Key, lasting(h.Since), h.Reason, src.Name)
		}
		if more := src.HeldCount - manyHeld; more > 0 {
			_, _ = fmt.Fprintf(w, "\n… and %d more removals of %s: confirm all of them with `fairlead release %s`\n", more, src.Name, src.Name)
		}
	}
	return bad || errs > 0 || held > 0, nil
}

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
