package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

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

	number uint64
	events []stream.Event // of the servers
	// silent means that Envoy answers nothing, nice that it takes everything, and
	// sulky that it falls silent once it has refused something.
	silent, nice, sulky bool
	// late means that it is noticed late that an Envoy has gone.
	late     bool
	lists    map[stream.TypeURL]map[string]string // versions that the next Envoy begins with
	has      map[key]*stream.Resource             // that Envoy took
	refusals int                                  // responses that Envoy has refused
	renewed  bool                                 // the stream to the server was to be opened anew
}

func newRig(tb testing.TB, minor uint32) *rig {
	tb.Helper()
	g := &rig{tb: tb, server: stream.NewServer(stream.ServerConfig{})}
	g.start(nil)
	g.join(minor)
	g.core.client.Open()
	return g
}

// start starts a core from what is stored.
func (g *rig) start(s *state) {
	g.tb.Helper()
	h := newHost(g.tb, "127.0.0.1:1")
	h.cfg.Logger = slog.New(slog.DiscardHandler)
	r, err := New(h.cfg)
	g.must(err)
	g.core = newCore(r, &writer{in: make(chan *state, 1), done: make(chan written, 1)}, s)
}

// join has another Envoy take the place of the one that is there.
func (g *rig) join(minor uint32) {
	old := g.peer
	g.peer = &peer{
		out: make(chan *stream.Response, 1), cancel: func(error) {}, version: bootstrap.Version{Major: 1, Minor: minor},
		names: map[key]bool{}, split: map[string]bool{}, whole: map[string]bool{},
	}
	g.envoy = stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
		stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		stream.RouteType: {Names: []string{"routes"}}, stream.VirtualHostType: {All: true},
	}, Accepted: g.lists})
	g.has = map[key]*stream.Resource{}
	if old != nil && !g.late {
		g.core.part(old)
	}
	g.core.join(time.Now(), g.peer, g.core.node)
	if old != nil && g.late {
		g.core.part(old)
	}
	g.envoy.Open()
}

// reconnect has the stream to the server break, and one to another server begin.
func (g *rig) reconnect() {
	g.server = stream.NewServer(stream.ServerConfig{})
	c := g.core
	c.client.Open()
	c.upstream = &upstream{out: make(chan *discoveryv3.DeltaDiscoveryRequest, 1), cancel: func(error) { g.renewed = true }}
	c.upstream.refused, c.rejected = c.rejected, map[key]Rejection{}
}

// serve has the server want something, and runs.
func (g *rig) serve(of resources) {
	g.number++
	g.server.SetGeneration(&stream.Generation{Number: g.number, Layers: []*stream.Layer{{Types: of}}})
	g.run()
}

// run lets everybody answer until nobody has anything to say.
func (g *rig) run() {
	now := time.Now()
	for busy := true; busy; {
		busy = g.ask(now)
		if resp := g.server.Next(now); resp != nil {
			busy = true
			u, err := g.core.client.Response(g.wire(resp))
			g.must(err)
			g.core.take(u)
		}
		g.events = append(g.events, g.server.Events()...)
		for req := g.envoy.Next(); req != nil; req = g.envoy.Next() {
			busy = true
			g.core.request(now, g.peer, req)
		}
		g.core.pump(now)
		if g.silent {
			continue
		}
		select {
		case resp := <-g.peer.out:
			busy = true
			g.take(resp)
		default:
		}
	}
}

// ask carries requests to the server.
func (g *rig) ask(now time.Time) (busy bool) {
	next := g.core.client.Next
	if u := g.core.upstream; u != nil {
		next = func() *discoveryv3.DeltaDiscoveryRequest {
			u.push(g.core)
			select {
			case req := <-u.out:
				return req
			default:
				return nil
			}
		}
	}
	for req := next(); req != nil; req = next() {
		if req.GetTypeUrl() != bootstrap.EnvoyStateType {
			busy = true
			g.must(g.server.Request(now, req))
		}
	}
	return busy
}

// take is what Envoy does with a response: it refuses what has refusedMark in it.
func (g *rig) take(resp *stream.Response) {
	u, err := g.envoy.Response(resp.Message())
	g.must(err)
	for _, r := range u.Changed {
		if bytes.Contains(r.Body, []byte(refusedMark)) && !g.nice {
			g.refusals++
			g.silent = g.sulky
			u.Done(errors.New("something is wrong with it"))
			return
		}
	}
	for _, r := range u.Changed {
		g.has[key{u.Type, r.Name}] = r
	}
	for _, name := range u.Removed {
		delete(g.has, key{u.Type, name})
	}
	u.Done(nil)
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

// rejected are the names that servers were told of as refused.
func (g *rig) rejected() (names []string) {
	for _, e := range g.events {
		if e.Kind == stream.EventRejected {
			names = append(names, e.Name)
		}
	}
	return names
}
