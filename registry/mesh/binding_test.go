package mesh

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/race"
)

// tenants are sources at random: one that speaks for all, some that are bound to
// namespaces, and a catalog.
type tenants struct {
	rng      *rand.Rand
	bindings []*Binding
	objects  []map[Key]any
	shared   bool // they name each other's hosts
	// own is in how many of four times a host is nobody else's all the same, so that
	// addresses and ports decide.
	own int
	// machines is how many of eight objects are workloads.
	machines int
	rev      int
}

func newTenants(seed uint64, shared bool) *tenants {
	w := &tenants{rng: rand.New(rand.NewPCG(seed, 7)), shared: shared, bindings: []*Binding{
		{Namespaces: []string{"ns0"}},
		nil,
		{Namespaces: []string{"ns1", "ns2"}},
		{Namespaces: []string{"ns2"}},
		nil, // a catalog
	}}
	if shared {
		w.own, w.machines = int(seed%5), 1+2*int(seed%2)
		w.bindings = append(w.bindings,
			&Binding{Namespaces: []string{"ns3"}, Hosts: []Hostname{"*.p.example", "e0.x.example"}},
			&Binding{Namespaces: []string{"ns4"}, HostsOnly: true, Hosts: []Hostname{"e1.x.example"}})
	} else {
		w.bindings[3].Namespaces = []string{"ns3"}
	}
	for range w.bindings {
		w.objects = append(w.objects, map[Key]any{})
	}
	return w
}

func (w *tenants) pick(list ...string) string { return list[w.rng.IntN(len(list))] }

// host is one of a few, so that they meet; or the source's own.
func (w *tenants) host(source int) string {
	host := w.pick("e0.x.example", "e1.x.example", "e2.x.example", "e0.p.example", "*.x.example", "*.p.example", "*.example", "e3.example", "*.0.x.example", "e.0.x.example",
		"e0.x.example.", "e0.ns0.svc.x.example", "e0.ns2.svc.x.example", "e0.ns0", "e0.ns2.svc.", "e0", "10.9.0.1")
	switch {
	case w.shared && w.rng.IntN(4) < w.own:
		return w.pick(fmt.Sprintf("e0.s%d.example", source), fmt.Sprintf("e1.s%d.example", source), fmt.Sprintf("*.s%d.example", source), "10.9.0.1", "10.9.0.2", "fd00::1")
	case w.shared:
		return host
	}
	return fmt.Sprintf("%s.s%d.example", w.pick("e0", "e1", "*.e2", "*", "e3.e2"), source)
}

