package mesh

import (
	"fmt"
	"slices"
	"testing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	report := func(h Health, own bool) *HealthReport {
		return &HealthReport{ServiceAccount: ServiceAccount{"a", "sa-x"}, Address: "10.0.0.1", Health: h, Reason: "r", Own: own}
	}
	for _, c := range []struct {
		name    string
		written Health
		reports []*HealthReport
		want    Health
		reason  string
	}{
		{"nobody_says_anything", HealthUnknown, nil, HealthUnknown, ""},
		{"catalog_says_unhealthy", HealthUnknown, []*HealthReport{report(Unhealthy, false)}, Unhealthy, "r"},
		{"unhealthy_beats_healthy", HealthUnknown, []*HealthReport{report(Healthy, false), report(Unhealthy, false)}, Unhealthy, "r"},
		{"own_word_beats_catalog", Unhealthy, []*HealthReport{report(Healthy, true), report(Unhealthy, false)}, Healthy, ""},
		{"own_unhealthy_beats_catalog", Healthy, []*HealthReport{report(Healthy, false), report(Unhealthy, true)}, Unhealthy, "r"},
		{"silence_is_no_verdict", Unhealthy, []*HealthReport{report(Silent, true)}, Unhealthy, ""},
		{"silence_of_the_agent_beats_healthy", Healthy, []*HealthReport{report(Silent, true)}, Silent, "r"},
		{"silence_beats_unknown", HealthUnknown, []*HealthReport{report(Silent, true)}, Silent, "r"},
		{"verdict_of_another_beats_silence", HealthUnknown, []*HealthReport{report(Silent, true), report(Unhealthy, false)}, Unhealthy, "r"},
		{"own_unknown_says_nothing", Unhealthy, []*HealthReport{report(HealthUnknown, true)}, Unhealthy, ""},
		{"reason_of_the_agent", Unhealthy, []*HealthReport{report(Unhealthy, true)}, Unhealthy, "r"},
		{"written_unhealthy_stands", Unhealthy, []*HealthReport{report(Healthy, false)}, Unhealthy, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, inline := testWorkload("a", "w", "10.0.0.1", "x"), testWorkload("a", "", "10.0.0.1", "x")
			other := testWorkload("a", "w2", "10.0.0.2", "x")
			w.Health, inline.Health = c.written, c.written
			svc := testService("a", "inline", "")
			svc.Inline = []*Workload{inline}
			f := &Fragment{Workloads: []*Workload{w, other}, Services: []*Service{svc, testService("a", "s", "x")}}
			var fragments []*Fragment
			fragments = append(fragments, f)
			for _, r := range c.reports {
				fragments = append(fragments, &Fragment{Health: []*HealthReport{r}})
			}
			for _, s := range []*Snapshot{testSnapshot(nil, fragments...), testSnapshot(testSnapshot(nil, f), fragments...)} {
				if got := s.Workloads[0].Health; got != c.want {
					t.Errorf("workload: %d, want %d", got, c.want)
				}
				if got := s.EndpointsOf(s.Services[0])[0].Health; got != c.want {
					t.Errorf("inline endpoint: %d, want %d", got, c.want)
				}
				if s.Workloads[1] != other || s.EndpointsOf(s.Services[1])[0] != s.Workloads[0] {
					t.Error("the look-ups do not have the workloads of the list")
				}
				if changed := c.want != c.written; changed == (s.Workloads[0].Hash == w.Hash) || changed == (s.Services[0].Hash == svc.Hash) {
					t.Error("the hash does not tell")
				}
				if got := s.Workloads[0].HealthReason; got != c.reason {
					t.Errorf("the reason is %q, want %q", got, c.reason)
				}
			}
			if w.Health != c.written || inline.Health != c.written {
				t.Error("the source's object was written to")
			}
		})
	}
}

// TestHealthOfChangedObjects: what a report makes of an object is made again if the object, its
// place or the reason changed, though nothing else did.
func TestHealthOfChangedObjects(t *testing.T) {
	t.Parallel()
	at, elsewhere := &Origin{Path: "a.yaml", Line: 1}, &Origin{Path: "a.yaml", Line: 2}
	for name, c := range map[string]struct {
		service, endpoint [2]Hash
		origin            *Origin
		reason            string
	}{
		"other_content":   {[2]Hash{{1}, {2}}, [2]Hash{{1}, {2}}, at, "r"},
		"other_service":   {[2]Hash{{1}, {2}}, [2]Hash{{1}, {1}}, at, "r"},
		"unknown_content": {[2]Hash{}, [2]Hash{}, at, "r"},
		"unknown_service": {[2]Hash{}, [2]Hash{{1}, {1}}, at, "r"},
		"other_place":     {[2]Hash{{1}, {1}}, [2]Hash{{1}, {1}}, elsewhere, "r"},
		"other_reason":    {[2]Hash{{1}, {1}}, [2]Hash{{1}, {1}}, at, "s"},
	} {
		var s *Snapshot
		var w *Workload
		var svc *Service
		for i := range 2 {
			origin, reason := []*Origin{at, c.origin}[i], []string{"r", c.reason}[i]
			w, svc = testWorkload("a", "w", "10.0.0.1", "x"), testService("a", "s", "")
			svc.Inline = []*Workload{testWorkload("a", "", "10.0.0.1", "x")}
			for _, m := range []*Meta{&w.Meta, &svc.Meta, &svc.Inline[0].Meta} {
				m.Origin, m.Hash = origin, c.endpoint[i]
			}
			svc.Hash = c.service[i]
			svc.Ports, w.Weight = []Port{{Number: uint32(80 + i)}}, uint32(i)
			s = testSnapshot(s, &Fragment{Workloads: []*Workload{w}, Services: []*Service{svc}}, &Fragment{Health: []*HealthReport{
				{ServiceAccount: ServiceAccount{"a", "sa-x"}, Address: "10.0.0.1", Health: Unhealthy, Reason: reason},
			}})
		}
		changed := c.service[0] != c.service[1] || c.service[0].IsZero()
		if got := s.Services[0]; got.Origin != svc.Origin || got.Inline[0].HealthReason != c.reason || changed && got.Ports[0] != svc.Ports[0] {
			t.Errorf("%s: the service is as it was before", name)
		}
		changed = c.endpoint[0] != c.endpoint[1] || c.endpoint[0].IsZero()
		if got := s.Workloads[0]; got.Origin != w.Origin || got.HealthReason != c.reason || changed && got.Weight != w.Weight {
			t.Errorf("%s: the workload is as it was before", name)
		}
	}
}

