package mesh

import (
	"slices"
	"testing"
)

func TestMovedWorkloads(t *testing.T) {
	t.Parallel()
	of := func(name string, change func(*Workload)) *Fragment {
		w := &Workload{
			Meta:    Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: name}, Labels: map[string]string{LabelConsulService: "api"}},
			Address: "10.0.0.1", ServiceAccount: "api", Ports: map[string]uint32{"http": 80},
		}
		change(w)
		return &Fragment{Workloads: []*Workload{w}}
	}
	for name, c := range map[string]struct {
		change func(*Workload)
		moved  bool
	}{
		"only_the_name": {func(*Workload) {}, true},
		"health":        {func(w *Workload) { w.Health = Unhealthy }, true},
		"namespace":     {func(w *Workload) { w.Namespace = "other" }, false},
		"account":       {func(w *Workload) { w.ServiceAccount = "other" }, false},
		"address":       {func(w *Workload) { w.Address = "10.0.0.2" }, false},
		"ports":         {func(w *Workload) { w.Ports = map[string]uint32{"http": 81} }, false},
		"service":       {func(w *Workload) { w.Labels = map[string]string{LabelConsulService: "web"} }, false},
	} {
		prev := of("a", func(*Workload) {})
		if got := Compare(prev, of("b", c.change)).Moved()[prev.Workloads[0].Key]; got != c.moved {
			t.Errorf("%s: moved is %v, want %v", name, got, c.moved)
		}
	}
}

func TestLostAddressesAreSorted(t *testing.T) {
	t.Parallel()
	of := func(addresses ...string) *Fragment {
		svc := testService("shop", "api", "")
		for _, a := range addresses {
			svc.Inline = append(svc.Inline, &Workload{Address: a})
		}
		return &Fragment{Services: []*Service{svc}}
	}
	lost := Compare(of("10.0.0.3", "10.0.0.2", "10.0.0.1", "10.0.0.2"), of("10.0.0.2")).LostInline()
	if len(lost) != 1 || !slices.Equal(lost[0].Addresses, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}) {
		t.Errorf("lost: %v", lost)
	}
}

func TestUnsortedFragmentsAreNoticed(t *testing.T) {
	t.Parallel()
	a, b := testWorkload("shop", "a", "10.0.0.1", "api"), testWorkload("shop", "b", "10.0.0.2", "api")
	of := func(list ...*Workload) *Fragment { return &Fragment{Workloads: list} }
	for name, c := range map[string]struct {
		prev, next *Fragment
		unsorted   bool
	}{
		"sorted":   {of(a), of(a, b), false},
		"unsorted": {of(a), of(b, a), true},
		"fresh":    {nil, of(b, a), true},
	} {
		if got := Compare(c.prev, c.next).Unsorted(); got != c.unsorted {
			t.Errorf("%s: unsorted %v", name, got)
		}
	}
}
