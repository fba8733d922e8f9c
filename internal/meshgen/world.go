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

// World is a mesh of several sources that changes at random, and a function of its
// seed.
type World struct {
	// Coverage counts what was done. It may be one that other worlds had before.
	Coverage *Coverage
	// Log tells the last step, for whoever reads a failure.
	Log []string

	rng     *rand.Rand
	know    *knowledge
	kinds   []*Kind // those of which objects give something to the mesh
	targets []target
	next    int // of targets
	tries   int // of the next one
	sources []*source
	pool    map[*Kind][]map[string]any // specifications that were taken once
	hot     map[string]bool
}

// Prefer has most changes made to objects that somebody uses: those with these
// origins. nil takes that back.
func (w *World) Prefer(origins []*mesh.Origin) {
	w.hot = map[string]bool{}
	for _, o := range origins {
		w.hot[o.Path] = true
	}
}

// Workloads are all that the mesh has, those inside services too.
func (w *World) Workloads() []*mesh.Workload { return w.workloads() }

// target is a field that is to be set and changed.
type target struct {
	kind *Kind
	path string
}

// source is one of several, with all that it has.
type source struct {
	name string
	// namespaces are those that its documents are in; a source may be bound to them
	// unless it has all.
	namespaces []string
	binding    *mesh.Binding
	objects    []*object // sorted by key
	derived    bool      // its objects are changed as no manifest could
	reports    []*mesh.HealthReport
	fragment   *mesh.Fragment
}

// Change is one thing that happened to a mesh.
type Change struct {
	// Kind is that of the object, or what else was changed.
	Kind string
	// Op is what happened to it.
	Op string
	// Fields of its specification are others than before.
	Fields []string
}

// The kinds of changes that are of no object.
const (
	Reports  = "reports of health"
	Bindings = "bindings"
)

// New makes a mesh of some objects. Worlds of seeds in a row look at other fields:
// together they set and change all.
func New(seed uint64, coverage *Coverage) *World {
	base := learned()
	w := &World{
		Coverage: coverage, rng: rand.New(rand.NewPCG(seed, 17)),
		know: base.know.copy(), pool: base.pool, kinds: base.kinds, targets: targets(), next: int(seed * 45 % 1e6),
		sources: []*source{
			{name: "a", namespaces: namespaces()},
			{name: "b", namespaces: []string{"other"}},
			{name: "c", namespaces: []string{"shop"}},
			{name: "catalog", derived: true},
			{name: "agents"},
		},
	}
	for _, s := range w.sources {
		s.fragment = &mesh.Fragment{Source: s.name}
	}
	for _, k := range w.kinds {
		w.populate(k)
	}
	for range 6 {
		w.derive()
		w.report()
	}
	w.publish()
	return w
}

// populate makes the first objects of a kind: few of those that only deny.
func (w *World) populate(k *Kind) {
	switch {
	case k.APIVersion == "":
		o := &object{kind: k, spec: map[string]any{}}
		o.read("a")
		w.sources[0].put(o)
	case k.rules == nil:
		w.add(k, w.sources[0], "")
	default:
		for range 9 {
			w.add(k, w.written(), "")
		}
	}
}

// lesson is what every world knows when it begins.
type lesson struct {
	kinds []*Kind // those of which documents give something to a mesh
	know  *knowledge
	pool  map[*Kind][]map[string]any
}

// learned is worked out once, with a seed of its own: what fields of all kinds take.
//
//nolint:gochecknoglobals // read-only, and worlds take copies
var learned = sync.OnceValue(func() *lesson {
	w := &World{
		Coverage: NewCoverage(), rng: rand.New(rand.NewPCG(3, 4)), know: &knowledge{good: map[string][]any{}},
		sources: []*source{{name: "a", namespaces: namespaces()}},
	}
	out := &lesson{know: w.know, pool: map[*Kind][]map[string]any{}}
	for _, k := range Kinds() {
		made := 0
		for range 16 {
			if w.add(k, w.sources[0], "") {
				made++
			}
			if k.rules == nil && (made > 1 || made == 0 && w.rng.IntN(3) == 0) {
				break
			}
		}
		if made > 0 || k.rules != nil {
			out.kinds = append(out.kinds, k)
			for _, o := range w.sources[0].objects {
				if o.kind == k {
					out.pool[k] = append(out.pool[k], o.spec)
				}
			}
		}
	}
	return out
})

