package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// An edit of a rule gives every proxy what a view built from nothing has, whatever the
// rule said before: each of the specs below comes after each other one.
func TestRuleEditsReachViews(t *testing.T) {
	t.Parallel()
	specs := []string{``}
	for _, settings := range []string{
		`"loadBalancer":{"simple":"RANDOM"}`,
		`"loadBalancer":{"consistentHash":{"httpHeaderName":"x-user"}}`,
		`"loadBalancer":{"consistentHash":{"httpHeaderName":"x-session"}}`,
		`"loadBalancer":{"consistentHash":{"useSourceIp":true}}`,
		`"connectionPool":{"tcp":{"idleTimeout":"5s"}}`,
		`"connectionPool":{"tcp":{"idleTimeout":"6s"}}`,
		`"connectionPool":{"tcp":{"maxConnectionDuration":"7s"}}`,
		`"outlierDetection":{"consecutive5xxErrors":3}`,
	} {
		specs = append(specs,
			`,"trafficPolicy":{`+settings+`}`,
			`,"trafficPolicy":{"portLevelSettings":[{"port":{"number":80},`+settings+`}]}`,
			`,"subsets":[{"name":"v1","trafficPolicy":{`+settings+`}}]`,
			`,"subsets":[{"name":"v1","trafficPolicy":{"portLevelSettings":[{"port":{"number":80},`+settings+`}]}}]`)
	}
	w := newMeshFixture(t)
	w.service("shop", "a.mesh", 80, 81)
	w.service("shop", "tcp.mesh", 90).Ports[0].Protocol = mesh.TCP
	w.routes("shop", "a", `{"hosts":["a.mesh"],"http":[{"route":[
	  {"destination":{"host":"a.mesh","subset":"v1","port":{"number":80}}},{"destination":{"host":"a.mesh","port":{"number":81}}},{"destination":{"host":"tcp.mesh"}}]}]}`)
	all := slices.Concat(specs, specs)
	for i, host := range []string{"a.mesh", "tcp.mesh", "*.mesh"} {
		g := &randomMesh{w: w, proxies: []Proxy{proxyIn("shop", nil), proxyIn("other", nil)}, views: make([]*View, 2)}
		for step := range specs {
			for j := 0; j < len(all); j += 1 + step { // each distance between two specs
				w.f.DestinationRules = nil
				w.rule("shop", "rule", `{"host":"`+host+`"`+all[j]+`}`)
				g.stamp(&w.f.DestinationRules[0].Meta)
				g.snapshot()
				g.x = g.x.Next(g.s)
				for k, p := range g.proxies {
					g.views[k] = g.x.Rebuild(g.views[k], p)
					if d := differenceOf(NewIndex(g.s).Build(p), g.views[k]); d != "" {
						t.Fatalf("host %d, step %d, proxy %d, after an edit to %s: %s", i, step, k, all[j], d)
					}
				}
			}
		}
	}
}

// The settings of a port hold for the destinations that name this port, as in Istio
// (getHashForService in pilot/pkg/networking/core/route/route.go).
func TestHashOfDestination(t *testing.T) {
	t.Parallel()
	hash := func(header string) string {
		return `"loadBalancer":{"consistentHash":{"httpHeaderName":"` + header + `"}}`
	}
	w := newMeshFixture(t)
	w.service("svc", "a.mesh", 80, 81, 82)
	w.rule("svc", "a", `{"host":"a.mesh","trafficPolicy":{`+hash("all")+`,"portLevelSettings":[
	    {"port":{"number":81},`+hash("port")+`},{"port":{"number":82},"tls":{"mode":"DISABLE"}},{`+hash("no port")+`}]},
	  "subsets":[{"name":"plain"},{"name":"own","trafficPolicy":{`+hash("subset")+`,"portLevelSettings":[{"port":{"number":82},`+hash("subset port")+`}]}}]}`)
	r := NewIndex(w.snapshot()).rules.lookup("svc", nil, "a.mesh", "svc")
	for _, c := range []struct {
		subset string
		port   uint32
		want   string
	}{
		{"", 0, "all"},
		{"", 80, "all"},
		{"", 81, "port"},
		{"", 82, "all"},
		{"plain", 81, "port"},
		{"plain", 0, "all"},
		{"own", 0, "subset"},
		{"own", 80, "subset"},
		{"own", 81, "subset"},
		{"own", 82, "subset port"},
		{"unknown", 81, "port"},
	} {
		if got := r.hashFor(c.subset, c.port).GetHttpHeaderName(); got != c.want {
			t.Errorf("subset %q, port %d: by header %q, want %q", c.subset, c.port, got, c.want)
		}
	}
}

