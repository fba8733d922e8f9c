package mapping

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"

	"github.com/hashicorp/consul/api"
)

// fleet is the entries of one service as a client decodes them.
func fleet(tb testing.TB, service string, instances int) []*api.ServiceEntry {
	tb.Helper()
	out := make([]*api.ServiceEntry, 0, instances)
	for i := range instances {
		var e api.ServiceEntry
		raw := fmt.Sprintf(`{
			"Node": {"ID": "d4ad9e66-bd15-a8bc-06e8-b964c6e3c664", "Node": "node-%[2]d", "Address": "10.0.%[3]d.%[4]d", "Datacenter": "dc1",
				"TaggedAddresses": {"lan": "10.0.%[3]d.%[4]d", "wan": "10.0.%[3]d.%[4]d"},
				"Meta": {"consul-network-segment": "", "consul-version": "1.20.1", "rack": "r%[5]d"}},
			"Service": {"ID": "%[1]s-%[2]d", "Service": "%[1]s", "Tags": ["v1", "version=v%[5]d"], "Port": 8080,
				"Meta": {"protocol": "http", "team": "shop"}, "Weights": {"Passing": 1, "Warning": 1}},
			"Checks": [
				{"CheckID": "serfHealth", "Name": "Serf Health Status", "Status": "passing"},
				{"CheckID": "service:%[1]s-%[2]d", "Name": "Service '%[1]s' check", "Status": "passing", "ServiceID": "%[1]s-%[2]d"}]}`,
			service, i, i/250, i%250+1, i%2+1)
		if err := json.Unmarshal([]byte(raw), &e); err != nil {
			tb.Fatal(err)
		}
		out = append(out, &e)
	}
	return out
}

// BenchmarkMap maps one service of 20 instances: at the start of a large fleet it
// is done some thousand times.
func BenchmarkMap(b *testing.B) {
	m := newMapper(b, Config{})
	in := &Input{Source: "consul", Service: "web", Datacenter: "dc1", Local: true, Entries: fleet(b, "web", 20)}
	b.ReportAllocs()
	for b.Loop() {
		if r := m.Map(in); len(r.Fragment.Workloads) != 20 || len(r.Notes) > 0 {
			b.Fatalf("got %+v", r)
		}
	}
}

// BenchmarkMemory tells what an instance costs once the answers of Consul are
// gone.
func BenchmarkMemory(b *testing.B) {
	m := newMapper(b, Config{})
	const services, instances = 200, 20
	for b.Loop() {
		before := heap()
		kept := make([]Result, 0, services)
		for i := range services {
			name := fmt.Sprintf("web-%d", i)
			kept = append(kept, m.Map(&Input{Source: "consul", Service: name, Datacenter: "dc1", Local: true, Entries: fleet(b, name, instances)}))
		}
		b.ReportMetric(float64(heap()-before)/services/instances, "B/instance")
		runtime.KeepAlive(kept)
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
