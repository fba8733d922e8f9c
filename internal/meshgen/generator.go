package meshgen

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Generator is a mesh of several sources that changes at random. It is a function of its
// seed.
type Generator struct {
	// Coverage counts what was done. Several generators may share one.
	Coverage *Coverage
	// Log describes the last step, for failures.
	Log []string

	rng       *rand.Rand
	values    *acceptedValues
	kinds     []*Kind // whose objects are part of a mesh
	fields    []fieldPath
	next      int // of targets
	tries     int // of the next one
	sources   []*source
	pool      map[*Kind][]map[string]any // valid specifications
	preferred map[string]bool
	networks  *mesh.Networks // or nil
	// allocations are those of the last input.
	allocations *mesh.Allocations
}

// Prefer has most changes made to objects with these origins, which somebody uses. nil ends
// that.
func (g *Generator) Prefer(origins []*mesh.Origin) {
	g.preferred = map[string]bool{}
	for _, o := range origins {
		g.preferred[o.Path] = true
	}
}

// Workloads are all workloads of the mesh, including inline endpoints.
func (g *Generator) Workloads() []*mesh.Workload { return g.workloads() }

// fieldPath is a field that should be set and changed.
type fieldPath struct {
	kind *Kind
	path string
}

// source is one of the sources, with its objects.
type source struct {
	name string
	// namespaces are those of its documents. The source may be bound to them, unless it has
	// all.
	namespaces []string
	binding    *mesh.Binding
	objects    []*object // sorted by key
	derived    bool      // its objects are changed in ways that no manifest can write
	reports    []*mesh.HealthReport
	fragment   *mesh.Fragment
}

// Change is one change of a mesh.
type Change struct {
	// Kind is that of the object, or what else was changed.
	Kind string
	// Op is the operation.
	Op string
	// Fields of its specification that changed.
	Fields []string
}

// The kinds of changes that are of no object.
const (
	Reports  = "reports of health"
	Bindings = "bindings"
)

// New makes a mesh of some objects. Generators of consecutive seeds start with other
// fields: together they set and change all.
func New(seed uint64, coverage *Coverage) *Generator { return newGenerator(seed, coverage, false) }

// NewEdge makes a mesh of which most routes are for Gateways that there are.
func NewEdge(seed uint64, coverage *Coverage) *Generator { return newGenerator(seed, coverage, true) }

func newGenerator(seed uint64, coverage *Coverage, edge bool) *Generator {
	base := initial()
	g := &Generator{
		Coverage: coverage, rng: rand.New(rand.NewPCG(seed, 17)),
		values: base.values.copy(), pool: base.pool, kinds: base.kinds, fields: fieldPaths(), next: int(seed * 45 % 1e6),
		sources: []*source{
			{name: "a", namespaces: namespaces()},
			{name: "b", namespaces: []string{"other"}},
			{name: "c", namespaces: []string{"shop"}},
			{name: "catalog", derived: true},
			{name: "agents"},
		},
	}
	g.values.edge = edge
	for _, s := range g.sources {
		s.fragment = &mesh.Fragment{Source: s.name}
	}
	for _, k := range g.kinds {
		if g.populate(k); edge {
			g.nameObjects()
		}
	}
	for range 6 {
		g.changeDerived()
		g.changeReport()
	}
	if seed%2 == 0 {
		g.networks = g.newNetworks()
	}
	g.publish()
	return g
}

// Fork is a generator that goes on from the mesh of g as it is now, by another seed. Neither
// changes the other. A mesh costs much more to make than to fork.
func (g *Generator) Fork(seed uint64, coverage *Coverage) *Generator {
	next := *g
	next.Coverage, next.Log, next.rng = coverage, nil, rand.New(rand.NewPCG(seed, 17))
	next.values = g.values.copy()
	next.values.edge = g.values.edge
	next.sources = nil
	for _, s := range g.sources {
		own := *s
		own.objects = slices.Clone(s.objects) // objects themselves are replaced, never changed
		next.sources = append(next.sources, &own)
	}
	next.nameObjects()
	return &next
}

// populate makes the first objects of a kind; few of the kinds that are not in force.
func (g *Generator) populate(k *Kind) {
	switch {
	case k.APIVersion == "":
		o := &object{kind: k, spec: map[string]any{}}
		o.read("a")
		g.sources[0].put(o)
	case k.rules == nil:
		g.add(k, g.sources[0], "")
	default:
		for range 9 {
			g.add(k, g.documentSource(), "")
		}
	}
}

// initialState is what every generator starts with.
type initialState struct {
	kinds  []*Kind // those of which documents give something to a mesh
	values *acceptedValues
	pool   map[*Kind][]map[string]any
}

// initial is computed once, with a seed of its own: valid values for the fields of all
// kinds.
//
//nolint:gochecknoglobals // read-only, and worlds take copies
var initial = sync.OnceValue(func() *initialState {
	g := &Generator{
		Coverage: NewCoverage(), rng: rand.New(rand.NewPCG(3, 4)), values: &acceptedValues{good: map[string][]any{}},
		sources: []*source{{name: "a", namespaces: namespaces()}},
	}
	out := &initialState{values: g.values, pool: map[*Kind][]map[string]any{}}
	for _, k := range Kinds() {
		made := 0
		for range 16 {
			if g.add(k, g.sources[0], "") {
				made++
			}
			if k.rules == nil && (made > 1 || made == 0 && g.rng.IntN(3) == 0) {
				break
			}
		}
		if made > 0 || k.rules != nil {
			out.kinds = append(out.kinds, k)
			for _, o := range g.sources[0].objects {
				if o.kind == k {
					out.pool[k] = append(out.pool[k], o.spec)
				}
			}
		}
	}
	return out
})

