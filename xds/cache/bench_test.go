package cache

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// One endpoint of a thousand services changes, for one proxy after another: what
// a push costs before anything is sent.
func BenchmarkViewAfterEndpointChange(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			o := big(n)
			s := o.snapshot(nil)
			c := New(view.Settings{})
			p := view.Proxy{
				ID: "a", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "s0001"},
				Addresses: []string{"10.0.1.1"}, Interception: view.InterceptRedirect,
			}
			old := c.mustGet(b, s, p, Routes{Delivery: Auto}, Configuration{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				o.workload("z", fmt.Sprintf("10.99.%d.%d", i/250%250, i%250), map[string]string{"app": "s0007"})
				s = o.snapshot(s)
				o.workloads = o.workloads[:len(o.workloads)-1]
				b.StartTimer()
				now := c.mustGet(b, s, p, Routes{Delivery: Auto}, old)
				if now.Resources == old.Resources {
					b.Fatal("the same class")
				}
				old = now
			}
		})
	}
}

// A route of one of a thousand services is edited, for a proxy that takes route tables
// in either way.
func BenchmarkViewAfterRouteChange(b *testing.B) {
	for i, as := range []Delivery{Inline, VHDS} {
		b.Run([]string{"inline", "vhds"}[i], func(b *testing.B) {
			o, c, p := big(1000), New(view.Settings{}), somebody("a", "127.0.0.50")
			s := o.snapshot(nil)
			old := c.mustGet(b, s, p, Routes{Delivery: as}, Configuration{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				o.route("s0007.mesh", fmt.Sprint("/v", i))
				s = o.snapshot(s)
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

// The first proxy of a thousand services, in a cache that has nothing.
func BenchmarkFirstProxy(b *testing.B) {
	s, p := big(1000).snapshot(nil), somebody("a", "127.0.0.50")
	b.ReportAllocs()
	for b.Loop() {
		New(view.Settings{}).mustGet(b, s, p, Routes{Delivery: VHDS}, Configuration{})
	}
}
