package mesh_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

func day(n int) time.Time { return time.Date(2026, 1, n, 0, 0, 0, 0, time.UTC) }

// TestOlderGatewaysComeFirst has Gateways of one port and host, and says which of them serves: what is known to be
// older, and only among equals the first by name.
func TestOlderGatewaysComeFirst(t *testing.T) {
	t.Parallel()
	type object struct {
		name    string
		created int // a day, or 0
		index   uint64
	}
	for name, c := range map[string]struct {
		serves, other object
	}{
		"dated_before_undated":             {object{"z", 9, 0}, object{"a", 0, 0}},
		"dated_before_key":                 {object{"z", 9, 0}, object{"a", 0, 1}},
		"older_before_newer":               {object{"z", 1, 0}, object{"a", 2, 0}},
		"keys_as_they_were_created":        {object{"z", 0, 5}, object{"a", 0, 6}},
		"file_before_key":                  {object{"z", 0, 0}, object{"a", 0, 5}},
		"names_without_ages":               {object{"a", 0, 0}, object{"z", 0, 0}},
		"names_of_one_date":                {object{"a", 3, 0}, object{"z", 3, 0}},
		"names_of_one_date_whatever_key":   {object{"a", 3, 9}, object{"z", 3, 1}},
		"older_before_newer_whatever_keys": {object{"z", 1, 9}, object{"a", 2, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, server := range []string{"TCP 80 a.b", "HTTPS 80 SIMPLE a.b"} {
				gateway := func(o object) *mesh.Gateway {
					g := gatewayOf(t, o.name, server)
					if o.created > 0 {
						g.Created = day(o.created)
					}
					g.CreateIndex = o.index
					return g
				}
				serves, other := gateway(c.serves), gateway(c.other)
				for _, list := range [][]*mesh.Gateway{{serves, other}, {other, serves}} {
					m := mesh.MergeGateways(list, nil)
					if len(m.Rejected) != 1 || m.Rejected[0].Server.Gateway != other || m.Rejected[0].Kept.Gateway != serves {
						t.Errorf("%s: %+v", server, m.Rejected)
					}
				}
			}
		})
	}
}

// TestTLSBeforePlaintextAmongEquals: of Gateways of one age, all are served. Otherwise the older one has the port.
func TestTLSBeforePlaintextAmongEquals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		plain, tls int // the days
		leftOut    string
	}{{0, 0, ""}, {5, 5, ""}, {5, 4, ""}, {4, 5, "z"}, {4, 0, "z"}, {0, 4, ""}} {
		a, z, b := gatewayOf(t, "a", "HTTP 443 a.b"), gatewayOf(t, "z", "HTTPS 443 SIMPLE c.d"), gatewayOf(t, "b", "GRPC 443 e.f")
		if c.plain > 0 {
			a.Created, b.Created = day(c.plain), day(c.plain)
		}
		if c.tls > 0 {
			z.Created = day(c.tls)
		}
		var left []string
		for _, r := range mesh.MergeGateways([]*mesh.Gateway{a, b, z}, nil).Rejected {
			left = append(left, r.Server.Gateway.Name)
		}
		if got := strings.Join(left, ","); got != c.leftOut {
			t.Errorf("plaintext of day %d, TLS of day %d: %q is left out, want %q", c.plain, c.tls, got, c.leftOut)
		}
	}
}

// randomGateway is a Gateway of one of a few names, ages and ports.
func randomGateway(tb testing.TB, rng *rand.Rand) *mesh.Gateway {
	tb.Helper()
	var servers []string
	for range 1 + rng.IntN(3) {
		kind := []string{"HTTP %d/%s %s", "HTTPS %d/%s SIMPLE %s", "TCP %d/%s %s", "TLS %d/%s PASSTHROUGH %s", "GRPC %d/%s %s @10.0.0.1"}[rng.IntN(5)]
		servers = append(servers, fmt.Sprintf(kind, 80+rng.IntN(2), string(rune('p'+rng.IntN(2))), string(rune('a'+rng.IntN(3)))+".b"))
	}
	g := gatewayOf(tb, string(rune('a'+rng.IntN(6))), servers...)
	g.Namespace = string(rune('n' + rng.IntN(3)))
	g.Kind, g.Origin = mesh.KindGateway, &mesh.Origin{Path: g.Name}
	if rng.IntN(2) == 0 {
		g.Created = day(1 + rng.IntN(3))
	}
	if rng.IntN(2) == 0 {
		g.CreateIndex = uint64(rng.IntN(3))
	}
	g.Hash[0], g.Hash[1] = byte(rng.IntN(256)), 1
	return g
}

