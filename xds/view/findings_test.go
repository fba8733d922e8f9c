package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// findingsMesh has the service web.mesh, whose routes tests write; ok.mesh, which has an
// endpoint; none.mesh, whose selector matches nothing; and sick.mesh, whose only workload is unhealthy.
func findingsMesh(tb testing.TB) *meshFixture {
	tb.Helper()
	w := newMeshFixture(tb)
	w.service("shop", "web.mesh", 80)
	w.service("shop", "ok.mesh", 80)
	none := w.service("shop", "none.mesh", 80)
	none.Inline, none.Selector = nil, map[string]string{"app": "nobody"}
	sick := w.service("shop", "sick.mesh", 80)
	sick.Inline, sick.Selector = nil, map[string]string{"app": "sick"}
	w.workload("sick", "10.0.0.7", mesh.Unhealthy, map[string]string{"app": "sick", "version": "v1"})
	w.rule("shop", "sick", `{"host": "sick.mesh", "trafficPolicy": {"outlierDetection": {"minHealthPercent": 50}}, "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2", "labels": {"version": "v2"}}]}`)
	return w
}

func (w *meshFixture) workload(name, address string, health mesh.Health, labels map[string]string) {
	m := w.meta(mesh.KindWorkloadEntry, "shop", name)
	m.Labels = labels
	w.f.Workloads = append(w.f.Workloads, &mesh.Workload{Meta: m, Address: address, Health: health, ServiceAccount: name})
	slices.SortFunc(w.f.Workloads, byKey)
}

// tcp gives a service a port for TCP.
func tcp(s *mesh.Service, port uint32) {
	s.Ports = []mesh.Port{{Name: "tcp", Number: port, TargetPort: port, Protocol: mesh.TCP}}
	s.Addresses = []string{fmt.Sprintf("240.0.0.%d", port%200)}
}

func httpTo(destinations string) string {
	return `{"hosts": ["web.mesh"], "http": [{"route": [` + destinations + `]}]}`
}

