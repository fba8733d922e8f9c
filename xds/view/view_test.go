package view

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestRulePrecedence asks which DestinationRule holds for a client.
func TestRulePrecedence(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for _, h := range []string{"a.mesh", "b.mesh", "c.mesh", "d.x.mesh", "e.mesh"} {
		w.service("svc", h, 80)
	}
	subset := func(name string) string { return `"subsets":[{"name":"` + name + `"}]` }
	w.rule("svc", "a", `{"host":"a.mesh",`+subset("service")+`}`)
	w.rule("client", "a", `{"host":"a.mesh",`+subset("client")+`}`)
	w.rule("istio-system", "all", `{"host":"*.mesh",`+subset("root")+`}`)
	w.rule("svc", "b", `{"host":"b.mesh",`+subset("private")+`}`, "svc")
	w.rule("svc", "c1", `{"host":"c.mesh",`+subset("one")+`}`)
	w.rule("svc", "c2", `{"host":"c.mesh",`+subset("two")+`,"trafficPolicy":{"loadBalancer":{"simple":"RANDOM"}}}`)
	w.rule("svc", "x", `{"host":"*.x.mesh",`+subset("narrow")+`}`)
	w.rule("svc", "wide", `{"host":"*.mesh",`+subset("wide")+`}`, "client")
	w.rule("client", "e1", `{"host":"e.mesh",`+subset("all")+`}`)
	w.rule("client", "e2", `{"host":"e.mesh","workloadSelector":{"matchLabels":{"app":"web"}},`+subset("chosen")+`}`)
	x := NewIndex(w.snapshot())
	for _, c := range []struct {
		client string
		labels map[string]string
		host   mesh.Hostname
		want   []string
	}{
		{"client", nil, "a.mesh", []string{"client"}},
		{"other", nil, "a.mesh", []string{"service"}},
		{"client", nil, "b.mesh", []string{"wide"}}, // b's own rule is its namespace's alone
		{"other", nil, "b.mesh", []string{"root"}},
		{"other", nil, "c.mesh", []string{"one", "two"}},
		{"other", nil, "d.x.mesh", []string{"narrow"}},
		{"client", nil, "e.mesh", []string{"all"}},
		{"client", map[string]string{"app": "web"}, "e.mesh", []string{"chosen"}},
		{"svc", nil, "b.mesh", []string{"private"}},
	} {
		r := x.rules.lookup(c.client, c.labels, c.host, "svc")
		var got []string
		if r != nil {
			for _, s := range r.spec.GetSubsets() {
				got = append(got, s.GetName())
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s for %s %v: %v, want %v", c.host, c.client, c.labels, got, c.want)
		}
	}
	if lb := x.rules.lookup("other", nil, "c.mesh", "svc").policyFor(80, nil).GetLoadBalancer(); lb.GetSimple() != networking.LoadBalancerSettings_RANDOM {
		t.Errorf("merging lost the traffic policy: %v", lb)
	}
}

// TestPolicyFor checks what a port and a subset override.
func TestPolicyFor(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("svc", "a.mesh", 80)
	w.rule("svc", "a", `{"host":"a.mesh",
	  "trafficPolicy":{"loadBalancer":{"simple":"RANDOM"},"connectionPool":{"tcp":{"maxConnections":1}},
	    "portLevelSettings":[{"port":{"number":81},"connectionPool":{"tcp":{"maxConnections":81}}}]},
	  "subsets":[{"name":"s","trafficPolicy":{"loadBalancer":{"simple":"ROUND_ROBIN"},
	    "portLevelSettings":[{"port":{"number":82},"tls":{"mode":"DISABLE"}}]}}]}`)
	r := NewIndex(w.snapshot()).rules.lookup("svc", nil, "a.mesh", "svc")
	sub := r.spec.GetSubsets()[0]
	for _, c := range []struct {
		port   uint32
		subset *networking.Subset
		lb     networking.LoadBalancerSettings_SimpleLB
		max    int32
	}{
		{80, nil, networking.LoadBalancerSettings_RANDOM, 1},
		{81, nil, networking.LoadBalancerSettings_UNSPECIFIED, 81},
		{80, sub, networking.LoadBalancerSettings_ROUND_ROBIN, 1},
		{81, sub, networking.LoadBalancerSettings_ROUND_ROBIN, 81},
		{82, sub, networking.LoadBalancerSettings_UNSPECIFIED, 0},
	} {
		p := r.policyFor(c.port, c.subset)
		if got := p.GetLoadBalancer().GetSimple(); got != c.lb {
			t.Errorf("%d %s: %v, want %v", c.port, c.subset.GetName(), got, c.lb)
		}
		if got := p.GetConnectionPool().GetTcp().GetMaxConnections(); got != c.max {
			t.Errorf("%d %s: %d connections, want %d", c.port, c.subset.GetName(), got, c.max)
		}
	}
}

// TestSidecarScope checks which services a proxy has clusters for.
func TestSidecarScope(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "own.mesh", 80)
	w.service("other", "public.mesh", 80)
	w.service("other", "hidden.mesh", 80).ExportTo = mesh.Exports{"other"}
	w.service("other", "named.mesh", 80).ExportTo = mesh.Exports{"shop"}
	w.service("other", "nobody.mesh", 80).ExportTo = mesh.Exports{"~"}
	w.service("far", "behind.mesh", 80, 81)
	w.routes("shop", "r", `{"hosts":["own.mesh"],"http":[{"route":[{"destination":{"host":"behind.mesh","port":{"number":81}}}]}]}`)
	w.sidecar("shop", "narrow", `{"workloadSelector":{"labels":{"app":"narrow"}},"egress":[{"hosts":["./*"]}]}`)
	w.sidecar("shop", "some", `{"workloadSelector":{"labels":{"app":"some"}},"egress":[{"hosts":["*/*","~other/public.mesh"]}]}`)
	w.sidecar("shop", "less", `{"workloadSelector":{"labels":{"app":"less"}},"egress":[{"hosts":["./*","other/*","~/named.mesh","~/own.mesh"]}]}`)
	w.sidecar("shop", "none", `{"workloadSelector":{"labels":{"app":"none"}},"egress":[{"hosts":["./*","~/*"]}]}`)
	w.sidecar("istio-system", "default", `{"egress":[{"hosts":["~/*"]}]}`)
	x := NewIndex(w.snapshot())
	all := []string{"own.mesh", "public.mesh", "hidden.mesh", "named.mesh", "nobody.mesh"}
	for _, c := range []struct {
		ns, app string
		want    []string
		behind  bool
	}{
		{"shop", "narrow", []string{"own.mesh"}, true},
		{"shop", "some", []string{"own.mesh", "named.mesh"}, true},
		{"shop", "less", []string{"public.mesh"}, false}, // without a namespace, an exception is for all
		{"shop", "none", nil, false},
		{"shop", "web", nil, false}, // the root's Sidecar lets nothing through
	} {
		v := x.Build(proxyIn(c.ns, map[string]string{"app": c.app}))
		for _, h := range all {
			if got, want := hasCluster(v, Outbound(mesh.Hostname(h), 80, "")), slices.Contains(c.want, h); got != want {
				t.Errorf("%s: a cluster for %s: %t", c.app, h, got)
			}
		}
		if got := hasCluster(v, Outbound("behind.mesh", 81, "")); got != c.behind {
			t.Errorf("%s: a cluster for what the routes lead to: %t", c.app, got)
		}
		if hasCluster(v, Outbound("behind.mesh", 80, "")) != (c.app == "some") {
			t.Errorf("%s: wrong cluster for a port that no route names", c.app)
		}
	}
}