// targets are all fields of all kinds in an order that is the same for all worlds.
//
//nolint:gochecknoglobals // a read-only table, made once
var targets = sync.OnceValue(func() []target {
	var out []target
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range Kinds() {
		for _, f := range k.Fields {
			out = append(out, target{k, pick(rng, k.paths[f])})
		}
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
})

// Kinds are the kinds of objects that the world has, and of its other changes.
func (w *World) Kinds() []string {
	out := []string{Reports, Bindings}
	for _, k := range w.kinds {
		out = append(out, string(k.Name))
	}
	return out
}

// Rand is the world's source of chance.
func (w *World) Rand() *rand.Rand { return w.rng }

// Fragments are those of all sources; they do not change any more.
func (w *World) Fragments() []*mesh.Fragment {
	var out []*mesh.Fragment
	for _, s := range w.sources {
		out = append(out, s.fragment)
	}
	return out
}

// Input is all of it, for a snapshot after another one, or nil.
func (w *World) Input(prev *mesh.Snapshot) mesh.Input {
	in := mesh.Input{Prev: prev, Fallback: w.sources[0].fragment.MeshConfig, Fragments: w.Fragments()}
	for _, s := range w.sources {
		in.Bindings = append(in.Bindings, s.binding)
	}
	return in
}

// written is one of the sources with documents; half of the time the first.
func (w *World) written() *source { return w.sources[max(0, w.rng.IntN(4)-1)] }

// Step makes some changes.
func (w *World) Step(changes int) []Change {
	w.Log = nil
	var out []Change
	for try := 0; len(out) < changes && try < 20*changes; try++ {
		if c, ok := w.change(); ok {
			w.Log = append(w.Log, fmt.Sprintf("%s %s %v", c.Op, c.Kind, c.Fields))
			out = append(out, c)
		}
	}
	w.publish()
	return out
}

// add makes an object, with a field that is to be set or without.
func (w *World) add(k *Kind, s *source, path string) bool {
	for range 4 {
		o := &object{
			kind: k, ns: pick(w.rng, s.namespaces), name: fmt.Sprintf("n%d", w.rng.IntN(5)), labels: w.labels(), line: w.rng.IntN(3),
			created: pick(w.rng, []string{"", "", "2020-01-01T00:00:00Z", "2021-01-01T00:00:00Z"}),
		}
		if k.APIVersion == "" {
			o.ns, o.name, o.labels, o.created = "", "", nil, ""
		}
		writer := w.writer(k, path)
		if pool := w.pool[k]; path == "" && len(pool) > 0 && w.rng.IntN(3) == 0 {
			o.spec, _ = deepCopy(pick(w.rng, pool)).(map[string]any)
		} else {
			o.spec = writer.message(k.message, k.schema, "", 0)
		}
		if writer.settle(o, s.name) {
			w.Coverage.specs(nil, o.message)
			s.put(o)
			return true
		}
	}
	return false
}

func (w *World) writer(k *Kind, path string) *writer {
	return &writer{rng: w.rng, kind: k, know: w.know, target: path}
}

func (w *World) labels() map[string]any {
	if w.rng.IntN(2) == 0 {
		return nil
	}
	return map[string]any{"app": pick(w.rng, labelValues("app"))}
}

// put puts an object into its place, instead of what is there.
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
func (w *World) workloads() []*mesh.Workload {
	var out []*mesh.Workload
	for _, s := range w.sources {
		for _, o := range s.objects {
			out = append(out, o.piece.Workloads...)
			for _, svc := range o.piece.Services {
				out = append(out, svc.Inline...)
			}
		}
	}
	return out
}

// publish makes the fragments of what there is. What did not change stays the same
// pointer.
func (w *World) publish() {
	w.know.hosts = nil
	for _, s := range w.sources {
		for _, o := range s.objects {
			for _, svc := range o.piece.Services {
				w.know.hosts = append(w.know.hosts, string(svc.Hostname))
			}
		}
	}
	for _, s := range w.sources {
		next := &mesh.Fragment{Source: s.name, Health: s.reports}
		for _, o := range s.objects {
			next.Append(o.piece)
		}
		w.Coverage.fragments(s.fragment, next)
		s.fragment = shared(s.fragment, next)
	}
}

// shared is the next fragment with the lists of the one before where they are equal,
// or that one itself.
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