// address is one of a few, or a range.
func (w *tenants) address() string {
	return w.pick("10.9.0.1", "10.9.0.2", "10.9.0.0/24", "10.9.0.0/31", "10.9.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "::ffff:10.9.0.1", "fd00::1", "fd00::/64", "fd00::/16")
}

// machine is an address of a workload or an endpoint. Most are in ranges that services have.
func (w *tenants) machine() string {
	return w.pick("10.9.0.1", "10.9.0.2", "fd00::1", fmt.Sprintf("10.9.7.%d", w.rng.IntN(8)))
}

func (w *tenants) step() {
	source := w.rng.IntN(len(w.bindings))
	w.rev++
	if w.rng.IntN(4) == 0 {
		if keys := slices.SortedFunc(maps.Keys(w.objects[source]), Key.Compare); len(keys) > 0 {
			delete(w.objects[source], keys[w.rng.IntN(len(keys))])
		}
		return
	}
	ns := fmt.Sprintf("ns%d", w.rng.IntN(5))
	if b := w.bindings[source]; b != nil {
		ns = b.Namespaces[w.rng.IntN(len(b.Namespaces))]
	}
	x := w.object(source, ns)
	m := x.(object0).meta()
	if w.rng.IntN(2) == 0 {
		m.Created = time.Unix(int64(w.rng.IntN(5)), 0)
	}
	m.Hash = hashAs(m.Hash, strconv.Itoa(w.rev))
	m.Origin = &Origin{Source: strconv.Itoa(source), Path: m.Name, Line: w.rev}
	w.objects[source][m.Key] = x
}

type object0 interface{ meta() *Meta }

func (w *tenants) object(source int, ns string) any {
	name := fmt.Sprintf("n%d-%d", source, w.rng.IntN(4))
	if w.shared && w.rng.IntN(4) == 0 {
		name = fmt.Sprintf("n-%d", w.rng.IntN(4)) // of any source
	}
	exports := []Exports{nil, nil, nil, {"*"}, {ns}, {"ns0"}, {"ns0", "ns2"}, {"~"}}[w.rng.IntN(8)]
	switch {
	case source == 4:
		svc := testDerived(ns, w.pick("e0", "e1"), 80)
		svc.Hostname = Hostname(w.host(source))
		if svc.Hostname.IsWildcard() {
			svc.Hostname = Hostname("e0" + string(svc.Hostname[1:]))
		}
		return svc
	case w.shared && w.rng.IntN(8) < w.machines:
		return testWorkload(ns, name, w.pick(w.address(), w.machine()), "x")
	case w.rng.IntN(5) == 0:
		name := fmt.Sprintf("n%d-%d", w.rng.IntN(9), w.rng.IntN(4)) // no order by source
		switch n := w.rng.IntN(4); {
		case n < 2 && w.shared:
			return &Sidecar{Meta: testMeta(KindSidecar, ns, name, "")}
		case n < 3 && w.shared:
			return &PeerAuthentication{Meta: testMeta(KindPeerAuthentication, ns, name, "")}
		case source == 0 || w.shared:
			return &DestinationRule{Meta: testMeta(KindDestinationRule, ns, name, "")}
		}
		fallthrough
	case w.rng.IntN(2) == 0:
		svc := testService(ns, name, "")
		svc.Hostname, svc.ExportTo = Hostname(w.host(source)), exports
		if w.shared {
			w.fill(svc)
		}
		if w.rng.IntN(4) == 0 {
			svc.Selector = map[string]string{LabelConsulService: w.pick("e0", "e1")}
		}
		return svc
	default:
		vs := testVirtualService(ns, name, "")
		vs.ExportTo = exports
		vs.Spec = &networking.VirtualService{Gateways: strings.Fields(w.pick("mesh", "mesh", "mesh", "edge/gateway", "mesh edge/gateway"))}
		for range w.rng.IntN(4) {
			vs.Spec.Hosts = append(vs.Spec.Hosts, w.host(source))
		}
		if w.rng.IntN(4) == 0 {
			vs.Spec.Tls = []*networking.TLSRoute{{}}
			if w.shared && w.rng.IntN(2) == 0 {
				vs.Spec.Tls[0].Match = []*networking.TLSMatchAttributes{{SniHosts: []string{w.host(source)}, DestinationSubnets: []string{w.address()}}}
			}
		}
		if w.shared && w.rng.IntN(4) == 0 {
			vs.Spec.Tcp = []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{DestinationSubnets: []string{w.address()}}}}}
		}
		return vs
	}
}

// fill gives a service what others may have, too: ports of all protocols, addresses and
// endpoints.
func (w *tenants) fill(svc *Service) {
	svc.Ports = nil
	for _, number := range []uint32{80, 443, 3306} {
		if w.rng.IntN(2) == 0 {
			protocols := []Protocol{HTTP, GRPC, GRPCWeb, HTTPProxy, HTTPS, TLS, TCP, MySQL, UDP, Undeclared}
			svc.Ports = append(svc.Ports, Port{Name: fmt.Sprint("p", number), Number: number, Protocol: protocols[w.rng.IntN(len(protocols))]})
		}
	}
	for range max(0, w.rng.IntN(5)-2) {
		svc.Addresses = append(svc.Addresses, w.address())
	}
	slices.Sort(svc.Addresses)
	svc.Addresses = slices.Compact(svc.Addresses)
	for range max(0, w.rng.IntN(6)-3) {
		svc.Resolution = ResolutionStatic
		svc.Inline = append(svc.Inline, &Workload{Address: w.machine()})
	}
}

func (w *tenants) input(prev *Snapshot, config *MeshConfig, owners *Owners, unsettled bool) Input {
	in := Input{Prev: prev, Fallback: config, Bindings: w.bindings, Owners: owners, Unsettled: unsettled}
	for i, objects := range w.objects {
		in.Fragments = append(in.Fragments, fragmentOf(strconv.Itoa(i), objects))
	}
	return in
}

// names are those that may be on record.
func (w *tenants) names() map[Hostname]bool {
	out := map[Hostname]bool{}
	for _, objects := range w.objects {
		for _, x := range objects {
			switch x := x.(type) {
			case *Service:
				noteHosts(out, append(append(addressNames(x), inlineNames(x)...), x.Hostname.canonical()))
				for _, p := range x.Ports {
					noteHosts(out, []Hostname{portName(p.Number), httpPortName(x.Namespace, p.Number)})
				}
			case *VirtualService:
				noteHosts(out, append(sniNames(x), subnetNames(x)...))
				for _, h := range x.Spec.GetHosts() {
					noteHosts(out, []Hostname{Hostname(h).canonical()})
				}
			case *Workload:
				noteHosts(out, workloadNames(x))
			}
		}
	}
	return out
}

