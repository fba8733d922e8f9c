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

// Whatever is changed, refused and interrupted: in the end each peer runs what it
// was told last, and of what it refuses the last version that it took; and once
// nothing is refused any more, just what a peer is given that comes then.
func TestEveryHistoryEndsWell(t *testing.T) {
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
			history(t, rand.New(rand.NewPCG(seed, 1)), false)
		})
	}
}

// The same with route configurations that are refused, whole ones and those whose
// virtual hosts travel by themselves. One in a few hundred of these finds what the
// others do not. Of seeds 0 to 2,000 none fails. Of 20,000 to 39,999 six do: 23002,
// 28947, 33725, 36800 and 38354 send a virtual host again that the peer has, and
// 21330 goes back to a version older than the last that was taken.
func TestHistoriesWithRefusedTablesEndWell(t *testing.T) {
	t.Parallel()
	n := uint64(1500)
	if testing.Short() {
		n = 50
	}
	if race.Enabled {
		n = 10 // one goroutine
	}
	seeds := []uint64{2090, 2231, 2981, 7456, 8243, 9106, 12108} // which once did not
	for seed := range n {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			history(t, rand.New(rand.NewPCG(seed, 1)), true)
		})
	}
}

// FuzzHistory goes on where TestEveryHistoryEndsWell ends.
func FuzzHistory(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) { history(t, rand.New(rand.NewPCG(seed, 2)), false) })
}

// life is a peer with its server, generation after generation.
type life struct {
	*model
	r   *rand.Rand
	cfg ServerConfig
}

func newLife(t *testing.T, r *rand.Rand, in *Interner) *life {
	t.Helper()
	l := &life{r: r, cfg: ServerConfig{Interner: in, MaxResponse: []int{0, 0, 3}[r.IntN(3)]}}
	l.model = newModel(t, NewServer(l.cfg))
	l.lingers, l.draining = r.IntN(2) == 0, map[string]bool{}
	l.secrets = []string{"0", "1", "2", "none"}
	l.reconnect()
	return l
}

// reconnect goes on with a new server, which is told what it may not believe.
func (l *life) reconnect() {
	l.t.Helper()
	g := l.server.Target()
	l.cfg.Distrust = l.server.Unknown()
	before := l.told
	l.told = newTold(l.listed, l.cfg.Distrust)
	if before != nil {
		l.told.fault = before.fault
	}
	l.connect(NewServer(l.cfg))
	if g != nil {
		l.server.SetGeneration(g)
	}
}

