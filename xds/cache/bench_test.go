package cache

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// BenchmarkViewAfterEndpointChange changes one endpoint of a thousand services, for one
// proxy after another: the cost of a push before anything is sent.
func BenchmarkViewAfterEndpointChange(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			o := smallmesh.Big(n)
			s := o.Snapshot(nil)
			c := New(view.Settings{})
			p := view.Proxy{
				ID: "a", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "s0001"},
				Addresses: []string{"10.0.1.1"}, Interception: view.InterceptRedirect,
			}
			old := c.mustGet(b, s, p, Routes{Delivery: Auto}, Configuration{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				o.Workload("z", fmt.Sprintf("10.99.%d.%d", i/250%250, i%250), map[string]string{"app": "s0007"})
				s = o.Snapshot(s)
				o.Workloads = o.Workloads[:len(o.Workloads)-1]
				b.StartTimer()
				now := c.mustGet(b, s, p, Routes{Delivery: Auto}, old)
				if now.Resources == old.Resources {
					b.Fatal("the same resources")
				}
				old = now
			}
		})
	}
}

// BenchmarkViewAfterRouteChange edits the routes of one of a thousand services, for proxies
// with both deliveries.
func BenchmarkViewAfterRouteChange(b *testing.B) {
	for i, as := range []Delivery{Inline, VHDS} {
		b.Run([]string{"inline", "vhds"}[i], func(b *testing.B) {
			o, c, p := smallmesh.Big(1000), New(view.Settings{}), somebody("a", "127.0.0.50")
			s := o.Snapshot(nil)
			old := c.mustGet(b, s, p, Routes{Delivery: as}, Configuration{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				o.Route("s0007.mesh", fmt.Sprint("/v", i))
				s = o.Snapshot(s)
				b.StartTimer()
				now := c.mustGet(b, s, p, Routes{Delivery: as}, old)
				if now.Resources == old.Resources {
					b.Fatal("the same resources")
				}
				old = now
			}
		})
	}
}

// BenchmarkFirstProxy builds the configuration of the first proxy of a mesh with a thousand
// services.
func BenchmarkFirstProxy(b *testing.B) {
	s, p := smallmesh.Big(1000).Snapshot(nil), somebody("a", "127.0.0.50")
	b.ReportAllocs()
	for b.Loop() {
		New(view.Settings{}).mustGet(b, s, p, Routes{Delivery: VHDS}, Configuration{})
	}
}
