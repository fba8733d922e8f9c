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

// minors are releases of fake Envoys: 1.36 gets route configurations inline, 1.40 by VHDS.
var minors = []uint32{36, 40}

// rejectedMark is a mark that every fake Envoy rejects in a virtual host.
const rejectedMark = "refused"

// fakeEnvoy subscribes to clusters, listeners and one route configuration, as an Envoy of some
// release, and rejects rejectedMark.
type fakeEnvoy struct {
	tb     testing.TB
	minor  uint32
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex // guards all following fields
	routes *routev3.RouteConfiguration
	hosts  map[string]*routev3.VirtualHost // that came by VHDS
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

// take handles a response as Envoy does.
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
			if err := nackReason(rc.GetVirtualHosts()...); err != nil {
				return err
			}
			if rc.GetVhds() != nil {
				if e.minor < 38 {
					return errors.New("only 'DELTA_GRPC' is supported")
				}
				client.SubscribeAll(stream.VirtualHostType)
			} else if len(rc.GetVirtualHosts()) == 0 {
				e.tb.Error("a route configuration came without its virtual hosts")
			}
			e.routes = rc
		}
		if len(u.Removed) > 0 {
			e.routes = nil
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
		if err := nackReason(slices.Collect(maps.Values(hosts))...); err != nil {
			return err
		}
		e.hosts = hosts
	default:
	}
	return nil
}

// nackReason is the reason why Envoy rejects virtual hosts, or nil.
func nackReason(hosts ...*routev3.VirtualHost) error {
	for _, h := range hosts {
		if markOf(h) == rejectedMark {
			return errors.New("something is wrong with a virtual host")
		}
	}
	return nil
}

func markOf(h *routev3.VirtualHost) string {
	return h.GetRoutes()[0].GetRequestHeadersToAdd()[0].GetHeader().GetValue()
}

// marks are those of the virtual hosts that Envoy has; nil if it has no route configuration.
func (e *fakeEnvoy) marks() map[string]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.routes == nil {
		return nil
	}
	hosts := slices.Clone(e.routes.GetVirtualHosts())
	if e.routes.GetVhds() != nil {
		hosts = slices.AppendSeq(hosts, maps.Values(e.hosts))
	}
	out := map[string]string{}
	for _, h := range hosts {
		out[strings.TrimPrefix(h.GetName(), "routes/")] = markOf(h)
	}
	return out
}

// has is nil once Envoy has what it should; of a rejected host it may have any earlier
// version.
func (e *fakeEnvoy) has(want map[string]string) error {
	got := e.marks()
	for name, mark := range want {
		if is, ok := got[name]; is != mark && (mark != rejectedMark || is == rejectedMark) || !ok && mark != rejectedMark {
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

// scenario is a server, a relay and an Envoy, with random events.
type scenario struct {
	t      *testing.T
	rand   *rand.Rand
	server *fakeServer
	shop   *shop
	host   *host
	stop   func() // of the relay
	envoy  *fakeEnvoy

	number uint64
	inline bool              // the server sends the virtual hosts inline
	want   map[string]string // what the server has
}

func newScenario(t *testing.T, minor uint32, seed uint64) *scenario {
	t.Helper()
	server := newServer(t)
	w := &scenario{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), server: server, shop: newShop(t), host: newHost(t, server.addr),
		want: marksOf(22, "0"),
	}
	_, w.stop = w.host.relay()
	w.envoy = w.host.fakeEnvoy(minor)
	w.set()
	w.settle()
	return w
}

func (w *scenario) set() {
	w.number++
	messages := w.shop.vhdsOf(w.want)
	if w.inline {
		messages = w.shop.inlineOf(w.want)
	}
	w.server.set(generation(w.t, w.number, messages))
}

func (w *scenario) settle() {
	w.t.Helper()
	envoytest.Eventually(w.t, deadline, func() error { return w.envoy.has(w.want) })
	w.server.inStep(w.t, w.number, stream.RouteType)
	if !w.inline {
		w.server.inStep(w.t, w.number, stream.VirtualHostType)
	}
}

// edit changes a few virtual hosts, some to versions that Envoy rejects.
func (w *scenario) edit() {
	for range 1 + w.rand.IntN(4) {
		name := fmt.Sprintf("h%02d", 1+w.rand.IntN(26)) // there is always one
		mark := strconv.FormatUint(w.number, 10)
		switch w.rand.IntN(5) {
		case 0:
			delete(w.want, name)
		case 1:
			if !w.inline {
				w.want[name] = rejectedMark
			}
		default:
			w.want[name] = mark
		}
	}
	w.set()
}

// event makes one random event happen.
func (w *scenario) event() {
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
		// An inline virtual host cannot be rejected alone.
		if !slices.Contains(slices.Collect(maps.Values(w.want)), rejectedMark) {
			w.inline = !w.inline
		}
		w.set()
	default:
		w.edit()
	}
}

// TestRandomEvents has random edits, rejections and restarts of everything. In the end Envoy
// has each virtual host in the last version that it did not reject.
func TestRandomEvents(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		for seed := range uint64(5) {
			t.Run(fmt.Sprintf("1.%d-%d", minor, seed), func(t *testing.T) {
				t.Parallel()
				w := newScenario(t, minor, seed)
				for range 30 {
					w.event()
				}
				w.settle()
			})
		}
	}
}

