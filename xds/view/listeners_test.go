package view

import (
	"slices"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Two matches overlap if there is a connection that both are for, as Envoy sees it: it
// refuses a listener with two chains for one.
func TestMatchesOverlap(t *testing.T) {
	t.Parallel()
	base := FilterChainMatch{
		DestinationPort: 80, CIDRs: []string{"10.0.0.0/8", "192.0.2.1/32"}, ServerNames: []string{"a.mesh", "b.mesh"}, Transport: "tls", ALPN: []string{"h2"},
	}
	for name, c := range map[string]struct {
		edit func(m *FilterChainMatch)
		want bool
	}{
		"equal":                      {func(*FilterChainMatch) {}, true},
		"another port":               {func(m *FilterChainMatch) { m.DestinationPort = 81 }, false},
		"another transport":          {func(m *FilterChainMatch) { m.Transport = "raw_buffer" }, false},
		"another protocol":           {func(m *FilterChainMatch) { m.ALPN = []string{"http/1.1"} }, false},
		"any protocol":               {func(m *FilterChainMatch) { m.ALPN = nil }, false},
		"one range in common":        {func(m *FilterChainMatch) { m.CIDRs = []string{"192.0.2.1/32", "198.51.100.0/24"} }, true},
		"the range, written another": {func(m *FilterChainMatch) { m.CIDRs = []string{"10.1.2.3/8"} }, true},
		"a narrower range":           {func(m *FilterChainMatch) { m.CIDRs = []string{"10.0.0.0/16"} }, false},
		"any address":                {func(m *FilterChainMatch) { m.CIDRs = nil }, false},
		"one name in common":         {func(m *FilterChainMatch) { m.ServerNames = []string{"b.mesh", "c.mesh"} }, true},
		"other names":                {func(m *FilterChainMatch) { m.ServerNames = []string{"c.mesh"} }, false},
		"any name":                   {func(m *FilterChainMatch) { m.ServerNames = []string{"*"} }, false},
	} {
		other := base
		c.edit(&other)
		if got, back := matchesOverlap(&base, &other), matchesOverlap(&other, &base); got != c.want || back != c.want {
			t.Errorf("%s: %v and %v, want %v", name, got, back, c.want)
		}
	}
	anything := FilterChainMatch{CIDRs: nil, ServerNames: []string{"*"}}
	if !matchesOverlap(&anything, &FilterChainMatch{}) {
		t.Error("two matches for everything do not overlap")
	}
}

// Each address and port belongs to one listener: the one whose main address it is, else
// the first that names it.
func TestAddressesBelongToOneListener(t *testing.T) {
	t.Parallel()
	o := &outboundListenerBuilder{pending: map[listenerKey]*pendingListener{}}
	keys := []listenerKey{{"10.0.0.1", 80}, {"10.0.0.1", 81}, {"10.0.0.2", 80}}
	more := [][]string{{"10.0.0.2", "10.0.0.3"}, {"10.0.0.2", "10.0.0.3"}, {"10.0.0.3", "10.0.0.4"}}
	for i, k := range keys {
		o.pending[k] = &pendingListener{key: k, extraAddresses: more[i]}
	}
	o.dropSharedAddresses(keys)
	for i, want := range [][]string{{"10.0.0.3"}, {"10.0.0.2", "10.0.0.3"}, {"10.0.0.4"}} {
		if got := o.pending[keys[i]].extraAddresses; !slices.Equal(got, want) {
			t.Errorf("%v also has %v, want %v", keys[i], got, want)
		}
	}
}

// Traffic to unknown hosts goes where the Sidecar says, if it is not refused.
func TestEgressProxy(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]CatchAll{
		"ALLOW_ANY":     {Cluster: ClusterRef{Kind: OutboundCluster, Host: "egress.mesh", Port: 80}},
		"REGISTRY_ONLY": {Refuse: true},
	} {
		w := newMeshFixture(t)
		w.service("shop", "egress.mesh", 80)
		w.sidecar("shop", "default", `{"outboundTrafficPolicy":{"mode":"`+mode+`","egressProxy":{"host":"egress.mesh","port":{"number":80}}}}`)
		table := findPart(t, Build(w.snapshot(), proxyIn("shop", nil)), func(c *RouteConfiguration) bool { return c.Name == "80" })
		if table.CatchAll == nil || *table.CatchAll != want {
			t.Errorf("%s: unknown hosts are sent to %+v, want %+v", mode, table.CatchAll, want)
		}
	}
}

// TestPolicyOfTheMeshForUnknownHosts: a Sidecar that says nothing about unknown hosts leaves what
// MeshConfig says of them.
func TestPolicyOfTheMeshForUnknownHosts(t *testing.T) {
	t.Parallel()
	for _, mode := range []meshconfig.MeshConfig_OutboundTrafficPolicy_Mode{meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY, meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY} {
		w := newMeshFixture(t)
		w.mc.OutboundTrafficPolicy = &meshconfig.MeshConfig_OutboundTrafficPolicy{Mode: mode}
		w.service("shop", "a.mesh", 80)
		w.sidecar("shop", "default", `{"egress":[{"hosts":["./*"]}]}`)
		table := findPart(t, Build(w.snapshot(), proxyIn("shop", nil)), func(c *RouteConfiguration) bool { return c.Name == "80" })
		if refuses := mode == meshconfig.MeshConfig_OutboundTrafficPolicy_REGISTRY_ONLY; table.CatchAll == nil || table.CatchAll.Refuse != refuses {
			t.Errorf("%s: unknown hosts are sent to %+v", mode, table.CatchAll)
		}
	}
}

// What a proxy has for traffic that no service decides depends on its type and on capture.
func TestFixedClusters(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind ProxyType
		mode Interception
		want []ClusterKind
	}{
		{Sidecar, InterceptRedirect, []ClusterKind{BlackHoleCluster, PassthroughCluster, InboundPassthroughCluster}},
		{Sidecar, InterceptTPROXY, []ClusterKind{BlackHoleCluster, PassthroughCluster, InboundPassthroughCluster}},
		{Sidecar, InterceptNone, []ClusterKind{BlackHoleCluster, PassthroughCluster}},
		{Router, InterceptRedirect, []ClusterKind{BlackHoleCluster}},
		{Router, InterceptNone, []ClusterKind{BlackHoleCluster}},
	} {
		p := proxyIn("shop", nil)
		p.Type, p.Interception = c.kind, c.mode
		var got []ClusterKind
		for part := range Build(newMeshFixture(t).snapshot(), p).Parts() {
			if cluster, ok := part.(*Cluster); ok {
				got = append(got, cluster.Ref.Kind)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.kind, c.mode, got, c.want)
		}
	}
}
