package xds

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/mesh"
)

// without are the fields that make no difference to any proxy, whatever they say, and
// why. Those of kinds in unseen and what unreachable lists are not looked at.
func without() map[string]string {
	return map[string]string{
		"Meta.Origin":              "where something is written is no content",
		"DestinationRule.ExportTo": "it is what exportTo of the specification says",
		"VirtualService.ExportTo":  "it is what exportTo of the specification says",
		"SidecarPort.name":         "a name for people",
		// A warning says what to write instead.
		"OutlierDetection.consecutiveErrors": "it is out of date, and nothing comes of it",
		"HealthReport.Reason":                "a reason for people",
		"HealthReport.Own":                   "it decides between the reports of two sources, and here is one",
		"Meta.Annotations":                   "they say which host may speak for a workload, and nothing to clients",
	}
}

// rare are fields that count, and for which the random meshes have too seldom all that it
// takes: who gives them that takes them out here.
func rare() []string { return []string{"TLSMatchAttributes.gateways"} }

// varied are worlds with proxies, of which one field is changed at a time.
type varied struct {
	*meshgen.World
	server  *classes
	s       *mesh.Snapshot
	proxies []*netProxy
}

func newVaried(t *testing.T, seed uint64) *varied {
	t.Helper()
	v := &varied{World: meshgen.New(2000+seed, meshgen.NewCoverage()), server: &classes{}}
	for range 14 {
		v.proxies = append(v.proxies, newNetProxy(v.World))
	}
	v.look(t)
	return v
}

// look has all proxies see what there is now, and reports whether that is something
// else for one of them.
func (v *varied) look(t *testing.T) bool {
	t.Helper()
	v.s = mesh.Merge(v.Input(v.s))
	e := v.server.at(v.s)
	differs := false
	var used []*mesh.Origin
	for _, p := range v.proxies {
		had := p.had
		p.had = mustGet(t, v.server, e, p, p.had)
		if had.class != nil && had.class != p.had.class {
			differs = differs || differenceOfGiven(given(had), given(p.had)) != ""
		}
		for part := range p.had.view.Parts() {
			used = append(used, part.Origins()...)
		}
	}
	v.Prefer(used)
	return differs
}

// TestEveryFieldCounts changes each field of all that a mesh may hold, alone, until a
// proxy is given something else for it: what is left out of what all are given, no
// comparison of two ways to it can find. The short tier asks every twelfth field.
func TestEveryFieldCounts(t *testing.T) {
	t.Parallel()
	unseenFields := map[string]bool{}
	for _, k := range meshgen.Kinds() {
		if slices.Contains(unseen(), string(k.Name)) {
			for _, f := range k.Fields {
				unseenFields[f] = true
			}
		}
	}
	for _, k := range meshgen.Kinds() {
		if !slices.Contains(unseen(), string(k.Name)) {
			for _, f := range k.Fields {
				delete(unseenFields, f)
			}
		}
	}
	var worlds []*varied
	for seed := range uint64(6) {
		worlds = append(worlds, newVaried(t, seed))
	}
	part := 1
	if testing.Short() {
		part = 12
	}
	asked := 0
	for i, field := range meshgen.Alone() {
		if unseenFields[field] || unreachable()[field] != "" || i%part != 0 || slices.Contains(rare(), field) {
			continue
		}
		asked++
		changed, counted := 0, false
		for try := 0; try < 1500 && changed < 400 && !counted; try++ {
			w := worlds[(try+i)%len(worlds)]
			if _, ok := w.Vary(field); ok {
				changed++
				counted = w.look(t)
			} else {
				w.look(t) // what it did instead is not to be mistaken for the next change
			}
		}
		if reason := without()[field]; counted == (reason != "") {
			t.Errorf("%s: changed alone %d times, seen by a proxy: %v (expected not to be because %q)", field, changed, counted, reason)
		}
	}
	t.Logf("%d fields", asked)
}
