package issue_test

import (
	"sync"
	"testing"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/profile"
)

// TestNameOfTheWorkload: certificates of workloads have the name that the control plane knows, that
// of a host has none, and a name that cannot be in a certificate is no reason to refuse one.
func TestNameOfTheWorkload(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards the two
	asked, name := "", profile.WorkloadName{}
	s := start(t, settings{workload: func(h attest.Host, p profile.Pair) profile.WorkloadName {
		mu.Lock()
		defer mu.Unlock()
		asked = h.Name + " " + h.Binding.String() + " " + p.String()
		return name
	}})
	h := s.join(t, host(t, "web-1", "shop/web", "shop/other"))
	if asked != "" || h.Workload() != (profile.WorkloadName{}) {
		t.Errorf("a host has the name %+v, asked about %q", h.Workload(), asked)
	}
	self, err := profile.Check(h.Leaf())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ known, want profile.WorkloadName }{
		{},
		{profile.WorkloadName{Name: "web-v1", Service: "web", Revision: "v1"}, profile.WorkloadName{Name: "web-v1", Service: "web", Revision: "v1"}},
		{profile.WorkloadName{Name: "web,O=Other", Service: "web", Revision: "v1"}, profile.WorkloadName{}},
	} {
		mu.Lock()
		name = c.known
		mu.Unlock()
		w, err := s.client(t).Workload(t.Context(), h, pair(t, "shop/other"))
		if err != nil {
			t.Fatal(err)
		}
		if got := w.Workload(); got != c.want {
			t.Errorf("the certificate has %+v, want %+v", got, c.want)
		}
		if want := "web-1 " + self.Binding.String() + " shop/other"; asked != want {
			t.Errorf("asked about %q, want %q", asked, want)
		}
	}
	mu.Lock()
	name = profile.WorkloadName{Name: "batch", Service: "batch", Revision: "latest"}
	mu.Unlock()
	d := s.join(t, jointoken.Grant{Host: "batch-1", Pairs: []profile.Pair{pair(t, "shop/batch")}, Direct: true})
	if d.Workload() != name {
		t.Errorf("a direct client has the name %+v", d.Workload())
	}
	// The name is of no effect on who somebody is.
	if p, err := s.stream(t, d); err != nil || p.Host != "batch-1" {
		t.Errorf("it streams as %+v: %v", p, err)
	}
	if _, err := s.client(t).Renew(t.Context(), d); err != nil {
		t.Error(err)
	}
}
