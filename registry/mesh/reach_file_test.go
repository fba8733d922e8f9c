package mesh

import (
	"reflect"
	"testing"
	"time"
)

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

// Two objects without a hash are not equal because both have none.
func TestReachWithoutHashes(t *testing.T) {
	t.Parallel()
	of := func(account string) *Fragment {
		return &Fragment{Workloads: []*Workload{{Meta: Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: "w"}}, ServiceAccount: account}}}
	}
	if got := Compare(of("a"), of("b")).Reach(); got != ReachEndpoints {
		t.Errorf("reach is %s, want %s", got, ReachEndpoints)
	}
	if got := Compare(of("a"), of("a")).Reach(); got != ReachNone {
		t.Errorf("reach of nothing is %s", got)
	}
}

func TestReachOfMeshConfigAndHealth(t *testing.T) {
	t.Parallel()
	config := func(h byte) *Fragment { return &Fragment{MeshConfig: &MeshConfig{Meta: Meta{Hash: Hash{h}}}} }
	report := func(address, reason string) *Fragment {
		return &Fragment{Health: []*HealthReport{{Address: address, Reason: reason}}}
	}
	for name, c := range map[string]struct {
		prev, next *Fragment
		want       Reach
	}{
		"workload_and_report": {&Fragment{}, &Fragment{Workloads: []*Workload{testWorkload("shop", "w", "10.0.0.1", "api")}, Health: report("10.0.0.1", "a").Health}, ReachEndpoints},
		"config_added":        {&Fragment{}, config(1), ReachConfig},
		"config_removed":      {config(1), &Fragment{}, ReachConfig},
		"config_changed":      {config(1), config(2), ReachConfig},
		"config_equal":        {config(1), config(1), ReachNone},
		"report_added":        {&Fragment{}, report("10.0.0.1", "a"), ReachHealth},
		"report_removed":      {report("10.0.0.1", "a"), &Fragment{}, ReachHealth},
		"report_changed":      {report("10.0.0.1", "a"), report("10.0.0.1", "b"), ReachHealth},
		"report_equal":        {report("10.0.0.1", "a"), report("10.0.0.1", "a"), ReachNone},
	} {
		if got := Compare(c.prev, c.next).Reach(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if same := c.prev.MeshConfig == c.next.MeshConfig && len(c.prev.Workloads) == len(c.next.Workloads); c.prev.Same(c.next) != same {
			t.Errorf("%s: Same is not %v", name, same)
		}
	}
}

// TestReachOfMetadata changes each field of the metadata of a workload alone: all of them but
// where it is written may matter to endpoints.
func TestReachOfMetadata(t *testing.T) {
	t.Parallel()
	values := map[string]any{
		"Key": Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: "other"}, "Labels": map[string]string{"a": "b"},
		"Annotations": map[string]string{"a": "b"}, "Created": time.Unix(1, 0), "Hash": Hash{2}, "Origin": &Origin{Path: "b.yaml"},
	}
	for i := range reflect.TypeFor[Meta]().NumField() {
		name := reflect.TypeFor[Meta]().Field(i).Name
		a := &Workload{Meta: Meta{Key: Key{Kind: KindWorkloadEntry, Namespace: "shop", Name: "w"}, Hash: Hash{1}, Origin: &Origin{Path: "a.yaml"}}}
		b := &Workload{Meta: a.Meta}
		reflect.ValueOf(&b.Meta).Elem().Field(i).Set(reflect.ValueOf(values[name]))
		want := ReachEndpoints
		if name == "Hash" || name == "Origin" {
			want = ReachNone
		}
		if got := reachOfWorkload(a, b); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
