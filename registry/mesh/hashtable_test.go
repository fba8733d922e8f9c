package mesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tableMesh is a mesh of an operator and two tenants, whose rules are of "shop".
func tableMesh(prev *Snapshot, operator, shop, other *Fragment) *Snapshot {
	return Merge(Input{
		Prev: prev, Fallback: testMeshConfig(), Fragments: []*Fragment{operator, shop, other},
		Bindings: []*Binding{nil, {Namespaces: []string{"shop"}, Hosts: []Hostname{"*.shop.internal"}}, {Namespaces: []string{"other"}, Hosts: []Hostname{"*.other.internal"}}},
	})
}

func tableService(namespace, host string, ports ...uint32) *Service {
	s := &Service{Meta: Meta{Key: Key{KindServiceEntry, namespace, strings.ReplaceAll(host, "*", "any")}, Hash: Hash{2}, Origin: &Origin{Source: "test", Path: host}}, Hostname: Hostname(host), Resolution: ResolutionStatic}
	for _, p := range ports {
		s.Ports = append(s.Ports, Port{Name: fmt.Sprint("http-", p), Number: p, Protocol: HTTP})
	}
	return s
}

// refusedIn are the rules without their tables, with the figures that are reported.
func refusedIn(t *testing.T, s *Snapshot) []string {
	t.Helper()
	var out []string
	for _, r := range s.DestinationRules {
		if !hasHashTables(r.Spec) && strings.HasPrefix(r.Name, "hash") {
			out = append(out, r.Name)
		}
	}
	for _, c := range s.Conflicts {
		if c.Kind != ConflictTables {
			continue
		}
		if !slices.Contains(out, c.Key.Name) || c.Dropped == nil || !strings.HasSuffix(c.Field, ".consistentHash") {
			t.Errorf("reported: %+v", c)
		}
	}
	slices.Sort(out)
	return out
}