// recordOf is what a server would have on record after a snapshot.
func recordOf(s *Snapshot, owners *Owners) map[Hostname]Owner {
	out, grant := map[Hostname]Owner{}, Grants(s)
	for _, h := range s.Decided() {
		was, known := owners.Of(h)
		is, granted := grant(h)
		switch {
		case granted && is != was:
			out[h] = is
		case known && !granted && !s.Claimed(h, was.Namespace):
			out[h] = Owner{}
		}
	}
	return out
}

// with is the record with other owners, in one step or in several.
func (w *tenants) with(owners *Owners, record map[Hostname]Owner) *Owners {
	if w.rng.IntN(3) > 0 {
		return owners.With(record)
	}
	for h, owner := range record {
		owners = owners.With(map[Hostname]Owner{h: owner})
	}
	return owners
}

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

// checkOwners holds to the definition what other namespaces see of bound sources:
// of a host that a source without namespaces, or a catalog, declares nothing but
// routes of its own namespace, of a pattern's nothing but the pattern's source's,
// and of any other that of one namespace at most.
func (w *tenants) checkOwners(t *testing.T, s *Snapshot) {
	t.Helper()
	sourceOf := func(m *Meta) int { return int(m.Origin.Source[0] - '0') }
	type claim struct {
		source    int
		namespace string
		host      Hostname
		service   bool
	}
	var claims []claim
	for _, svc := range s.Services {
		if !onlyOwn(svc.ExportTo, s.MeshConfig.Spec.GetDefaultServiceExportTo(), svc.Namespace) {
			claims = append(claims, claim{sourceOf(&svc.Meta), svc.Namespace, svc.Hostname.canonical(), true})
		}
	}
	for _, vs := range s.VirtualServices {
		if slices.Contains(vs.Spec.Gateways, "mesh") && !onlyOwn(vs.ExportTo, s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace) {
			for _, h := range vs.Spec.Hosts {
				claims = append(claims, claim{sourceOf(&vs.Meta), vs.Namespace, Hostname(h).canonical(), false})
			}
		}
	}
	for _, c := range claims {
		b := w.bindings[c.source]
		if b == nil || b.covers(c.host) {
			continue
		}
		if r := (&owners{bindings: w.bindings}).pattern(c.source, c.host); r != nil || b.HostsOnly && c.service {
			t.Fatalf("%v is seen by others, and the host is that of %s", c, r)
		}
		for _, o := range claims {
			of := w.bindings[o.source]
			if o.source == c.source || !o.service || o.namespace == c.namespace || o.source == 4 && c.service {
				continue // a catalog's may be written down
			}
			if of != nil && of.has(c.namespace) || o.source == 4 && b.has(o.namespace) {
				continue // both speak for that namespace
			}
			switch {
			case of == nil && o.host.Overlaps(c.host) && (c.service || !o.host.IsWildcard() || c.host.IsWildcard()):
			case of != nil && !b.has(o.namespace) && o.host == c.host:
			case of != nil && !b.has(o.namespace) && c.host.Covers(o.host):
			default:
				continue
			}
			t.Fatalf("%v is seen by others, and so is %v", c, o)
		}
	}
}

// checkUntouched wants everything that no other namespace sees, and that no name can be
// another's of, as its source has it.
func (w *tenants) checkUntouched(t *testing.T, s *Snapshot, config *MeshConfig) {
	t.Helper()
	routes, rest := map[*VirtualService]bool{}, map[Key]*Meta{}
	for _, vs := range s.VirtualServices {
		routes[vs] = true
	}
	for _, list := range [][]*Meta{metas(s.Sidecars), metas(s.DestinationRules), metas(s.PeerAuthentications)} {
		for _, m := range list {
			rest[m.Key] = m
		}
	}
	type place struct {
		kind      Kind
		namespace string
	}
	count, sources := map[Key]int{}, map[place]map[int]bool{}
	for i, objects := range w.objects {
		for k := range objects {
			count[k]++
			at := place{k.Kind, k.Namespace}
			if sources[at] == nil {
				sources[at] = map[int]bool{}
			}
			sources[at][i] = true
		}
	}
	for _, objects := range w.objects {
		for k, x := range objects {
			switch x := x.(type) {
			case *VirtualService:
				private := onlyOwn(x.ExportTo, config.Spec.GetDefaultVirtualServiceExportTo(), x.Namespace)
				if private && count[k] == 1 && !routes[x] {
					t.Fatalf("%s, which no other namespace sees, is not there as it was", k)
				}
			case *Sidecar, *DestinationRule, *PeerAuthentication:
				m := x.(object0).meta()
				switch {
				case rest[k] == nil:
					t.Fatalf("%s is not there", k)
				case len(sources[place{k.Kind, k.Namespace}]) == 1 && rest[k] != m:
					t.Fatalf("%s, the only source of its kind in the namespace, is not there as it was", k)
				}
			}
		}
	}
}