// TestPeerAuthentication asks which mode holds.
func TestPeerAuthentication(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.peer("istio-system", "first", `{"mtls":{"mode":"STRICT"}}`)
	w.peer("istio-system", "late", `{"mtls":{"mode":"DISABLE"}}`)
	w.peer("istio-system", "selector", `{"selector":{"matchLabels":{"app":"a"}},"mtls":{"mode":"DISABLE"}}`)
	w.peer("open", "ns", `{"mtls":{"mode":"PERMISSIVE"}}`)
	w.peer("unset", "ns", `{"mtls":{"mode":"UNSET"}}`)
	w.peer("open", "a", `{"selector":{"matchLabels":{"app":"a"}},"mtls":{"mode":"DISABLE"},"portLevelMtls":{"80":{"mode":"STRICT"},"81":{}}}`)
	w.peer("open", "a-late", `{"selector":{"matchLabels":{"app":"a"}},"mtls":{"mode":"STRICT"}}`)
	a := newAuthn(&authn{}, w.snapshot())
	for _, c := range []struct {
		ns, app string
		port    uint32
		want    mesh.MTLSMode
	}{
		{"none", "a", 80, mesh.Strict},
		{"unset", "a", 80, mesh.Strict},
		{"open", "b", 80, mesh.Permissive},
		{"open", "a", 80, mesh.Strict},
		{"open", "a", 81, mesh.Disable},
		{"open", "a", 82, mesh.Disable},
	} {
		p := a.in(c.ns).forWorkload(map[string]string{"app": c.app})
		if got := p.forPort(c.port); got != c.want {
			t.Errorf("%+v: mode %d", c, got)
		}
	}
}

