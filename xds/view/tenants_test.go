package view

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/mesh"
)

// The names that tenants at random contend for.
var (
	contestedHosts     = []string{"h0.shop.internal", "h1.shop.internal", "h.y.shop.internal", "h.p.internal"}
	contestedWildcards = []string{"*.shop.internal", "*.y.shop.internal", "*.p.internal"}
	contestedAddresses = []string{"10.9.0.1", "10.9.0.2", "10.9.1.1", "10.77.0.1", "fd00::1"}
	contestedRanges    = []string{"10.9.0.0/24", "10.9.0.0/16", "10.0.0.0/8", "0.0.0.0/0", "10.77.0.0/24", "fd00::/64", "::/0", "::ffff:10.9.0.0/120"}
)

// contestedGrants are of contested names, some below others.
var contestedGrants = []mesh.Grant{
	{Name: "*.shop.internal", Namespace: "mm"},
	{Name: "h1.shop.internal", Namespace: "zz"},
	{Name: "*.y.shop.internal", Namespace: "aa"},
	{Name: "h.p.internal", Namespace: "aa"},
	{Name: "10.9.0.0/16", Namespace: "mm"},
	{Name: "10.9.0.1", Namespace: "zz"},
	{Name: "fd00::/64", Namespace: "aa"},
	{Name: "10.77.0.1", Namespace: "zz"},
}

const (
	tenantOfPattern = "pp" // has *.p.internal and 10.77.0.0/16 by patterns
	nobodysAddress  = "198.51.100.1"
)

// tenantMesh is a mesh of tenants that try to take names of each other.
type tenantMesh struct {
	t        *testing.T
	rng      *rand.Rand
	names    []string // of sources and of their namespaces; the last one is not bound
	bindings []*mesh.Binding
	objects  []map[string]any
	grants   *mesh.Grants
	snapshot *mesh.Snapshot
	rev      int
	// bare: no namespace has a service for routes.
	bare bool
}

func newTenantMesh(t *testing.T, seed uint64) *tenantMesh {
	t.Helper()
	c := &tenantMesh{
		t: t, rng: rand.New(rand.NewPCG(seed, 3)), names: []string{"aa", "mm", tenantOfPattern, "zz", "platform"}, grants: mesh.NewGrants(contestedGrants),
	}
	for _, ns := range c.names {
		c.objects = append(c.objects, map[string]any{})
		b := &mesh.Binding{Namespaces: []string{ns}}
		switch ns {
		case tenantOfPattern:
			for _, p := range []string{"*.p.internal", "10.77.0.0/16"} {
				h, err := mesh.ParseHostPattern(p)
				if err != nil {
					t.Fatal(err)
				}
				b.Hosts = append(b.Hosts, h)
			}
		case "platform":
			b = nil
		}
		c.bindings = append(c.bindings, b)
	}
	return c
}

func (c *tenantMesh) pick(list []string) string { return list[c.rng.IntN(len(list))] }

func (c *tenantMesh) address() string {
	if c.rng.IntN(3) == 0 {
		return c.pick(contestedRanges)
	}
	return c.pick(contestedAddresses)
}

// step changes one source, and returns its number.
func (c *tenantMesh) step() int {
	i := c.rng.IntN(len(c.names))
	if i == len(c.names)-1 && c.rng.IntN(3) > 0 {
		i = 0
	}
	name := fmt.Sprintf("o%d", c.rng.IntN(5))
	c.rev++
	if c.rng.IntN(4) == 0 {
		delete(c.objects[i], name)
		return i
	}
	ns := c.names[i]
	meta := mesh.Meta{
		Key:    mesh.Key{Kind: mesh.KindServiceEntry, Namespace: ns, Name: name},
		Hash:   sha256.Sum256(fmt.Append(nil, c.rev)),
		Origin: &mesh.Origin{Source: ns, Path: name, Line: c.rev},
	}
	if c.rng.IntN(6) == 0 {
		meta.Kind = mesh.KindWorkloadEntry
		c.objects[i][name] = &mesh.Workload{Meta: meta, Address: c.pick(contestedAddresses), ServiceAccount: "x"}
		return i
	}
	if c.rng.IntN(5) == 0 {
		meta.Kind = mesh.KindVirtualService
		c.objects[i][name] = c.routes(meta)
		return i
	}
	c.objects[i][name] = c.service(meta)
	return i
}