// TestHealthOfEachEndpointCounts: services that differ in the health of an endpoint have
// different hashes.
func TestHealthOfEachEndpointCounts(t *testing.T) {
	t.Parallel()
	svc := testService("a", "s", "")
	addresses := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	for _, a := range addresses {
		svc.Inline = append(svc.Inline, testWorkload("a", "", a, "x"))
	}
	states := []Health{HealthUnknown, Healthy, Silent, Unhealthy}
	seen := map[Hash]string{}
	for n := range len(states) * len(states) * len(states) {
		var reports []*HealthReport
		var want []Health
		for i, a := range addresses {
			h := states[n/[]int{1, len(states), len(states) * len(states)}[i]%len(states)]
			reports = append(reports, &HealthReport{ServiceAccount: ServiceAccount{"a", "sa-x"}, Address: a, Health: h})
			want = append(want, h)
		}
		s := testSnapshot(nil, &Fragment{Services: []*Service{svc}}, &Fragment{Health: reports})
		var all []Health
		for _, w := range s.Services[0].Inline {
			all = append(all, w.Health)
		}
		if !slices.Equal(all, want) {
			t.Errorf("the health of the endpoints is %d, want %d", all, want)
		}
		if was, there := seen[s.Services[0].Hash]; there {
			t.Errorf("the health %d has the hash of %s", all, was)
		}
		seen[s.Services[0].Hash] = fmt.Sprintf("%d", all)
	}
}

// TestHealthOfACatalogsInstance: the workload's own agent probes where the application is, and
// its verdict overrides the catalog's checks, unless a person took the instance out of service.
func TestHealthOfACatalogsInstance(t *testing.T) {
	t.Parallel()
	say := func(h Health, address string) *Fragment {
		return &Fragment{Source: "agents", Health: []*HealthReport{
			{ServiceAccount: ServiceAccount{"default", "sa-web"}, Address: address, Health: h, Reason: "probe", Own: true},
		}}
	}
	const here = "10.0.0.1"
	for _, c := range []struct {
		name      string
		written   Health
		withdrawn bool
		agents    *Fragment
		want      Health
	}{
		{"its_agent_says_nothing", Unhealthy, false, say(HealthUnknown, here), Unhealthy},
		{"its_agent_is_another_ones", Unhealthy, false, say(Healthy, "10.0.0.2"), Unhealthy},
		{"its_agent_knows_better", Unhealthy, false, say(Healthy, here), Healthy},
		{"its_agent_finds_it_ill", Healthy, false, say(Unhealthy, here), Unhealthy},
		{"in_maintenance", Unhealthy, true, say(Healthy, here), Unhealthy},
	} {
		w := testInstance("default", here, "web")
		w.Health, w.Withdrawn = c.written, c.withdrawn
		if c.written == Unhealthy {
			w.HealthReason = "check http: critical"
		}
		consul := &Fragment{Source: "consul", Services: []*Service{testDerived("default", "web", 80)}, Workloads: []*Workload{w}}
		for _, s := range []*Snapshot{testSnapshot(nil, consul, c.agents), testSnapshot(testSnapshot(nil, consul), consul, c.agents)} {
			got := s.EndpointsOf(s.Services[0])
			if len(got) != 1 || got[0].Health != c.want || (got[0].HealthReason == "") == (c.want == Unhealthy) {
				t.Errorf("%s: %+v", c.name, got)
			}
			if back := testSnapshot(s, consul, &Fragment{Source: "agents"}); back.Workloads[0] != w {
				t.Errorf("%s: without reports it is not as its source has it", c.name)
			}
		}
	}
	ill := testInstance("default", here, "web")
	ill.Health = Unhealthy
	out := *ill
	out.Withdrawn, out.Hash = true, Hash{1}
	if reach := Compare(&Fragment{Workloads: []*Workload{ill}}, &Fragment{Workloads: []*Workload{&out}}).Reach(); reach != ReachHealth {
		t.Errorf("to be taken out of service reaches as far as %s", reach)
	}
}