// TestHashIgnoresProxyNameAndOrigins: proxies with the same configuration have views with
// equal hashes, whoever they are. A mesh in which only origins moved changes none.
func TestHashIgnoresProxyNameAndOrigins(t *testing.T) {
	t.Parallel()
	make1 := func(line int, weight int32) *mesh.Snapshot {
		w := newMeshFixture(t)
		w.service("shop", "a.mesh", 80)
		w.routes("shop", "r", `{"hosts":["a.mesh"],"http":[{"match":[{"sourceLabels":{"app":"odd"}}],"timeout":"1s","route":[{"destination":{"host":"a.mesh"}}]},{"route":[{"destination":{"host":"a.mesh"}}]}]}`)
		w.f.VirtualServices[0].Spec.Http[1].Route[0].Weight = weight
		w.f.VirtualServices[0].Origin.Line += line
		w.f.Services[0].Origin.Line += line
		return w.snapshot()
	}
	s := make1(0, 0)
	p, q, odd := proxyIn("shop", map[string]string{"app": "p"}), proxyIn("shop", map[string]string{"app": "q"}), proxyIn("shop", map[string]string{"app": "odd"})
	q.ID, q.Addresses, q.ServiceAccount.Name = "sidecar~10.0.0.2~q.shop~shop.svc.cluster.local", []string{"10.0.0.2"}, "other"
	first := Build(s, p)
	if Build(s, q).Hash() != first.Hash() {
		t.Error("a proxy's name, labels or address are in its hash")
	}
	if Build(s, odd).Hash() == first.Hash() {
		t.Error("the result of selecting by labels is not in the hash")
	}
	if Build(make1(7, 0), p).Hash() != first.Hash() {
		t.Error("origins are in the hash")
	}
	if Build(make1(0, 5), p).Hash() == first.Hash() {
		t.Error("a weight is not in the hash")
	}
}

// TestHashCoversEveryField sets each field of each part, and expects another hash.
func TestHashCoversEveryField(t *testing.T) {
	t.Parallel()
	for _, p := range []any{Cluster{}, Endpoints{}, Listener{}, Route{}, FilterChain{}, HTTPConnectionManager{}, TCPProxy{}, LocalityEndpoints{}, Endpoint{}, PeerTLS{}, VirtualHost{}, RouteConfiguration{}, inboundInput{}, inboundPort{}} {
		typ := reflect.TypeOf(p)
		empty := contentHash("x", p)
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.IsExported() {
				continue
			}
			v := reflect.New(typ).Elem()
			fill(v.Field(i), 0)
			if contentHash("x", v.Interface()) == empty {
				t.Errorf("%s.%s is not in the hash", typ.Name(), f.Name)
			}
		}
	}
	if contentHash("a", Endpoint{}) == contentHash("b", Endpoint{}) {
		t.Error("the kind is not in the hash")
	}
}

// fill sets a value to something that is not zero.
func fill(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if depth == 0 {
			fill(v.Index(0), 1)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(7, 0)))
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), depth+1)
				return
			}
		}
	default:
	}
}

