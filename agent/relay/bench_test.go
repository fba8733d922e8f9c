package relay

import (
	"fmt"
	"strconv"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/stream"
)

// BenchmarkEdit is what the edit of one virtual host costs a relay, with an Envoy
// that gets route configurations inline, and one that gets VHDS.
func BenchmarkEdit(b *testing.B) {
	for _, minor := range minors {
		for _, n := range []int{100, 1000, 5000} {
			b.Run(fmt.Sprintf("1.%d/%d", minor, n), func(b *testing.B) {
				shop := newShop(b)
				messages := shop.vhdsOf(marksOf(n, "one"))
				of := resourcesOf(b, messages)
				edited := make([]*stream.Resource, 2)
				for i := range edited {
					h := messages["vhds/routes/h07"].(*routev3.VirtualHost)
					h.Routes[0].RequestHeadersToAdd[0].Header.Value = strconv.Itoa(i)
					edited[i] = resourcesOf(b, map[string]proto.Message{"vhds/routes/h07": h})[stream.VirtualHostType].Get("routes/h07")
				}
				g := newRig(b, minor)
				g.serve(of)
				b.ReportAllocs()
				for b.Loop() {
					of = resources{
						stream.ClusterType: of[stream.ClusterType], stream.RouteType: of[stream.RouteType],
						stream.VirtualHostType: of[stream.VirtualHostType].With([]*stream.Resource{edited[g.number%2]}, nil),
					}
					g.serve(of)
				}
				if t := g.core.routeConfigs["routes"]; t == nil || t.accepted.hosts.Get("routes/h07") == nil || len(g.core.pending) > 0 || len(g.peer.vhds) != 1 && minor == 40 {
					b.Fatalf("route configuration %+v, envoy %+v", t, g.peer.ackState())
				}
			})
		}
	}
}
