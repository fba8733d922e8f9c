package mapping

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"golang.org/x/tools/txtar"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOrder maps every case with its entries in other orders.
func TestOrder(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for _, name := range caseNames(t) {
		c, in := caseOf(t, name)
		m := newMapper(t, c)
		want := m.Map(in)
		for range 10 {
			random.Shuffle(len(in.Entries), func(i, j int) { in.Entries[i], in.Entries[j] = in.Entries[j], in.Entries[i] })
			if diff := cmp.Diff(want, m.Map(in)); diff != "" {
				t.Fatalf("%s, in another order (-want +got):\n%s", name, diff)
			}
		}
	}
}

// TestParallel uses one Mapper from many goroutines.
func TestParallel(t *testing.T) {
	t.Parallel()
	m := newMapper(t, Config{Rules: []Rule{{Pattern: "web", TLS: "istio"}, {Pattern: "*", Protocol: "http"}}})
	want := m.Map(&Input{Service: "web", Entries: fleet(t, "web", 20)})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				if diff := cmp.Diff(want, m.Map(&Input{Service: "web", Entries: fleet(t, "web", 20)})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
	all.Wait()
}

// TestInputIsNotChanged: what Consul answered is not written to.
func TestInputIsNotChanged(t *testing.T) {
	t.Parallel()
	for _, name := range caseNames(t) {
		c, in := caseOf(t, name)
		_, same := caseOf(t, name)
		newMapper(t, c).Map(in)
		if diff := cmp.Diff(same, in); diff != "" {
			t.Errorf("%s changes its input (-want +got):\n%s", name, diff)
		}
	}
}

// TestHash changes one thing after the other: what counts changes the hash of the
// instance, and nothing else does.
func TestHash(t *testing.T) {
	t.Parallel()
	one := func(config Config, change func(in *Input, e *api.ServiceEntry)) (*mesh.Service, *mesh.Workload) {
		in := &Input{Source: "consul", Service: "web", Datacenter: "dc1", Local: true, Entries: fleet(t, "web", 1)}
		in.Entries[0].Service.Connect = &api.AgentServiceConnect{Native: true}
		change(in, in.Entries[0])
		r := newMapper(t, config).Map(in)
		return r.Fragment.Services[0], r.Fragment.Workloads[0]
	}
	service, instance := one(Config{}, func(*Input, *api.ServiceEntry) {})
	for name, c := range map[string]struct {
		config            Config
		change            func(in *Input, e *api.ServiceEntry)
		service, instance bool
	}{
		"nothing":    {change: func(_ *Input, _ *api.ServiceEntry) {}},
		"source":     {change: func(in *Input, _ *api.ServiceEntry) { in.Source = "other" }},
		"index":      {change: func(_ *Input, e *api.ServiceEntry) { e.Service.ModifyIndex++; e.Node.ModifyIndex++ }},
		"output":     {change: func(_ *Input, e *api.ServiceEntry) { e.Checks[1].Output = "x" }},
		"version":    {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Meta["consul-version"] = "1.21.0" }},
		"datacenter": {change: func(in *Input, _ *api.ServiceEntry) { in.Datacenter = "dc2" }, instance: true},
		"node":       {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Node = "n9" }, instance: true},
		"id":         {change: func(_ *Input, e *api.ServiceEntry) { e.Service.ID, e.Checks[1].ServiceID = "w", "w" }, instance: true},
		"address":    {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Address = "10.1.1.1" }, instance: true},
		"name":       {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Address = "a.example" }, service: true, instance: true},
		"port":       {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Port++ }, service: true, instance: true},
		"own_port":   {config: Config{Rules: []Rule{{Pattern: "web", Port: 8080}}}, change: func(_ *Input, e *api.ServiceEntry) { e.Service.Port++ }, instance: true},
		"protocol":   {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Meta["protocol"] = "grpc" }, service: true, instance: true},
		"tag":        {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Tags = append(e.Service.Tags, "x") }, instance: true},
		"meta":       {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Meta["team"] = "b" }, instance: true},
		"node_meta":  {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Meta["rack"] = "b" }, instance: true},
		"weight":     {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Weights.Passing = 2 }, instance: true},
		"health":     {change: func(_ *Input, e *api.ServiceEntry) { e.Checks[1].Status = "critical" }, instance: true},
		"region":     {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Locality = &api.Locality{Region: "r"} }, instance: true},
		"zone":       {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Locality = &api.Locality{Region: "dc1", Zone: "z"} }, instance: true},
		"mtls":       {change: func(_ *Input, e *api.ServiceEntry) { e.Service.Meta["fairlead-tls"] = "istio" }, instance: true},
		"external":   {change: func(_ *Input, e *api.ServiceEntry) { e.Node.Meta["external-node"] = "true" }, service: true, instance: true},
		"account":    {config: Config{ServiceAccount: "x"}, change: func(*Input, *api.ServiceEntry) {}, instance: true},
		"namespace":  {config: Config{Namespace: "x"}, change: func(*Input, *api.ServiceEntry) {}, service: true, instance: true},
		"host":       {config: Config{Hosts: []string{"{{.Service}}.mesh"}}, change: func(*Input, *api.ServiceEntry) {}, service: true},
		"virtual": {change: func(_ *Input, e *api.ServiceEntry) {
			e.Service.TaggedAddresses = map[string]api.ServiceAddress{"consul-virtual": {Address: "240.0.0.5", Port: 8080}}
		}, service: true},
	} {
		s, i := one(c.config, c.change)
		if changed := s.Hash != service.Hash; changed != c.service {
			t.Errorf("%s: the hash of the service changed: %v", name, changed)
		}
		if changed := i.Hash != instance.Hash; changed != c.instance {
			t.Errorf("%s: the hash of the instance changed: %v", name, changed)
		}
	}
}

