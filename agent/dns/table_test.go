package dns

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestTableRejects: what no client could use is rejected by name, and what was there stays.
func TestTableRejects(t *testing.T) {
	t.Parallel()
	table := tableOf(t, name("a.lab", "10.0.0.1"), ports("a.lab", "http/tcp:80"))
	bad := []*stream.Resource{
		name("a.lab", "10.0.0.x"), ports("a.lab", "http/tcp:0"), name("b.lab"), name("*", "10.0.0.1"), name("a.*.lab", "10.0.0.1"), name("*a.lab", "10.0.0.1"),
		name("c.lab", "fe80::1%eth0"), name(strings.Repeat("a", 64)+".lab", "10.0.0.1"), name(strings.Repeat("a.", 130), "10.0.0.1"), name(`a\.b.lab`, "10.0.0.1"),
		name("", "10.0.0.1"), ports("d.lab"), ports("e.lab", "ht.tp/tcp:80"), ports("f.lab", "http/tcp:70000"), ports("g.lab", "/tcp:80"),
		encoded("h.lab", &dnsv3.DnsTable_DnsVirtualDomain{Name: "other.lab"}),
		stream.NewResource(bootstrap.NameType, stream.Resource{Name: "i.lab", Version: "1", Body: []byte{0xff}}),
	}
	for _, whole := range []bool{false, true} {
		if refused := table.Update(bad, nil, whole); len(refused) != len(bad) {
			t.Errorf("whole %v: %d of %d are rejected: %v", whole, len(refused), len(bad), refused)
		}
		if h := table.find("a.lab."); h == nil || h.v4[0].String() != "10.0.0.1" || len(h.services) != 1 || table.Len() != 1 {
			t.Errorf("whole %v: left are %v", whole, table.Names())
		}
	}
}

// TestTableUpdates: a table that was changed step by step is the one that was given at once.
func TestTableUpdates(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		table, now := &Table{}, map[string]*stream.Resource{}
		table.Update(nil, nil, true)
		for range 200 {
			host := fmt.Sprintf("h%d.lab", rng.IntN(6))
			r := name(host, fmt.Sprintf("240.0.0.%d", rng.IntN(4)), fmt.Sprintf("2001:2::%d", rng.IntN(3)))
			if rng.IntN(2) == 0 {
				r = ports(host, fmt.Sprintf("p%d/tcp:80", rng.IntN(3)))
			}
			if rng.IntN(3) == 0 {
				table.Update(nil, []string{r.Name}, false)
				delete(now, r.Name)
			} else {
				table.Update([]*stream.Resource{r}, nil, false)
				now[r.Name] = r
			}
			var all []*stream.Resource
			for _, r := range now {
				all = append(all, r)
			}
			fresh := &Table{}
			fresh.Update(all, nil, true)
			if !reflect.DeepEqual(fresh.hosts, table.hosts) || !reflect.DeepEqual(fresh.pointers, table.pointers) {
				t.Fatalf("seed %d: %v, want %v", seed, table.pointers, fresh.pointers)
			}
		}
	}
}

// TestReverse reads names of PTR queries.
func TestReverse(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"240.240.1.2", "2001:2::1", "2001:2:0:ffff:123:4567:89ab:cdef", "::1"} {
		if a, ok := reverse(reverseOf(t, text)); !ok || a.String() != text {
			t.Errorf("%s: %v, %v", text, a, ok)
		}
	}
	v6 := reverseOf(t, "2001:2::1")
	for _, bad := range []string{"in-addr.arpa.", "1.2.3.in-addr.arpa.", "1.2.3.4.5.in-addr.arpa.", "256.1.1.1.in-addr.arpa.", "::1.1.1.1.in-addr.arpa.", "ip6.arpa.", v6[2:], "g" + v6[1:], "1" + v6, strings.Replace(v6, ".", "x", 1)} {
		if a, ok := reverse(bad); ok {
			t.Errorf("%s is %v", bad, a)
		}
	}
}

// TestMemory: 10,000 names with two addresses and three ports each take less than 12 MB.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("measures memory")
	}
	measure := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := measure()
	table := &Table{}
	table.Update(manyNames(10_000), nil, true)
	const most = 12 << 20
	if used := measure() - before; used > most {
		t.Errorf("10,000 names take %d bytes, at most %d are right", used, most)
	} else {
		t.Logf("10,000 names take %.1f MB", float64(used)/1e6)
	}
	if !slices.Contains(table.Names(), "s9999.shop.mesh.internal.") {
		t.Error("names are missing")
	}
}

func manyNames(n int) (list []*stream.Resource) {
	for i := range n {
		host := fmt.Sprintf("s%04d.shop.mesh.internal", i)
		list = append(list, name(host, fmt.Sprintf("240.240.%d.%d", i/254, 1+i%254), fmt.Sprintf("2001:2::%x", i+1)),
			ports(host, "http/tcp:80", "grpc/tcp:9090", "metrics/tcp:9100"))
	}
	return list
}

// BenchmarkAnswer is an answer from the table, without the network: read, found, written.
func BenchmarkAnswer(b *testing.B) {
	s, err := New(Config{Logger: quiet(), Table: tableOf(b, manyNames(10_000)...)})
	if err != nil {
		b.Fatal(err)
	}
	m := new(mdns.Msg)
	m.SetQuestion("s1234.shop.mesh.internal.", mdns.TypeA)
	packet, err := m.Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		q := new(mdns.Msg)
		if err := q.Unpack(packet); err != nil {
			b.Fatal(err)
		}
		if _, err := s.reply(q, true).Pack(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestWholeNamesHaveNoShortForms: a host that the control plane writes with a final dot is found by its whole name only,
// also after its ports, and after a change.
func TestWholeNamesHaveNoShortForms(t *testing.T) {
	t.Parallel()
	whole := func(host string) *stream.Resource {
		d := &dnsv3.DnsTable_DnsVirtualDomain{Name: host + ".", Endpoint: &dnsv3.DnsTable_DnsEndpoint{EndpointConfig: &dnsv3.DnsTable_DnsEndpoint_AddressList{
			AddressList: &dnsv3.DnsTable_AddressList{Address: []string{"10.0.0.1"}},
		}}}
		return encoded(host, d)
	}
	const x, y = "x.corp.svc.cluster.local", "y.corp.svc.cluster.local"
	table := tableOf(t, whole(x), name(y, "10.0.0.2"), name("*.corp", "10.0.0.3"))
	table.SetDomain("corp.svc.cluster.local")
	found := func(name string) string {
		if h := table.find(name + "."); h != nil {
			return h.v4[0].String()
		}
		return ""
	}
	check := func(when string, want map[string]string) {
		t.Helper()
		for name, want := range want {
			if got := found(name); got != want {
				t.Errorf("%s, %s is %q, want %q", when, name, got, want)
			}
		}
	}
	check("at first", map[string]string{x: "10.0.0.1", "x.corp": "10.0.0.3", "x": "", "x.corp.svc": "", y: "10.0.0.2", "y.corp": "10.0.0.2", "y": "10.0.0.2"})
	table.Update([]*stream.Resource{ports(x, "http/tcp:80"), whole(y)}, nil, false)
	check("with ports", map[string]string{x: "10.0.0.1", "x.corp": "10.0.0.3", "y.corp": "10.0.0.3", "y": ""})
	table.Update([]*stream.Resource{name(x, "10.0.0.1")}, nil, false)
	check("again", map[string]string{"x.corp": "10.0.0.1", "x": "10.0.0.1"})
}
