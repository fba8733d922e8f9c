package server

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// maxFindingsShown is how many findings of each kind are conditions of their own for each namespace, and
// mostFindingsShown for all of them. One more condition says how many others there are.
const (
	maxFindingsShown  = 20
	mostFindingsShown = 60
)

// MeshFinding is a fault of the mesh that makes requests of connected proxies fail.
type MeshFinding struct {
	Reason string    `json:"reason"`
	Object string    `json:"object"`
	Origin string    `json:"origin"`
	Text   string    `json:"text"`
	Action string    `json:"action"`
	Since  time.Time `json:"since"`
	// Proxies is how many connected proxies have it.
	Proxies int `json:"proxies"`
}

// MeshFindings are the faults of the mesh that have lasted long enough to be conditions.
type MeshFindings struct {
	List []MeshFinding `json:"list,omitempty"`
	// More is how many others there are of each kind.
	More map[string]int `json:"more,omitempty"`
}

func (s *Server) meshFindings(snap *mesh.Snapshot, now time.Time) MeshFindings {
	return explainFindings(s.xds.Findings(), snap, now)
}

func explainFindings(list []xds.FindingStatus, snap *mesh.Snapshot, now time.Time) MeshFindings {
	out := MeshFindings{}
	if snap == nil || snap.Incomplete {
		return out
	}
	chosen, all := chooseFindings(list, snap, now)
	for _, f := range chosen {
		e := f.Explain(snap)
		out.List = append(out.List, MeshFinding{
			Reason: string(f.Kind), Object: e.Key.String(), Origin: e.Origin.String(), Text: e.Text, Action: e.Action, Since: f.Since, Proxies: f.Proxies,
		})
		all[f.Kind]--
	}
	for kind, n := range all {
		if n == 0 {
			continue
		}
		if out.More == nil {
			out.More = map[string]int{}
		}
		out.More[string(kind)] = n
	}
	return out
}

// chooseFindings are those that are shown, and how many there are of each kind. Namespaces take turns, so
// that many of one do not hide those of another. First are those of namespaces that no source is bound to.
func chooseFindings(list []xds.FindingStatus, snap *mesh.Snapshot, now time.Time) ([]xds.FindingStatus, map[view.FindingKind]int) {
	type turn struct {
		xds.FindingStatus
		bound, number int
	}
	type place struct {
		kind      view.FindingKind
		namespace string
	}
	byKind, seen, all := map[view.FindingKind][]turn{}, map[place]int{}, map[view.FindingKind]int{}
	for _, f := range list {
		if now.Sub(f.Since) < patience {
			continue // a change is on its way
		}
		all[f.Kind]++
		at := place{f.Kind, f.Object.Namespace}
		if seen[at]++; seen[at] > maxFindingsShown {
			continue
		}
		t := turn{f, 0, seen[at]}
		if snap.Bound(f.Object.Namespace) {
			t.bound = 1
		}
		byKind[f.Kind] = append(byKind[f.Kind], t)
	}
	var out []xds.FindingStatus
	for _, kind := range view.FindingKinds() {
		turns := byKind[kind] // sorted, as the list is
		slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.bound, b.bound)) })
		turns = turns[:min(len(turns), mostFindingsShown)]
		slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.bound, b.bound) })
		for _, t := range turns {
			out = append(out, t.FindingStatus)
		}
	}
	return out, all
}

// findingRules are the rules of all kinds of findings.
func findingRules() []ruleOf {
	var out []ruleOf
	for _, kind := range view.FindingKinds() {
		out = append(out, ruleOf{string(kind), func(p *Proxies, _ *Sources, now time.Time) []Condition { return p.Findings.of(string(kind), now) }})
	}
	return out
}

// of are the conditions of one kind.
func (m *MeshFindings) of(reason string, now time.Time) (out []Condition) {
	for _, f := range m.List {
		if f.Reason == reason {
			out = append(out, Condition{
				Subject: f.Object, Action: f.Action,
				Text: fmt.Sprintf("%s (%s) %s (for %s, at %s)", f.Object, f.Origin, f.Text, lasting(now, f.Since), proxyCount(f.Proxies)),
			})
		}
	}
	if n := m.More[reason]; n > 0 {
		out = append(out, Condition{Subject: "mesh", Text: fmt.Sprintf("there are %d others of this kind", n), Action: "correct those above; the next ones are shown then", Others: n})
	}
	return out
}

func proxyCount(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}