// Rules for one host are merged as in Istio (mergeDestinationRule in
// pilot/pkg/model/destination_rule.go): those that select clients come first, and a rule
// is merged into no rule that more namespaces can see.
func TestRulesThatAreNotMerged(t *testing.T) {
	t.Parallel()
	subset := func(name string) string { return `"subsets":[{"name":"` + name + `"}]` }
	w := newMeshFixture(t)
	w.service("svc", "a.mesh", 80)
	w.service("svc", "b.mesh", 80)
	w.rule("svc", "public", `{"host":"a.mesh",`+subset("public")+`}`)
	w.rule("svc", "private", `{"host":"a.mesh",`+subset("private")+`}`, "client")
	w.rule("client", "all", `{"host":"b.mesh",`+subset("all")+`}`, "client")
	w.rule("client", "web", `{"host":"b.mesh","workloadSelector":{"matchLabels":{"app":"web"}},`+subset("web")+`}`)
	// Of two that select the same clients, the older one says more.
	for _, most := range []string{"1", "2"} {
		w.rule("client", "older"+most, `{"host":"c.mesh","workloadSelector":{"matchLabels":{"app":"web"}},"trafficPolicy":{"connectionPool":{"tcp":{"maxConnections":`+most+`}}}}`)
	}
	x := NewIndex(w.snapshot())
	if got := x.rules.lookup("client", map[string]string{"app": "web"}, "c.mesh", "svc").policyFor(80, nil).GetConnectionPool().GetTcp().GetMaxConnections(); got != 1 {
		t.Errorf("the younger of two rules counts: %d connections", got)
	}
	for _, c := range []struct {
		host, subset string
		proxy        Proxy
		want         bool
	}{
		{"a.mesh", "public", proxyIn("other", nil), true},
		{"a.mesh", "private", proxyIn("other", nil), false},
		{"b.mesh", "all", proxyIn("client", nil), true},
		{"b.mesh", "web", proxyIn("client", nil), false},
		{"b.mesh", "web", proxyIn("client", map[string]string{"app": "web"}), true},
		{"b.mesh", "all", proxyIn("client", map[string]string{"app": "web"}), true},
	} {
		ref := ClusterRef{Kind: OutboundCluster, Host: mesh.Hostname(c.host), Port: 80, Subset: c.subset}
		if got := hasCluster(x.Build(c.proxy), ref); got != c.want {
			t.Errorf("a proxy in %s with labels %v has subset %s of %s: %v, want %v", c.proxy.ServiceAccount.Namespace, c.proxy.Labels, c.subset, c.host, got, c.want)
		}
	}
}

// The default routes of a service use the settings of its port.
func TestHashOfService(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("svc", "a.mesh", 80, 81)
	w.rule("svc", "a", `{"host":"a.mesh","trafficPolicy":{"loadBalancer":{"consistentHash":{"httpHeaderName":"all"}},
	  "portLevelSettings":[{"port":{"number":81},"loadBalancer":{"consistentHash":{"httpHeaderName":"port"}}}]}}`)
	r := NewIndex(w.snapshot()).rules.lookup("svc", nil, "a.mesh", "svc")
	for port, want := range map[uint32]string{80: "all", 81: "port"} {
		if got := r.serviceHash(port).GetHttpHeaderName(); got != want {
			t.Errorf("port %d: by header %q, want %q", port, got, want)
		}
	}
	if h := (*rule)(nil).serviceHash(80); h != nil {
		t.Errorf("without a rule: %v", h)
	}
}

// A route is for the services that its host names, with wildcards on either side.
func TestMatchesService(t *testing.T) {
	t.Parallel()
	b := &virtualHostBuilder{builderScratch: &builderScratch{byHost: map[mesh.Hostname]*service{"a.mesh": {}, "*.wide.mesh": {}}}}
	wildcards := []mesh.Hostname{"*.wide.mesh"}
	for host, want := range map[mesh.Hostname]bool{
		"a.mesh": true, "b.mesh": false, "x.wide.mesh": true, "*.mesh": true, "*.other": false, "*.x.wide.mesh": true, "*": true,
	} {
		if got := b.matchesService(host, wildcards); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
}