// step has the peer hear of a generation, or of some of it, and answer, or not.
func (l *life) step(g *Generation) {
	l.t.Helper()
	if l.r.IntN(6) == 0 {
		l.reconnect()
	}
	if l.r.IntN(5) > 0 { // else it is merged with the next one
		l.server.SetGeneration(g)
	}
	if l.slow = l.r.IntN(4) == 0; !l.slow {
		l.catchUp()
	}
	for range l.r.IntN(12) { // perhaps not all of it, before the next one
		if resp := l.server.Next(l.now); resp != nil {
			checkResponse(l.t, resp)
			l.take(resp.Message())
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

func (l *life) catchUpAll() {
	l.t.Helper()
	l.catchUp()
	l.run()
	l.drain()
	l.run()
}

func history(t *testing.T, r *rand.Rand, tables bool) {
	t.Helper()
	a, in := newAuthor(r, tables), new(Interner)
	lives := []*life{newLife(t, r, in), newLife(t, r, in)}
	tell := func(number uint64) *Generation {
		g := a.next()
		g.Number = number
		for _, l := range lives {
			l.log = append(l.log, fmt.Sprintf("-- %d: %s", number, a.did))
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
	// The last word, of which a part is refused.
	var took []map[string]string
	for _, l := range lives {
		l.catchUpAll()
		took = append(took, l.took())
	}
	g := tell(1000)
	for i, l := range lives {
		l.server.SetGeneration(g)
		l.catchUpAll()
		for _, u := range refusable {
			checkRuns(l.model, g, u, took[i])
		}
		l.settled(1000)
	}
	a.peace = true
	g = tell(1001)
	fresh := newModel(t, NewServer(ServerConfig{}))
	fresh.secrets = lives[0].secrets
	fresh.connect(NewServer(ServerConfig{}))
	fresh.set(g)
	for _, l := range lives {
		l.server.SetGeneration(g)
		l.catchUpAll()
		l.settled(1001)
		if want, got := fresh.inForce(), l.inForce(); !maps.Equal(got, want) {
			t.Errorf("not what a fresh peer has: %s\n%s", cmp.Diff(want, got), l.story())
		}
		// It is told no more, by this server or the next.
		before := l.sent
		l.server.SetGeneration(a.again(1002))
		l.run()
		l.reconnect()
		l.run()
		if l.sent > before {
			t.Errorf("%d resources sent although nothing had changed\n%s", l.sent-before, l.story())
		}
		if l.told.fault != "" {
			t.Errorf("%s\n%s", l.told.fault, l.story())
		}
	}
}

func (l *life) story() string { return strings.Join(l.log[max(0, len(l.log)-300):], "\n") }

// took gives, of what may be refused, the last version taken.
func (l *life) took() map[string]string {
	took := map[string]string{}
	for _, u := range refusable {
		of := l.listed[u]
		switch u {
		case RouteType:
			of = l.runs[u]
		case VirtualHostType:
			// One for a table that is whole is taken, too, without effect: all that a server
			// can know of it is the ACK, so this is what it goes back to.
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

// settled holds that nobody waits for anything.
func (l *life) settled(number uint64) {
	l.t.Helper()
	for table := range l.kept {
		delete(l.waits, table) // in vain: a listener asks for what does not exist
	}
	if len(l.warming) > 0 || len(l.heldACKs) > 0 || len(l.waits) > 0 {
		l.t.Errorf("something waits for ever: clusters %v, route configurations %v\n%s", l.warming, l.waits, l.story())
	}
	for _, st := range l.server.Status() {
		if st.Pending || st.SettledGeneration != number {
			l.t.Errorf("not settled: %+v\n%s", st, l.story())
		}
		if n := len(l.runs[st.Type]); st.Resources != n && st.Unknown == 0 && st.Type != VirtualHostType {
			l.t.Errorf("%s: counted %d, runs %d\n%s", st.Type.Short(), st.Resources, n, l.story())
		}
	}
}

// inForce is what the model runs, but for the virtual hosts that a table once had
// that is whole now.
func (m *model) inForce() map[string]string {
	out := map[string]string{}
	for u, of := range m.runs {
		for name, version := range of {
			if table, _, ok := cutHost(name); u != VirtualHostType || ok && isShell(m.runs[RouteType][table]) {
				out[u.Short()+" "+name] = version
			}
		}
	}
	return out
}

// refusable are the types of which the model may refuse something, and what
// follows from them.
var refusable = []TypeURL{ClusterType, ListenerType, RouteType, VirtualHostType}

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
			table, _, _ := strings.Cut(name, "/")
			if !byThemselves(m, g, table) {
				continue
			}
		}
		if u == RouteType && m.runs[ListenerType][name] == "" {
			continue // not asked for
		}
		if isBad(res.Version) || isWorse(res.Version) {
			if slices.Contains(m.server.Unknown()[u], name) {
				if has, ok := runs[name]; ok {
					want[name] = has // left alone, and shown as unknown
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
			table, _, _ := strings.Cut(name, "/")
			return !byThemselves(m, g, table)
		})
		// Of one that was refused before, in this form or another, it may have nothing.
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

// byThemselves reports whether the virtual hosts of a table are to travel, and the
// peer has just that one.
func byThemselves(m *model, g *Generation, table string) bool {
	r := g.Get(RouteType, table)
	return r != nil && r.Hosts && m.runs[RouteType][table] == r.Version
}

// FuzzRequest feeds a server half whatever a peer may say: it must neither panic
// nor send for ever.
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
					t.Fatal("sends for ever")
				}
			}
			now = now.Add(DefaultGateTimeout)
			s.Status()
			s.Unknown()
		}
	})
}