// checkExports holds who sees a service of a bound source, and at which ports others go first, to
// the decisions that they are made of.
func (w *tenants) checkExports(t *testing.T, s *Snapshot) {
	t.Helper()
	o := s.tables.restrictions.owners
	o.cache = newDecisionCache()
	out := map[string]*Service{}
	for _, svc := range s.Services {
		out[svc.Origin.Source+" "+svc.String()+" "+string(svc.Hostname)] = svc
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, svc := range f.services() {
			is := out[svc.Origin.Source+" "+svc.String()+" "+string(svc.Hostname)]
			if is == nil || onlyOwn(svc.ExportTo, o.defaults, svc.Namespace) {
				continue // another source has an object with its key
			}
			restricted := o.isRestricted(i, svc)
			hidden := namespacesOf(o.privateAddresses(i, svc.Namespace, addressNames(svc)))
			for _, ns := range []string{"ns0", "ns1", "ns2", "ns3", "ns4", "other"} {
				want := exportedTo(svc.ExportTo, o.defaults, svc.Namespace, ns) && (ns == svc.Namespace || !restricted && !slices.Contains(hidden, ns))
				if got := exportedTo(is.ExportTo, o.defaults, is.Namespace, ns); got != want {
					t.Fatalf("%s of source %d is seen by %s: %v; restricted %v, others' own in %v", svc.Key, i, ns, got, restricted, hidden)
				}
			}
			if !restricted && (!slices.Equal(is.Yields, o.yields(i, svc)) || !is.Created.Equal(svc.Created)) {
				t.Fatalf("%s of source %d yields at %v and is of %s; want %v and %s", svc.Key, i, is.Yields, is.Created, o.yields(i, svc), svc.Created)
			}
		}
	}
}

// checkRoutes holds who has the routes of a bound source's VirtualService to the definition, host
// by host: its own namespace; others if no name that it matches is another's; but none that has
// such a name to itself. What comes behind others' routes has a late date.
func (w *tenants) checkRoutes(t *testing.T, s *Snapshot) {
	t.Helper()
	o := s.tables.restrictions.owners
	o.cache = newDecisionCache()
	defaults := s.tables.restrictions.exports[1]
	parts := map[Origin][]*VirtualService{}
	for _, vs := range s.VirtualServices {
		parts[*vs.Origin] = append(parts[*vs.Origin], vs)
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, vs := range f.virtualServices() {
			if len(parts[*vs.Origin]) == 0 || onlyOwn(vs.ExportTo, defaults, vs.Namespace) {
				continue // another source has an object with its key, or nothing is decided
			}
			all := o.whoHas(i, vs)
			for _, name := range vs.Spec.Hosts {
				h := Hostname(name).canonical()
				foreign := all.foreign || o.routes(i, vs, h) != nil
				var hidden []string
				if len(all.hidden) > 0 || !foreign && len(o.privateOf(i, vs, h)) > 0 {
					hidden = append(slices.Clone(all.hidden), all.ofHosts...)
				}
				for _, ns := range []string{"ns0", "ns1", "ns2", "ns3", "ns4", "other"} {
					want := exportedTo(vs.ExportTo, defaults, vs.Namespace, ns) && (ns == vs.Namespace || !foreign && !slices.Contains(hidden, ns))
					got := 0
					for _, x := range parts[*vs.Origin] {
						if slices.Contains(x.Spec.Hosts, name) && exportedTo(x.ExportTo, defaults, x.Namespace, ns) {
							got++
							if late := x.Created.Equal(newestDate()); late != (all.late || foreign) {
								t.Fatalf("%s of source %d, for %s in %s, comes last: %v", vs.Key, i, name, ns, late)
							}
						}
					}
					if got > 1 || (got == 1) != want {
						t.Fatalf("%s of source %d, for %s, is there %d times for %s; foreign %v, others' own in %v", vs.Key, i, name, got, ns, foreign, hidden)
					}
				}
			}
		}
	}
}

