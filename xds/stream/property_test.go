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
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// Whatever is changed, refused and interrupted: in the end the peer runs what it
// was told last, and of what it refuses the last version that it took.
func TestEveryHistoryEndsWell(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			history(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func history(t *testing.T, r *rand.Rand) {
	t.Helper()
	in, shared := new(Interner), sharing{}
	cfg := ServerConfig{Interner: in, MaxResponse: []int{0, 0, 3}[r.IntN(3)]}
	m := newModel(t, NewServer(cfg))
	took := map[string]string{} // of what may be refused, the last version taken
	var g *Generation
	for step := range 40 {
		if r.IntN(6) == 0 {
			cfg.Distrust = m.server.Unknown()
			m.connect(NewServer(cfg))
			if g != nil {
				m.server.SetGeneration(g)
			}
		}
		g = randomGeneration(r, shared, uint64(step+1))
		g.HoldRemovals = r.IntN(5) == 0
		m.server.SetGeneration(g)
		if m.slow = r.IntN(4) == 0; !m.slow {
			m.catchUp()
		}
		for range r.IntN(12) { // perhaps not all of it, before the next one
			if resp := m.server.Next(m.now); resp != nil {
				checkResponse(t, resp)
				m.take(resp.Message())
			}
		}
	}
	m.catchUp()
	m.run()
	for _, u := range refusable {
		of := m.listed[u]
		if u == RouteType || u == VirtualHostType {
			of = m.runs[u]
		}
		for name, version := range of {
			took[string(u)+name] = version
		}
	}
	// The last word, of which a part is refused.
	g = randomGeneration(r, shared, 1000)
	m.log = append(m.log, "the last word")
	m.set(g)
	for _, u := range refusable {
		checkRuns(m, g, u, took)
	}
	if len(m.warming) > 0 || m.heldACK != "" || len(m.waits) > 0 {
		t.Errorf("something waits for ever: clusters %v, route configurations %v\n%s", m.warming, m.waits, strings.Join(m.log[max(0, len(m.log)-60):], "\n"))
	}
	for _, st := range m.server.Status() {
		if st.Pending || st.SettledGeneration != 1000 {
			t.Errorf("not settled: %+v", st)
		}
		if n := len(m.runs[st.Type]); st.Resources != n && st.Unknown == 0 && st.Type != VirtualHostType {
			t.Errorf("%s: counted %d, runs %d", st.Type.Short(), st.Resources, n)
		}
	}
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
			if r := g.Get(RouteType, table); r == nil || m.runs[RouteType][table] != r.Version {
				continue // it is not there, or what it runs is not this one
			}
		}
		if u == RouteType && m.runs[ListenerType][name] == "" {
			continue // not asked for
		}
		if strings.HasPrefix(res.Version, "b") || strings.HasPrefix(res.Version, "worse") {
			if slices.Contains(m.server.Unknown()[u], name) {
				want[name] = runs[name] // left alone, and shown as unknown
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
			return !isShell(m.runs[RouteType][table])
		})
		// Of one that was refused before, in this form or another, it may have nothing.
		for name := range want {
			if _, has := runs[name]; !has && strings.HasPrefix(g.Get(u, name).Version, "b") {
				delete(want, name)
			}
			if _, has := runs[name]; !has && strings.HasPrefix(g.Get(u, name).Version, "worse") {
				delete(want, name)
			}
		}
	}
	if !maps.Equal(want, runs) {
		m.t.Errorf("%s: runs %v, want %v\n%s", u.Short(), runs, want, strings.Join(m.log[max(0, len(m.log)-60):], "\n"))
	}
}

func randomGeneration(r *rand.Rand, shared sharing, number uint64) *Generation {
	var words []string
	version := func() string {
		v := strconv.Itoa(r.IntN(4))
		switch r.IntN(14) {
		case 0:
			return "bad" + v
		case 1:
			return "worse" + v
		}
		return v
	}
	for i := range 5 {
		if r.IntN(5) > 0 {
			words = append(words, fmt.Sprintf("c/%d=%s", i, version()), fmt.Sprintf("e/%d=%d", i, r.IntN(3)))
		}
		if r.IntN(6) == 0 {
			continue
		}
		words = append(words, fmt.Sprintf("l/%d=%s", i, version()))
		if r.IntN(3) == 0 {
			words = append(words, fmt.Sprintf("r/%d=%d", i, r.IntN(3)))
			continue
		}
		words = append(words, fmt.Sprintf("R/%d=%d", i, r.IntN(2)))
		for h := range r.IntN(5) {
			words = append(words, fmt.Sprintf("v/%d/%d=%s", i, h, version()))
		}
	}
	return shared.gen(number, words...)
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