// TestBuildDoesNotChangeSnapshot builds views at the same time, and compares the snapshot
// with what it was.
func TestBuildDoesNotChangeSnapshot(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80)
	w.service("shop", "*.b.mesh", 80)
	w.rule("shop", "a1", `{"host":"a.mesh","subsets":[{"name":"v1"}]}`)
	w.rule("shop", "a2", `{"host":"a.mesh","subsets":[{"name":"v2"}],"trafficPolicy":{"tls":{"mode":"ISTIO_MUTUAL"}}}`)
	w.routes("shop", "root", `{"hosts":["a.mesh"],"http":[{"match":[{"uri":{"prefix":"/d"}}],"delegate":{"name":"d"}}]}`)
	w.routes("shop", "d", `{"http":[{"match":[{"uri":{"prefix":"/d/x"}}],"route":[{"destination":{"host":"a.mesh"}}]}]}`)
	s := w.snapshot()
	before := contentHash("snapshot", *s)
	x := NewIndex(s)
	done := make(chan struct{})
	for range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			x.Build(proxyIn("shop", map[string]string{"app": "web"}))
			Build(s, proxyIn("other", nil))
		}()
	}
	for range 4 {
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("views take too long")
		}
	}
	if contentHash("snapshot", *s) != before {
		t.Error("building a view has changed the snapshot")
	}
}

// TestDelegates merges what a delegate says with what its root says.
func TestDelegates(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80)
	w.routes("shop", "root", `{"hosts":["a.mesh"],"http":[
	  {"name":"r","match":[{"uri":{"prefix":"/a"},"port":80}],"timeout":"1s","delegate":{"name":"d","namespace":"team"}},
	  {"delegate":{"name":"hidden","namespace":"team"}},
	  {"delegate":{"name":"missing"}}]}`)
	w.routes("team", "d", `{"http":[
	  {"name":"x","match":[{"uri":{"exact":"/a/x"},"headers":{"h":{"exact":"1"}}}],"route":[{"destination":{"host":"a.mesh"}}]},
	  {"match":[{"uri":{"prefix":"/b"}}],"route":[{"destination":{"host":"a.mesh"}}]},
	  {"match":[{"uri":{"regex":"/a.*"}}],"route":[{"destination":{"host":"a.mesh"}}]},
	  {"timeout":"2s","route":[{"destination":{"host":"a.mesh"}}]}]}`)
	w.routes("team", "hidden", `{"http":[{"route":[{"destination":{"host":"a.mesh"}}]}]}`, "team")
	list := NewIndex(w.snapshot()).virtualServices
	if len(list) != 1 {
		t.Fatalf("%d VirtualServices with hosts", len(list))
	}
	type flat struct {
		Name, Exact, Prefix string
		Port                uint32
		Headers             int
		Timeout             time.Duration
	}
	var got []flat
	for _, r := range list[0].http {
		m := r.GetMatch()[0]
		got = append(got, flat{r.GetName(), m.GetUri().GetExact(), m.GetUri().GetPrefix(), m.GetPort(), len(m.GetHeaders()), r.GetTimeout().AsDuration()})
	}
	want := []flat{
		{"r-x", "/a/x", "", 80, 1, time.Second},
		{"r", "", "/a", 80, 0, 2 * time.Second},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("merged rules (-want +got):\n%s", d)
	}
}

// TestShortNames lists the names that a client in a namespace may use.
func TestShortNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host, domain string
		want         []string
	}{
		{"a.shop.svc.cluster.local", "shop.svc.cluster.local", []string{"a", "a.shop.svc", "a.shop"}},
		{"a.other.svc.cluster.local", "shop.svc.cluster.local", []string{"a.other", "a.other.svc"}},
		{"a.example.com", "shop.svc.cluster.local", nil},
	} {
		if got := (&mesh.Service{Hostname: mesh.Hostname(c.host)}).ShortNames(c.domain); !slices.Equal(got, c.want) {
			t.Errorf("%s from %s: %v", c.host, c.domain, got)
		}
	}
}

