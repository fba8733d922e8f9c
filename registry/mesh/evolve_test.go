package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
)

// world is two sources that change at random.
type world struct {
	rng *rand.Rand
	a   map[Key]any // what the first source has
	b   map[Key]any
	// health is what two more sources report, by account and address.
	health [2]map[string]*HealthReport
	// untidy says that some lists are not sorted.
	untidy bool
	rev    int
}

func (w *world) step() {
	source := w.a
	if w.rng.IntN(3) == 0 {
		source = w.b
	}
	ns := fmt.Sprintf("ns%d", w.rng.IntN(3))
	app := fmt.Sprintf("app%d", w.rng.IntN(4))
	name := fmt.Sprintf("n%d", w.rng.IntN(8))
	w.rev++
	switch w.rng.IntN(12) {
	case 0, 1:
		x := testWorkload(ns, name, fmt.Sprintf("10.0.0.%d", w.rng.IntN(6)), app)
		source[x.Key] = x
	case 2:
		x := testService(ns, name, app)
		source[x.Key] = x
	case 3:
		x := testService(ns, name, "")
		x.Inline = []*Workload{testWorkload(ns, "", fmt.Sprintf("10.0.0.%d", w.rng.IntN(6)), app)}
		source[x.Key] = x
	case 4:
		x := testService(ns, name, "")
		x.Selector = map[string]string{} // everything
		source[x.Key] = x
	case 5:
		x := testVirtualService(ns, name, strconv.Itoa(w.rev))
		x.Created = time.Unix(w.rng.Int64N(3), 0)
		source[x.Key] = x
	case 7, 8:
		x := w.catalogService(ns, app)
		source[x.Key] = x
	case 9:
		x := testInstance(ns, fmt.Sprintf("10.0.0.%d", w.rng.IntN(6)), app)
		source[x.Key] = x
	case 10:
		x := w.rival(ns, name, app)
		source[x.Key] = x
	case 6:
		r := &HealthReport{
			ServiceAccount: ServiceAccount{Namespace: ns, Name: "sa-" + app},
			Address:        fmt.Sprintf("10.0.0.%d", w.rng.IntN(6)),
			Health:         Health(w.rng.IntN(3)), Own: w.rng.IntN(2) == 0,
		}
		reports := w.health[w.rng.IntN(2)]
		if key := fmt.Sprint(r.ServiceAccount, r.Address); reports[key] != nil && w.rng.IntN(3) == 0 {
			delete(reports, key)
		} else {
			reports[key] = r
		}
	default:
		for k := range source {
			delete(source, k)
			break
		}
	}
}

// catalogService is a service that both sources may derive from a catalog, each
// with one of two ports.
func (w *world) catalogService(ns, app string) *Service {
	return testDerived(ns, app, uint32(80+w.rng.IntN(2)), w.exports()...)
}

// rival is a service that is written down for the host of a catalog's.
func (w *world) rival(ns, name, app string) *Service {
	x := testService(ns, name, "")
	x.Hostname = Hostname(app + ".service.consul")
	if w.rng.IntN(2) == 0 {
		x.Selector = map[string]string{LabelConsulService: fmt.Sprintf("app%d", w.rng.IntN(4))}
	}
	x.ExportTo = w.exports()
	x.Created = time.Unix(w.rng.Int64N(3), 0)
	x.Hash = Hash{byte(w.rev), byte(w.rev >> 8), 7}
	return x
}

// withoutCatalog removes all services of catalogs.
func (w *world) withoutCatalog() {
	for _, source := range []map[Key]any{w.a, w.b} {
		maps.DeleteFunc(source, func(_ Key, x any) bool {
			svc, is := x.(*Service)
			return is && svc.Catalog
		})
	}
}

func (w *world) exports() Exports {
	list := []Exports{nil, nil, nil, {"*"}, {"ns0"}, {"ns1"}, {"ns0", "ns1"}, {"~"}}
	return list[w.rng.IntN(len(list))]
}

// fragmentOf is a fragment with objects of any kinds: each goes into the list of its type.
func fragmentOf(source string, objects map[Key]any) *Fragment {
	f := &Fragment{Source: source}
	lists := map[reflect.Type]reflect.Value{}
	for _, list := range reflect.ValueOf(f).Elem().Fields() {
		if t := list.Type(); t.Kind() == reflect.Slice {
			lists[t.Elem()] = list
		}
	}
	for _, x := range objects {
		list := lists[reflect.TypeOf(x)]
		list.Set(reflect.Append(list, reflect.ValueOf(x)))
	}
	for _, k := range kinds {
		k.sort(f)
	}
	return f
}

