package server

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// TestFindingsBecomeConditions: a finding is a condition after 30 s, with object, file, near name and number
// of proxies; many are listed in part, and the others counted.
func TestFindingsBecomeConditions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	o := smallmesh.Shop()
	o.Route("orders.mesh", "/")
	snap := o.Snapshot(nil)
	finding := func(host string, lasts time.Duration) xds.FindingStatus {
		return xds.FindingStatus{
			Finding: view.Finding{Kind: view.NoDestination, Object: snap.VirtualServices[0].Key, Host: mesh.Hostname(host)}, Since: now.Add(-lasts), Proxies: 3,
		}
	}
	conditions := func(list ...xds.FindingStatus) []Condition {
		p, s := allWell()
		p.Findings = explainFindings(list, snap, now)
		return Conditions(p, s, now)
	}
	if got := conditions(finding("order.mesh", patience-time.Millisecond)); len(got) > 0 {
		t.Errorf("before 30 s: %+v", got)
	}
	got := conditions(finding("order.mesh", patience))
	if len(got) != 1 || got[0].Reason != "no-destination" || got[0].Subject != "VirtualService shop/orders.mesh" ||
		!strings.HasPrefix(got[0].Text, `VirtualService shop/orders.mesh (orders.mesh.yaml:1:1) sends requests to the host "order.mesh", which does not exist (did you mean "orders.mesh"?)`) ||
		!strings.HasSuffix(got[0].Text, "(for 30s, at 3 proxies)") {
		t.Errorf("after 30 s: %+v", got)
	}
	var many []xds.FindingStatus
	for i := range maxFindingsShown + 7 {
		many = append(many, finding(fmt.Sprintf("gone%d.mesh", i), time.Hour))
	}
	got = conditions(many...)
	if len(got) != maxFindingsShown+1 || got[maxFindingsShown].Text != "there are 7 others of this kind" || got[maxFindingsShown].Reason != "no-destination" {
		t.Errorf("of many: %d, the last is %+v", len(got), got[len(got)-1])
	}
	snap.Incomplete = true
	if got := conditions(many...); len(got) > 0 {
		t.Errorf("while a source is missing: %+v", got)
	}
}

// TestFindingsOfATeamHideNobody: of many findings, namespaces take turns.
func TestFindingsOfATeamHideNobody(t *testing.T) {
	t.Parallel()
	var list []xds.FindingStatus
	add := func(namespace, name string) {
		list = append(list, xds.FindingStatus{Finding: view.Finding{Kind: view.NoEndpoints, Object: mesh.Key{Kind: mesh.KindVirtualService, Namespace: namespace, Name: name}}})
	}
	for i := range 100 {
		add("evil", strconv.Itoa(i))
	}
	add("shop", "orders")
	shown, all := chooseFindings(list, mesh.Merge(mesh.Input{Fallback: smallmesh.Shop().Snapshot(nil).MeshConfig}), time.Now())
	if len(shown) != maxFindingsShown+1 || shown[1].Object.Namespace != "shop" || all[view.NoEndpoints] != 101 {
		t.Errorf("%d are shown, of %v", len(shown), all)
	}
}

// TestFindingsOfATenantHideNoOther: of a tenant's 300 broken routes some are listed, and all are counted. The one of
// the operator is listed first, and so are those of other tenants.
func TestFindingsOfATenantHideNoOther(t *testing.T) {
	t.Parallel()
	now := time.Now()
	snap := mesh.Merge(mesh.Input{
		Fallback:  smallmesh.Shop().Snapshot(nil).MeshConfig,
		Fragments: []*mesh.Fragment{{Source: "operator"}, {Source: "attic"}, {Source: "bazaar"}},
		Bindings:  []*mesh.Binding{nil, {Namespaces: []string{"attic"}}, {Namespaces: []string{"bazaar"}}},
	})
	if !snap.Bound("attic") || snap.Bound("shop") {
		t.Fatal("attic is to be a namespace that a source is bound to")
	}
	var list []xds.FindingStatus
	add := func(namespace string, n int) {
		for i := range n {
			list = append(list, xds.FindingStatus{Since: now.Add(-time.Hour), Proxies: 1, Finding: view.Finding{
				Kind: view.NoDestination, Object: mesh.Key{Kind: mesh.KindVirtualService, Namespace: namespace, Name: fmt.Sprintf("r%03d", i)}, Host: "gone.mesh",
			}})
		}
	}
	add("attic", 300)
	add("bazaar", 2)
	add("shop", 1)
	p, s := allWell()
	p.Findings = explainFindings(list, snap, now)
	got := Conditions(p, s, now)
	var subjects []string
	for _, c := range got {
		subjects = append(subjects, c.Subject)
	}
	if len(got) != 1+maxFindingsShown+2+1 || subjects[0] != "VirtualService shop/r000" || subjects[2] != "VirtualService bazaar/r000" {
		t.Errorf("%d are listed: %v", len(got), subjects)
	}
	last := got[len(got)-1]
	if last.Text != "there are 280 others of this kind" || Amount(got) != 303 {
		t.Errorf("of 303, %d are counted; the last says %q", Amount(got), last.Text)
	}
	if line := sum(got); !strings.Contains(line, "no-destination 303") {
		t.Errorf("the sum is %q", line)
	}
	if m := unwellMetric(t, got); m["no-destination"] != 303 {
		t.Errorf("the metric is %v", m)
	}
}
