package cache

import (
	"hash/fnv"
	"slices"
	"sync"
	"testing"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// without are the fields that make no difference to any proxy, and why. Kinds in unseen and
// fields in unreachable are not checked.
func without() map[string]string {
	return map[string]string{
		"Meta.Origin":                     "where something is written is no content",
		"DestinationRule.ExportTo":        "it is what exportTo of the specification says",
		"VirtualService.ExportTo":         "it is what exportTo of the specification says",
		"SidecarPort.name":                "a name for people",
		"Workload.HealthReason":           "a reason for people",
		"PolicyTargetReference.group":     "what a policy is attached to is never a sidecar",
		"PolicyTargetReference.kind":      "what a policy is attached to is never a sidecar",
		"PolicyTargetReference.name":      "what a policy is attached to is never a sidecar",
		"PolicyTargetReference.namespace": "what a policy is attached to is never a sidecar",
		"L4MatchAttributes.sourceSubnet":  "it has no effect, as in Istio",
		"Server.defaultEndpoint":          "it has no effect, as in Istio",
		"Port.targetPort":                 "no valid Gateway has it",
		"TLSCertificate.caCertificates":   "the server's own caCertificates count, as in Istio",
		"JWTRule.timeout":                 "it is about how keys are fetched",
		"Unenforced.Field":                "it names what is not enforced, for people",
		// A warning says what to write instead.
		"OutlierDetection.consecutiveErrors": "it is out of date, and nothing comes of it",
		"HealthReport.Reason":                "a reason for people",
		"Meta.Annotations":                   "they say which host may speak for a workload, and nothing to clients",
	}
}

// varied are worlds with proxies, of which one field is changed at a time.
type varied struct {
	*meshgen.Generator
	server  *Cache
	s       *mesh.Snapshot
	proxies []*netProxy
}

// varyAtATime is how often a mesh is changed: one that was changed much says little.
const varyAtATime = 25

// maxTries is how often the test tries to change a field.
const maxTries = 800

// enoughTries is after how many the test leaves alone a field that makes no difference and that
// nothing can change alone, such as where an object is written.
const enoughTries = 100

// baseMeshes are what the changes of every field begin with. Each is made once, and tests
// take forks.
var baseMeshes = func() []func() *meshgen.Generator {
	var out []func() *meshgen.Generator
	for i := range uint64(maxTries / varyAtATime) {
		out = append(out, sync.OnceValue(func() *meshgen.Generator { return meshgen.New(2000+i, meshgen.NewCoverage()) }))
	}
	return out
}()

// newVaried is a mesh with proxies of its own.
func newVaried(t *testing.T, base int, seed uint64) *varied {
	t.Helper()
	v := &varied{Generator: baseMeshes[base]().Fork(seed, meshgen.NewCoverage()), server: New(view.Settings{})}
	for range 14 {
		v.proxies = append(v.proxies, newNetProxy(v.Generator))
	}
	v.look(t)
	return v
}

// look has all proxies see what there is now, and reports whether that is something
// else for one of them.
func (v *varied) look(t *testing.T) bool {
	t.Helper()
	v.s = mesh.Merge(v.Input(v.s))
	e := v.server.At(v.s)
	differs := false
	var used []*mesh.Origin
	for _, p := range v.proxies {
		had := p.had
		p.had = mustGet(t, v.server, e, p, p.had)
		if had.Resources != nil && had.Resources != p.had.Resources {
			differs = differs || differenceOfGiven(given(had), given(p.had)) != ""
		}
		for part := range p.had.View.Parts() {
			used = append(used, part.Origins()...)
		}
	}
	v.Prefer(used)
	return differs
}

// TestEveryFieldChangesSomeProxy changes each field of a mesh alone, until the
// configuration of some proxy changes. Comparing two ways to one result cannot find a field
// that both leave out. For a field that random meshes do not reach, there has to be a
// scenario. The short tier checks some of the fields.
func TestEveryFieldChangesSomeProxy(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
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
	part := 1
	if testing.Short() {
		part = 24
	}
	checked, scenes := 0, scenes()
	for i, field := range meshgen.IndependentFields() {
		if unseenFields[field] || unreachable()[field] != "" || i%part != 0 {
			continue
		}
		checked++
		if _, ok := scenes[field]; ok {
			continue // TestScenarios checks it
		}
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			changesSomeProxy(t, field)
		})
	}
	t.Logf("%d fields are checked, here or in a scene", checked)
}

// changesSomeProxy changes a field until the configuration of some proxy changes.
func changesSomeProxy(t *testing.T, field string) {
	t.Helper()
	changed, counted, most := 0, false, 240
	seed := fnv.New64a() // of the field alone: another field changes nothing for this one
	_, _ = seed.Write([]byte(field))
	reason := without()[field]
	if reason != "" {
		most = 30
	}
	var w *varied
	for try := 0; try < maxTries && changed < most && !counted; try++ {
		if reason != "" && changed == 0 && try == enoughTries {
			break
		}
		if try%varyAtATime == 0 {
			w = newVaried(t, try/varyAtATime, seed.Sum64()+uint64(try/varyAtATime))
		}
		if _, ok := w.Vary(field); ok {
			changed++
			counted = w.look(t)
		} else {
			w.look(t) // what it did instead is not to be mistaken for the next change
		}
	}
	if changed == 0 {
		t.Log("it was never changed alone")
	}
	switch {
	case counted && reason != "":
		t.Errorf("%s makes a difference to a proxy, though %s", field, reason)
	case !counted && reason == "":
		t.Errorf("%s was changed alone %d times, which made no difference to any proxy; where chance has too seldom what it takes, write a scene (scenarios_test.go)", field, changed)
	}
}
