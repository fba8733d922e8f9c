package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

func newProxyStatus() *cobra.Command {
	var output string
	var onlyUnwell bool
	cmd := &cobra.Command{
		Use:     "proxy-status [NAME…]",
		Aliases: []string{"ps"},
		Short:   "Show the state of every proxy, and what needs a person",
		Long: `Lists every proxy that is connected or was connected recently, and the workloads of hosts that have
not come back. With names of proxies or hosts, it lists only those.

  ENVOY                live, starting, absent, rejecting; left: the stream ended; not back: the host has
                       not connected since the server started
  CDS, LDS, EDS, RDS,  SYNCED: accepted; STALE: not answered yet, or a newer one is on its way or cannot be
  ECDS                 made; REJECTED: the proxy sent a NACK; ECDS are the rules of inbound HTTP requests
  ENCRYPTED            what the proxy requires of traffic for its application
  HEALTH               of the workload in the mesh, by its agent and Consul; withdrawn: out of service on
                       purpose, as in Consul's maintenance mode
  ROUTES               whole: route configurations with their virtual hosts; by host: VHDS
  ADDRESS              the proof of the workload's address: annotation, token, source, or unproven

Below the table are the credentials of hosts, by name and end, the proxies with the largest hash tables (consistentHash), the rejected resources, in Envoy's words, and the clients that the server rejected.
The last lines, below UNWELL, are all that needs a person: what it is and what to do.

Exit code 0: all is well; 1: something needs a person, and each line below UNWELL says what and what to
do; 2: could not ask the server, or it knows no such name. With names, only what is about them counts.
The metric fairlead_mesh_unwell and the last line of /readyz are the same sum.`,
		Example: "  fairlead proxy-status\n  fairlead proxy-status --unwell\n  fairlead proxy-status orders-1\n  fairlead proxy-status -o json",
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, true, proxyNames)
	outputFlag(cmd, &output)
	cmd.Flags().BoolVar(&onlyUnwell, "unwell", false, "show only what needs a person")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client := ask()
		st := status{}
		if err := client.Do(cmd.Context(), http.MethodGet, "/v1/proxies", nil, &st.Proxies); err != nil {
			return err
		}
		if err := client.Do(cmd.Context(), http.MethodGet, "/v1/sources", nil, &st.sources); err != nil {
			return err
		}
		st.Unwell = append([]server.Condition{}, server.Conditions(&st.Proxies, &st.sources, time.Now())...)
		if err := st.choose(args, onlyUnwell); err != nil {
			return err
		}
		write := st.write
		if output == "json" {
			write = func(w io.Writer) error { return json.NewEncoder(w).Encode(st) }
		}
		if err := write(cmd.OutOrStdout()); err != nil {
			return err
		}
		if !st.Well {
			return errInvalid
		}
		return nil
	}
	return cmd
}

// status is what proxy-status shows.
type status struct {
	// Well is what the exit code says, Unwell why.
	Well   bool               `json:"well"`
	Unwell []server.Condition `json:"unwell"`
	server.Proxies

	sources server.Sources
	named   bool // it is about some names only
}

// choose leaves what is about the named proxies and hosts, and of that what is not well.
func (st *status) choose(names []string, onlyUnwell bool) error {
	st.named = len(names) > 0
	if st.named {
		if err := st.name(names); err != nil {
			return err
		}
	}
	st.Well = len(st.Unwell) == 0
	if onlyUnwell {
		st.Proxies.Proxies = slices.DeleteFunc(st.Proxies.Proxies, func(x server.Proxy) bool {
			return !slices.ContainsFunc(st.Unwell, func(c server.Condition) bool {
				return c.Proxy != "" && c.Proxy == x.Name || c.Proxy == "" && c.Host != "" && c.Host == x.Host
			})
		})
	}
	return nil
}