func (c *tenantMesh) routes(meta mesh.Meta) *mesh.VirtualService {
	to := []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: "sink." + meta.Namespace + ".svc.cluster.local", Port: &networking.PortSelector{Number: 80}}}}
	host := c.pick(append(append(slices.Clone(contestedHosts), contestedWildcards...), contestedAddresses...))
	return &mesh.VirtualService{Meta: meta, Spec: &networking.VirtualService{
		Hosts: []string{host}, Gateways: []string{"mesh"}, Http: []*networking.HTTPRoute{{Route: to}},
	}}
}

func (c *tenantMesh) service(meta mesh.Meta) *mesh.Service {
	svc := &mesh.Service{Meta: meta, Resolution: mesh.ResolutionStatic, Ports: []mesh.Port{{Name: "p", Number: 80, Protocol: mesh.HTTP}}}
	svc.Hostname = mesh.Hostname(meta.Name + "." + meta.Namespace + ".svc.cluster.local")
	switch c.rng.IntN(8) {
	case 0:
		svc.Hostname = mesh.Hostname(c.pick(contestedHosts))
	case 1:
		svc.Hostname = mesh.Hostname(c.pick(contestedWildcards))
	case 2:
		svc.Hostname = mesh.Hostname(c.pick(contestedAddresses))
	case 3, 4, 5:
		for range 1 + c.rng.IntN(2) {
			svc.Addresses = append(svc.Addresses, c.address())
		}
		slices.Sort(svc.Addresses)
		svc.Addresses = slices.Compact(svc.Addresses)
		svc.Ports[0].Protocol = mesh.Protocol(c.pick([]string{"HTTP", "TCP", "TLS", "MySQL", ""}))
		if svc.Ports[0].Protocol == "MySQL" {
			svc.Ports[0].Protocol = mesh.MySQL
		}
	}
	endpoint := "192.0.2.1"
	if c.rng.IntN(3) == 0 {
		endpoint = c.pick(contestedAddresses)
	}
	svc.Inline = []*mesh.Workload{{Meta: mesh.Meta{Key: mesh.Key{Namespace: meta.Namespace}, Origin: meta.Origin}, Address: endpoint, ServiceAccount: "x"}}
	if c.rng.IntN(8) == 0 {
		svc.ExportTo = mesh.Exports{meta.Namespace}
	}
	return svc
}

func (c *tenantMesh) fragment(i int) *mesh.Fragment {
	f := &mesh.Fragment{Source: c.names[i]}
	if !c.bare {
		f.Services = append(f.Services, c.sink(c.names[i]))
	}
	for _, x := range c.objects[i] {
		switch x := x.(type) {
		case *mesh.Service:
			f.Services = append(f.Services, x)
		case *mesh.Workload:
			f.Workloads = append(f.Workloads, x)
		case *mesh.VirtualService:
			f.VirtualServices = append(f.VirtualServices, x)
		}
	}
	return f.Sorted()
}

// sink is where a namespace's routes lead to.
func (c *tenantMesh) sink(ns string) *mesh.Service {
	meta := mesh.Meta{
		Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: ns, Name: "sink"}, Hash: sha256.Sum256([]byte("sink" + ns)),
		Origin: &mesh.Origin{Source: ns, Path: "sink"},
	}
	return &mesh.Service{Meta: meta, Hostname: mesh.Hostname("sink." + ns + ".svc.cluster.local"), Ports: []mesh.Port{{Name: "p", Number: 80, Protocol: mesh.HTTP}}}
}

// merge makes the next snapshot.
func (c *tenantMesh) merge() {
	in := mesh.Input{Prev: c.snapshot, Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "root", TrustDomain: "td"}}, Bindings: c.bindings, Grants: c.grants}
	for i := range c.names {
		in.Fragments = append(in.Fragments, c.fragment(i))
	}
	c.snapshot = mesh.Merge(in)
}

