package view

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestSilentEndpointsOfShares: a silent endpoint gets requests where no other endpoint may get any,
// and an endpoint without a share is no other. Where several localities have shares, Envoy moves
// requests between them as in Istio, so silent ones are left out.
func TestSilentEndpointsOfShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, to string
		health   map[string]mesh.Health // by locality
		want     string
	}{
		{"only-without-a-share", `{"eu/*":100}`, map[string]mesh.Health{"eu/a": mesh.Silent, "us/a": mesh.Healthy}, "[eu/a P0 W100 false]"},
		{"one-locality", `{"eu/*":100}`, map[string]mesh.Health{"eu/a": mesh.Healthy, "eu/b": mesh.Silent, "us/a": mesh.Healthy}, "[eu/a P0 W100 false eu/b P1 W100 true]"},
		{"several", `{"eu/*":60,"us/*":40}`, map[string]mesh.Health{"eu/a": mesh.Healthy, "eu/b": mesh.Silent, "us/a": mesh.Healthy}, "[eu/a P0 W60 false us/a P0 W40 false]"},
		{"all-silent", `{"eu/*":60,"us/*":40}`, map[string]mesh.Health{"eu/a": mesh.Silent, "eu/b": mesh.Silent, "us/a": mesh.Silent}, "[eu/a P0 W30 false eu/b P0 W30 false us/a P0 W40 false]"},
	} {
		w := newMeshFixture(t)
		svc := w.service("shop", "orders.shop", 80)
		svc.Inline = nil
		for l, h := range c.health {
			svc.Inline = append(svc.Inline, &mesh.Workload{
				Meta: mesh.Meta{Key: mesh.Key{Namespace: "shop"}, Origin: svc.Origin}, Address: fmt.Sprintf("10.0.0.%d", len(svc.Inline)+1), Locality: mesh.ParseLocality(l), Health: h,
			})
		}
		w.rule("shop", "orders", `{"host":"orders.shop","trafficPolicy":{"loadBalancer":{"localityLbSetting":{"distribute":[{"from":"*","to":`+c.to+`}]}}}}`)
		e := findPart(t, Build(w.snapshot(), proxyIn("shop", nil)), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
		var got []string
		for _, l := range e.Localities {
			got = append(got, fmt.Sprintf("%s/%s P%d W%d %v", l.Locality.Region, l.Locality.Zone, l.Priority, l.Weight, l.LastResort))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
}

// TestProxiesShareEndpointsWhateverTheirLabels: of a proxy's labels only the result of a comparison is
// in the endpoints. Proxies that differ in values that no endpoint has share one part, made once.
func TestProxiesShareEndpointsWhateverTheirLabels(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	svc := w.service("shop", "orders.shop", 80)
	svc.Inline = nil
	for i := range 3 {
		svc.Inline = append(svc.Inline, &mesh.Workload{
			Meta:    mesh.Meta{Key: mesh.Key{Namespace: "shop"}, Origin: svc.Origin, Labels: map[string]string{"host": fmt.Sprint("h", i)}},
			Address: fmt.Sprintf("10.0.0.%d", i+1),
		})
	}
	w.rule("shop", "orders", `{"host":"orders.shop","trafficPolicy":{"outlierDetection":{},"loadBalancer":{"localityLbSetting":{"failoverPriority":["host","host2=x"]}}}}`)
	x := NewIndex(w.snapshot())
	var parts []*Endpoints
	var views []*View
	for i := range 50 {
		p := proxyIn("shop", map[string]string{"host": fmt.Sprint("h", i), "host2": strconv.Itoa(i), "other": strconv.Itoa(i)})
		v := x.Build(p)
		e := findPart(t, v, func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
		views = append(views, v)
		parts = append(parts, e)
		for _, l := range e.Localities {
			if near := slices.ContainsFunc(l.Endpoints, func(a Endpoint) bool { return a.Address == fmt.Sprintf("10.0.0.%d", i+1) }); near != (i < 3 && l.Priority == 0) {
				t.Errorf("proxy h%d: %+v", i, e.Localities)
			}
		}
	}
	for i := 4; i < len(parts); i++ {
		if parts[i] != parts[3] {
			t.Errorf("proxy %d has endpoints of its own", i)
		}
	}
	if made := x.Stats().Endpoints; made > 5 { // without a location, with each of three values, and with another
		t.Errorf("endpoints were made %d times", made)
	}
	_ = views
}

// TestWeightsAreBounded: Envoy refuses localities of which the weights sum to more than 32 bits.
func TestWeightsAreBounded(t *testing.T) {
	t.Parallel()
	list := []LocalityEndpoints{{Weight: 4_000_000_000}, {Weight: 2_000_000_000}, {Weight: 1}}
	boundWeights(list)
	sum := uint64(0)
	for _, l := range list {
		sum += uint64(l.Weight)
	}
	if sum > 1<<32-1 || list[0].Weight != 2*list[1].Weight || list[2].Weight == 0 {
		t.Errorf("%+v", list)
	}
}

// TestPriorityLabels: a label with a value is compared with that; of two values the last counts.
func TestPriorityLabels(t *testing.T) {
	t.Parallel()
	labels, given := priorityLabels(&networking.LocalityLoadBalancerSetting{FailoverPriority: []string{"a", "b=1", "b=2", "c=d=e"}})
	if fmt.Sprint(labels, given) != "[a b b c] map[b:2]" {
		t.Errorf("got %v, %v", labels, given)
	}
}