// name leaves what is about the named proxies and hosts.
func (st *status) name(names []string) error {
	known := []string{}
	for _, x := range st.Proxies.Proxies {
		known = append(known, x.Name, x.Host, x.ID)
	}
	for _, c := range st.Unwell {
		known = append(known, c.Host)
	}
	hosts := map[string]bool{}
	for _, n := range names {
		if n == "" || !slices.Contains(known, n) {
			return fmt.Errorf("there is no proxy or host %q%s; `fairlead proxy-status` lists them, `fairlead host list` those that have not connected yet", n, didYouMean(n, known))
		}
		hosts[n] = true
	}
	st.Proxies.Proxies = slices.DeleteFunc(st.Proxies.Proxies, func(x server.Proxy) bool {
		if !slices.Contains(names, x.Name) && !slices.Contains(names, x.Host) && !slices.Contains(names, x.ID) {
			return true
		}
		hosts[x.Name] = true
		return false
	})
	about := func(proxy, host string) bool {
		if proxy != "" {
			return hosts[proxy] || hosts[host]
		}
		return slices.Contains(names, host) || slices.ContainsFunc(st.Proxies.Proxies, func(x server.Proxy) bool { return x.Host == host && host != "" })
	}
	st.Unwell = slices.DeleteFunc(st.Unwell, func(c server.Condition) bool { return !about(c.Proxy, c.Host) })
	st.Refused = slices.DeleteFunc(st.Refused, func(r server.Refused) bool { return !about("", r.Host) })
	st.Absent = slices.DeleteFunc(st.Absent, func(a server.AbsentHost) bool { return !about("", a.Name) })
	st.HostFaults = slices.DeleteFunc(st.HostFaults, func(f server.HostFault) bool { return !about("", f.Name) })
	st.Conflicts = slices.DeleteFunc(st.Conflicts, func(c agents.Conflict) bool { return !about("", c.Host) })
	st.Warnings = nil
	return nil
}

// write writes the table, then the details, then all that needs a person.
func (st *status) write(w io.Writer) error {
	if err := writeTable(w, st.Proxies.Proxies); err != nil {
		return err
	}
	for _, x := range st.Proxies.Proxies {
		if x.Withdrawn {
			_, _ = fmt.Fprintf(w, "\n%s is out of service on purpose: %s\n", x.Name, safetext.Sanitize(dash(x.HealthReason), 1024))
		}
	}
	writeOnTheirWay(w, st.Proxies.Proxies)
	if err := writeCredentials(w, st.Proxies.Proxies); err != nil {
		return err
	}
	if err := writeHashTables(w, st.Proxies.Proxies); err != nil {
		return err
	}
	writeRejected(w, st.Proxies.Proxies)
	for _, x := range st.Warnings {
		_, _ = fmt.Fprintf(w, "\n%s: warning %s, at %s: %s\n", safetext.Sanitize(x.Origin, 1024), x.Object, plural(x.Proxies, "proxy"), safetext.Sanitize(x.Message, 1024))
	}
	if !st.named {
		writeConsul(w, &st.sources)
		writeSources(w, &st.sources)
	}
	if err := writeRefused(w, st.Refused); err != nil {
		return err
	}
	return writeUnwell(w, st.Unwell)
}

func writeTable(w io.Writer, proxies []server.Proxy) error {
	return table(w, "PROXY\tHOST\tENVOY\tCDS\tLDS\tEDS\tRDS\tECDS\tENCRYPTED\tCERTIFICATE\tHEALTH\tROUTES\tADDRESS", func(w io.Writer) {
		for _, x := range proxies {
			state := x.Envoy
			switch {
			case x.Absent && len(x.Types) == 0:
				state = "not back " + lasting(x.Since)
			case !x.Connected:
				state = "left " + ago(x.Since)
			case state == "":
				state = "no agent"
			}
			health := x.Health
			if x.Withdrawn {
				health = "withdrawn"
			}
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", dash(x.Name), x.Host, state,
				typeState(x, "cluster"), typeState(x, "listener"), typeState(x, "endpoint"), worse(typeState(x, "route"), typeState(x, "virtual-host")),
				typeState(x, "extension"), dash(x.Encryption), until(x.CertificateEnds), dash(health), routesTravel(x), dash(x.AddressProof))
		}
	})
}