// fieldPaths are all fields of all kinds, in an order that is the same for all generators.
//
//nolint:gochecknoglobals // a read-only table, made once
var fieldPaths = sync.OnceValue(func() []fieldPath {
	var out []fieldPath
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range Kinds() {
		for _, f := range k.Fields {
			out = append(out, fieldPath{k, pick(rng, k.paths[f])})
		}
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
})

// Kinds are the kinds of objects that the generator makes, and of its other changes.
func (g *Generator) Kinds() []string {
	out := []string{Reports, Bindings, Networks}
	for _, k := range g.kinds {
		out = append(out, string(k.Name))
	}
	return out
}

// Rand is the generator's random source.
func (g *Generator) Rand() *rand.Rand { return g.rng }

// Fragments are those of all sources. They do not change any more.
func (g *Generator) Fragments() []*mesh.Fragment {
	var out []*mesh.Fragment
	for _, s := range g.sources {
		out = append(out, s.fragment)
	}
	return out
}

// Input is all of it, for a snapshot after another one, or nil.
func (g *Generator) Input(prev *mesh.Snapshot) mesh.Input {
	in := mesh.Input{Prev: prev, Fallback: g.sources[0].fragment.MeshConfig, Fragments: g.Fragments()}
	for _, s := range g.sources {
		in.Bindings = append(in.Bindings, s.binding)
	}
	in.Allocations = g.allocate()
	return in
}

// documentSource is one of the sources with documents; half of the time the first one.
func (g *Generator) documentSource() *source { return g.sources[max(0, g.rng.IntN(4)-1)] }

// Step makes some changes.
func (g *Generator) Step(changes int) []Change {
	g.Log = nil
	var out []Change
	for try := 0; len(out) < changes && try < 20*changes; try++ {
		if c, ok := g.change(); ok {
			g.Log = append(g.Log, fmt.Sprintf("%s %s %v", c.Op, c.Kind, c.Fields))
			out = append(out, c)
		}
	}
	g.publish()
	return out
}

// add makes an object, with a field that should be set, or none.
func (g *Generator) add(k *Kind, s *source, path string) bool {
	for range 4 {
		o := &object{
			kind: k, ns: pick(g.rng, s.namespaces), name: fmt.Sprintf("n%d", g.rng.IntN(5)), labels: g.labels(), line: g.rng.IntN(3),
			created: pick(g.rng, []string{"", "", "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"}),
		}
		if k.APIVersion == "" {
			o.ns, o.name, o.labels, o.created = "", "", nil, ""
		}
		writer := g.writer(k, path)
		if pool := g.pool[k]; path == "" && len(pool) > 0 && g.rng.IntN(3) == 0 {
			o.spec, _ = deepCopy(pick(g.rng, pool)).(map[string]any)
		} else {
			o.spec = writer.message(k.message, k.schema, "", 0)
		}
		if writer.makeValid(o, s.name) {
			g.Coverage.specs(nil, o.message)
			s.put(o)
			return true
		}
	}
	return false
}

func (g *Generator) writer(k *Kind, path string) *writer {
	return &writer{rng: g.rng, kind: k, values: g.values, target: path}
}

func (g *Generator) labels() map[string]any {
	if g.rng.IntN(2) == 0 {
		return nil
	}
	return map[string]any{"app": pick(g.rng, labelValues("app"))}
}

// put adds an object, or replaces the one with its key.
func (s *source) put(o *object) {
	i, found := slices.BinarySearchFunc(s.objects, o, func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.kind.Name, b.kind.Name), cmp.Compare(a.ns, b.ns), cmp.Compare(a.name, b.name))
	})
	if found {
		s.objects[i] = o
		return
	}
	s.objects = slices.Insert(s.objects, i, o)
}

// workloads are all that sources have, those inside services too.
func (g *Generator) workloads() []*mesh.Workload {
	var out []*mesh.Workload
	for _, s := range g.sources {
		for _, o := range s.objects {
			out = append(out, o.fragment.Workloads...)
			for _, svc := range o.fragment.Services {
				out = append(out, svc.Inline...)
			}
		}
	}
	return out
}

// publish makes the fragments. Unchanged ones stay the same pointers.
func (g *Generator) publish() {
	g.nameObjects()
	for i, s := range g.sources {
		next := &mesh.Fragment{Source: s.name, Health: s.reports}
		for _, o := range s.objects {
			next.Append(o.fragment)
		}
		if i == 0 {
			next.MeshNetworks = g.networks
		}
		g.Coverage.fragments(s.fragment, next)
		s.fragment = shared(s.fragment, next)
	}
}

// nameObjects notes what there is for others to name.
func (g *Generator) nameObjects() {
	g.values.hosts, g.values.gateways = nil, nil
	for _, s := range g.sources {
		for _, o := range s.objects {
			for _, svc := range o.fragment.Services {
				g.values.hosts = append(g.values.hosts, string(svc.Hostname))
			}
			for _, x := range o.fragment.Gateways {
				g.values.gateways = append(g.values.gateways, x.Namespace+"/"+x.Name)
			}
		}
	}
}

// shared is the next fragment with unchanged lists of the previous one, or the previous one
// itself.
func shared(was, is *mesh.Fragment) *mesh.Fragment {
	a, b := reflect.ValueOf(was).Elem(), reflect.ValueOf(is).Elem()
	same := true
	for i := range b.NumField() {
		x, y := a.Field(i), b.Field(i)
		if y.Kind() != reflect.Slice {
			same = same && x.Interface() == y.Interface()
			continue
		}
		equal := x.Len() == y.Len()
		for j := 0; equal && j < x.Len(); j++ {
			equal = x.Index(j).Pointer() == y.Index(j).Pointer()
		}
		if equal {
			y.Set(x)
		}
		same = same && equal
	}
	if same {
		return was
	}
	return is
}