// TestSecondServiceAtAddressIsReported: a second service at an address is left out with a
// warning, and does not replace the first.
func TestSecondServiceAtAddressIsReported(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for _, h := range []string{"one.mesh", "two.mesh"} {
		s := w.service("shop", h, 9000)
		s.Ports[0].Protocol = mesh.TCP
		s.Addresses = []string{"10.1.1.1"}
	}
	v := Build(w.snapshot(), proxyIn("shop", nil))
	l := findPart(t, v, func(l *Listener) bool { return l.Name == "10.1.1.1_9000" })
	if len(l.Chains) != 1 || l.Chains[0].TCP.Destinations[0].Cluster.Host != "one.mesh" {
		t.Errorf("chains: %+v", l.Chains)
	}
	if len(v.Warnings) != 1 || v.Warnings[0].Key.Name != "two.mesh" {
		t.Errorf("warnings: %+v", v.Warnings)
	}
}

// TestSharedIndexEqualsOwnIndex builds the views of many different proxies from one Index,
// and each from an Index of its own.
func TestSharedIndexEqualsOwnIndex(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80, 81)
	w.service("shop", "b.shop.svc.cluster.local", 80)
	w.service("other", "c.mesh", 8080).Ports[0].Protocol = mesh.TCP
	w.rule("shop", "a", `{"host":"a.mesh","workloadSelector":{"matchLabels":{"tier":"one"}},"trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}},"subsets":[{"name":"v1"}]}`)
	w.rule("shop", "b", `{"host":"b.shop.svc.cluster.local","trafficPolicy":{"outlierDetection":{"consecutive5xxErrors":1}}}`)
	w.f.Services[1].Inline[0].Locality = mesh.ParseLocality("eu/a")
	w.f.Services[1].Inline = append(w.f.Services[1].Inline, &mesh.Workload{Address: "10.9.9.9", Locality: mesh.ParseLocality("us/a"), Meta: w.f.Services[1].Meta})
	w.routes("shop", "r", `{"hosts":["a.mesh"],"http":[{"match":[{"sourceLabels":{"app":"odd"}}],"route":[{"destination":{"host":"b.shop.svc.cluster.local"}}]},{"route":[{"destination":{"host":"a.mesh"}}]}]}`)
	w.sidecar("shop", "narrow", `{"workloadSelector":{"labels":{"sidecar":"narrow"}},"egress":[{"hosts":["./*"],"bind":"127.0.0.5"}]}`)
	w.service("shop", "d.mesh", 80).Selector = map[string]string{"app": "d"}
	d := &mesh.Workload{Meta: w.meta(mesh.KindWorkloadEntry, "shop", "d"), Address: "10.0.0.77"}
	d.Labels = map[string]string{"app": "d"}
	w.f.Workloads = []*mesh.Workload{d}
	s := w.snapshot()
	var proxies []Proxy
	for _, ns := range []string{"shop", "other", "istio-system"} {
		for _, labels := range []map[string]string{nil, {"app": "odd"}, {"tier": "one"}, {"sidecar": "narrow"}} {
			for _, mode := range []Interception{InterceptNone, InterceptRedirect, InterceptTPROXY} {
				for _, address := range []string{"10.0.0.1", "10.0.0.9", "127.0.0.5"} {
					for _, place := range []string{"", "eu/a", "us/a"} {
						p := proxyIn(ns, labels)
						p.Interception, p.Addresses, p.Locality = mode, []string{address}, mesh.ParseLocality(place)
						q := p
						q.Type = Router
						proxies = append(proxies, p, q)
					}
				}
			}
		}
	}
	x := NewIndex(s)
	for _, p := range proxies[:len(proxies)/2] { // so that much is taken over
		x.Build(p)
	}
	flapped := *w.f.Workloads[0]
	flapped.Weight, flapped.Hash[0] = 7, flapped.Hash[0]+1
	w.f.Workloads = []*mesh.Workload{&flapped}
	s = mesh.NewSnapshot(s, s.MeshConfig, []*mesh.Fragment{&w.f})
	x = x.Next(s)
	hashes := map[mesh.Hash]bool{}
	for _, p := range proxies {
		shared, own := x.Build(p), Build(s, p)
		if shared.Hash() != own.Hash() || len(shared.Warnings) != len(own.Warnings) {
			t.Errorf("%+v gets another view from a shared index", p)
		}
		hashes[own.Hash()] = true
	}
	if len(hashes) < 20 {
		t.Errorf("only %d different views: the proxies do not differ enough for this test", len(hashes))
	}
}
