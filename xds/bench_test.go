package xds

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// big is a mesh of services with ten workloads each.
func big(services int) *objects {
	o := new(objects)
	for i := range services {
		name := fmt.Sprintf("s%04d", i)
		o.service(name, 8080)
		for j := range 10 {
			w := o.workload(fmt.Sprintf("%s-%d", name, j), fmt.Sprintf("10.%d.%d.%d", i/250, i%250, j+1), map[string]string{"app": name}).workloads
			w[len(w)-1].ServiceAccount = name
		}
	}
	return o
}

// One endpoint of a thousand services changes, for one proxy after another: what
// a push costs before anything is sent.
func BenchmarkViewAfterEndpointChange(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			o := big(n)
			s := o.snapshot(nil)
			c := &classes{}
			p := view.Proxy{
				ID: "a", Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "s0001"},
				Addresses: []string{"10.0.1.1"}, Interception: view.InterceptRedirect,
			}
			old := c.mustGet(b, s, p, forms{all: byHost}, sight{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o.workload("z", fmt.Sprintf("10.99.%d.%d", i/250%250, i%250), map[string]string{"app": "s0007"})
				s = o.snapshot(s)
				o.workloads = o.workloads[:len(o.workloads)-1]
				now := c.mustGet(b, s, p, forms{all: byHost}, old)
				if now.class == old.class {
					b.Fatal("the same class")
				}
				old = now
			}
		})
	}
}
