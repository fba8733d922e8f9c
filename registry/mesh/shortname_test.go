package mesh

import (
	"slices"
	"strings"
	"testing"
)

// TestShortNamesOfTenants: a service of a bound source has the short forms of its host where the namespace in it is
// its own, and nobody has them by a pattern, a grant, or a service of an unbound source, wildcards included; also if it
// is for its own namespace only. One of an unbound source has all, as in Istio.
func TestShortNamesOfTenants(t *testing.T) {
	t.Parallel()
	const all = "vault vault.shop.svc vault.shop"
	for name, c := range map[string]struct {
		namespace, host string
		bound           bool
		other           *Binding
		unbound         string
		grants          []Grant
		want            string // for clients in shop
		elsewhere       string
	}{
		"of another's namespace": {"mallory", "vault.shop.svc.cluster.local", true, nil, "", nil, "", ""},
		"of no namespace":        {"mallory", "x.corp.svc.cluster.local", true, nil, "", nil, "", ""},
		"unbound":                {"mallory", "vault.shop.svc.cluster.local", false, nil, "", nil, all, "vault.shop vault.shop.svc"},
		"own":                    {"shop", "vault.shop.svc.cluster.local", true, nil, "", nil, all, "vault.shop vault.shop.svc"},
		"name with a dot":        {"shop", "a.vault.shop.svc.cluster.local", true, nil, "", nil, "", ""},
		"pattern of a name":      {"shop", "vault.shop.svc.cluster.local", true, patterns("other", "vault"), "", nil, "vault.shop.svc vault.shop", "vault.shop vault.shop.svc"},
		"pattern of a domain":    {"shop", "vault.shop.svc.cluster.local", true, patterns("other", "*.shop"), "", nil, "vault", ""},
		"pattern of a full form": {"shop", "vault.shop.svc.cluster.local", true, patterns("other", "vault.shop.svc"), "", nil, "vault", ""},
		"unbound wildcard":       {"shop", "vault.shop.svc.cluster.local", true, nil, "*.shop", nil, "vault", ""},
		"unbound name":           {"shop", "vault.shop.svc.cluster.local", true, nil, "vault", nil, "vault.shop.svc vault.shop", "vault.shop vault.shop.svc"},
		"wildcard":               {"shop", "*.shop.svc.cluster.local", true, nil, "", nil, "", ""},
		"part of a label":        {"shop", "*t.shop.svc.cluster.local", true, nil, "", nil, "", ""},
		"wildcard, unbound":      {"shop", "*.shop.svc.cluster.local", false, nil, "", nil, "* *.shop.svc *.shop", "*.shop *.shop.svc"},
		"all of a domain":        {"shop", "*.svc.cluster.local", true, nil, "", nil, "", ""},
		"everything":             {"shop", "vault.shop.svc.cluster.local", true, nil, "*", nil, all, "vault.shop vault.shop.svc"},
		"granted":                {"shop", "vault.shop.svc.cluster.local", true, nil, "", []Grant{{Name: "vault.shop", Namespace: "other"}}, "vault", ""},
	} {
		for i, exports := range []Exports{nil, {c.namespace}, nil} {
			svc := testService(c.namespace, "vault", "")
			svc.Hostname, svc.ExportTo = Hostname(c.host), exports
			in := Input{Fallback: testMeshConfig(), Bindings: []*Binding{nil, {Namespaces: []string{c.namespace}}, c.other}, Grants: NewGrants(c.grants), Fragments: []*Fragment{{}, {Services: []*Service{svc}}, {}}}
			if !c.bound {
				in.Bindings[1], in.Bindings[2] = nil, patterns("third")
			}
			in.Prev = Merge(in) // what comes later counts as well
			if c.unbound != "" {
				other := testService("platform", "other", "")
				other.Hostname = Hostname(c.unbound)
				if i == 2 {
					other.ExportTo = Exports{"platform"} // for nobody else, and all the same not the tenant's
				}
				in.Fragments = []*Fragment{{Services: []*Service{other}}, in.Fragments[1], in.Fragments[2]}
			}
			s := Merge(in)
			got := s.Services[slices.IndexFunc(s.Services, func(x *Service) bool { return x.Name == "vault" })]
			if here, there := strings.Join(got.ShortNames("shop.svc.cluster.local"), " "), strings.Join(got.ShortNames("web.svc.cluster.local"), " "); here != c.want || there != c.elsewhere {
				t.Errorf("%s, for %v: %q in shop, %q elsewhere; want %q and %q", name, exports, here, there, c.want, c.elsewhere)
			}
			if lacks := got.LacksShortNames("shop.svc.cluster.local"); lacks != (got.LostNames != 0) {
				t.Errorf("%s: lacks short names: %v, lost %d", name, lacks, got.LostNames)
			}
			in.Prev = nil
			if fingerprint(t, Merge(in)) != fingerprint(t, s) {
				t.Errorf("%s: it depends on the snapshot before", name)
			}
		}
	}
}