// TestStoreOfVersion1 starts from a store that has all virtual hosts inline.
func TestStoreOfVersion1(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			storeOfVersion1(t, minor)
		})
	}
}

func storeOfVersion1(t *testing.T, minor uint32) {
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
	maps.Copy(old.resources, generation(t, 1, shop.inlineOf(marks)).Layers[0].Types)
	buffers, err := old.encode()
	if err != nil {
		t.Fatal(err)
	}
	buffers[0] = []byte(storeMagic1)
	if err := os.WriteFile(h.cfg.StoreFile, slices.Concat(buffers...), 0o600); err != nil {
		t.Fatal(err)
	}
	server.kill()
	h.relay()
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	server.start()
	marks["h03"] = "two"
	server.set(generation(t, 2, shop.vhdsOf(marks)))
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

// TestRejectedInlineKeepsVHDS has an inline route configuration replace one with VHDS, and
// Envoy reject it. The one with VHDS stays, and the next inline one is accepted.
func TestRejectedInlineKeepsVHDS(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			rejectedInlineKeepsVHDS(t, minor)
		})
	}
}

func rejectedInlineKeepsVHDS(t *testing.T, minor uint32) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	marks := marksOf(25, "one")
	server.set(generation(t, 1, shop.vhdsOf(marks)))
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	server.inStep(t, 1, stream.RouteType, stream.VirtualHostType)

	bad := maps.Clone(marks)
	bad["h01"] = rejectedMark
	server.set(generation(t, 2, shop.inlineOf(bad)))
	server.inStep(t, 2, stream.RouteType)
	if s := r.Status(); len(s.Rejected) != 1 || s.Rejected[0].Name != "routes" || s.Rejected[0].Type != stream.RouteType {
		t.Errorf("status %+v", s)
	}
	if err := e.has(marks); err != nil {
		t.Error(err)
	}
	marks["h01"] = "two"
	server.set(generation(t, 3, shop.inlineOf(marks)))
	server.inStep(t, 3, stream.RouteType)
	if err := e.has(marks); err != nil {
		t.Error(err)
	}
}

// TestRouteConfigRemovedAndAdded removes a route configuration that Envoy stays subscribed to,
// and adds it again.
func TestRouteConfigRemovedAndAdded(t *testing.T) {
	t.Parallel()
	for _, minor := range minors {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			t.Parallel()
			routeConfigRemovedAndAdded(t, minor)
		})
	}
}

func routeConfigRemovedAndAdded(t *testing.T, minor uint32) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	h.relay()
	marks := marksOf(25, "one")
	server.set(generation(t, 1, shop.vhdsOf(marks)))
	e := h.fakeEnvoy(minor)
	envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	for number := uint64(2); number < 6; number += 2 {
		without := shop.vhdsOf(nil)
		delete(without, "rds/routes")
		server.set(generation(t, number, without))
		envoytest.Eventually(t, deadline, func() error {
			if e.marks() != nil {
				return errNotYet
			}
			return nil
		})
		server.inStep(t, number, stream.RouteType, stream.VirtualHostType)
		server.set(generation(t, number+1, shop.vhdsOf(marks)))
		envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
		server.inStep(t, number+1, stream.RouteType, stream.VirtualHostType)
	}
}

// TestTwoReleasesAtOnce has two Envoys of different releases, as during a hot restart. Each
// gets the route configuration in a form that it supports, and the newest one's answers count.
func TestTwoReleasesAtOnce(t *testing.T) {
	t.Parallel()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, _ := h.relay()
	marks := marksOf(30, "one")
	server.set(generation(t, 1, shop.vhdsOf(marks)))
	older := h.fakeEnvoy(36)
	envoytest.Eventually(t, deadline, func() error { return older.has(marks) })
	newer := h.fakeEnvoy(40)
	envoytest.Eventually(t, deadline, func() error { return newer.has(marks) })
	if s := r.Status(); len(s.Envoys) != 2 || len(s.Envoys[0].Split) != 0 || !slices.Equal(s.Envoys[1].Split, []string{"routes"}) {
		t.Errorf("status %+v", s)
	}
	marks["h05"], marks["h06"] = "two", rejectedMark
	server.set(generation(t, 2, shop.vhdsOf(marks)))
	server.inStep(t, 2, stream.RouteType, stream.VirtualHostType)
	for _, e := range []*fakeEnvoy{older, newer} {
		envoytest.Eventually(t, deadline, func() error { return e.has(marks) })
	}
	if s := r.Status(); len(s.Rejected) != 1 || s.Rejected[0].Name != "routes/h06" || len(s.Envoys[1].Split) != 1 {
		t.Errorf("status %+v", s)
	}
	newer.stop()
	marks["h06"] = "three"
	server.set(generation(t, 3, shop.vhdsOf(marks)))
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