// TestTablesOfATenantAreLimited: what the tables of one source have together is counted for each port and subset, and
// the largest rules lose theirs; the rest of them stays.
func TestTablesOfATenantAreLimited(t *testing.T) {
	t.Parallel()
	maglev := func(host, more string) string {
		return fmt.Sprintf(`{"host": %q, "trafficPolicy": {"loadBalancer": {"consistentHash": {"useSourceIp": true, "maglev": {}}}, "tls": {"mode": "SIMPLE"}}%s}`, host, more)
	}
	subsets := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"name": "v%d"}`, i))
		}
		return `, "subsets": [` + strings.Join(list, ",") + `]`
	}
	hosts := func(ns string, n int, ports ...uint32) (out []*Service) {
		for i := range n {
			out = append(out, tableService(ns, fmt.Sprintf("a%03d.%s.internal", i, ns), ports...))
		}
		return out
	}
	one := []*Service{tableService("shop", "a.shop.internal", 80)}
	two := []*Service{tableService("shop", "a.shop.internal", 80), tableService("shop", "b.shop.internal", 80)}
	for name, c := range map[string]struct {
		operator, shop, other []*Service
		rules                 map[string]string
		want                  []string
	}{
		"within":          {shop: one, rules: map[string]string{"hash": maglev("a.shop.internal", subsets(14))}}, // 15 tables of 65,537
		"subsets":         {shop: one, rules: map[string]string{"hash": maglev("a.shop.internal", subsets(15))}, want: []string{"hash"}},
		"ports":           {shop: hosts("shop", 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16), rules: map[string]string{"hash": maglev("a000.shop.internal", "")}, want: []string{"hash"}},
		"wildcard":        {shop: hosts("shop", 16, 80), rules: map[string]string{"hash": maglev("*.shop.internal", "")}, want: []string{"hash"}},
		"within_a_label":  {shop: hosts("shop", 16, 80), rules: map[string]string{"hash": maglev("*p.internal", "")}, want: []string{"hash"}},
		"everything":      {operator: hosts("corp", 16, 80), rules: map[string]string{"hash": maglev("*", "")}, want: []string{"hash"}},
		"largest_first":   {shop: two, rules: map[string]string{"hash-a": maglev("a.shop.internal", subsets(4)), "hash-b": maglev("b.shop.internal", subsets(11))}, want: []string{"hash-b"}},
		"equals_by_name":  {shop: two, rules: map[string]string{"hash-a": maglev("a.shop.internal", subsets(9)), "hash-b": maglev("b.shop.internal", subsets(9))}, want: []string{"hash-a"}},
		"no_service":      {rules: map[string]string{"hash": maglev("a.shop.internal", subsets(90))}},
		"others_services": {other: hosts("other", 90, 80), rules: map[string]string{"hash": maglev("*", "")}},
		"default_ring": {
			shop: hosts("shop", 1025, 80), rules: map[string]string{"hash": `{"host": "*.shop.internal", "trafficPolicy": {"loadBalancer": {"consistentHash": {"useSourceIp": true}}}}`},
			want: []string{"hash"},
		},
		"port_without": {
			shop: hosts("shop", 30, 80, 81), rules: map[string]string{"hash": strings.Replace(maglev("*.shop.internal", ""), `"tls":`, `"portLevelSettings": [{"port": {"number": 80}}, {"port": {"number": 81}}], "tls":`, 1)},
		},
		"failover_priority": {
			shop: one, rules: map[string]string{"hash": strings.Replace(maglev("a.shop.internal", subsets(7)), `"consistentHash":`, `"localityLbSetting": {"failoverPriority": ["zone"]}, "consistentHash":`, 1)},
			want: []string{"hash"},
		},
	} {
		var rules []*DestinationRule
		for rule, spec := range c.rules {
			rules = append(rules, ruleOfTenant(t, rule, spec))
		}
		operator, other := (&Fragment{Source: "operator", Services: c.operator}).Sorted(), (&Fragment{Source: "other", Services: c.other}).Sorted()
		shop := (&Fragment{Source: "shop", Services: c.shop, DestinationRules: rules}).Sorted()
		s := tableMesh(nil, operator, shop, other)
		if got := refusedIn(t, s); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v without tables, want %v", name, got, c.want)
		}
		for _, r := range s.DestinationRules {
			if before := rules[slices.IndexFunc(rules, func(x *DestinationRule) bool { return x.Key == r.Key })]; len(r.Spec.GetSubsets()) != len(before.Spec.GetSubsets()) || r.Spec.GetTrafficPolicy().GetTls() == nil != (before.Spec.GetTrafficPolicy().GetTls() == nil) {
				t.Errorf("%s: %s lost more than its tables", name, r.Name)
			}
		}
		without := tableMesh(s, operator, (&Fragment{Source: "shop", DestinationRules: rules}).Sorted(), other)
		again := tableMesh(without, operator, shop, other)
		if got := refusedIn(t, again); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v without tables after their services came back, want %v", name, got, c.want)
		}
	}
}

// TestTablesAreCountedByEachServerAlike: neither the order of objects nor what was before counts.
func TestTablesAreCountedByEachServerAlike(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var prev *Snapshot
		var shop *Fragment
		for range 4 {
			shop = &Fragment{Source: "shop"}
			for i := range 12 {
				if rng.IntN(4) > 0 {
					shop.Services = append(shop.Services, tableService("shop", fmt.Sprintf("h%d.shop.internal", i), []uint32{80, 81, 82}[:1+rng.IntN(3)]...))
				}
				shop.DestinationRules = append(shop.DestinationRules, ruleOfTenant(t, fmt.Sprintf("hash-%d", i),
					fmt.Sprintf(`{"host": "h%d.shop.internal", "trafficPolicy": {"loadBalancer": {"consistentHash": {"useSourceIp": true, "ringHash": {"minimumRingSize": %d}}}}}`, i, 1+rng.IntN(MaxHashTable))))
			}
			shop = shop.Sorted()
			prev = tableMesh(prev, nil, shop, nil)
		}
		restarted := tableMesh(nil, nil, shop, nil)
		a, err := prev.Fingerprint()
		b, err2 := restarted.Fingerprint()
		if a != b || err != nil || err2 != nil {
			t.Errorf("seed %d: %v are refused, and %v after a restart: %v %v", seed, refusedIn(t, prev), refusedIn(t, restarted), err, err2)
		}
	}
}
