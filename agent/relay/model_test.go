package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// minors are releases of fake Envoys: one gets tables whole, one in pieces.
var minors = []uint32{36, 40}

// refusedMark is what no fake Envoy takes in a virtual host.
const refusedMark = "refused"

// fakeEnvoy asks for clusters, listeners and one route table, as an Envoy of some
// release, and refuses tables with a mark in them.
type fakeEnvoy struct {
	tb     testing.TB
	minor  uint32
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex // guards all following fields
	table *routev3.RouteConfiguration
	hosts map[string]*routev3.VirtualHost // that came by themselves
}

func (h *host) fakeEnvoy(minor uint32) *fakeEnvoy {
	h.tb.Helper()
	ctx, cancel := context.WithCancel(h.tb.Context())
	e := &fakeEnvoy{tb: h.tb, minor: minor, cancel: cancel, done: make(chan struct{}), hosts: map[string]*routev3.VirtualHost{}}
	h.tb.Cleanup(e.stop)
	go func() {
		defer close(e.done)
		client := stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true}, stream.RouteType: {Names: []string{"routes"}},
		}})
		for ctx.Err() == nil {
			_ = e.run(ctx, h, client) // it is ended by the test, or by the relay
		}
	}()
	return e
}

func (e *fakeEnvoy) stop() {
	e.cancel()
	<-e.done
}

func (e *fakeEnvoy) run(ctx context.Context, h *host, client *stream.Client) error {
	conn, err := grpc.NewClient("unix:"+h.cfg.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), withToken(testToken))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	client.Open()
	node := proto.CloneOf(h.cfg.Node)
	node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: e.minor},
	}}
	for {
		for req := client.Next(); req != nil; req = client.Next() {
			req.Node, node = node, nil
			if err := s.Send(req); err != nil {
				return err
			}
		}
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		u, err := client.Response(resp)
		if err != nil {
			return err
		}
		u.Done(e.take(client, u))
	}
}

// take is what Envoy does with a response.
func (e *fakeEnvoy) take(client *stream.Client, u *stream.Update) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch u.Type {
	case stream.RouteType:
		for _, r := range u.Changed {
			rc := &routev3.RouteConfiguration{}
			if err := proto.Unmarshal(r.Body, rc); err != nil {
				return err
			}
			if err := refusal(rc.GetVirtualHosts()...); err != nil {
				return err
			}
			if rc.GetVhds() != nil {
				if e.minor < 38 {
					return errors.New("only 'DELTA_GRPC' is supported")
				}
				client.SubscribeAll(stream.VirtualHostType)
			} else if len(rc.GetVirtualHosts()) == 0 {
				e.tb.Error("a table came without its virtual hosts")
			}
			e.table = rc
		}
		if len(u.Removed) > 0 {
			e.table = nil
		}
	case stream.VirtualHostType:
		hosts := maps.Clone(e.hosts)
		for _, r := range u.Changed {
			h := &routev3.VirtualHost{}
			if err := proto.Unmarshal(r.Body, h); err != nil {
				return err
			}
			hosts[r.Name] = h
		}
		for _, name := range u.Removed {
			delete(hosts, name)
		}
		if err := refusal(slices.Collect(maps.Values(hosts))...); err != nil {
			return err
		}
		e.hosts = hosts
	default:
	}
	return nil
}

// refusal is why Envoy does not take virtual hosts, or nil.
func refusal(hosts ...*routev3.VirtualHost) error {
	for _, h := range hosts {
		if markOf(h) == refusedMark {
			return errors.New("something is wrong with a virtual host")
		}
	}
	return nil
}

func markOf(h *routev3.VirtualHost) string {
	return h.GetRoutes()[0].GetRequestHeadersToAdd()[0].GetHeader().GetValue()
}

// marks are what Envoy has in its table; nil if it has none.
func (e *fakeEnvoy) marks() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table == nil {
		return nil
	}
	hosts := slices.Clone(e.table.GetVirtualHosts())
	if e.table.GetVhds() != nil {
		hosts = slices.AppendSeq(hosts, maps.Values(e.hosts))
	}
	out := map[string]string{}
	for _, h := range hosts {
		out[strings.TrimPrefix(h.GetName(), "routes/")] = markOf(h)
	}
	return out
}

