package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/race"
)

// After any sequence of changes, NACKs and reconnects, each peer runs the last generation,
// and of what it rejects the last accepted version. Once nothing is rejected any more, it
// has exactly what a new peer is sent.
func TestRandomHistoriesConverge(t *testing.T) {
	t.Parallel()
	n := uint64(200)
	if testing.Short() {
		n = 50
	}
	if race.Enabled {
		n = 10 // one goroutine
	}
	for seed := range n {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			runHistory(t, rand.New(rand.NewPCG(seed, 1)), false, false)
		})
	}
}

// The same with listeners that name extensions, of which some are rejected.
func TestRandomHistoriesWithExtensionsConverge(t *testing.T) {
	t.Parallel()
	n := uint64(400)
	if testing.Short() {
		n = 50
	}
	if race.Enabled {
		n = 10 // one goroutine
	}
	for seed := range n {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			runHistory(t, rand.New(rand.NewPCG(seed, 4)), false, true)
		})
	}
}

// The same with rejected route configurations, inline and VHDS. One in a few hundred of
// these finds what the others do not. Of seeds 0 to 2,000 none fails. Of 20,000 to 39,999
// six do: 23002, 28947, 33725, 36800 and 38354 send a virtual host again that the peer
// has, and 21330 reverts to a version older than the last accepted one.
func TestRandomHistoriesWithRejectedRoutesConverge(t *testing.T) {
	t.Parallel()
	n := uint64(1500)
	if testing.Short() {
		n = 50
	}
	if race.Enabled {
		n = 10 // one goroutine
	}
	seeds := []uint64{2090, 2231, 2981, 7456, 8243, 9106, 12108} // which failed once
	for seed := range n {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			runHistory(t, rand.New(rand.NewPCG(seed, 1)), true, false)
		})
	}
}

// The same with a resource that each peer has alone, whatever happens to the generations.
func TestRandomHistoriesWithOwnResourcesConverge(t *testing.T) {
	t.Parallel()
	n := uint64(400)
	if testing.Short() {
		n = 50
	}
	if race.Enabled {
		n = 10 // one goroutine
	}
	for seed := range n {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 5))
			a, in := newGenerator(r, false, false), new(Interner)
			g := a.next()
			l := newSimulatedPeer(t, r, in)
			l.owns = true
			l.setOwn("first")
			l.reconnect()
			l.server.SetGeneration(g)
			for step := range uint64(40) {
				g = a.next()
				g.Number = step + 1
				l.step(g)
			}
			l.server.SetGeneration(g)
			l.catchUpAll()
			accepted := l.listed[ownType][ownName]
			l.setOwn("bad last") // which the peer rejects: it keeps what it had
			l.catchUpAll()
			if got := l.runs[ownType][ownName]; got != accepted {
				t.Errorf("runs %q of its own after a rejection, accepted was %q\n%s", got, accepted, l.recentLog())
			}
			l.setOwn("last")
			a.acceptAll = true
			g = a.next()
			g.Number = 1000
			l.server.SetGeneration(g)
			l.catchUpAll()
			l.checkConverged(1000)
			if got := l.runs[ownType][ownName]; got != "last" {
				t.Errorf("runs %q of its own, want %q\n%s", got, "last", l.recentLog())
			}
			l.setOwn("alone") // without a generation
			l.run()
			if got := l.runs[ownType][ownName]; got != "alone" {
				t.Errorf("runs %q of its own, want %q\n%s", got, "alone", l.recentLog())
			}
			before := l.sent
			l.setOwn("alone")
			l.server.SetGeneration(a.equalCopy(1001))
			l.run()
			l.reconnect()
			l.run()
			if l.sent > before {
				t.Errorf("%d resources sent although nothing had changed\n%s", l.sent-before, l.recentLog())
			}
			if l.oracle.fault != "" {
				t.Errorf("%s\n%s", l.oracle.fault, l.recentLog())
			}
		})
	}
}