// writeCredentials writes the credentials of hosts, the first few of each: their keys never leave the
// hosts.
func writeCredentials(w io.Writer, proxies []server.Proxy) error {
	if !slices.ContainsFunc(proxies, func(x server.Proxy) bool { return x.Credentials != nil && len(x.Credentials.List) > 0 }) {
		return nil
	}
	_, _ = fmt.Fprintln(w)
	return table(w, "CREDENTIAL\tPROXY\tSTATE\tENDS\tREASON", func(w io.Writer) {
		for _, x := range proxies {
			if x.Credentials == nil {
				continue
			}
			for _, c := range x.Credentials.List {
				ends := "-"
				if !c.NotAfter.IsZero() {
					ends = c.NotAfter.UTC().Format(time.RFC3339)
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", c.Name, x.Name, c.State, ends, dash(c.Reason))
			}
			if more := x.Credentials.Total - len(x.Credentials.List); more > 0 {
				_, _ = fmt.Fprintf(w, "… and %d more\t%s\t\t\t\n", more, x.Name)
			}
		}
	})
}

func writeRefused(w io.Writer, list []server.Refused) error {
	if len(list) == 0 {
		return nil
	}
	_, _ = fmt.Fprintln(w)
	return table(w, "REFUSED\tOF\tLAST\tTIMES\tREASON", func(w io.Writer) {
		for _, r := range server.RefusedRows(list) {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", cmp.Or(r.Host, strings.TrimSpace(r.Who())), r.What, ago(r.Last), r.Count, r.Why())
		}
	})
}

// worse is the worse one of the states of routes and of virtual hosts, which are
// one thing to a person.
func worse(routes, hosts string) string {
	if (routes == "SYNCED" || routes == "-") && hosts != "-" {
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

// typeState is how a proxy stands with a type. Nothing is SYNCED where a newer configuration is on its
// way, or where the proxy keeps one because it cannot have a newer one.
func typeState(p server.Proxy, name string) string {
	for _, t := range p.Types {
		switch {
		case t.Type != name:
		case len(t.Rejected) > 0:
			return "REJECTED"
		case t.Pending && p.Partial:
			return "PARTIAL"
		case t.Pending, p.Stale != "", newerComes(p):
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

// writeSources lists what is wrong in manifests, and the removals on hold.
func writeSources(w io.Writer, s *server.Sources) {
	type faultOf struct{ source, text string }
	var faults []faultOf
	errs, left := 0, 0
	for _, src := range s.Files {
		errs, left = errs+src.MoreErrors, left+src.MoreErrors
		for _, f := range src.Faults {
			if f.Severity == manifest.Error {
				errs++
			}
			if f.Severity == manifest.Error || f.Code == lastgood.CodeKept || f.Code == lastgood.CodeDenies { // what stands instead is half of the news
				faults = append(faults, faultOf{src.Source, f.String()})
			}
		}
	}
	if errs > 0 {
		_, _ = fmt.Fprintf(w, "\n%s in manifests:\n", plural(errs, "error"))
		shown := fairlist.First(faults, manyFaults, func(f faultOf) string { return f.source })
		for _, f := range shown {
			_, _ = fmt.Fprintf(w, "  %s\n", f.text)
		}
		if more := len(faults) + left - len(shown); more > 0 {
			_, _ = fmt.Fprintf(w, "  … and %d more\n", more)
		}
	}
	for _, src := range s.Registry.Sources {
		for _, h := range src.Held[:min(len(src.Held), manyHeld)] {
			_, _ = fmt.Fprintf(w, "\nthe removal of %s is on hold for %s (%s): confirm it with `fairlead release %s`\n", h.Key, lasting(h.Since), h.Reason, src.Name)
		}
		if more := src.HeldCount - manyHeld; more > 0 {
			_, _ = fmt.Fprintf(w, "\n… and %d more removals of %s: confirm all of them with `fairlead release %s`\n", more, src.Name, src.Name)
		}
	}
}
