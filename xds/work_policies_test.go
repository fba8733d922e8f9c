package xds

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// policyOf is an ALLOW policy for an app, with one path.
func policyOf(ns, name, app, path string) *mesh.AuthorizationPolicy {
	return &mesh.AuthorizationPolicy{
		Meta: in(ns, smallmesh.Meta(mesh.KindAuthorizationPolicy, name, app, path)),
		Spec: &security.AuthorizationPolicy{
			Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{"app": app}},
			Rules:    []*security.Rule{{To: []*security.Rule_To{{Operation: &security.Operation{Paths: []string{path}}}}}},
		},
	}
}

// policies gives the mesh three policies that select the two workloads of a0, and others that select
// nobody, in three namespaces, up to count.
func (o *smallMesh) policies(count int) {
	for i := range count {
		ns, name, app := []string{"a", "b", "c"}[i%3], fmt.Sprintf("other-%05d", i), fmt.Sprintf("nobody-%05d", i)
		if i < 3 {
			ns, name, app = "a", fmt.Sprintf("own-%d", i), "a0"
		}
		o.AuthorizationPolicies = append(o.AuthorizationPolicies, policyOf(ns, name, app, fmt.Sprintf("/path-%05d", i)))
	}
}

// edit replaces the policy at an index by one with another path of the same length.
func (o *smallMesh) edit(i int) {
	p := o.AuthorizationPolicies[i]
	o.AuthorizationPolicies = slices.Clone(o.AuthorizationPolicies)
	o.AuthorizationPolicies[i] = policyOf(p.Namespace, p.Name, p.Spec.GetSelector().GetMatchLabels()["app"], fmt.Sprintf("/edit-%05d", i))
}

// policyRun is what the proxies of a mesh have, and what two changes cost.
type policyRun struct {
	has          map[string]map[string]string // by proxy and resource
	own, another Work
}

func runPolicies(t *testing.T, count, another int) policyRun {
	t.Helper()
	o := newSmallMesh()
	o.policies(count)
	r := newRig(t, nil, admitAll(&o.Objects))
	r.mesh.publish(o.build(nil))
	all := o.fleet(t, r)
	out := policyRun{has: map[string]map[string]string{}}
	for _, p := range all {
		out.has[p.node.Name] = p.content()
	}
	work := func(change func()) Work {
		was := r.server.Work()
		change()
		next := o.build(r.mesh.Snapshot())
		r.mesh.publish(next)
		eventually(t, "all have answered", func() bool {
			x, ok := r.server.Convergence(next.Generation)
			return ok && !x.Done.IsZero()
		})
		return r.server.Work().since(was)
	}
	out.own = work(func() { o.edit(1) })
	if another > 0 {
		out.another = work(func() { o.edit(another) })
	}
	return out
}

// TestPoliciesCostTheWorkloadsTheySelect has 10,000 policies of which three select a workload. Its
// proxy has the same bytes as in a mesh with these three alone, and so has every other. An
// edit of one of the three reaches the workloads that it selects, with the bytes of their rules, and
// with their listener, whose hash of the rules ends open streams. An edit of another policy reaches
// nobody.
func TestPoliciesCostTheWorkloadsTheySelect(t *testing.T) {
	t.Parallel()
	few, many := runPolicies(t, 3, 0), runPolicies(t, 10_000, 9_999)
	if diff := cmp.Diff(few.has, many.has); diff != "" {
		t.Errorf("with 9,997 policies for others (-without +with):\n%.2000s", diff)
	}
	amounts := func(of map[stream.TypeURL]Amount) map[stream.TypeURL]uint64 {
		out := map[stream.TypeURL]uint64{}
		for url, a := range of {
			out[url] = a.Resources
		}
		return out
	}
	for name, w := range map[string]Work{"three": few.own, "10,000": many.own} {
		if w.ViewsBuilt != 2 || w.ViewsKept != 10 {
			t.Errorf("%s policies: %d views were built and %d kept, want 2 and 10", name, w.ViewsBuilt, w.ViewsKept)
		}
		if got, want := amounts(w.Built), map[stream.TypeURL]uint64{stream.ExtensionType: 1, stream.ListenerType: 1}; !maps.Equal(got, want) {
			t.Errorf("%s policies: built %v, want %v", name, got, want)
		}
		if got, want := amounts(w.Sent), map[stream.TypeURL]uint64{stream.ExtensionType: 2, stream.ListenerType: 2}; !maps.Equal(got, want) {
			t.Errorf("%s policies: sent %v, want %v", name, got, want)
		}
	}
	if few.own.Built[stream.ExtensionType] != many.own.Built[stream.ExtensionType] || few.own.Sent[stream.ExtensionType] != many.own.Sent[stream.ExtensionType] {
		t.Errorf("an edit costs %v and %v with three policies, %v and %v with 10,000", few.own.Built, few.own.Sent, many.own.Built, many.own.Sent)
	}
	// Three rules of 70 bytes, with their names.
	if n := many.own.Built[stream.ExtensionType].Bytes; n > 1000 {
		t.Errorf("the rules of three policies have %d bytes", n)
	}
	if w := many.another; w.ViewsBuilt != 0 || len(w.Built) > 0 || len(w.Sent) > 0 {
		t.Errorf("an edit of a policy that selects nobody: %d views, built %v, sent %v", w.ViewsBuilt, w.Built, w.Sent)
	}
}