// FuzzHistory goes on where TestRandomHistoriesConverge ends.
func FuzzHistory(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { runHistory(t, rand.New(rand.NewPCG(seed, 2)), false, seed%2 == 0) })
}

// simulatedPeer is a peer with its server, generation after generation.
type simulatedPeer struct {
	*model
	r   *rand.Rand
	cfg ServerConfig
	// own is the version of its own resource, empty if it has none.
	own string
}

func newSimulatedPeer(t *testing.T, r *rand.Rand, in *Interner) *simulatedPeer {
	t.Helper()
	l := &simulatedPeer{r: r, cfg: ServerConfig{Interner: in, MaxResponse: []int{0, 0, 3}[r.IntN(3)]}}
	l.model = newModel(t, NewServer(l.cfg))
	l.drains, l.draining = r.IntN(2) == 0, map[string]bool{}
	l.secrets = []string{"0", "1", "2", "none"}
	l.reconnect()
	return l
}

// reconnect continues with a new server, which gets the unacknowledged names.
func (l *simulatedPeer) reconnect() {
	l.t.Helper()
	g := l.server.Target()
	l.cfg.Unacknowledged = l.server.UnacknowledgedNames()
	before := l.oracle
	l.oracle = newResendOracle(l.listed, l.cfg.Unacknowledged)
	if before != nil {
		l.oracle.fault = before.fault
	}
	next := NewServer(l.cfg)
	if l.own != "" {
		next.SetOwn(ownType, ownSet(l.own)) // of equal content, not the same
	}
	l.connect(next)
	if g != nil {
		l.server.SetGeneration(g)
	}
}

// setOwn gives the peer another resource of its own.
func (l *simulatedPeer) setOwn(version string) {
	l.log = append(l.log, "-- own "+version)
	l.own = version
	l.server.SetOwn(ownType, ownSet(version))
}

// step sends the peer a generation, or some of it, and has it answer, or not.
func (l *simulatedPeer) step(g *Generation) {
	l.t.Helper()
	if l.r.IntN(6) == 0 {
		l.reconnect()
	}
	if l.owns && l.r.IntN(3) == 0 {
		l.setOwn([]string{"", "", "bad", "worse"}[l.r.IntN(4)] + strconv.Itoa(l.r.IntN(1000)))
	}
	if l.r.IntN(5) > 0 { // else the next generation replaces it
		l.server.SetGeneration(g)
	}
	if l.slow = l.r.IntN(4) == 0; !l.slow {
		l.catchUp()
	}
	for range l.r.IntN(12) { // perhaps not all of it, before the next one
		if resp := l.server.Next(l.now); resp != nil {
			checkResponse(l.t, resp)
			l.receive(resp.Message())
		}
		switch l.r.IntN(20) {
		case 0:
			l.drain()
		case 1:
			l.now = l.now.Add(DefaultGateTimeout)
		case 2:
			l.reconnect()
		}
	}
}

func (l *simulatedPeer) catchUpAll() {
	l.t.Helper()
	l.catchUp()
	l.run()
	l.drain()
	l.run()
}

