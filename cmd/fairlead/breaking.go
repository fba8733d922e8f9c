package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// breakingFlag is --even-if-breaking.
type breakingFlag struct{ evenIfBreaking bool }

func (f *breakingFlag) addBreaking(fl *pflag.FlagSet) {
	fl.BoolVar(&f.evenIfBreaking, "even-if-breaking", false, "write the change even if it newly makes requests of workloads fail: by a route to what does not exist or has no endpoint, or by a server that a gateway, or a delegate that a VirtualService leaves out")
}

// maxBroken is how many faults of a change are printed.
const maxBroken = 20

// brokenBy prints what a change newly makes fail, as a running server reports it, and how many faults that are.
// Each workload of the mesh is judged as a proxy of its own, before and after the change. Only those count that
// were there before: of a workload that the change adds, nothing worked that could fail now.
func brokenBy(w io.Writer, before, after *tree, j changeCheck) (int, error) {
	was := before.snapshot(j.settings)
	there := map[mesh.Key]bool{}
	for _, w := range was.Workloads {
		there[w.Key] = true
	}
	s := after.snapshot(j.settings)
	found := meshFindings(s, func(w *mesh.Workload) bool { return there[w.Key] })
	if len(s.Workloads) == 0 && len(s.VirtualServices)+len(s.Gateways) > 0 {
		_, err := fmt.Fprintf(w, "no workload is known here: whether requests fail was not checked; %s names other directories of the mesh\n", j.tell)
		return 0, err
	}
	if len(found) == 0 {
		return 0, nil
	}
	had := meshFindings(was, func(*mesh.Workload) bool { return true })
	var list []view.Finding
	unknown := 0
	for f := range found {
		switch {
		case alreadyFailed(f, had):
		case j.certain(after, f, s, was):
			list = append(list, f)
		default:
			unknown++
		}
	}
	if unknown > 0 {
		if _, err := fmt.Fprintf(w, "not checked: %s of routes may have its service or workloads elsewhere; %s names other directories of the mesh\n", count(unknown, "destination"), j.tell); err != nil {
			return 0, err
		}
	}
	slices.SortFunc(list, view.Finding.Compare)
	for i, f := range list {
		if i == maxBroken {
			_, err := fmt.Fprintf(w, "… and %d more of these\n", len(list)-i)
			return len(list), err
		}
		e := f.Explain(s)
		if e.Origin != nil && j.mine(e.Origin.Path) {
			at := *e.Origin
			at.Line, e.Origin = j.line(at.Path, at.Line), &at
		}
		if _, err := fmt.Fprintf(w, "%s: breaking %s %s: %s (at %s); %s\n", e.Origin, f.Kind, e.Key, safetext.Sanitize(e.Text, 1024), count(found[f], "workload"), safetext.Sanitize(e.Action, 1024)); err != nil {
			return len(list), err
		}
	}
	return len(list), nil
}

// certain reports whether what is missing cannot be in a source that the command does not know. A service that
// selects workloads, and has none, counts if the command was told of other sources, or if the namespace has
// workloads here: those of one namespace are in one place, usually.
func (j changeCheck) certain(t *tree, f view.Finding, snapshots ...*mesh.Snapshot) bool {
	if f.Kind == view.LeftOutServer || f.Kind == view.LeftOutDelegate {
		return true
	}
	partial := t.Catalog != nil && t.Catalog.partial
	if f.Kind == view.NoDestination {
		return !partial || len(snapshots[0].ServicesOn(f.Host)) > 0
	}
	if partial || j.told {
		return !partial
	}
	return slices.ContainsFunc(snapshots, func(s *mesh.Snapshot) bool {
		return slices.ContainsFunc(s.ServicesOn(f.Host), func(svc *mesh.Service) bool {
			return svc.Selector == nil || svc.Catalog || slices.ContainsFunc(s.Workloads, func(w *mesh.Workload) bool { return w.Namespace == svc.Namespace })
		})
	})
}

// alreadyFailed reports whether what a finding is about failed before, maybe for another reason.
func alreadyFailed(f view.Finding, had map[view.Finding]int) bool {
	if had[f] > 0 {
		return true
	}
	if f.Kind == view.LeftOutDelegate {
		return false
	}
	for h := range had {
		if f.Object != h.Object || h.Kind == view.LeftOutDelegate || (f.Kind == view.LeftOutServer) != (h.Kind == view.LeftOutServer) {
			continue
		}
		if f.Kind == view.LeftOutServer {
			if f.Server == h.Server && f.ListensAt == h.ListensAt && losesAsMuch(h, f) {
				return true
			}
			continue
		}
		host := h.Kind == view.NoDestination && h.Port == 0 && h.Subset == "" // all of it
		if f.Host == h.Host && (host || f.Subset == h.Subset && (h.Port == 0 || h.Port == f.Port)) {
			return true
		}
	}
	return false
}

// losesAsMuch reports whether a server of a Gateway lost all names before that it loses now.
func losesAsMuch(before, now view.Finding) bool {
	had := strings.Fields(before.Lost)
	return before.Lost == "" || now.Lost != "" && !slices.ContainsFunc(strings.Fields(now.Lost), func(name string) bool { return !slices.Contains(had, name) })
}

// meshFindings are the findings of those workloads of the mesh that count, each with how many have it.
func meshFindings(s *mesh.Snapshot, counts func(*mesh.Workload) bool) map[view.Finding]int {
	var defaults view.Settings
	index := defaults.NewIndex(s)
	type class struct {
		kind                                view.ProxyType
		namespace, account, labels, network string
		at                                  mesh.Locality
	}
	classes := map[class]*view.Findings{}
	found := map[view.Finding]int{}
	for _, w := range s.Workloads {
		if !counts(w) {
			continue
		}
		kind := proxyTypeOf(s, w)
		c := class{kind, w.Namespace, w.ServiceAccount, fmt.Sprint(w.Labels), w.Network, w.Locality}
		findings, known := classes[c]
		if !known {
			findings = index.Build(proxyOf(s, w, kind, view.InterceptRedirect)).Findings
			classes[c] = findings
		}
		for _, f := range findings.All() {
			found[f]++
		}
	}
	return found
}

// proxyTypeOf is router for a workload that a Gateway selects by its labels.
func proxyTypeOf(s *mesh.Snapshot, w *mesh.Workload) view.ProxyType {
	if slices.ContainsFunc(s.Gateways, func(g *mesh.Gateway) bool {
		return len(g.Spec.GetSelector()) > 0 && mesh.Selects(g.Spec.GetSelector(), w.Labels) && (g.Namespace == w.Namespace || !s.Bound(g.Namespace))
	}) {
		return view.Router
	}
	return view.Sidecar
}