// findingCases are a mesh each, with what it makes a proxy of namespace shop find. An empty list means
// that the mesh is well.
func findingCases() map[string]struct {
	edit func(w *meshFixture)
	want []string
} {
	type edits = func(w *meshFixture)
	route := func(spec string) edits { return func(w *meshFixture) { w.routes("shop", "web", spec) } }
	subsets := func(w *meshFixture) {
		w.rule("shop", "ok", `{"host": "ok.mesh", "subsets": [{"name": "v1", "labels": {}}, {"name": "empty", "labels": {"version": "v9"}}]}`)
	}
	service := func(resolution mesh.Resolution, selector map[string]string) edits {
		return func(w *meshFixture) {
			s := w.service("shop", "ext.example", 80)
			s.Inline, s.Selector, s.Resolution, s.External = nil, selector, resolution, true
			w.routes("shop", "web", httpTo(`{"destination": {"host": "ext.example", "port": {"number": 80}}}`))
		}
	}
	many := func(list ...edits) edits {
		return func(w *meshFixture) {
			for _, do := range list {
				do(w)
			}
		}
	}
	return map[string]struct {
		edit edits
		want []string
	}{
		"well":           {route(httpTo(`{"destination": {"host": "ok.mesh"}}`)), nil},
		"nobody_routes":  {func(*meshFixture) {}, nil}, // none.mesh, and the subset v2 of sick.mesh
		"missing_host":   {route(httpTo(`{"destination": {"host": "gone.mesh"}}`)), []string{"no-destination gone.mesh"}},
		"share_missing":  {route(httpTo(`{"destination": {"host": "ok.mesh"}, "weight": 85}, {"destination": {"host": "gone.mesh"}, "weight": 15}`)), []string{"no-destination gone.mesh"}},
		"weight_0":       {route(httpTo(`{"destination": {"host": "ok.mesh"}, "weight": 100}, {"destination": {"host": "gone.mesh"}, "weight": 0}`)), nil},
		"alone_weight_0": {route(httpTo(`{"destination": {"host": "gone.mesh"}, "weight": 0}`)), []string{"no-destination gone.mesh"}}, // it gets all
		"missing_port":   {route(httpTo(`{"destination": {"host": "ok.mesh", "port": {"number": 99}}}`)), []string{"no-destination ok.mesh:99"}},
		"second_port": {func(w *meshFixture) { // as in Istio, a destination without a port has that of the request, or its only one if it has that
			w.service("shop", "two.mesh", 80, 81)
			w.routes("shop", "two", `{"hosts": ["two.mesh"], "http": [{"route": [{"destination": {"host": "ok.mesh"}}]}]}`)
		}, []string{"no-destination ok.mesh:81"}},
		"missing_subset":    {many(subsets, route(httpTo(`{"destination": {"host": "ok.mesh", "subset": "v3"}}`))), []string{"no-destination ok.mesh/v3"}},
		"no_rule":           {route(httpTo(`{"destination": {"host": "ok.mesh", "subset": "v1"}}`)), []string{"no-destination ok.mesh/v1"}},
		"empty_subset":      {many(subsets, route(httpTo(`{"destination": {"host": "ok.mesh", "subset": "empty"}}`))), []string{"no-endpoints ok.mesh/empty"}},
		"unrouted_subset":   {many(subsets, route(httpTo(`{"destination": {"host": "ok.mesh", "subset": "v1"}}`))), nil},
		"empty_selector":    {route(httpTo(`{"destination": {"host": "none.mesh"}}`)), []string{"no-endpoints none.mesh"}},
		"empty_on_weight_0": {route(httpTo(`{"destination": {"host": "ok.mesh"}, "weight": 1}, {"destination": {"host": "none.mesh"}}`)), nil},
		"unhealthy":         {route(httpTo(`{"destination": {"host": "sick.mesh"}}, {"destination": {"host": "ok.mesh"}, "weight": 1}`)), nil},
		"unhealthy_subset":  {route(httpTo(`{"destination": {"host": "sick.mesh", "subset": "v1"}}`)), nil},
		"unhealthy_dns": {func(w *meshFixture) { // has no cluster
			service(mesh.ResolutionDNS, map[string]string{"app": "sick"})(w)
			w.rule("shop", "ext", `{"host": "ext.example", "trafficPolicy": {"outlierDetection": {"minHealthPercent": 50}}}`)
		}, nil},
		"subset_of_unhealthy": {route(httpTo(`{"destination": {"host": "sick.mesh", "subset": "v2"}}`)), []string{"no-endpoints sick.mesh/v2"}},
		"mirror": {route(`{"hosts": ["web.mesh"], "http": [{"route": [{"destination": {"host": "ok.mesh"}}], "mirror": {"host": "gone.mesh"},
			"mirrors": [{"destination": {"host": "none.mesh"}}]}]}`), nil},
		// The routes of a VirtualService are at port 80, too, since web.mesh has it. Nobody calls other hosts there.
		"port_of_nobody": {func(w *meshFixture) {
			w.service("shop", "two.mesh", 8080, 8081)
			w.routes("shop", "two", `{"hosts": ["two.mesh"], "http": [{"route": [{"destination": {"host": "two.mesh"}}]}]}`)
		}, nil},
		"port_of_nobody_named": {func(w *meshFixture) {
			w.service("shop", "high.mesh", 8080)
			w.routes("shop", "high", `{"hosts": ["high.mesh"], "http": [{"match": [{"port": 80}], "route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, nil},
		"port_of_nobody_and_missing": {func(w *meshFixture) {
			w.service("shop", "high.mesh", 8080)
			w.routes("shop", "high", `{"hosts": ["high.mesh"], "http": [{"route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, []string{"no-destination gone.mesh"}},
		"port_of_nobody_wildcard": {func(w *meshFixture) {
			w.service("shop", "a.high.mesh", 8080)
			w.routes("shop", "high", `{"hosts": ["*.high.mesh"], "http": [{"route": [{"destination": {"host": "a.high.mesh"}}]}]}`)
		}, nil},
		"host_of_tcp": {func(w *meshFixture) {
			tcp(w.service("shop", "db.mesh", 80), 5432)
			w.routes("shop", "db", `{"hosts": ["db.mesh"], "http": [{"route": [{"destination": {"host": "db.mesh"}}]}], "tcp": [{"route": [{"destination": {"host": "db.mesh"}}]}]}`)
		}, nil},
		"host_hidden": {func(w *meshFixture) { // proxies do not see the service, and see the routes
			w.service("other", "hidden.mesh", 80).ExportTo = []string{"."}
			w.service("other", "part.mesh", 80).ExportTo = []string{"."}
			w.routes("other", "hidden", `{"hosts": ["hidden.mesh"], "http": [{"route": [{"destination": {"host": "part.mesh"}}]}]}`)
		}, nil},
		"host_of_wildcard_service": {func(w *meshFixture) {
			s := w.service("shop", "*.ext.example", 443)
			s.Ports[0].Protocol, s.External, s.Resolution, s.Inline = mesh.TLS, true, mesh.ResolutionNone, nil
			w.routes("shop", "a", `{"hosts": ["a.ext.example"], "http": [{"route": [{"destination": {"host": "a.ext.example"}}]}]}`)
		}, nil},
		"host_of_nobody": {func(w *meshFixture) { // the port is that at which the other service happens to be
			w.service("shop", "high.mesh", 8080)
			w.routes("shop", "high", `{"hosts": ["alias.example"], "http": [{"route": [{"destination": {"host": "high.mesh"}}]}]}`)
		}, nil},
		"host_of_nobody_with_port": {func(w *meshFixture) {
			w.service("shop", "high.mesh", 8080)
			w.routes("shop", "high", `{"hosts": ["alias.example"], "http": [{"route": [{"destination": {"host": "high.mesh", "port": {"number": 8081}}}]}]}`)
		}, []string{"no-destination high.mesh:8081"}},
		"host_of_nobody_missing": {func(w *meshFixture) {
			w.routes("shop", "high", `{"hosts": ["alias.example"], "http": [{"route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, []string{"no-destination gone.mesh"}},
		"aborted":             {route(`{"hosts": ["web.mesh"], "http": [{"fault": {"abort": {"httpStatus": 410, "percentage": {"value": 100}}}, "route": [{"destination": {"host": "gone.mesh"}}]}]}`), nil},
		"aborted_half":        {route(`{"hosts": ["web.mesh"], "http": [{"fault": {"abort": {"httpStatus": 410, "percentage": {"value": 50}}}, "route": [{"destination": {"host": "gone.mesh"}}]}]}`), []string{"no-destination gone.mesh"}},
		"redirect":            {route(`{"hosts": ["web.mesh"], "http": [{"redirect": {"uri": "/x"}}]}`), nil},
		"direct_response":     {route(`{"hosts": ["web.mesh"], "http": [{"directResponse": {"status": 404}}]}`), nil},
		"behind_all":          {route(`{"hosts": ["web.mesh"], "http": [{"route": [{"destination": {"host": "ok.mesh"}}]}, {"route": [{"destination": {"host": "gone.mesh"}}]}]}`), nil},
		"other_namespace":     {route(`{"hosts": ["web.mesh"], "http": [{"match": [{"sourceNamespace": "other"}], "route": [{"destination": {"host": "gone.mesh"}}]}, {"route": [{"destination": {"host": "ok.mesh"}}]}]}`), nil},
		"not_exported_routes": {func(w *meshFixture) { w.routes("other", "web", httpTo(`{"destination": {"host": "gone.mesh"}}`), ".") }, nil},
		"hidden_by_exportTo": {func(w *meshFixture) {
			w.service("other", "hidden.mesh", 80).ExportTo = []string{"."}
			w.routes("shop", "web", httpTo(`{"destination": {"host": "hidden.mesh"}}`))
		}, []string{"no-destination hidden.mesh"}},
		"imported_by_route": {func(w *meshFixture) {
			w.sidecar("shop", "default", `{"egress": [{"hosts": ["*/web.mesh"]}]}`)
			w.routes("shop", "web", httpTo(`{"destination": {"host": "ok.mesh"}}`))
		}, nil},
		"not_imported": {func(w *meshFixture) {
			w.sidecar("shop", "default", `{"egress": [{"hosts": ["*/ok.mesh"]}]}`)
			w.routes("shop", "web", httpTo(`{"destination": {"host": "gone.mesh"}}`))
		}, nil},
		"egress_proxy": {func(w *meshFixture) {
			w.sidecar("shop", "default", `{"outboundTrafficPolicy": {"mode": "ALLOW_ANY", "egressProxy": {"host": "gone.mesh", "port": {"number": 80}}}}`)
		}, []string{"no-destination gone.mesh by Sidecar"}},
		"tcp_missing": {func(w *meshFixture) {
			tcp(w.service("shop", "db.mesh", 80), 5432)
			w.routes("shop", "db", `{"hosts": ["db.mesh"], "tcp": [{"route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, []string{"no-destination gone.mesh"}},
		"tcp_weighted": {func(w *meshFixture) {
			tcp(w.service("shop", "db.mesh", 80), 5432)
			w.routes("shop", "db", `{"hosts": ["db.mesh"], "tcp": [{"route": [{"destination": {"host": "gone.mesh"}, "weight": 0}, {"destination": {"host": "none.mesh"}, "weight": 2}, {"destination": {"host": "db.mesh"}, "weight": 98}]}]}`)
		}, []string{"no-endpoints none.mesh"}},
		"tcp_scaled_to_zero": {func(w *meshFixture) {
			s := w.service("shop", "db.mesh", 80)
			tcp(s, 5432)
			s.Inline, s.Selector = nil, map[string]string{"app": "nobody"}
		}, nil},
		"tls_missing": {func(w *meshFixture) {
			s := w.service("shop", "db.mesh", 80)
			tcp(s, 5443)
			s.Ports[0].Protocol = mesh.TLS
			w.routes("shop", "db", `{"hosts": ["db.mesh"], "tls": [{"match": [{"sniHosts": ["db.mesh"]}], "route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, []string{"no-destination gone.mesh"}},
		"delegate": {func(w *meshFixture) {
			w.routes("shop", "web", `{"hosts": ["web.mesh"], "http": [{"match": [{"uri": {"prefix": "/a"}}], "delegate": {"name": "part", "namespace": "shop"}}]}`)
			w.routes("shop", "part", `{"http": [{"route": [{"destination": {"host": "gone.mesh"}}]}]}`)
		}, []string{"no-destination gone.mesh"}},
		"strict_dns":          {service(mesh.ResolutionDNS, nil), nil},
		"strict_dns_selector": {service(mesh.ResolutionDNS, map[string]string{"app": "nobody"}), []string{"no-endpoints ext.example"}},
		"logical_dns":         {service(mesh.ResolutionDNSRoundRobin, nil), nil},
		"static":              {service(mesh.ResolutionStatic, nil), []string{"no-endpoints ext.example"}},
		"original_dst":        {service(mesh.ResolutionNone, nil), nil},
		"dynamic_dns":         {service(mesh.ResolutionDynamicDNS, nil), nil},
		"passthrough": {func(w *meshFixture) {
			w.rule("shop", "none", `{"host": "none.mesh", "trafficPolicy": {"loadBalancer": {"simple": "PASSTHROUGH"}}}`)
			w.routes("shop", "web", httpTo(`{"destination": {"host": "none.mesh"}}`))
		}, nil},
		"distribute_elsewhere": {func(w *meshFixture) { // an endpoint that gets nothing from here is one
			w.mc.LocalityLbSetting.Distribute = []*networking.LocalityLoadBalancerSetting_Distribute{{From: "eu", To: map[string]uint32{"us": 100}}}
			w.routes("shop", "web", httpTo(`{"destination": {"host": "ok.mesh"}}`))
		}, nil},
		"registry_only": {func(w *meshFixture) {
			w.mc.OutboundTrafficPolicy = &meshconfig.MeshConfig_OutboundTrafficPolicy{Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY}
			w.routes("shop", "web", httpTo(`{"destination": {"host": "ok.mesh"}}`))
		}, nil},
	}
}

// show is a finding in short.
func (f Finding) show() string {
	out := string(f.Kind) + " " + string(f.Host)
	if f.Port != 0 {
		out += fmt.Sprintf(":%d", f.Port)
	}
	if f.Subset != "" {
		out += "/" + f.Subset
	}
	if f.Kind == LeftOutServer {
		out = fmt.Sprintf("%s %s %d", f.Kind, f.Object.Name, f.ListensAt)
	}
	if f.Object.Kind == mesh.KindSidecar {
		out += " by Sidecar"
	}
	return out
}

func shown(v *View) (out []string) {
	for _, f := range v.Findings.All() {
		out = append(out, f.show())
	}
	return out
}

// TestFindings has a mesh of each kind, with a sidecar, and with every other way by which a view comes to
// be: the mesh was well before, and it becomes so again.
func TestFindings(t *testing.T) {
	t.Parallel()
	for name, c := range findingCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := findingsMesh(t)
			proxy := proxyIn("shop", nil)
			proxy.Locality = mesh.ParseLocality("eu/a")
			mc := &mesh.MeshConfig{Spec: w.mc}
			snapshot := func(prev *mesh.Snapshot) *mesh.Snapshot {
				return mesh.NewSnapshot(prev, mc, []*mesh.Fragment{smallmesh.Clone(w.f.Sorted())})
			}
			before := snapshot(nil)
			was := smallmesh.Clone(&w.f)
			x := NewIndex(before)
			v := x.Build(proxy)
			if v.Findings != nil {
				t.Fatalf("before: %v", shown(v))
			}
			c.edit(w)
			s := snapshot(before)
			next := x.Next(s)
			v = next.Rebuild(v, proxy)
			if got := shown(v); !slices.Equal(got, c.want) {
				t.Errorf("after the change: %v, want %v", got, c.want)
			}
			fresh := NewIndex(s).Build(proxy)
			if got := shown(fresh); !slices.Equal(got, c.want) {
				t.Errorf("built anew: %v, want %v", got, c.want)
			}
			for _, f := range fresh.Findings.All() {
				e := f.Explain(s)
				if e.Origin == nil || len(e.Text) < 20 || len(e.Action) < 20 || strings.Contains(e.Text+e.Action, "%!") || !strings.Contains(e.Text, string(f.Host)) {
					t.Errorf("it does not say what and where: %+v", e)
				}
			}
			w.f = *was
			if v = next.Next(snapshot(s)).Rebuild(v, proxy); v.Findings != nil {
				t.Errorf("mended: %v", shown(v))
			}
		})
	}
}

// TestFindingsOfGateways: routes at a gateway are judged as those of sidecars, and servers that are left
// out are found.
func TestFindingsOfGateways(t *testing.T) {
	t.Parallel()
	w := findingsMesh(t)
	server := `{"selector": {"edge": "a"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*.example.com"]}]}`
	w.gateway("a", server)
	w.routes("shop", "web", `{"hosts": ["web.example.com"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "ok.mesh"}}]}]}`)
	snapshot := func() *mesh.Snapshot {
		return mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: w.mc}, []*mesh.Fragment{&w.f})
	}
	if got := shown(NewIndex(snapshot()).Build(routerIn("shop", "a"))); got != nil {
		t.Errorf("a gateway that is well: %v", got)
	}
	w.routes("shop", "api", `{"hosts": ["api.example.com"], "gateways": ["shop/a"], "http": [{"route": [{"destination": {"host": "gone.mesh"}, "weight": 1}, {"destination": {"host": "none.mesh"}, "weight": 1}]}]}`)
	w.gateway("b", `{"selector": {"edge": "a"}, "servers": [{"port": {"number": 80, "name": "tcp", "protocol": "TCP"}, "hosts": ["*"]}]}`)
	s := snapshot()
	got := NewIndex(s).Build(routerIn("shop", "a"))
	if want := []string{"gateway-server b 80", "no-destination gone.mesh", "no-endpoints none.mesh"}; !slices.Equal(shown(got), want) {
		t.Errorf("found %v, want %v", shown(got), want)
	}
	if w := got.OwnWarnings(); len(got.Warnings) == 0 || len(w) > 0 {
		t.Errorf("what is a finding is also a warning: %v, of %d", w, len(got.Warnings))
	}
	if e := got.Findings.List[0].Explain(s); !strings.Contains(e.Text, `the server "tcp" on port 80 is left out`) || !strings.Contains(e.Text, "(Gateway shop/a, a.yaml:") || !strings.HasPrefix(e.Origin.String(), "b.yaml:") {
		t.Errorf("it says %+v", e)
	}
	if got := shown(NewIndex(s).Build(proxyIn("shop", nil))); got != nil {
		t.Errorf("a sidecar, which routes nothing of it: %v", got)
	}
	low := routerIn("shop", "a")
	low.FirstPort = 1024
	if got := shown(NewIndex(s).Build(low)); !slices.Contains(got, "gateway-server a 80") {
		t.Errorf("a gateway that may not listen at the port: %v", got)
	}
}

// TestFindingsNameTheDelegate: the object to look at is the one that names the destination.
func TestFindingsNameTheDelegate(t *testing.T) {
	t.Parallel()
	w := findingsMesh(t)
	findingCases()["delegate"].edit(w)
	s := w.snapshot()
	for _, f := range NewIndex(s).Build(proxyIn("shop", nil)).Findings.All() {
		if e := f.Explain(s); e.Key.Name != "part" || !strings.HasPrefix(e.Origin.String(), "part.yaml:") {
			t.Errorf("it names %+v", e)
		}
	}
}

// TestFindingsSuggest: the text says what may have been meant, and what there is.
func TestFindingsSuggest(t *testing.T) {
	t.Parallel()
	w := findingsMesh(t)
	w.rule("shop", "ok", `{"host": "ok.mesh", "subsets": [{"name": "stable", "labels": {"version": "v9"}}]}`)
	w.workload("near", "10.0.0.6", mesh.Healthy, map[string]string{"app": "nobodi"})
	w.routes("shop", "web", `{"hosts": ["web.mesh"], "http": [
		{"match": [{"uri": {"prefix": "/1"}}], "route": [{"destination": {"host": "nome.mesh"}}]},
		{"match": [{"uri": {"prefix": "/2"}}], "route": [{"destination": {"host": "ok.mesh", "port": {"number": 8080}}}]},
		{"match": [{"uri": {"prefix": "/3"}}], "route": [{"destination": {"host": "ok.mesh", "subset": "stabel"}}]},
		{"match": [{"uri": {"prefix": "/4"}}], "route": [{"destination": {"host": "none.mesh"}}]}]}`)
	s := w.snapshot()
	var all []string
	for _, f := range NewIndex(s).Build(proxyIn("shop", nil)).Findings.All() {
		all = append(all, f.Explain(s).Text)
	}
	text := strings.Join(all, "\n")
	for _, want := range []string{
		`the host "nome.mesh", which does not exist (did you mean "none.mesh"?)`, `port 8080 of the host "ok.mesh", which has no such port; it has 80`,
		`the subset "stabel" of the host "ok.mesh", which does not exist (did you mean "stable"?)`,
		`no workload of namespace "shop" has the labels app=nobody, which it selects (ServiceEntry shop/none.mesh, none.mesh.yaml:3:1) (did you mean "app=nobodi"?)`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %s:\n%s", want, text)
		}
	}
}

// TestFindingsHideNoOther: many faults of one namespace do not hide the only one of another, and the same ones are
// one list for all proxies.
func TestFindingsHideNoOther(t *testing.T) {
	t.Parallel()
	w := findingsMesh(t)
	for i := range 300 {
		host := fmt.Sprintf("s%d.mesh", i)
		w.service("shop", host, 80)
		w.routes("attic", host, fmt.Sprintf(`{"hosts": [%q], "http": [{"route": [{"destination": {"host": "gone.mesh"}}]}]}`, host))
	}
	w.routes("shop", "web", httpTo(`{"destination": {"host": "gone.mesh"}}`))
	x := NewIndex(w.snapshot())
	a, b := x.Build(proxyIn("shop", nil)), x.Build(proxyIn("other", nil))
	list := a.Findings.All()
	if len(list) != 301 || list[300].Object.Namespace != "shop" {
		t.Errorf("%d findings, the last is %+v", len(list), list[len(list)-1])
	}
	if a.Findings != b.Findings {
		t.Error("proxies with equal findings have lists of their own")
	}
}
