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
	in := new(Interner)
	m := newModel(t, NewServer(ServerConfig{Interner: in}))
	took := map[string]string{} // of clusters and listeners, the last version taken
	var g *Generation
	for step := range 30 {
		if r.IntN(6) == 0 {
			m.connect(NewServer(ServerConfig{Interner: in, Distrust: m.server.Unknown()}))
			if g != nil {
				m.server.SetGeneration(g)
			}
		}
		g = randomGeneration(r, uint64(step+1))
		m.server.SetGeneration(g)
		for range r.IntN(12) { // perhaps not all of it, before the next one
			if resp := m.server.Next(m.now).Message(); resp != nil {
				m.take(resp)
			}
		}
	}
	m.run()
	for _, u := range []TypeURL{ClusterType, ListenerType} {
		for name, version := range m.listed[u] {
			took[string(u)+name] = version
		}
	}
	// The last word, of which a part is refused.
	g = randomGeneration(r, 1000)
	m.set(g)
	for _, u := range []TypeURL{ClusterType, ListenerType} {
		want := map[string]string{}
		for res := range g.All(u) {
			name := res.Name
			if strings.HasPrefix(res.Version, "b") || strings.HasPrefix(res.Version, "worse") {
				if slices.Contains(m.server.Unknown()[u], name) {
					want[name] = m.runs[u][name] // left alone, and shown as unknown
				} else if last, ok := took[string(u)+name]; ok {
					want[name] = last
				}
				continue
			}
			want[name] = res.Version
		}
		if !maps.Equal(want, m.runs[u]) {
			t.Errorf("%s: runs %v, want %v\n%s", u.Short(), m.runs[u], want, strings.Join(m.log[max(0, len(m.log)-12):], "\n"))
		}
	}
	if len(m.warming) > 0 || m.heldACK != "" {
		t.Errorf("clusters wait for endpoints for ever: %v", m.warming)
	}
	for _, st := range m.server.Status() {
		if st.Pending || st.SettledGeneration != 1000 {
			t.Errorf("not settled: %+v", st)
		}
	}
}

func randomGeneration(r *rand.Rand, number uint64) *Generation {
	var words []string
	for i := range 6 {
		for _, l := range []string{"c", "l"} {
			if r.IntN(5) == 0 {
				continue
			}
			version := strconv.Itoa(r.IntN(4))
			switch r.IntN(12) {
			case 0:
				version = "bad" + version
			case 1:
				version = "worse" + version
			}
			words = append(words, fmt.Sprintf("%s/%d=%s", l, i, version))
			words = append(words, fmt.Sprintf("%s/%d=%d", map[string]string{"c": "e", "l": "r"}[l], i, r.IntN(3)))
		}
	}
	return gen(number, words...)
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
	gens := []*Generation{gen(1, "c/a=1", "c/b=1", "e/a=1", "l/x=1", "r/x=1"), gen(2, "c/a=2", "c/b=1", "e/a=1", "r/x=1"), gen(3)}
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
