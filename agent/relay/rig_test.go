package relay

import (
	"bytes"
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/ecds"
	"github.com/fairlead/fairlead/xds/stream"
)

// rig is a core between a server and an Envoy, without goroutines or sockets.
type rig struct {
	tb     testing.TB
	server *stream.Server
	core   *core
	peer   *peer
	envoy  *stream.Client

	now    time.Time
	number uint64
	events []stream.Event // of the servers
	// silent means that Envoy does not answer, acceptsAll that it rejects nothing, and
	// silentAfterNACK that it stops answering after its first NACK.
	silent, acceptsAll, silentAfterNACK bool
	// lateDisconnect means that the disconnection of an Envoy is noticed late.
	lateDisconnect bool
	reason         string                               // why Envoy rejects; or empty
	inbound        func(body []byte) bool               // or nil
	reports        []*discoveryv3.DeltaDiscoveryRequest // to the server, that are no requests for resources
	lists          map[stream.TypeURL]map[string]string // initial versions of the next Envoy
	has            map[key]*stream.Resource             // that Envoy accepted
	nacks          int                                  // responses that Envoy has rejected
	reconnecting   bool                                 // the core asked for a new stream to the server
	stored         []*state                             // what the writer got
	// configure takes the ProxyConfig; or nil.
	configure func(body []byte) error
	// names takes what is answered to DNS queries; or nil.
	names NameTable
	// lateNames means that Envoy subscribes to extensions only when lateNames is false again,
	// long after it has accepted the listeners that name them.
	lateNames bool
}

func newRig(tb testing.TB, minor uint32) *rig {
	tb.Helper()
	return newRigWith(tb, minor, nil)
}

// newRigWith is newRig for an agent that answers DNS queries, if names is not nil.
func newRigWith(tb testing.TB, minor uint32, names NameTable) *rig {
	tb.Helper()
	g := &rig{tb: tb, server: stream.NewServer(stream.ServerConfig{}), names: names}
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
	h.cfg.Configure = func(body []byte) error {
		if g.configure == nil {
			return nil
		}
		return g.configure(body)
	}
	h.cfg.Names, h.cfg.Inbound = g.names, g.inbound
	r, err := New(h.cfg)
	g.must(err)
	g.core = newCore(r, &writer{in: make(chan *state, 1), done: make(chan written, 1)}, s)
}

// join replaces the Envoy by another one.
func (g *rig) join(minor uint32) {
	old := g.peer
	g.peer = &peer{
		out: make(chan *stream.Response, 1), cancel: func(error) {}, version: bootstrap.Version{Major: 1, Minor: minor},
		names: map[key]bool{}, vhds: map[string]bool{}, inlineOnly: map[string]bool{},
	}
	g.envoy = stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
		stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		stream.RouteType: {Names: []string{"routes"}}, stream.VirtualHostType: {All: true},
	}, Accepted: g.lists})
	g.has = map[key]*stream.Resource{}
	if old != nil && !g.lateDisconnect {
		g.core.removeEnvoy(old)
	}
	g.core.addEnvoy(time.Now(), g.peer, g.core.node)
	if old != nil && g.lateDisconnect {
		g.core.removeEnvoy(old)
	}
	g.envoy.Open()
}

// reconnect ends the stream to the server and opens one to another server.
func (g *rig) reconnect() {
	g.server = stream.NewServer(stream.ServerConfig{})
	c := g.core
	c.client.Open()
	c.upstream = &upstream{out: make(chan *discoveryv3.DeltaDiscoveryRequest, 1), cancel: func(error) { g.reconnecting = true }}
	c.upstream.rejectedBefore, c.rejected = c.rejected, map[key]Rejection{}
}

// serve sets the resources of the server, and runs.
func (g *rig) serve(of resources) {
	g.number++
	g.server.SetGeneration(&stream.Generation{Number: g.number, Layers: []*stream.Layer{{Types: of}}})
	g.run()
}

// run lets server, relay and Envoy answer until all are idle.
func (g *rig) run() {
	if now := time.Now(); g.now.Before(now) {
		g.now = now
	}
	for busy := true; busy; {
		g.now = g.now.Add(2 * saveInterval) // so that nothing waits to be written
		now := g.now
		g.nameExtensions()
		busy = g.ask(now)
		if resp := g.server.Next(now); resp != nil {
			busy = true
			u, err := g.core.client.Response(g.wire(resp))
			g.must(err)
			g.core.receive(u)
		}
		g.events = append(g.events, g.server.Events()...)
		for req := g.envoy.Next(); req != nil; req = g.envoy.Next() {
			busy = true
			g.core.request(now, g.peer, req)
		}
		g.core.pump(now)
		select {
		case s := <-g.core.w.in:
			g.stored = append(g.stored, s)
			g.core.wrote(now, written{})
		default:
		}
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
		if url := req.GetTypeUrl(); url == bootstrap.EnvoyStateType || url == bootstrap.HealthType {
			g.reports = append(g.reports, req)
			continue
		}
		busy = true
		g.must(g.server.Request(now, req))
	}
	return busy
}

// take handles a response as Envoy does: it rejects what has rejectedMark in it.
func (g *rig) take(resp *stream.Response) {
	u, err := g.envoy.Response(resp.Message())
	g.must(err)
	for _, r := range u.Changed {
		if bytes.Contains(r.Body, []byte(rejectedMark)) && !g.acceptsAll {
			g.nacks++
			g.silent = g.silentAfterNACK
			u.Done(errors.New(cmp.Or(g.reason, "something is wrong with it")))
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

// nameExtensions subscribes Envoy to the extensions that its listeners name, and to no
// others.
func (g *rig) nameExtensions() {
	if g.lateNames {
		return
	}
	named := map[string]bool{}
	for k, r := range g.has {
		if k.url == stream.ListenerType {
			for _, name := range ecds.Names(r.Body) {
				named[name] = true
			}
		}
	}
	has := g.envoy.Want(stream.ExtensionType).Names
	for name := range named {
		if !slices.Contains(has, name) {
			g.envoy.Subscribe(stream.ExtensionType, name)
		}
	}
	for _, name := range has {
		if !named[name] {
			g.envoy.Unsubscribe(stream.ExtensionType, name)
			delete(g.has, key{stream.ExtensionType, name})
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

// rejected are the names that were rejected upstream.
func (g *rig) rejected() (names []string) {
	for _, e := range g.events {
		if e.Kind == stream.EventRejected {
			names = append(names, e.Name)
		}
	}
	return names
}
