package istiod_test

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/istiod"
	"github.com/fairlead/fairlead/internal/race"
)

// leaf is a place in a tree that has a value of its own, and how to change it.
type leaf struct {
	path   []string
	value  any
	set    func(any)
	remove func()
}

// leavesOf lists the leaves below a value, and empty messages and lists.
func leavesOf(path []string, v any, set func(any), remove func()) []leaf {
	var out []leaf
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			out = append(out, leavesOf(append(slices.Clone(path), k), v[k], func(x any) { v[k] = x }, func() { delete(v, k) })...)
		}
		if len(v) > 0 {
			return out
		}
	case []any:
		for i, x := range v {
			out = append(out, leavesOf(append(slices.Clone(path), strconv.Itoa(i)), x, func(x any) { v[i] = x }, func() { set(slices.Delete(slices.Clone(v), i, i+1)) })...)
		}
		if len(v) > 0 {
			return out
		}
	}
	return append(out, leaf{path: path, value: v, set: set, remove: remove})
}

// other is another value of the same kind.
func other(v any) any {
	switch v := v.(type) {
	case bool:
		return !v
	case json.Number:
		return json.Number("1" + v.String())
	case string:
		return v + "x"
	case map[string]any:
		return map[string]any{"something": true}
	default:
		return "something"
	}
}

func cloneJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = cloneJSON(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = cloneJSON(x)
		}
		return out
	default:
		return v
	}
}

// mutation is one change of one leaf of our configuration.
type mutation struct {
	g          *golden
	kind, name string
	path       []string
	what       string
	before     []istiod.Difference
	after      []istiod.Difference
	same       bool // the comparison takes both for one
}

func mutate(g *golden, random *rand.Rand) mutation {
	kinds := slices.DeleteFunc(slices.Sorted(maps.Keys(g.raw)), func(kind string) bool { return len(g.raw[kind]) == 0 })
	m := mutation{g: g, kind: kinds[random.IntN(len(kinds))], what: "changed"}
	names := slices.Sorted(maps.Keys(g.raw[m.kind]))
	m.name = names[random.IntN(len(names))]
	// A cluster and its endpoints are normalized together.
	changed := istiod.Config{}
	for kind := range g.raw {
		changed[kind] = map[string]any{}
		if v, ok := g.raw[kind][m.name]; ok {
			changed[kind][m.name] = cloneJSON(v)
		}
	}
	leaves := leavesOf(nil, changed[m.kind][m.name], nil, nil)
	l := leaves[random.IntN(len(leaves))]
	m.path = l.path
	if random.IntN(2) == 0 {
		l.set(other(l.value))
	} else {
		m.what = "removed"
		l.remove()
	}
	istiod.Normalize(changed)
	m.same = true
	for kind, all := range changed {
		for name := range all {
			m.before = append(m.before, istiod.CompareResource(kind, name, g.ours, g.istiod)...)
			m.after = append(m.after, istiod.CompareResource(kind, name, changed, g.istiod)...)
			m.same = m.same && len(istiod.CompareResource(kind, name, g.ours, changed)) == 0
		}
	}
	return m
}

// TestChangesAreSeen changes and removes leaves of our configuration, and expects a difference
// that is not accepted for each. So it finds entries of differences.yaml that are too wide, and
// rules of Normalize that hide something. A change that ends an accepted difference is none.
func TestChangesAreSeen(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	all, err := goldens()
	if err != nil {
		t.Fatal(err)
	}
	a := accepted(t)
	sample := 4000
	if testing.Short() {
		sample = 800
	}
	if text := os.Getenv("FAIRLEAD_ISTIOD_CHANGES"); text != "" {
		if sample, err = strconv.Atoi(text); err != nil {
			t.Fatalf("FAIRLEAD_ISTIOD_CHANGES: %v", err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	seen, nearer, forms, own := 0, 0, 0, 0
	missed := map[string]int{}
	for range sample {
		m := mutate(&all[random.IntN(len(all))], random)
		field := m.kind + ": " + fieldsOf(m.path)
		switch {
		case slices.ContainsFunc(m.after, func(d istiod.Difference) bool { return !a.Matches(m.g.name, d) }):
			seen++
		case len(m.after) < len(m.before):
			nearer++
		case m.same && slices.ContainsFunc(withoutMeaning(), func(suffix string) bool { return strings.HasSuffix(field, suffix) }):
			forms++
		case slices.ContainsFunc(oursAlone(), func(suffix string) bool { return strings.HasSuffix(field, suffix) }):
			own++
		default:
			missed[field+" "+m.what]++
		}
	}
	t.Logf("of %d changes %d are seen; %d end a difference; %d are of forms without a meaning; %d have nothing in istiod's", sample, seen, nearer, forms, own)
	for _, k := range slices.Sorted(maps.Keys(missed)) {
		t.Errorf("%d of %d changes are not seen: %s", missed[k], sample, k)
	}
}

// withoutMeaning are the fields that Normalize takes away because Envoy does not read them, as
// ends of their paths.
func withoutMeaning() []string {
	return []string{
		// names for people; the socket is compared by its configuration
		"transport_socket_matches/name",
		"transport_socket_matches/transport_socket/name",
		"typed_config/transport_socket/name",
	}
}

// oursAlone are the fields that istiod's configuration does not have and that have any value: a
// difference that is accepted as such. Their values are hashes.
func oursAlone() []string { return []string{"filter_chains/metadata/filter_metadata/fairlead/rules"} }

// fieldsOf is a path without the numbers of elements.
func fieldsOf(path []string) string {
	var out []string
	for _, p := range path {
		if strings.Trim(p, "0123456789") != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, "/")
}
