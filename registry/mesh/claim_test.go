package mesh

import (
	"fmt"
	"testing"
)

// TestReportsNameTheirWorkload: of several workloads of an account at one address a
// report that names one is of that one, one that names none is of all the others there;
// and no report is of another network's. It holds whatever was reported before.
func TestReportsNameTheirWorkload(t *testing.T) {
	t.Parallel()
	w1, w2, far := testWorkload("a", "w1", "10.0.0.1", "x"), testWorkload("a", "w2", "10.0.0.1", "x"), testWorkload("a", "w3", "10.0.0.1", "x")
	far.Network = "net2"
	svc := testService("a", "inline", "")
	svc.Inline = []*Workload{testWorkload("a", "", "10.0.0.1", "x")}
	base := &Fragment{Workloads: []*Workload{w1, w2, far}, Services: []*Service{svc}}
	report := func(network, name string, h Health) *HealthReport {
		return &HealthReport{ServiceAccount: ServiceAccount{"a", "sa-x"}, Network: network, Address: "10.0.0.1", Workload: name, Health: h, Own: true}
	}
	all, second, other := report("", "", Healthy), report("", "w2", Unhealthy), report("net2", "", Unhealthy)
	steps := []struct {
		reports []*HealthReport
		want    string // w1, w2, w3 and the inline endpoint
	}{
		{nil, "0 0 0 0"},
		{[]*HealthReport{all}, "1 1 0 1"},
		{[]*HealthReport{all, second}, "1 2 0 1"},
		{[]*HealthReport{second}, "0 2 0 0"},
		{[]*HealthReport{second, other}, "0 2 2 0"},
		{[]*HealthReport{all, other}, "1 1 2 1"},
	}
	for i, from := range steps {
		before := testSnapshot(nil, base, &Fragment{Health: from.reports})
		for j, to := range steps {
			s := testSnapshot(before, base, &Fragment{Health: to.reports})
			got := fmt.Sprintf("%d %d %d %d", s.Workloads[0].Health, s.Workloads[1].Health, s.Workloads[2].Health, s.EndpointsOf(s.Services[0])[0].Health)
			if got != to.want {
				t.Errorf("from step %d to %d: %s, want %s", i, j, got, to.want)
			}
		}
	}
}
