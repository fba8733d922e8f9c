package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// relayClient is the client half as a relay uses it: it accepts an update when its Envoys
// have, late and in order within each type, and lists exactly what they rejected.
type relayClient struct {
	t      *testing.T
	r      *rand.Rand
	client *Client
	server *Server
	cfg    ServerConfig
	queue  map[TypeURL][]*Update
	sent   int
	log    []string
	// extends means that each listener names an extension of its own name.
	extends bool
}

func newRelayClient(t *testing.T, r *rand.Rand, in *Interner) *relayClient {
	t.Helper()
	f := &relayClient{t: t, r: r, cfg: ServerConfig{Interner: in, MaxResponse: []int{0, 0, 3}[r.IntN(3)]}}
	f.client = NewClient(ClientConfig{Wants: map[TypeURL]Want{ClusterType: {All: true}, ListenerType: {All: true}, SecretType: {Names: []string{"0", "1", "none"}}}})
	f.open()
	return f
}

func (f *relayClient) open() {
	f.t.Helper()
	var g *Generation
	if f.server != nil {
		f.cfg.Unacknowledged = f.server.UnacknowledgedNames()
		g = f.server.Target()
	}
	f.server = NewServer(f.cfg)
	f.queue = map[TypeURL][]*Update{}
	f.client.Open()
	f.log = append(f.log, "connected")
	f.requests()
	if g != nil {
		f.server.SetGeneration(g)
	}
}

// requests sends what the client has to send.
func (f *relayClient) requests() {
	f.t.Helper()
	for r := f.client.Next(); r != nil; r = f.client.Next() {
		if err := f.server.Request(start, r); err != nil {
			f.t.Fatal(err)
		}
	}
}

// receive takes one response, and reports whether there was one.
func (f *relayClient) receive() bool {
	f.t.Helper()
	r := f.server.Next(start)
	if r == nil {
		return false
	}
	u, err := f.client.Response(r.Message())
	if err != nil {
		f.t.Fatal(err)
	}
	f.sent += len(u.Changed)
	f.queue[u.Type] = append(f.queue[u.Type], u)
	return true
}

// finish ends the oldest update of a type.
func (f *relayClient) finish(url TypeURL) {
	f.t.Helper()
	if len(f.queue[url]) == 0 {
		return
	}
	u := f.queue[url][0]
	f.queue[url] = f.queue[url][1:]
	var refused []RejectedResource
	var words []string
	for _, x := range u.Changed {
		words = append(words, x.Name+"="+x.Version)
		if isBad(x.Version) || isWorse(x.Version) {
			refused = append(refused, RejectedResource{x.Name, "does not compute"})
			continue
		}
		switch url {
		case ClusterType:
			if !slices.Contains(f.client.Want(EndpointType).Names, x.Name) {
				f.client.Subscribe(EndpointType, x.Name)
			}
		case ListenerType:
			for _, next := range []TypeURL{ExtensionType, RouteType} {
				if next == ExtensionType && !f.extends {
					continue
				}
				if !slices.Contains(f.client.Want(next).Names, x.Name) {
					f.client.Subscribe(next, x.Name)
				}
			}
		case RouteType:
			if isVHDS(x.Version) {
				f.client.SubscribeAll(VirtualHostType)
			} else {
				f.client.ForgetHosts(x.Name)
			}
		default:
		}
	}
	for _, name := range u.Removed {
		words = append(words, "-"+name)
		if _, has := f.client.Accepted(url)[name]; has && url == ExtensionType {
			f.t.Errorf("extension %s was removed while it is subscribed to", name)
		}
	}
	f.log = append(f.log, url.Short()+" "+strings.Join(words, " "))
	if refused != nil {
		u.Done(&RejectError{Rejected: refused})
	} else {
		u.Done(nil)
	}
	for _, name := range u.Removed {
		switch url {
		case ClusterType:
			f.client.Unsubscribe(EndpointType, name)
		case ListenerType:
			f.client.Unsubscribe(ExtensionType, name)
			f.client.Unsubscribe(RouteType, name)
		default:
		}
	}
	f.requests()
}

// run continues until nothing is left to send.
func (f *relayClient) run() {
	f.t.Helper()
	for range 5000 {
		more := f.receive()
		for _, url := range []TypeURL{ClusterType, EndpointType, SecretType, ExtensionType, ListenerType, RouteType, VirtualHostType} {
			more = more || len(f.queue[url]) > 0
			f.finish(url)
		}
		if !more {
			return
		}
	}
	f.t.Fatal("it never ends")
}

func (f *relayClient) step(g *Generation) {
	f.t.Helper()
	if f.r.IntN(6) == 0 {
		f.open()
	}
	if f.r.IntN(5) > 0 {
		f.server.SetGeneration(g)
	}
	types := []TypeURL{ClusterType, EndpointType, SecretType, ListenerType, RouteType, VirtualHostType}
	if f.extends {
		types = append(types, ExtensionType)
	}
	for range f.r.IntN(20) {
		if f.r.IntN(2) == 0 {
			f.receive()
		} else {
			f.finish(types[f.r.IntN(len(types))])
		}
	}
}

// accepted is what has been accepted, without virtual hosts of route configurations that
// are inline or gone.
func (f *relayClient) accepted() map[string]string {
	out := map[string]string{}
	routeConfigs := f.client.Accepted(RouteType)
	for _, u := range []TypeURL{ClusterType, EndpointType, SecretType, ExtensionType, ListenerType, RouteType, VirtualHostType} {
		for name, version := range f.client.Accepted(u) {
			if routeConfig, _, _ := splitHostName(name); u == VirtualHostType && !isVHDS(routeConfigs[routeConfig]) {
				continue
			}
			out[u.Short()+" "+name] = version
		}
	}
	return out
}

// With both halves, after any history: the client has what a new one is sent, and nothing
// is sent again.
func TestRandomRelayHistoriesConverge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(150) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			runRelayHistory(t, rand.New(rand.NewPCG(seed, 3)), false)
		})
		t.Run(strconv.FormatUint(seed, 10)+"-extensions", func(t *testing.T) {
			t.Parallel()
			runRelayHistory(t, rand.New(rand.NewPCG(seed, 5)), true)
		})
	}
}

func runRelayHistory(t *testing.T, r *rand.Rand, extensions bool) {
	t.Helper()
	a, in := newGenerator(r, false, extensions), new(Interner)
	all := []*relayClient{newRelayClient(t, r, in), newRelayClient(t, r, in)}
	for _, f := range all {
		f.extends = extensions
	}
	for step := range uint64(40) {
		g := a.next()
		g.Number = step + 1
		g.HoldRemovals = r.IntN(5) == 0
		for _, f := range all {
			f.log = append(f.log, fmt.Sprintf("-- %d: %s", g.Number, a.lastStep))
			f.step(g)
		}
	}
	a.acceptAll = true
	g := a.next()
	g.Number = 1000
	fresh := newRelayClient(t, r, in)
	fresh.extends = extensions
	fresh.server.SetGeneration(g)
	fresh.run()
	for _, f := range all {
		f.server.SetGeneration(g)
		f.run()
		story := func() string { return strings.Join(f.log[max(0, len(f.log)-200):], "\n") }
		if want, got := fresh.accepted(), f.accepted(); !maps.Equal(want, got) {
			t.Errorf("not what a fresh one has: %s\n%s", cmp.Diff(want, got), story())
		}
		before := f.sent
		f.server.SetGeneration(a.equalCopy(1001))
		f.run()
		f.open()
		f.run()
		if f.sent > before {
			t.Errorf("%d resources sent although nothing had changed\n%s", f.sent-before, story())
		}
	}
}
