package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestHashTablesNameTheirRule: the largest table is shown with its cluster, and with the rule before the service.
func TestHashTablesNameTheirRule(t *testing.T) {
	t.Parallel()
	at := func(path string) *mesh.Origin { return &mesh.Origin{Source: "files", Path: path, Line: 1, Column: 1} }
	got := hashTablesOf(&view.HashTables{
		Clusters: 2, Entries: 3000, Largest: view.Outbound("a.mesh", 80, "v1"), LargestEntries: 2000, LargestOrigins: []*mesh.Origin{at("s.yaml"), at("r.yaml")},
	}, func() map[string]string { return map[string]string{at("r.yaml").String(): "r.shop"} })
	want := &HashTables{Clusters: 2, Entries: 3000, Bytes: 72_000, Largest: LargestTable{
		Cluster: "outbound|80|v1|a.mesh", Entries: 2000, DestinationRules: []string{"r.shop"}, Origins: []string{at("r.yaml").String(), at("s.yaml").String()},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := hashTablesOf(&view.HashTables{}, nil); got != nil {
		t.Errorf("without tables: %+v", got)
	}
}