// stands reports whether a name, or range, of an object stands for a name.
func stands(written, name string) bool {
	if suffix, ok := strings.CutPrefix(written, "*"); ok {
		return strings.HasSuffix(name, suffix)
	}
	a, err := netip.ParseAddr(name)
	if err != nil {
		return written == name
	}
	if p, err := netip.ParsePrefix(written); err == nil {
		if p.Addr().Is4In6() {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Contains(a)
	}
	b, err := netip.ParseAddr(written)
	return err == nil && a == b.Unmap()
}

// declares reports whether a source has a service for others that stands for a name,
// and whether it has an endpoint there.
func (c *tenantMesh) declares(i int, name string) (declared, endpoint bool) {
	for _, x := range c.objects[i] {
		switch x := x.(type) {
		case *mesh.Workload:
			endpoint = endpoint || x.Address == name
		case *mesh.Service:
			if len(x.ExportTo) > 0 {
				continue
			}
			for _, w := range append(slices.Clone(x.Addresses), string(x.Hostname)) {
				declared = declared || stands(w, name)
			}
			endpoint = endpoint || x.Inline[0].Address == name
		}
	}
	return declared, endpoint
}

// allowedOwner is the namespace that may answer for a name, by what the documentation says: a
// source that speaks for all, else the one whose pattern has it, else the one with the narrowest grant.
func (c *tenantMesh) allowedOwner(name string) string {
	last := len(c.names) - 1
	declared, endpoint := c.declares(last, name)
	pattern := strings.HasSuffix(name, ".p.internal") || strings.HasPrefix(name, "10.77.")
	switch {
	case (declared || endpoint) && !pattern:
		return c.names[last]
	case pattern:
		return tenantOfPattern
	}
	var owner string
	narrowest := -1
	for _, g := range contestedGrants {
		width := len(g.Name)
		if p, err := netip.ParsePrefix(string(g.Name)); err == nil {
			width = p.Bits()
		} else if !strings.HasPrefix(string(g.Name), "*") {
			width = 1 << 10
		}
		if stands(string(g.Name), name) && width > narrowest {
			owner, narrowest = g.Namespace, width
		}
	}
	return owner
}

// TestTenantsCannotTakeNamesOfOthers changes tenants that contend for hosts, wildcards,
// addresses and ranges at random. It asks as a client in a third namespace who answers for
// each name: only who is allowed to. Who answered before the change, and did not change,
// still answers.
func TestTenantsCannotTakeNamesOfOthers(t *testing.T) {
	t.Parallel()
	names := append(slices.Clone(contestedHosts), contestedAddresses...)
	answered, contested := 0, 0
	seeds := uint64(30)
	if testing.Short() {
		seeds = 12
	}
	if race.Enabled {
		seeds = 2 // one goroutine
	}
	for seed := range seeds {
		c := newTenantMesh(t, seed)
		before := map[string][]string{}
		for step := range 60 {
			changed := c.step()
			c.merge()
			cl := c.client(InterceptRedirect)
			for _, name := range names {
				answers := cl.answers(name)
				allowed := c.allowedOwner(name)
				answered += len(answers)
				if slices.ContainsFunc(answers, func(ns string) bool { return ns != allowed && ns != "platform" }) {
					t.Fatalf("seed %d, step %d: %s is %s's, and answered by %v\n%s", seed, step, name, allowed, answers, c)
				}
				for _, ns := range before[name] {
					declared, _ := c.declares(slices.Index(c.names, ns), name)
					if declared && ns != "platform" && ns != c.names[changed] && changed != len(c.names)-1 && allowed == ns {
						contested++
						if !slices.Contains(answers, ns) && !slices.Contains(answers, "platform") {
							t.Fatalf("seed %d, step %d: %s of %s is answered by %v, for what %s did\n%s", seed, step, name, ns, answers, c.names[changed], c)
						}
					}
				}
				before[name] = answers
			}
		}
	}
	if n := int(seeds); answered < 80*n || contested < 15*n {
		t.Errorf("too little was contested: %d answers, %d of owners", answered, contested)
	}
}

// String is the objects, for people.
func (c *tenantMesh) String() string {
	var b strings.Builder
	for i := range c.names {
		for name, x := range c.objects[i] {
			switch x := x.(type) {
			case *mesh.Service:
				fmt.Fprintf(&b, "%s/%s: service %s %v %s at %s for %v\n", c.names[i], name, x.Hostname, x.Addresses, x.Ports[0].Protocol, x.Inline[0].Address, x.ExportTo)
			case *mesh.Workload:
				fmt.Fprintf(&b, "%s/%s: workload at %s\n", c.names[i], name, x.Address)
			case *mesh.VirtualService:
				fmt.Fprintf(&b, "%s/%s: routes of %v\n", c.names[i], name, x.Spec.Hosts)
			}
		}
	}
	for _, x := range c.snapshot.Conflicts {
		fmt.Fprintf(&b, "%s: %s\n", x.Key, x.Reason)
	}
	return b.String()
}