// mergedText is all of what was merged.
func mergedText(list []*mesh.Gateway) string {
	m := mesh.MergeGateways(list, nil)
	var out strings.Builder
	server := func(s *mesh.GatewayServer) string {
		return fmt.Sprint(s.GatewayName(), "#", slices.Index(s.Gateway.Spec.GetServers(), s.Server))
	}
	for _, at := range m.Ports {
		fmt.Fprintln(&out, at, m.Routes[at])
		for _, s := range m.Servers[at] {
			fmt.Fprintln(&out, " ", server(s))
		}
	}
	for _, r := range m.Rejected {
		fmt.Fprintln(&out, server(r.Server), server(r.Kept), r.Reason)
	}
	return out.String()
}

// TestGatewaysHaveOneOrder: the order of Gateways is total, and what is merged does not depend on that of the
// list. Nobody loses a server to one that is younger.
func TestGatewaysHaveOneOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 31))
		byKey := map[mesh.Key]*mesh.Gateway{}
		for range 2 + rng.IntN(9) {
			g := randomGateway(t, rng)
			byKey[g.Key] = g
		}
		list := make([]*mesh.Gateway, 0, len(byKey))
		for _, g := range byKey {
			list = append(list, g)
		}
		slices.SortFunc(list, mesh.CompareGateways)
		want := mergedText(list)
		for i, a := range list {
			for j, b := range list {
				if got := mesh.CompareGateways(a, b); got != cmpInt(i, j) {
					t.Fatalf("seed %d: %s and %s compare as %d, and are %d and %d in the list", seed, a.Key, b.Key, got, i, j)
				}
			}
		}
		for range 5 {
			rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			if diff := cmp.Diff(want, mergedText(list)); diff != "" {
				t.Fatalf("seed %d: another order of the list changes what is merged: %s", seed, diff)
			}
		}
		for _, r := range mesh.MergeGateways(list, nil).Rejected {
			if older := r.Server.Gateway; older.Created.IsZero() == r.Kept.Gateway.Created.IsZero() && older.Created.Before(r.Kept.Gateway.Created) {
				t.Fatalf("seed %d: %s is left out because of %s, which is younger", seed, older.Key, r.Kept.Gateway.Key)
			} else if !older.Created.IsZero() && r.Kept.Gateway.Created.IsZero() {
				t.Fatalf("seed %d: %s is left out because of %s, which has no date", seed, older.Key, r.Kept.Gateway.Key)
			}
		}
	}
}

func cmpInt(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// TestGatewaysOfTenantsComeLast: whatever dates are in the files of a source that is bound to namespaces, its
// Gateways take nothing from those of a source that speaks for the whole mesh, and none from another bound source.
// What is merged step by step is what is merged at once.
func TestGatewaysOfTenantsComeLast(t *testing.T) {
	t.Parallel()
	tenants := []*mesh.Binding{{Namespaces: []string{"n", "o"}}, {Namespaces: []string{"n"}}}
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 91))
		fragments := []*mesh.Fragment{{Source: "mesh"}, {Source: "one"}, {Source: "two"}}
		var prev *mesh.Snapshot
		for step := range 12 {
			i := rng.IntN(3)
			next := *fragments[i]
			g := randomGateway(t, rng)
			if i == 2 {
				g.Namespace = "n"
			} else if i == 1 && g.Namespace == "p" {
				g.Namespace = "o"
			}
			next.Gateways = slices.DeleteFunc(slices.Clone(next.Gateways), func(x *mesh.Gateway) bool { return x.Key == g.Key })
			if rng.IntN(3) > 0 {
				next.Gateways = append(next.Gateways, g)
			}
			slices.SortFunc(next.Gateways, func(a, b *mesh.Gateway) int { return a.Compare(b.Key) })
			fragments[i] = &next
			in := mesh.Input{Prev: prev, Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}}, Fragments: slices.Clone(fragments), Bindings: []*mesh.Binding{nil, tenants[0], tenants[1]}}
			s := mesh.Merge(in)
			in.Prev = nil
			whole := mesh.Merge(in)
			if diff := cmp.Diff(gatewaysText(whole), gatewaysText(s)); diff != "" {
				t.Fatalf("seed %d, step %d: merged step by step (+), and at once (-): %s", seed, step, diff)
			}
			seen := false
			for _, g := range s.Gateways {
				mine := slices.ContainsFunc(fragments[0].Gateways, func(x *mesh.Gateway) bool { return x.Key == g.Key })
				if mine && seen {
					t.Fatalf("seed %d, step %d: a tenant's Gateway comes before %s: %s", seed, step, g.Key, gatewaysText(s))
				}
				seen = seen || !mine
				shared := g.Namespace == "n" && len(ofNamespace(fragments[1], "n")) > 0 && len(ofNamespace(fragments[2], "n")) > 0
				if !mine && shared && !g.Created.IsZero() {
					t.Fatalf("seed %d, step %d: the date of %s counts between two bound sources", seed, step, g.Key)
				}
			}
			prev = s
		}
	}
}