func TestReuse(t *testing.T) {
	t.Parallel()
	m := newMapper(t, Config{})
	fragment := func(change func(list []*api.ServiceEntry) []*api.ServiceEntry) *mesh.Fragment {
		in := &Input{Source: "consul", Service: "web", Datacenter: "dc1", Local: true, Entries: fleet(t, "web", 4)}
		in.Entries = change(in.Entries)
		return m.Map(in).Fragment
	}
	same := func(list []*api.ServiceEntry) []*api.ServiceEntry { return list }
	first := fragment(same)
	if Reuse(nil, first) != first {
		t.Error("the first fragment is another one")
	}
	if Reuse(first, fragment(same)) != first {
		t.Error("a fragment in which nothing changed is another one")
	}
	shared := func(name string, want int, next *mesh.Fragment) {
		t.Helper()
		before := slices.Clone(next.Workloads)
		got, n := Reuse(first, next), 0
		for _, w := range got.Workloads {
			if slices.Contains(first.Workloads, w) {
				n++
			}
		}
		if n != want || len(got.Workloads) != len(next.Workloads) {
			t.Errorf("%s: %d of %d instances are those from before, want %d", name, n, len(got.Workloads), want)
		}
		if diff := cmp.Diff(next, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !slices.Equal(before, next.Workloads) {
			t.Errorf("%s: the fragment was written to", name)
		}
	}
	shared("one gone", 3, fragment(func(list []*api.ServiceEntry) []*api.ServiceEntry { return list[1:] }))
	shared("one unhealthy", 3, fragment(func(list []*api.ServiceEntry) []*api.ServiceEntry {
		list[2].Checks[1].Status = "critical"
		return list
	}))
	shared("one new", 4, fragment(func(list []*api.ServiceEntry) []*api.ServiceEntry { return append(list, fleet(t, "web", 5)[4]) }))
	unhealthy := func(check string) *mesh.Fragment {
		return fragment(func(list []*api.ServiceEntry) []*api.ServiceEntry {
			list[2].Checks[1].Status, list[2].Checks[1].Name = "critical", check
			return list
		})
	}
	first = unhealthy("a")
	shared("another reason", 3, unhealthy("b"))
}

func caseOf(t *testing.T, name string) (Config, *Input) {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	c, in := readSettings(t, section(a, "settings"))
	in.Entries = readEntries(t, section(a, "entries.json"))
	return c, in
}

// FuzzMap: whatever Consul's API may answer, what comes out is fit for the mesh.
func FuzzMap(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatal(err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte(section(a, "entries.json")), "web", uint8(len(path)))
	}
	f.Add([]byte(`[null, {}, {"Node": {}}, {"Service": {}}, {"Node": {"Node": "n"}, "Service": {"ID": "w", "Service": "web"}, "Checks": [null]}]`), "web", uint8(0))
	rules := []Rule{
		{Pattern: "*", FoldCase: true, TLS: "istio"},
		{Pattern: "*", TrustMetadata: true, FoldCase: true},
		{Pattern: "w*", Port: 80, Protocol: "http"},
		{Pattern: "*", TLS: "disabled"},
	}
	f.Fuzz(func(t *testing.T, raw []byte, service string, setting uint8) {
		var entries []*api.ServiceEntry
		if json.Unmarshal(raw, &entries) != nil {
			return
		}
		c := Config{Address: AddressKinds()[int(setting)%len(AddressKinds())]}
		if setting&64 != 0 {
			c.Rules = rules[setting%4 : setting%4+1]
		}
		in := &Input{Source: "consul", Service: service, Datacenter: "dc1", Local: setting&128 == 0, Entries: entries}
		m := newMapper(t, c)
		r := m.Map(in)
		checkNotes(t, r.Notes)
		checkServices(t, r.Fragment.Services)
		checkWorkloads(t, r.Fragment.Workloads, len(c.Rules) > 0 && c.Rules[0].TLS == "istio")
		slices.Reverse(in.Entries)
		if diff := cmp.Diff(r, m.Map(in)); diff != "" {
			t.Errorf("in another order (-want +got):\n%s", diff)
		}
	})
}

