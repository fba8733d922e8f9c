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
		p.Findings = explainFindings(list, 0, snap, now)
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
	var out MeshFindings
	shown := shownFindings(list, &out)
	if len(shown) != maxFindingsShown || shown[len(shown)-1].Object.Namespace != "shop" || out.More[string(view.NoEndpoints)] != 101-maxFindingsShown {
		t.Errorf("%d are shown, %v more", len(shown), out.More)
	}
}