func (w *world) fragments() []*Fragment {
	out := []*Fragment{fragmentOf("a", w.a), fragmentOf("b", w.b)}
	for i, reports := range w.health {
		h := &Fragment{Source: fmt.Sprint("agents-", i), Health: slices.Collect(maps.Values(reports))}
		slices.SortFunc(h.Health, compareReports)
		out = append(out, h)
	}
	if w.untidy && w.rng.IntN(2) == 0 {
		f := out[w.rng.IntN(len(out))]
		w.rng.Shuffle(len(f.Services), func(i, j int) { f.Services[i], f.Services[j] = f.Services[j], f.Services[i] })
		w.rng.Shuffle(len(f.Health), func(i, j int) { f.Health[i], f.Health[j] = f.Health[j], f.Health[i] })
	}
	return out
}

// TestIncrementalMergeEqualsFullMerge changes a mesh at random and compares the
// snapshot built from the one before with one built from nothing.
func TestIncrementalMergeEqualsFullMerge(t *testing.T) {
	t.Parallel()
	for _, seed := range seeds(t, 4, 4) {
		w := &world{rng: rand.New(rand.NewPCG(seed, 1)), a: map[Key]any{}, b: map[Key]any{}, health: [2]map[string]*HealthReport{{}, {}}, untidy: seed%4 == 3}
		var s *Snapshot
		config := testMeshConfig()
		for i := range 120 {
			for range 1 + w.rng.IntN(3) {
				w.step()
			}
			if i == 100 {
				for range 200 { // more than is patched
					w.step()
				}
			}
			if i%40 == 39 {
				w.withoutCatalog()
			}
			fragments := w.fragments()
			var before Hash
			prev := s
			if prev != nil {
				before = fingerprint(t, prev)
			}
			if i%17 == 16 {
				config = &MeshConfig{Meta: config.Meta, Spec: proto.CloneOf(config.Spec)}
				config.Spec.DefaultServiceExportTo = []string{[]string{"*", ".", "ns2", "~"}[w.rng.IntN(4)]}
				config.Hash = Hash{byte(i)}
			}
			s = NewSnapshot(prev, config, fragments)
			anew := NewSnapshot(nil, config, fragments)
			if got, want := fingerprint(t, s), fingerprint(t, anew); got != want {
				t.Fatalf("seed %d, step %d: the patched snapshot differs from the one built anew", seed, i)
			}
			if prev != nil && fingerprint(t, prev) != before {
				t.Fatalf("seed %d, step %d: building a snapshot wrote to the one before", seed, i)
			}
			if prev != nil {
				checkDiff(t, prev, s)
			}
			if i%5 == 0 {
				checkLookups(t, s)
				checkCatalogs(t, s, fragments)
			}
		}
	}
}

// checkLookups compares every look-up with its definition.
func checkLookups(t *testing.T, s *Snapshot) {
	t.Helper()
	for _, svc := range s.Services {
		want := svc.Inline
		if svc.Selector != nil {
			want = nil
			for _, w := range s.Workloads {
				if w.Namespace == svc.Namespace && selectsByDefinition(svc.Selector, w.Labels) {
					want = append(want, w)
				}
			}
		}
		if !slices.Equal(s.EndpointsOf(svc), want) {
			t.Fatalf("endpoints of %s: got %d, want %d", svc.Key, len(s.EndpointsOf(svc)), len(want))
		}
		for _, w := range want {
			if svc.Selector != nil && !slices.Contains(s.ServicesOf(w), svc) {
				t.Fatalf("%s is not among the services of %s", svc.Key, w.Key)
			}
		}
		if !slices.Contains(s.ServicesOn(svc.Hostname), svc) {
			t.Fatalf("%s is not on %s", svc.Key, svc.Hostname)
		}
	}
	services := map[string]int{}
	for _, svc := range s.Services {
		services[svc.Namespace]++
	}
	for ns, n := range services {
		if x := s.in(ns); x.services != n || x.backings.size != n {
			t.Fatalf("the tables of %s have %d services, and workloads of %d; there are %d", ns, x.services, x.backings.size, n)
		}
	}
	for _, w := range s.Workloads {
		if !slices.Contains(s.WorkloadsIn(w.Namespace), w) || !slices.Contains(s.WorkloadsAt(w.Address), w) {
			t.Fatalf("%s is not found", w.Key)
		}
		for _, svc := range s.ServicesOf(w) {
			if !slices.Contains(s.EndpointsOf(svc), w) {
				t.Fatalf("%s has %s, but not the other way round", w.Key, svc.Key)
			}
		}
	}
}

