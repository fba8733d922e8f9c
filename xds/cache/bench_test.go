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
				o.workload("z", fmt.Sprintf("10.99.%d.%d", i/250%250, i%250), map[string]string{"app": "s0007"})
				s = o.snapshot(s)
				o.workloads = o.workloads[:len(o.workloads)-1]
				now := c.mustGet(b, s, p, Routes{Delivery: Auto}, old)
				if now.Resources == old.Resources {
					b.Fatal("the same class")
				}
				old = now
			}
		})
	}
}