// has is nil once Envoy has what it is to have; of what it refuses, whatever was
// before.
func (e *fakeEnvoy) has(want map[string]string) error {
	got := e.marks()
	for name, mark := range want {
		if is, ok := got[name]; is != mark && (mark != refusedMark || is == refusedMark) || !ok && mark != refusedMark {
			return fmt.Errorf("envoy 1.%d has %q of %s, want %q", e.minor, is, name, mark)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("envoy 1.%d still has %s", e.minor, name)
		}
	}
	return nil
}

// world is a server, a relay and an Envoy that things happen to.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	server *fakeServer
	shop   *shop
	host   *host
	stop   func() // of the relay
	envoy  *fakeEnvoy

	number uint64
	whole  bool              // the form in which the server sends the table
	want   map[string]string // what the server has
}

func newWorld(t *testing.T, minor uint32, seed uint64) *world {
	t.Helper()
	server := newServer(t)
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), server: server, shop: newShop(t), host: newHost(t, server.addr),
		want: marksOf(22, "0"),
	}
	_, w.stop = w.host.relay()
	w.envoy = w.host.fakeEnvoy(minor)
	w.set()
	w.settle()
	return w
}

func (w *world) set() {
	w.number++
	messages := w.shop.tableOf(w.want)
	if w.whole {
		messages = w.shop.wholeOf(w.want)
	}
	w.server.set(generation(w.t, w.number, messages))
}

func (w *world) settle() {
	w.t.Helper()
	envoytest.Eventually(w.t, deadline, func() error { return w.envoy.has(w.want) })
	w.server.inStep(w.t, w.number, stream.RouteType)
	if !w.whole {
		w.server.inStep(w.t, w.number, stream.VirtualHostType)
	}
}

// edit changes a few virtual hosts; some Envoy refuses.
func (w *world) edit() {
	for range 1 + w.rand.IntN(4) {
		name := fmt.Sprintf("h%02d", 1+w.rand.IntN(26)) // there is always one
		mark := strconv.FormatUint(w.number, 10)
		switch w.rand.IntN(5) {
		case 0:
			delete(w.want, name)
		case 1:
			if !w.whole {
				w.want[name] = refusedMark
			}
		default:
			w.want[name] = mark
		}
	}
	w.set()
}

// happen lets something happen.
func (w *world) happen() {
	switch w.rand.IntN(10) {
	case 0:
		w.server.kill()
		w.server.start()
	case 1:
		w.stop()
		_, w.stop = w.host.relay()
	case 2:
		w.envoy.stop()
		w.envoy = w.host.fakeEnvoy(w.envoy.minor)
	case 3:
		w.settle()
	case 4:
		// Of a whole table one virtual host cannot be refused.
		if !slices.Contains(slices.Collect(maps.Values(w.want)), refusedMark) {
			w.whole = !w.whole
		}
		w.set()
	default:
		w.edit()
	}
}

// TestAnySequence has edits, refusals, restarts of everything, in any order: in
// the end Envoy has exactly what it did not refuse, in its last version that it
// did not.
func TestAnySequence(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("1.%d-%d", minor, seed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, minor, seed)
				for range 30 {
					w.happen()
				}
				w.settle()
			})
		}
	}
}

// TestOldStore starts from what an agent has stored that knew only whole tables.
func TestOldStore(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			oldStore(t, minor)
		})
	}
}

func oldStore(t *testing.T, minor uint32) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	marks := marksOf(30, "one")
	old := &state{
		Who: who(h.cfg.Node), Generation: "7", resources: resources{},
		Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true}, stream.RouteType: {Names: []string{"routes"}},
		},
	}
	maps.Copy(old.resources, generation(t, 1, shop.wholeOf(marks)).Layers[0].Types)
	pieces, err := old.encode()
	if err != nil {
		t.Fatal(err)
	}
	pieces[0] = []byte(storeMagic1)
	if err := os.WriteFile(h.cfg.StoreFile, slices.Concat(pieces...), 0o600); err != nil {
		t.Fatal(err)
	}
	server.kill()
	h.relay()
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	server.start()
	marks["h03"] = "two"
	server.set(generation(t, 2, shop.tableOf(marks)))
	server.inStep(t, 2, stream.RouteType, stream.VirtualHostType)
	if err := e.has(marks); err != nil {
		t.Error(err)
	}
	envoytest.Eventually(t, deadline, func() error {
		s, err := readStore(h.cfg.StoreFile)
		if err != nil || s.resources[stream.VirtualHostType].Len() != len(marks) {
			return fmt.Errorf("stored are %v, %w", s, err)
		}
		return nil
	})
}