func runHistory(t *testing.T, r *rand.Rand, routeConfigs, extensions bool) {
	t.Helper()
	a, in := newGenerator(r, routeConfigs, extensions), new(Interner)
	lives := []*simulatedPeer{newSimulatedPeer(t, r, in), newSimulatedPeer(t, r, in)}
	for _, l := range lives {
		l.extends = extensions
	}
	tell := func(number uint64) *Generation {
		g := a.next()
		g.Number = number
		for _, l := range lives {
			l.log = append(l.log, fmt.Sprintf("-- %d: %s", number, a.lastStep))
		}
		return g
	}
	for step := range uint64(40) {
		g := tell(step + 1)
		g.HoldRemovals = r.IntN(5) == 0
		for _, l := range lives {
			l.step(g)
		}
	}
	// The last generation, of which a part is rejected.
	var took []map[string]string
	for _, l := range lives {
		l.catchUpAll()
		took = append(took, l.acceptedVersions())
	}
	g := tell(1000)
	for i, l := range lives {
		l.server.SetGeneration(g)
		l.catchUpAll()
		for _, u := range refusable {
			checkRuns(l.model, g, u, took[i])
		}
		l.checkConverged(1000)
	}
	a.acceptAll = true
	g = tell(1001)
	fresh := newModel(t, NewServer(ServerConfig{}))
	fresh.secrets, fresh.extends = lives[0].secrets, extensions
	fresh.connect(NewServer(ServerConfig{}))
	fresh.set(g)
	for _, l := range lives {
		l.server.SetGeneration(g)
		l.catchUpAll()
		l.checkConverged(1001)
		if want, got := fresh.effective(), l.effective(); !maps.Equal(got, want) {
			t.Errorf("not what a fresh peer has: %s\n%s", cmp.Diff(want, got), l.recentLog())
		}
		// Nothing more is sent, by this server or the next.
		before := l.sent
		l.server.SetGeneration(a.equalCopy(1002))
		l.run()
		l.reconnect()
		l.run()
		if l.sent > before {
			t.Errorf("%d resources sent although nothing had changed\n%s", l.sent-before, l.recentLog())
		}
		if l.oracle.fault != "" {
			t.Errorf("%s\n%s", l.oracle.fault, l.recentLog())
		}
	}
}

func (l *simulatedPeer) recentLog() string { return strings.Join(l.log[max(0, len(l.log)-300):], "\n") }

// acceptedVersions are the last accepted versions, of types that may be rejected.
func (l *simulatedPeer) acceptedVersions() map[string]string {
	took := map[string]string{}
	for _, u := range refusable {
		of := l.listed[u]
		switch u {
		case RouteType:
			of = l.runs[u]
		case VirtualHostType:
			// A virtual host of an inline route configuration is accepted without effect.
			// The server sees only the ACK, so this is what it reverts to.
			of = maps.Clone(of)
			maps.Copy(of, l.runs[u])
		default:
		}
		for name, version := range of {
			took[string(u)+name] = version
		}
	}
	return took
}

// checkConverged checks that nothing waits.
func (l *simulatedPeer) checkConverged(number uint64) {
	l.t.Helper()
	for routeConfig := range l.kept {
		delete(l.waits, routeConfig) // a listener uses a route configuration that does not exist
	}
	if len(l.warming) > 0 || len(l.heldACKs) > 0 || len(l.waits) > 0 {
		l.t.Errorf("something waits forever: clusters %v, route configurations %v\n%s", l.warming, l.waits, l.recentLog())
	}
	for _, st := range l.server.Status() {
		if st.Pending || st.ConvergedGeneration != number {
			l.t.Errorf("not converged: %+v\n%s", st, l.recentLog())
		}
		if n := len(l.runs[st.Type]); st.Resources != n && st.Unknown == 0 && st.Type != VirtualHostType {
			l.t.Errorf("%s: counted %d, runs %d\n%s", st.Type.Short(), st.Resources, n, l.recentLog())
		}
	}
}

// effective is what the model runs, without virtual hosts of route configurations that are
// inline now.
func (m *model) effective() map[string]string {
	out := map[string]string{}
	for u, of := range m.runs {
		for name, version := range of {
			if routeConfig, _, ok := splitHostName(name); u != VirtualHostType || ok && isVHDS(m.runs[RouteType][routeConfig]) {
				out[u.Short()+" "+name] = version
			}
		}
	}
	return out
}

// refusable are the types of which the model may reject something, and their dependents.
var refusable = []TypeURL{ClusterType, ExtensionType, ListenerType, RouteType, VirtualHostType}

func checkResponse(t *testing.T, r *Response) {
	t.Helper()
	if !slices.IsSortedFunc(r.Resources, byName) || !slices.IsSorted(r.Removed) {
		t.Errorf("not in order: %v", r.Message())
	}
}