// nameHolders is who else has names that all routes of a VirtualService match: foreign if a name
// is another's, hidden are the namespaces that have one to themselves. ofHosts are those that have
// one of its hosts to themselves: they get the routes of no host that any namespace has so.
type nameHolders struct {
	foreign, late   bool
	hidden, ofHosts []string
}

func (o *owners) whoHas(source int, vs *VirtualService) nameHolders {
	var out nameHolders
	for _, name := range vs.Spec.Hosts {
		h := Hostname(name).canonical()
		if o.routes(source, vs, h) != nil {
			out.foreign = out.foreign || len(vs.Spec.Tls) > 0
			continue
		}
		out.late = out.late || o.late(source, vs, h)
		private := namespacesOf(o.privateOf(source, vs, h))
		out.ofHosts = append(out.ofHosts, private...)
		if len(vs.Spec.Tls) > 0 { // its rules match all hosts, whichever it is for
			out.hidden = append(out.hidden, private...)
		}
	}
	for _, h := range sniNames(vs) {
		out.foreign = out.foreign || o.routes(source, vs, h) != nil || o.shortName(source, h) != nil
		out.hidden = append(out.hidden, namespacesOf(o.privateOf(source, vs, h))...)
	}
	if !slices.Contains(vs.Spec.Gateways, "mesh") {
		return out
	}
	addresses := subnetNames(vs)
	for _, a := range addresses {
		out.foreign = out.foreign || !o.hasAddress(source, vs.Namespace, a) && o.address(claimant{source, vs.Namespace, true}, a) != nil
	}
	out.hidden = append(out.hidden, namespacesOf(o.privateAddresses(source, vs.Namespace, addresses))...)
	return out
}

func metas[T object](list []T) []*Meta {
	out := make([]*Meta, len(list))
	for i, x := range list {
		out[i] = x.meta()
	}
	return out
}

// checkWithoutCache asks for all decisions with one cache, and for each without one.
func (w *tenants) checkWithoutCache(t *testing.T, s *Snapshot) {
	t.Helper()
	without := s.tables.restrictions.owners
	with := without
	with.cache = newDecisionCache()
	ask := func(o *owners, source int, svc *Service) string {
		r := []*rival{o.service(source, svc)}
		if svc.Hostname.IsWildcard() {
			r = append(r, o.wildcard(source, svc))
		}
		var private []Key
		for _, p := range o.privateAddresses(source, svc.Namespace, addressNames(svc)) {
			private = append(private, p.Key)
		}
		return fmt.Sprint(r, o.yields(source, svc), private, o.isRestricted(source, svc))
	}
	for i, f := range s.tables.restrictions.inputs {
		if w.bindings[i] == nil {
			continue
		}
		for _, ns := range w.bindings[i].Namespaces {
			for _, port := range []uint32{80, 443, 3306} {
				for _, http := range []bool{false, true} {
					if got, want := with.yieldsAt(i, ns, port, http), without.yieldsAt(i, ns, port, http); got != want {
						t.Fatalf("with the decisions that are known, %s of source %d yields at %d, HTTP %v: %v; it is %v", ns, i, port, http, got, want)
					}
				}
			}
		}
		for _, svc := range f.services() {
			if onlyOwn(svc.ExportTo, without.defaults, svc.Namespace) {
				continue
			}
			if got, want := ask(&with, i, svc), ask(&without, i, svc); got != want {
				t.Fatalf("with the decisions that are known, %s of source %d is %s; it is %s", svc.Key, i, got, want)
			}
		}
	}
}

// checkDates wants objects of bound sources behind those of others in a namespace
// in which any object was dated.
func checkDates[T object](t *testing.T, w *tenants, list []T) {
	t.Helper()
	for i, x := range list {
		for _, y := range list[:i] {
			a, b := y.meta(), x.meta()
			if a.Namespace != b.Namespace || a.Origin.Source == b.Origin.Source {
				continue
			}
			first, second := w.bindings[a.Origin.Source[0]-'0'], w.bindings[b.Origin.Source[0]-'0']
			if first != nil && second == nil && (!a.Created.IsZero() || !b.Created.IsZero()) || first != nil && second != nil && a.Created != b.Created {
				t.Fatalf("%s of %s comes before %s of %s", a.Key, a.Origin, b.Key, b.Origin)
			}
		}
	}
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