func selectsByDefinition(selector, labels map[string]string) bool {
	if labels[LabelConsulService] != "" && selector[LabelConsulService] == "" {
		return false
	}
	return Selects(selector, labels)
}

// checkCatalogs holds what is in force of catalogs to the definition: in each
// namespace a host is that of the services that are written down, where one is
// seen, and else the catalog's. One that nobody sees for that reason alone is in
// no list, and each one that some do not see is among the conflicts, unless what
// they see instead has its instances.
func checkCatalogs(t *testing.T, s *Snapshot, fragments []*Fragment) {
	t.Helper()
	namespaces := []string{"ns0", "ns1", "ns2", "elsewhere"}
	defaults := s.MeshConfig.Spec.GetDefaultServiceExportTo()
	seen, hidden := map[Key]bool{}, 0
	for _, f := range fragments {
		for _, c := range f.Services {
			if seen[c.Key] || !c.Catalog {
				continue
			}
			seen[c.Key] = true
			sees, lost, opposed := 0, 0, false
			for _, ns := range namespaces {
				if !exportedTo(c.ExportTo, defaults, c.Namespace, ns) {
					continue
				}
				sees++
				opposed = opposed || slices.ContainsFunc(s.Services, func(w *Service) bool {
					return !w.Catalog && w.Hostname == c.Hostname && exportedTo(w.ExportTo, defaults, w.Namespace, ns) &&
						(w.Namespace != c.Namespace || w.Selector[LabelConsulService] != c.Selector[LabelConsulService])
				})
				taken := slices.ContainsFunc(s.Services, func(w *Service) bool {
					return !w.Catalog && w.Hostname == c.Hostname && exportedTo(w.ExportTo, defaults, w.Namespace, ns)
				})
				if taken {
					lost++
				}
				if there := slices.Contains(s.ServicesVisibleTo(ns), c); there == taken {
					t.Fatalf("namespace %s: another has the host of %s: %v; it is visible: %v", ns, c.Key, taken, there)
				}
			}
			inForce := slices.Contains(s.Services, c)
			if !inForce {
				hidden++
			}
			if inForce == (sees > 0 && lost == sees) {
				t.Fatalf("%s is in force: %v, though %d of %d do not see it", c.Key, inForce, lost, sees)
			}
			told := slices.ContainsFunc(s.Conflicts, func(x Conflict) bool { return x.Key == c.Key && x.Host == c.Hostname })
			if told != opposed {
				t.Fatalf("%s: others stand against it: %v; that is told: %v", c.Key, opposed, told)
			}
		}
	}
	if got := s.tables.catalogs.hidden.size; got != hidden {
		t.Fatalf("%d services are remembered as hidden, and %d are", got, hidden)
	}
}

// checkDiff holds what a snapshot says of the one before to both.
func checkDiff(t *testing.T, prev, s *Snapshot) {
	t.Helper()
	walked := *s
	walked.diff = nil
	for _, d := range []*Diff{s.Since(prev), walked.Since(prev)} {
		for _, k := range kinds {
			k.(applier).applied(t, prev, s, d)
		}
	}
}

type applier interface {
	applied(t *testing.T, prev, next *Snapshot, d *Diff)
}

func (k kindOf[T]) applied(t *testing.T, prev, next *Snapshot, d *Diff) {
	t.Helper()
	applied(t, *k.snapshot(prev), *k.snapshot(next), DeltasOf[T](d))
	var zero T
	for _, x := range DeltasOf[T](d) {
		if x.Old != zero && x.New != zero && k.rank(x.Old, x.New) != 0 {
			t.Fatalf("%s has another place in its list, and is one change", x.New.meta().Key)
		}
	}
}

// applied fails unless the deltas, applied to one list, give the other, and name
// nothing that is in both.
func applied[T object](t *testing.T, prev, next []T, deltas []Delta[T]) {
	t.Helper()
	var zero T
	set := map[T]bool{}
	for _, x := range prev {
		set[x] = true
	}
	for _, d := range deltas {
		if d.Old == d.New || d.Old != zero && !set[d.Old] || d.New != zero && set[d.New] {
			t.Fatalf("a delta that is none: %v, %v", d.Old, d.New)
		}
		delete(set, d.Old)
		if d.New != zero {
			set[d.New] = true
		}
	}
	if len(set) != len(next) {
		t.Fatalf("%d objects by the deltas, %d in the list", len(set), len(next))
	}
	for _, x := range next {
		if !set[x] {
			t.Fatalf("%s is not among the deltas", x.meta().Key)
		}
	}
}
