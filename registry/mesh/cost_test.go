package mesh

import (
	"fmt"
	"testing"
	"time"
)

// TestCostOfOneTenantIsBounded merges meshes in which a tenant names the same, or
// what overlaps, some thousand times: what is decided of one name must not be decided
// again for every object. When it was, the first of these took more than a minute.
func TestCostOfOneTenantIsBounded(t *testing.T) {
	t.Parallel()
	const inTime = 20 * time.Second
	many := 4000
	if testing.Short() {
		many = 1000 // the race detector makes it five times as slow
	}
	own := func(svc *Service) *Service {
		svc.ExportTo = Exports{svc.Namespace}
		return svc
	}
	named := func(host string, i int) *Service {
		svc := testService("evil", fmt.Sprintf("n%05d", i), "")
		svc.Hostname = Hostname(host)
		return svc
	}
	address := func(i int) string { return fmt.Sprintf("10.9.%d.%d", i/256, i%256) }
	for name, objects := range map[string]func(f *Fragment, i int){
		"addresses in one range": func(f *Fragment, i int) {
			f.Services = append(f.Services, addressed("evil", fmt.Sprintf("a%05d", i), "10.0.0.0/8"), addressed("evil", fmt.Sprintf("b%05d", i), address(i)))
		},
		"addresses in a private range": func(f *Fragment, i int) {
			f.Services = append(f.Services, own(addressed("evil", fmt.Sprintf("a%05d", i), "10.0.0.0/8")), addressed("evil", fmt.Sprintf("b%05d", i), address(i)))
		},
		"one address": func(f *Fragment, i int) {
			f.Services = append(f.Services, addressed("evil", fmt.Sprintf("a%05d", i), "10.9.9.9"))
			f.VirtualServices = append(f.VirtualServices, routing("evil", "10.9.9.9"))
			f.VirtualServices[len(f.VirtualServices)-1].Name = fmt.Sprintf("v%05d", i)
		},
		"restricted services at one port": func(f *Fragment, i int) {
			svc := addressed("evil", fmt.Sprintf("a%05d", i), "0.0.0.0/0", address(i))
			svc.Ports = []Port{{Name: "db", Number: 3306, Protocol: MySQL}}
			f.Services = append(f.Services, svc)
		},
		"routes below wildcards": func(f *Fragment, i int) {
			wide, narrow := routing("evil", "*.evil.test"), routing("evil", fmt.Sprintf("h%05d.evil.test", i))
			wide.Name, narrow.Name = fmt.Sprintf("w%05d", i), fmt.Sprintf("v%05d", i)
			f.Services = append(f.Services, named(fmt.Sprintf("h%05d.x.shop.example", i), i))
			f.VirtualServices = append(f.VirtualServices, wide, narrow)
		},
		"one host": func(f *Fragment, i int) { f.Services = append(f.Services, named("x.evil.test", i)) },
		"hosts below a wildcard": func(f *Fragment, i int) {
			f.Services = append(f.Services, named("*.evil.test", i), named(fmt.Sprintf("h%05d.evil.test", i), i+many))
		},
		"endpoints that twenty hosts share": func(f *Fragment, i int) {
			if i >= 20 {
				return
			}
			svc := named(fmt.Sprintf("h%05d.evil.test", i), i)
			for k := range many {
				svc.Inline = append(svc.Inline, &Workload{Meta: Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "evil"}}, Address: address(k)})
			}
			f.Services = append(f.Services, svc)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			evil, shop := &Fragment{}, &Fragment{Services: []*Service{testService("shop", "x", "")}, VirtualServices: []*VirtualService{routing("shop", "*.shop.example")}}
			shop.Services[0].Ports = append(shop.Services[0].Ports, Port{Name: "db", Number: 3306, Protocol: MySQL})
			for i := range many {
				objects(evil, i)
			}
			in := Input{
				Fallback: testMeshConfig(), Fragments: []*Fragment{evil.Sorted(), shop},
				Bindings: []*Binding{patterns("evil", "*.evil.test"), patterns("shop", "*.shop.example")},
				Grants:   NewGrants([]Grant{{Name: "10.0.0.0/8", Namespace: "evil"}, {Name: "*.evil.example", Namespace: "evil"}}),
			}
			began := time.Now()
			in.Prev = Merge(in)
			in.Prev = Merge(in)
			next := *in.Fragments[0]
			next.Services = append([]*Service(nil), next.Services...)
			svc := *next.Services[len(next.Services)-1]
			svc.Hash = Hash{1}
			next.Services[len(next.Services)-1] = &svc
			in.Fragments = []*Fragment{&next, shop}
			s := Merge(in)
			took := time.Since(began)
			t.Logf("%d services in %s", len(s.Services), took)
			if took > inTime {
				t.Errorf("%s for %d objects of one tenant", took, len(evil.Services))
			}
			if len(s.ServicesOn(shop.Services[0].Hostname)) != 1 {
				t.Error("another tenant's service is not there")
			}
		})
	}
}
