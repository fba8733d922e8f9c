package mesh

import "testing"

func TestChangedFile(t *testing.T) {
	t.Parallel()
	at := func(path, name string) Meta {
		return Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: name}, Origin: &Origin{Path: path}}
	}
	a, a2 := &Workload{Meta: at("a.yaml", "a")}, &Workload{Meta: at("a.yaml", "a"), Address: "10.0.0.1"}
	b := &Workload{Meta: at("b.yaml", "b")}
	group := Meta{Key: Key{Kind: KindWorkloadGroup, Namespace: "shop", Name: "g"}, Origin: &Origin{Path: "a.yaml"}}
	of := func(list ...*Workload) *Fragment { return &Fragment{Workloads: list} }
	for name, c := range map[string]struct {
		prev, next *Fragment
		want       string
	}{
		"nothing":      {of(a, b), of(a, b), ""},
		"changed":      {of(a, b), of(a2, b), "a.yaml"},
		"removed":      {of(a, b), of(b), "a.yaml"},
		"two_files":    {of(a, b), of(a2), ""},
		"two_kinds":    {of(a), &Fragment{Workloads: []*Workload{a2}, WorkloadGroups: []*WorkloadGroup{{Meta: group}}}, "a.yaml"},
		"settings":     {of(a), &Fragment{Workloads: []*Workload{a2}, MeshConfig: &MeshConfig{}}, ""},
		"first":        {nil, of(a), ""},
		"of_no_origin": {of(a), of(a, &Workload{Meta: Meta{Key: Key{Name: "z"}}}), ""},
	} {
		if got := ChangedFile(c.prev, c.next); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