func ofNamespace(f *mesh.Fragment, ns string) []*mesh.Gateway {
	return slices.DeleteFunc(slices.Clone(f.Gateways), func(g *mesh.Gateway) bool { return g.Namespace != ns })
}

func gatewaysText(s *mesh.Snapshot) string {
	var out strings.Builder
	for _, g := range s.Gateways {
		fmt.Fprintln(&out, g.Key, g.Created, g.CreateIndex, g.Tenant, g.Hash)
	}
	return out.String()
}

// TestAdviceTurnsTheOrder: who writes what a message says comes first, and before no other Gateway that has a date,
// if that was not needed.
func TestAdviceTurnsTheOrder(t *testing.T) {
	t.Parallel()
	advised := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		first, other, third := randomGateway(t, rng), randomGateway(t, rng), randomGateway(t, rng)
		third.Name = "third"
		first.Tenant, other.Tenant = rng.IntN(4) == 0, rng.IntN(4) == 0
		if first.Key == other.Key {
			if first.WhyFirst(other) != "" || other.ToComeFirst(first, nil) != "" {
				t.Fatal("a Gateway comes before itself")
			}
			continue
		}
		if mesh.CompareGateways(first, other) > 0 {
			first, other = other, first
		}
		if first.WhyFirst(other) == "" {
			t.Fatalf("seed %d: no word says why %+v comes before %+v", seed, first.Meta, other.Meta)
		}
		advice := other.ToComeFirst(first, []*mesh.Gateway{first, other, third})
		was := mesh.CompareGateways(other, third)
		switch _, date, dated := strings.Cut(advice, "`creationTimestamp: \""); {
		case advice == "":
			if !other.Tenant || first.Tenant && !other.Created.IsZero() {
				t.Fatalf("seed %d: no advice for %+v", seed, other.Meta)
			}
			continue
		case dated:
			date, _, _ = strings.Cut(date, `"`)
			at, err := time.Parse(time.RFC3339, date)
			if err != nil {
				t.Fatal(err)
			}
			other.Created = at
		default:
			other.Name = "A"
		}
		advised++
		if mesh.CompareGateways(other, first) > 0 {
			t.Fatalf("seed %d: after %q, %+v does not come before %+v", seed, advice, other.Meta, first.Meta)
		}
		if first.Created.IsZero() && !third.Created.IsZero() && !other.Tenant && was > 0 && mesh.CompareGateways(other, third) < 0 {
			t.Fatalf("seed %d: %q puts it before %+v, too", seed, advice, third.Meta)
		}
	}
	if advised < 100 {
		t.Errorf("%d were advised", advised)
	}
}

// TestNoAdviceOfADateThatDoesNotCount: two bound sources have Gateways in one namespace, so no date counts there.
func TestNoAdviceOfADateThatDoesNotCount(t *testing.T) {
	t.Parallel()
	merged := func(date time.Time) (first, other *mesh.Gateway, s *mesh.Snapshot) {
		gateway := func(namespace, name string) *mesh.Gateway {
			g := gatewayOf(t, name, "TCP 80 a.b")
			g.Kind, g.Namespace, g.Origin = mesh.KindGateway, namespace, &mesh.Origin{Path: name}
			return g
		}
		dated, mine, theirs := gateway("o", "dated"), gateway("n", "mine"), gateway("n", "theirs")
		dated.Created, mine.Created = day(9), date
		s = mesh.Merge(mesh.Input{
			Fallback:  &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}},
			Fragments: []*mesh.Fragment{{Source: "one", Gateways: []*mesh.Gateway{mine, dated}}, {Source: "two", Gateways: []*mesh.Gateway{theirs}}},
			Bindings:  []*mesh.Binding{{Namespaces: []string{"n", "o"}}, {Namespaces: []string{"n"}}},
		})
		for _, g := range s.Gateways {
			switch g.Name {
			case "dated":
				first = g
			case "mine":
				other = g
			}
		}
		return first, other, s
	}
	if first, other, _ := merged(day(1)); mesh.CompareGateways(other, first) < 0 {
		t.Fatal("the date counts")
	}
	first, other, s := merged(time.Time{})
	if got := other.ToComeFirst(first, s.Gateways); got != "" {
		t.Errorf("advised to %s", got)
	}
}
