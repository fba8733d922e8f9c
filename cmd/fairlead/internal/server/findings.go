package server

import (
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/internal/fairlist"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// maxFindingsShown is how many findings of each kind are conditions of their own. One more says how many
// others there are.
const maxFindingsShown = 20

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
	// Unknown means that a proxy has more than are counted.
	Unknown bool `json:"unknown,omitempty"`
}

func (s *Server) meshFindings(snap *mesh.Snapshot, now time.Time) MeshFindings {
	list, more := s.xds.Findings()
	return explainFindings(list, more, snap, now)
}

func explainFindings(list []xds.FindingStatus, more int, snap *mesh.Snapshot, now time.Time) MeshFindings {
	out := MeshFindings{Unknown: more > 0}
	if snap == nil || snap.Incomplete {
		return MeshFindings{}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(f xds.FindingStatus) bool { return now.Sub(f.Since) < patience }) // a change is on its way
	for _, f := range shownFindings(list, &out) {
		e := f.Explain(snap)
		out.List = append(out.List, MeshFinding{
			Reason: string(f.Kind), Object: e.Key.String(), Origin: e.Origin.String(), Text: e.Text, Action: e.Action, Since: f.Since, Proxies: f.Proxies,
		})
	}
	return out
}

// shownFindings are those that are shown: the first of each kind, where namespaces take turns, so that
// the faults of one team do not hide those of others. It counts the others.
func shownFindings(list []xds.FindingStatus, out *MeshFindings) (shown []xds.FindingStatus) {
	of := map[view.FindingKind][]xds.FindingStatus{}
	var kinds []view.FindingKind
	for _, f := range list {
		if of[f.Kind] == nil {
			kinds = append(kinds, f.Kind)
		}
		of[f.Kind] = append(of[f.Kind], f)
	}
	for _, kind := range kinds {
		first := fairlist.First(of[kind], maxFindingsShown, func(f xds.FindingStatus) string { return f.Object.Namespace })
		shown = append(shown, first...)
		if more := len(of[kind]) - len(first); more > 0 {
			if out.More == nil {
				out.More = map[string]int{}
			}
			out.More[string(kind)] = more
		}
	}
	return shown
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
		text := fmt.Sprintf("there are %d others of this kind", n)
		if m.Unknown {
			text = fmt.Sprintf("there are at least %d others of this kind", n)
		}
		out = append(out, Condition{Subject: "mesh", Text: text, Action: "correct those above; the next ones are shown then"})
	}
	return out
}

func proxyCount(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}
