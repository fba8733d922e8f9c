package mesh

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
)

// seeds are those of a test; FAIRLEAD_NETS_SEEDS=N makes it N, and FAIRLEAD_NETS_SEED=N
// the one seed N.
func seeds(t *testing.T, short, full uint64) []uint64 {
	t.Helper()
	if seed, err := strconv.ParseUint(os.Getenv("FAIRLEAD_NETS_SEED"), 10, 32); err == nil {
		return []uint64{seed}
	}
	n := full
	if testing.Short() {
		n = short
		if race.Enabled {
			n = 1
		}
	}
	if more, err := strconv.ParseUint(os.Getenv("FAIRLEAD_NETS_SEEDS"), 10, 32); err == nil {
		n = more
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i)
	}
	return out
}

// TestBoundSourcesMergeIncrementally changes sources that name each other's hosts at random. It compares the
// snapshot built from the one before with one that is built from nothing, as after a restart, and with that of a
// second server, which sees some of the states only, and the sources in another order. What others see of bound
// sources is held to the definition: nothing of another's is taken, and nothing of one's own is lost.
func TestBoundSourcesMergeIncrementally(t *testing.T) {
	t.Parallel()
	restricted, owned, count := 0, 0, 0
	for _, seed := range seeds(t, 5, 20) {
		w := newTenants(seed, true)
		config := testMeshConfig()
		var s, second *Snapshot
		count++
		for i := range 150 {
			for range 1 + w.rng.IntN(3) {
				w.step()
			}
			if i%31 == 30 {
				config = testMeshConfig()
				if i%2 == 0 { // one of both at a time
					config.Spec.DefaultServiceExportTo = []string{w.pick("*", ".", "ns2", "~")}
				} else {
					config.Spec.DefaultVirtualServiceExportTo = []string{w.pick("*", ".", "ns2", "~")}
				}
				config.Hash = Hash{byte(i)}
			}
			if w.rng.IntN(25) == 0 {
				w.grant()
			}
			prev := s
			in := w.input(prev, config)
			if w.rng.IntN(4) == 0 { // in another order than a source that we know has
				for _, f := range in.Fragments {
					switch w.rng.IntN(3) {
					case 0:
						w.rng.Shuffle(len(f.Services), reflect.Swapper(f.Services))
					case 1:
						w.rng.Shuffle(len(f.VirtualServices), reflect.Swapper(f.VirtualServices))
					default:
						w.rng.Shuffle(len(f.Workloads), reflect.Swapper(f.Workloads))
					}
				}
			}
			for j, f := range in.Fragments {
				if f.Empty() && w.rng.IntN(2) == 0 {
					in.Fragments[j] = nil // of a source that has said nothing yet
				}
			}
			s = Merge(in)
			anew := Merge(w.input(nil, config))
			if got, want := fingerprint(t, s), fingerprint(t, anew); got != want {
				t.Fatalf("seed %d, step %d: the patched snapshot differs from the one built anew:\n%s", seed, i, difference(anew, s))
			}
			if prev != nil {
				checkDiff(t, prev, s)
			}
			if s.tables.restrictions.owners.cache != nil {
				t.Fatalf("seed %d, step %d: the cache of the merge is kept", seed, i)
			}
			second = w.secondServer(t, second, s, config)
			w.checkOwners(t, s)
			owned += w.checkNothingLost(t, s)
			if !slices.IsSortedFunc(s.Conflicts, compareConflicts) || len(slices.Compact(slices.Clone(s.Conflicts))) < len(s.Conflicts) {
				t.Fatalf("seed %d, step %d: the conflicts are not sorted, or not told once", seed, i)
			}
			w.checkUntouched(t, s, config)
			w.checkExports(t, s)
			w.checkRoutes(t, s)
			w.checkWithoutCache(t, s)
			checkDates(t, w, s.DestinationRules)
			checkDates(t, w, s.Sidecars)
			checkDates(t, w, s.PeerAuthentications)
			for _, c := range s.Conflicts {
				if c.Foreign {
					restricted++
				}
			}
		}
	}
	t.Logf("%d lives, %d foreign hosts, %d own ones", count, restricted, owned)
	if restricted < 500*count || owned < 50*count && !race.Enabled { // one life meets few
		t.Fatalf("only %d foreign hosts were met, and %d own ones", restricted, owned)
	}
}

// secondServer is a server that reads the sources now and then, some of them late, after which it has what the
// first one has.
func (w *tenants) secondServer(t *testing.T, prev, first *Snapshot, config *MeshConfig) *Snapshot {
	t.Helper()
	if w.rng.IntN(4) > 0 {
		return prev
	}
	for range w.rng.IntN(3) {
		in := w.input(prev, config)
		for _, i := range w.rng.Perm(len(in.Fragments))[:w.rng.IntN(len(in.Fragments))] {
			in.Fragments[i] = nil
		}
		prev = Merge(in)
	}
	s := Merge(w.input(prev, config))
	if got, want := fingerprint(t, s), fingerprint(t, first); got != want {
		t.Fatalf("a second server has another mesh:\n%s", difference(first, s))
	}
	return s
}

// difference are the objects for others of one snapshot that another one lacks.
func difference(a, b *Snapshot) string {
	lines := func(s *Snapshot) map[string]bool {
		out := map[string]bool{}
		for _, svc := range s.Services {
			out[fmt.Sprint(svc.Key, svc.Origin, svc.Hostname, svc.Addresses, svc.Ports, svc.ExportTo, svc.Yields, inlineNames(svc))] = true
		}
		for _, vs := range s.VirtualServices {
			out[fmt.Sprint(vs.Key, vs.Origin, vs.Spec.Hosts, subnetNames(vs), vs.ExportTo, vs.Created)] = true
		}
		for _, c := range s.Conflicts {
			out[fmt.Sprint(c.Key, c.Host, c.Foreign, c.Reason)] = true
		}
		return out
	}
	var out []string
	x, y := lines(a), lines(b)
	for line := range x {
		if !y[line] {
			out = append(out, "- "+line)
		}
	}
	for line := range y {
		if !x[line] {
			out = append(out, "+ "+line)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestBindingDoesNotChangeUncontestedObjects builds meshes in which every source names
// hosts of its own, with and without bindings.
func TestBindingDoesNotChangeUncontestedObjects(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		w := newTenants(seed, false)
		for i := range 80 {
			w.step()
			in := w.input(nil, testMeshConfig())
			bound := Merge(in)
			in.Bindings = nil
			free := Merge(in)
			if !slices.Equal(bound.Services, free.Services) || !slices.Equal(bound.VirtualServices, free.VirtualServices) ||
				fingerprint(t, bound) != fingerprint(t, free) {
				t.Fatalf("seed %d, step %d: being bound changes a mesh without contested hosts: %v", seed, i, bound.Conflicts)
			}
		}
	}
}
