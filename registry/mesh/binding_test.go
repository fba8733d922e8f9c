package mesh

import (
	"fmt"
	"maps"
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

// TestBoundSourcesMergeIncrementally changes sources that name each other's
// hosts at random, and compares the snapshot built from the one before with one
// that is built from nothing.
func TestBoundSourcesMergeIncrementally(t *testing.T) {
	t.Parallel()
	restricted := 0
	for _, seed := range seeds(t, 5, 20) {
		w := newTenants(seed, true)
		config := testMeshConfig()
		var s *Snapshot
		var owners *Owners
		for i := range 150 {
			for range 1 + w.rng.IntN(3) {
				w.step()
			}
			unsettled := i%23 == 22
			if i%31 == 30 {
				config = testMeshConfig()
				if i%2 == 0 { // one of both at a time
					config.Spec.DefaultServiceExportTo = []string{w.pick("*", ".", "ns2", "~")}
				} else {
					config.Spec.DefaultVirtualServiceExportTo = []string{w.pick("*", ".", "ns2", "~")}
				}
				config.Hash = Hash{byte(i)}
			}
			if s != nil && s.tables.restrictions.owners.record != nil && w.rng.IntN(50) == 0 {
				owners = nil // it was lost
			}
			prev := s
			in := w.input(prev, config, owners, unsettled)
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
			anew := Merge(w.input(nil, config, owners, unsettled))
			if got, want := fingerprint(t, s), fingerprint(t, anew); got != want {
				t.Fatalf("seed %d, step %d: the patched snapshot differs from the one built anew:\n%s", seed, i, difference(anew, s))
			}
			if prev != nil {
				checkDiff(t, prev, s)
			}
			if s.tables.restrictions.owners.cache != nil || !slices.IsSorted(s.Decided()) {
				t.Fatalf("seed %d, step %d: the cache of the merge is kept, or the decided hosts are not sorted: %v", seed, i, s.Decided())
			}
			w.checkOwners(t, s)
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
			if unsettled {
				continue
			}
			grant := Grants(s)
			for h := range w.names() {
				was, _ := owners.Of(h)
				if is, granted := grant(h); granted && is != was && !slices.Contains(s.Decided(), h) {
					t.Fatalf("seed %d, step %d: %s belongs to %v, and is not among those that are put on record", seed, i, h, is)
				}
			}
			record, before := recordOf(s, owners), owners
			if want := recordOf(anew, owners); !maps.Equal(record, want) {
				t.Fatalf("seed %d, step %d: for the record %v, want %v", seed, i, record, want)
			}
			owners = w.with(owners, record)
			if len(recordOf(anew, owners)) > 0 {
				t.Fatalf("seed %d, step %d: the hosts decided anew lack some: %v", seed, i, recordOf(anew, owners))
			}
			// Names that are taken off the record may give others to somebody; what is put
			// on it gives nothing.
			maps.DeleteFunc(record, func(_ Hostname, owner Owner) bool { return owner.Namespace == "" })
			if again := Merge(w.input(nil, config, before.With(record), false)); fingerprint(t, unexplained(again)) != fingerprint(t, unexplained(s)) {
				t.Fatalf("seed %d, step %d: what is put on record changes the mesh: %v\n%s", seed, i, record, difference(s, again))
			}
		}
	}
	if restricted < 1000 {
		t.Fatalf("only %d foreign hosts were met", restricted)
	}
}

// unexplained is a snapshot without the words of its conflicts, for what is on record
// is told in others.
func unexplained(s *Snapshot) *Snapshot {
	out := *s
	out.Conflicts = slices.Clone(s.Conflicts)
	for i := range out.Conflicts {
		c := &out.Conflicts[i]
		if c.Reason, c.Kept = "", nil; isAddress(c.Host) {
			c.Host = "" // the first of several that are another's
		}
	}
	return &out
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
			in := w.input(nil, testMeshConfig(), nil, false)
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
