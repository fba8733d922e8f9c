package relay

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// rig is a core between a server and an Envoy, without goroutines or sockets.
type rig struct {
	tb     testing.TB
	server *stream.Server
	core   *core
	peer   *peer
	envoy  *stream.Client
}

func newRig(tb testing.TB, minor uint32) *rig {
	tb.Helper()
	h := newHost(tb, "127.0.0.1:1")
	h.cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := New(h.cfg)
	if err != nil {
		tb.Fatal(err)
	}
	g := &rig{
		tb: tb, server: stream.NewServer(stream.ServerConfig{}),
		core: newCore(r, &writer{in: make(chan *state, 1), done: make(chan written, 1)}, nil),
		peer: &peer{
			out: make(chan *stream.Response, 1), cancel: func(error) {}, version: bootstrap.Version{Major: 1, Minor: minor},
			names: map[key]bool{}, split: map[string]bool{}, whole: map[string]bool{},
		},
		envoy: stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
			stream.RouteType: {Names: []string{"routes"}}, stream.VirtualHostType: {All: true},
		}}),
	}
	g.core.join(time.Now(), g.peer, g.core.node)
	g.core.client.Open()
	g.envoy.Open()
	return g
}

// run lets everybody answer until nobody has anything to say.
func (g *rig) run() {
	now := time.Now()
	for busy := true; busy; {
		busy = false
		for req := g.core.client.Next(); req != nil; req = g.core.client.Next() {
			g.must(g.server.Request(now, req))
		}
		if resp := g.server.Next(now); resp != nil {
			busy = true
			u, err := g.core.client.Response(g.wire(resp))
			g.must(err)
			g.core.take(u)
		}
		for req := g.envoy.Next(); req != nil; req = g.envoy.Next() {
			busy = true
			g.core.request(now, g.peer, req)
		}
		g.core.pump(now)
		select {
		case resp := <-g.peer.out:
			busy = true
			u, err := g.envoy.Response(resp.Message())
			g.must(err)
			u.Done(nil)
		default:
		}
	}
}

func (g *rig) must(err error) {
	g.tb.Helper()
	if err != nil {
		g.tb.Fatal(err)
	}
}

// wire is a response as it is read.
func (g *rig) wire(r *stream.Response) *discoveryv3.DeltaDiscoveryResponse {
	b, err := proto.Marshal(r.Message())
	g.must(err)
	out := &discoveryv3.DeltaDiscoveryResponse{}
	g.must(proto.Unmarshal(b, out))
	return out
}

// TestWildcardOfVirtualHosts has an Envoy ask for all virtual hosts where there are
// none by themselves: it is not kept waiting for them.
func TestWildcardOfVirtualHosts(t *testing.T) {
	t.Parallel()
	g := newRig(t, 40)
	g.core.request(time.Now(), g.peer, &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: string(stream.VirtualHostType), ResourceNamesSubscribe: []string{"*"},
	})
	g.server.SetGeneration(generation(t, 1, newShop(t).wholeOf(marksOf(3, "one"))))
	g.run()
	if !g.peer.look().calm || !g.peer.live || len(g.core.pending) > 0 {
		t.Errorf("the Envoy waits: %+v, pending are %v", g.peer.look(), g.core.pending)
	}
}

// BenchmarkEdit is what the edit of one virtual host costs a relay, with an Envoy
// that gets the table whole and with one that gets it in pieces.
func BenchmarkEdit(b *testing.B) {
	for _, minor := range minors {
		for _, n := range []int{100, 1000, 5000} {
			b.Run(fmt.Sprintf("1.%d/%d", minor, n), func(b *testing.B) {
				shop := newShop(b)
				messages := shop.tableOf(marksOf(n, "one"))
				of := resourcesOf(b, messages)
				edited := make([]*stream.Resource, 2)
				for i := range edited {
					h := messages["vhds/routes/h07"].(*routev3.VirtualHost)
					h.Routes[0].RequestHeadersToAdd[0].Header.Value = strconv.Itoa(i)
					edited[i] = resourcesOf(b, map[string]proto.Message{"vhds/routes/h07": h})[stream.VirtualHostType].Get("routes/h07")
				}
				g := newRig(b, minor)
				number := uint64(0)
				set := func() {
					number++
					g.server.SetGeneration(&stream.Generation{Number: number, Layers: []*stream.Layer{{Types: of}}})
					g.run()
				}
				set()
				b.ReportAllocs()
				for b.Loop() {
					of = resources{
						stream.ClusterType: of[stream.ClusterType], stream.RouteType: of[stream.RouteType],
						stream.VirtualHostType: of[stream.VirtualHostType].With([]*stream.Resource{edited[number%2]}, nil),
					}
					set()
				}
				if t := g.core.tables["routes"]; t == nil || t.accepted.hosts.Get("routes/h07") == nil || len(g.core.pending) > 0 || len(g.peer.split) != 1 && minor == 40 {
					b.Fatalf("table %+v, envoy %+v", t, g.peer.look())
				}
			})
		}
	}
}
