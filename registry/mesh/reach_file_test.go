package mesh

import "testing"

func TestFilesOfADifference(t *testing.T) {
	t.Parallel()
	at := func(path, name string) Meta {
		return Meta{Key: Key{Kind: KindSidecar, Namespace: "shop", Name: name}, Origin: &Origin{Path: path}}
	}
	a, a2 := &Sidecar{Meta: at("a.yaml", "a")}, &Sidecar{Meta: at("a.yaml", "a")}
	b, c := &Sidecar{Meta: at("b.yaml", "b")}, &Sidecar{Meta: at("c.yaml", "c")}
	group := Meta{Key: Key{Kind: KindWorkloadGroup, Namespace: "shop", Name: "g"}, Origin: &Origin{Path: "a.yaml"}}
	workload := Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: "w"}, Origin: &Origin{Path: "w.yaml"}}
	of := func(list ...*Sidecar) *Fragment { return &Fragment{Sidecars: list} }
	for name, c := range map[string]struct {
		prev, next *Fragment
		want       int
	}{
		"nothing":   {of(a, b), of(a, b), 0},
		"changed":   {of(a, b), of(a2, b), 1},
		"removed":   {of(a, b), of(b), 1},
		"two_files": {of(a, b), of(a2), 2},
		"two_kinds": {of(a), &Fragment{Sidecars: []*Sidecar{a2}, WorkloadGroups: []*WorkloadGroup{{Meta: group}}}, 1},
		"settings":  {of(a), &Fragment{Sidecars: []*Sidecar{a2}, MeshConfig: &MeshConfig{}}, 2},
		"no_more":   {nil, of(a, b, c), 2},
		"workloads": {of(a), &Fragment{Sidecars: []*Sidecar{a2}, Workloads: []*Workload{{Meta: workload}}}, 1},
	} {
		if got := Compare(c.prev, c.next).Files(2); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