// TestWholeTableRefused has a table come whole that Envoy refuses: what came by
// itself stays, and the next one is taken.
func TestWholeTableRefused(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			wholeTableRefused(t, minor)
		})
	}
}

func wholeTableRefused(t *testing.T, minor uint32) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	marks := marksOf(25, "one")
	server.set(generation(t, 1, shop.tableOf(marks)))
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	server.inStep(t, 1, stream.RouteType, stream.VirtualHostType)

	bad := maps.Clone(marks)
	bad["h01"] = refusedMark
	server.set(generation(t, 2, shop.wholeOf(bad)))
	server.inStep(t, 2, stream.RouteType)
	if s := r.Status(); len(s.Rejected) != 1 || s.Rejected[0].Name != "routes" || s.Rejected[0].Type != stream.RouteType {
		t.Errorf("status %+v", s)
	}
	if err := e.has(marks); err != nil {
		t.Error(err)
	}
	marks["h01"] = "two"
	server.set(generation(t, 3, shop.wholeOf(marks)))
	server.inStep(t, 3, stream.RouteType)
	if err := e.has(marks); err != nil {
		t.Error(err)
	}
}

// TestTableGoesAndComes has the server drop a table that Envoy goes on asking
// for.
func TestTableGoesAndComes(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			tableGoesAndComes(t, minor)
		})
	}
}

func tableGoesAndComes(t *testing.T, minor uint32) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	h.relay()
	marks := marksOf(25, "one")
	server.set(generation(t, 1, shop.tableOf(marks)))
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	for number := uint64(2); number < 6; number += 2 {
		without := shop.tableOf(nil)
		delete(without, "rds/routes")
		server.set(generation(t, number, without))
		envoytest.Eventually(t, deadline, func() error {
			if e.marks() != nil {
				return errNotYet
			}
			return nil
		})
		server.inStep(t, number, stream.RouteType, stream.VirtualHostType)
		server.set(generation(t, number+1, shop.tableOf(marks)))
		envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
		server.inStep(t, number+1, stream.RouteType, stream.VirtualHostType)
	}
}

// TestEachEnvoyItsForm has two Envoys at once, as a restart that hands over makes
// them, of different releases: each gets the table as it can take it, and the
// newest one's verdict counts.
func TestEachEnvoyItsForm(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	marks := marksOf(30, "one")
	server.set(generation(t, 1, shop.tableOf(marks)))
	older := h.fakeEnvoy(36)
	envoytest.Eventually(t, deadline, func() error { return older.has(marks) })
	newer := h.fakeEnvoy(40)
	envoytest.Eventually(t, deadline, func() error { return newer.has(marks) })
	if s := r.Status(); len(s.Envoys) != 2 || len(s.Envoys[0].Split) != 0 || !slices.Equal(s.Envoys[1].Split, []string{"routes"}) {
		t.Errorf("status %+v", s)
	}
	marks["h05"], marks["h06"] = "two", refusedMark
	server.set(generation(t, 2, shop.tableOf(marks)))
	server.inStep(t, 2, stream.RouteType, stream.VirtualHostType)
	for _, e := range []*fakeEnvoy{older, newer} {
		envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	}
	if s := r.Status(); len(s.Rejected) != 1 || s.Rejected[0].Name != "routes/h06" || len(s.Envoys[1].Split) != 1 {
		t.Errorf("status %+v", s)
	}
	newer.stop()
	marks["h06"] = "three"
	server.set(generation(t, 3, shop.tableOf(marks)))
	server.inStep(t, 3, stream.RouteType, stream.VirtualHostType)
	if err := older.has(marks); err != nil {
		t.Error(err)
	}
}

// withToken makes a client show a token, as the static clusters of a bootstrap do.
func withToken(token string) grpc.DialOption {
	return grpc.WithStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return next(metadata.AppendToOutgoingContext(ctx, bootstrap.TokenHeader, token), desc, cc, method, opts...)
	})
}