func checkNotes(t *testing.T, list []Note) {
	t.Helper()
	if len(list) > maxNotes+1 {
		t.Errorf("%d notes", len(list))
	}
	for _, n := range list {
		text := n.Service + n.Instance + n.Message
		if len(text) > 1200 || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
			t.Errorf("the note %q is not fit for a log", text)
		}
	}
}

func checkServices(t *testing.T, list []*mesh.Service) {
	t.Helper()
	for _, s := range list {
		name, ok := strings.CutPrefix(s.Name, "consul/")
		if !ok || !isDNSLabel(name) || string(s.Hostname) != name+".service.consul" || s.Selector[mesh.LabelConsulService] != name ||
			s.Hash.IsZero() || len(s.Ports) != 1 || s.Ports[0].Number < 1 || s.Ports[0].Number > 65535 || !s.Catalog {
			t.Errorf("service %+v", s)
		}
		checkIdentity(t, s.Namespace, "web")
	}
}

func checkWorkloads(t *testing.T, list []*mesh.Workload, mtls bool) {
	t.Helper()
	for i, w := range list {
		if i > 0 && list[i-1].Compare(w.Key) >= 0 {
			t.Errorf("%s and %s are not in order", list[i-1].Key, w.Key)
		}
		checkIdentity(t, w.Namespace, w.ServiceAccount)
		if address, wrong := usable(w.Address, false); wrong != "" || address != w.Address {
			t.Errorf("address %q: %s", w.Address, wrong)
		}
		if w.Hash.IsZero() || w.Weight < 1 || w.Weight > maxWeight || len(w.Ports) != 1 || w.Origin == nil ||
			(w.Health == mesh.Unhealthy) != (w.HealthReason != "") || !strings.HasPrefix(w.Name, "consul/dc1/") || strings.Count(w.Name, "/") != 3 {
			t.Errorf("instance %+v", w)
		}
		for _, port := range w.Ports {
			if port < 1 || port > 65535 {
				t.Errorf("port %d", port)
			}
		}
		reserved := 0
		for _, k := range slices.Sorted(maps.Keys(w.Labels)) {
			if isReservedLabel(k) {
				reserved++
			} else if !isLabelKey(k) || !isLabelValue(w.Labels[k]) {
				t.Errorf("label %q=%q", k, w.Labels[k])
			}
		}
		if reserved != 4 || len(w.Labels) > maxLabels+4 || mtls && w.Labels[labelTLS] != "istio" {
			t.Errorf("labels %v", w.Labels)
		}
	}
}

func checkIdentity(t *testing.T, namespace, account string) {
	t.Helper()
	if !isDNSLabel(namespace) || !isSubdomain(account) || isReserved(namespace, account) || namespace == reservedNamespace {
		t.Errorf("identity %s/%s", namespace, account)
	}
}
