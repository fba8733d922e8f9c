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

// seeds are those of a test; FAIRLEAD_NETS_SEEDS=N makes it N, those from FAIRLEAD_NETS_FIRST on, and
// FAIRLEAD_NETS_SEED=N the one seed N.
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
	first, _ := strconv.ParseUint(os.Getenv("FAIRLEAD_NETS_FIRST"), 10, 32)
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// Disk is what a server keeps on disk of the objects of a life, and of the addresses of their hosts. The packages that save
// them import this one, so the test is in another package.
type Disk interface {
	// Take takes the objects of the sources, and returns the addresses of hosts.
	Take(t *testing.T, objects []map[Key]any, bindings []*Binding) *Allocations
	// Restart is what a server has after a restart.
	Restart(t *testing.T, bindings []*Binding) ([]*Fragment, *Allocations)
}

// FragmentOf is the fragment of some objects.
func FragmentOf(source string, objects map[Key]any) *Fragment { return fragmentOf(source, objects) }

// RevisionOf tells an object of a life from others with its Key.
func RevisionOf(x any) int { return x.(object0).meta().Origin.Line }

// BoundSourcesMergeIncrementally changes sources that name each other's hosts at random. It compares the
// snapshot built from the one before with one that is built from nothing, with that of a second server, which
// sees some of the states only, and the sources in another order, and with what a server has after a restart.
// What others see of bound sources is held to the definition: nothing of another's is taken, and nothing of one's
// own is lost.
func BoundSourcesMergeIncrementally(t *testing.T, disk func(t *testing.T, seed uint64) Disk) {
	t.Helper()
	restricted, owned, inherited, deputies, behind, count := 0, 0, 0, 0, 0, 0
	for _, seed := range seeds(t, 5, 20) {
		count++
		t.Run(fmt.Sprint("seed-", seed), func(t *testing.T) {
			l := &life{tenants: newTenants(seed, true), config: testMeshConfig(), disk: disk(t, seed)}
			for i := range 150 {
				l.next(t, i)
			}
			restricted, owned, inherited = restricted+l.restricted, owned+l.owned, inherited+l.inherited
			deputies, behind = deputies+l.deputies, behind+l.behind
		})
	}
	t.Logf("%d lives, %d foreign hosts, %d own ones, %d from a record, %d routes to third tenants, %d services behind others at a port", count, restricted, owned, inherited, deputies, behind)
	if !t.Failed() && count > 1 && (restricted < 500*count || owned < 50*count && !race.Enabled) { // one life meets few
		t.Fatalf("only %d foreign hosts were met, and %d own ones", restricted, owned)
	}
	if !t.Failed() && count > 1 && (deputies < 2*count || behind < 50*count) {
		t.Fatalf("only %d routes led to third tenants, and %d services came behind others at a port", deputies, behind)
	}
}

// life is a mesh of tenants, the server that sees all of its changes, and one that sees some of them.
type life struct {
	*tenants
	config            *MeshConfig
	s, second         *Snapshot
	restricted, owned int
	inherited         int // hosts that were on a record
	deputies, behind  int // routes to third tenants, and services that come behind others at a port
	hostsOf           *Snapshot
	byHost            map[Hostname][]*Service // of hostsOf
	disk              Disk
}

// change changes objects, and now and then settings or grants.
func (l *life) change(t *testing.T, i int) {
	t.Helper()
	for range 1 + l.rng.IntN(3) {
		l.step()
	}
	if i%31 == 30 {
		l.config = testMeshConfig()
		if i%2 == 0 { // one of both at a time
			l.config.Spec.DefaultServiceExportTo = []string{l.pick("*", ".", "ns2", "~")}
		} else {
			l.config.Spec.DefaultVirtualServiceExportTo = []string{l.pick("*", ".", "ns2", "~")}
		}
		l.config.Hash = Hash{byte(i)}
	}
	switch l.rng.IntN(50) {
	case 0:
		l.grant()
	case 1, 2:
		l.upgrade(t)
	}
}

// shuffled is the input, sometimes in another order than a source that we know has, and without sources
// that have said nothing yet.
func (l *life) shuffled() Input {
	in := l.input(l.s, l.config)
	if l.rng.IntN(4) == 0 {
		for _, f := range in.Fragments {
			switch l.rng.IntN(3) {
			case 0:
				l.rng.Shuffle(len(f.Services), reflect.Swapper(f.Services))
			case 1:
				l.rng.Shuffle(len(f.VirtualServices), reflect.Swapper(f.VirtualServices))
			default:
				l.rng.Shuffle(len(f.Workloads), reflect.Swapper(f.Workloads))
			}
		}
	}
	for j, f := range in.Fragments {
		if f.Empty() && l.rng.IntN(2) == 0 {
			in.Fragments[j] = nil
		}
	}
	return in
}

// next is one step, with all checks.
func (l *life) next(t *testing.T, i int) {
	t.Helper()
	l.change(t, i)
	l.allocations = l.disk.Take(t, l.objects, l.bindings)
	prev := l.s
	l.s = Merge(l.shuffled())
	s := l.s
	restarted := l.input(nil, l.config)
	restarted.Grants = l.saved(t)
	anew := Merge(restarted)
	if got, want := fingerprint(t, s), fingerprint(t, anew); got != want {
		t.Fatalf("step %d: the patched snapshot differs from the one built anew:\n%s", i, difference(anew, s))
	}
	if i%75 == 74 {
		restarted.Fragments, restarted.Allocations = l.disk.Restart(t, l.bindings)
		if read := Merge(restarted); fingerprint(t, s) != fingerprint(t, read) {
			t.Fatalf("step %d: after a restart from disk the mesh is another one:\n%s", i, difference(read, s))
		}
	}
	if prev != nil {
		checkDiff(t, prev, s)
	}
	if s.tables.restrictions.owners.cache != nil {
		t.Fatalf("step %d: the cache of the merge is kept", i)
	}
	l.second = l.secondServer(t, l.second, s, l.config)
	l.checkOwners(t, s)
	l.owned += l.checkNothingLost(t, s)
	if !slices.IsSortedFunc(s.Conflicts, compareConflicts) || len(slices.Compact(slices.Clone(s.Conflicts))) < len(s.Conflicts) {
		t.Fatalf("step %d: the conflicts are not sorted, or not told once", i)
	}
	l.checkAddresses(t, s)
	l.checkRoutedNames(t, s)
	l.checkShortNames(t, s)
	l.checkCredentials(t, s)
	l.checkGateways(t, s)
	l.checkUntouched(t, s, l.config)
	l.checkExports(t, s)
	l.checkRoutes(t, s)
	l.checkDeputies(t, s)
	l.checkPorts(t, s)
	l.checkWithoutCache(t, s)
	checkDates(t, l.tenants, s.DestinationRules)
	checkDates(t, l.tenants, s.Sidecars)
	checkDates(t, l.tenants, s.PeerAuthentications)
	for _, c := range s.Conflicts {
		if c.Foreign {
			l.restricted++
		}
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
			out[fmt.Sprint(svc.Key, svc.Origin, svc.Hostname, svc.Addresses, svc.Ports, svc.ExportTo, svc.Yields, svc.Allocated, inlineNames(svc))] = true
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