func checkRuns(m *model, g *Generation, u TypeURL, took map[string]string) {
	m.t.Helper()
	want, runs := map[string]string{}, m.runs[u]
	for res := range g.All(u) {
		name := res.Name
		if u == VirtualHostType {
			routeConfig, _, _ := strings.Cut(name, "/")
			if !usesVHDS(m, g, routeConfig) {
				continue
			}
		}
		if (u == RouteType || u == ExtensionType) && m.runs[ListenerType][name] == "" {
			continue // not subscribed
		}
		if isBad(res.Version) || isWorse(res.Version) {
			if slices.Contains(m.server.UnacknowledgedNames()[u], name) {
				if has, ok := runs[name]; ok {
					want[name] = has // not changed, and shown as unknown
				}
			} else if last, ok := took[string(u)+name]; ok {
				want[name] = last
			}
			continue
		}
		want[name] = res.Version
	}
	if u == VirtualHostType {
		runs = maps.Clone(runs)
		maps.DeleteFunc(runs, func(name, _ string) bool {
			routeConfig, _, _ := strings.Cut(name, "/")
			return !usesVHDS(m, g, routeConfig)
		})
		// If it was rejected before, in this form or another, the peer may have none.
		for name := range want {
			if _, has := runs[name]; !has && strings.HasPrefix(g.Get(u, name).Version, "b") {
				delete(want, name)
			}
			if _, has := runs[name]; !has && isWorse(g.Get(u, name).Version) {
				delete(want, name)
			}
		}
	}
	if !maps.Equal(want, runs) {
		m.t.Errorf("%s: runs %v, want %v\n%s", u.Short(), runs, want, strings.Join(m.log[max(0, len(m.log)-300):], "\n"))
	}
}

// usesVHDS reports whether a route configuration is to be delivered by VHDS, and the peer
// has that version of it.
func usesVHDS(m *model, g *Generation, routeConfig string) bool {
	r := g.Get(RouteType, routeConfig)
	return r != nil && r.Hosts && m.runs[RouteType][routeConfig] == r.Version
}

// FuzzRequest sends arbitrary requests to a server half: it must neither panic nor send
// forever.
func FuzzRequest(f *testing.F) {
	for _, req := range []*discovery.DeltaDiscoveryRequest{
		{TypeUrl: string(ClusterType)},
		{TypeUrl: string(ClusterType), ResponseNonce: "1"},
		{TypeUrl: string(ClusterType), ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Message: "Error adding/updating cluster(s) a: x"}},
		{TypeUrl: string(EndpointType), ResourceNamesSubscribe: []string{"a", "*"}, InitialResourceVersions: map[string]string{"a": "1", "z": "2"}},
		{TypeUrl: string(EndpointType), ResourceNamesUnsubscribe: []string{"a", "*", "q"}},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	gens := []*Generation{gen(4, "c/a=1", "R/x=1", "v/x/a=1", "v/x/b=1"), gen(1, "c/a=1", "c/b=1", "e/a=1", "l/x=1", "r/x=1"), gen(2, "c/a=2", "c/b=1", "e/a=1", "r/x=1"), gen(3)}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := NewServer(ServerConfig{MaxNames: 50, MaxNameBytes: 64, MaxTypes: 5})
		now := start
		for i, b := range [][]byte{first, second, first, second, second, first} {
			var req discovery.DeltaDiscoveryRequest
			if proto.Unmarshal(b, &req) != nil {
				return
			}
			s.SetGeneration(gens[i%len(gens)])
			if s.Request(now, &req) != nil {
				return
			}
			for n := 0; ; n++ {
				if s.Next(now) == nil {
					break
				}
				if n > 200 {
					t.Fatal("sends forever")
				}
			}
			now = now.Add(DefaultGateTimeout)
			s.Status()
			s.UnacknowledgedNames()
		}
	})
}
