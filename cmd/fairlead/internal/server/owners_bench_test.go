package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// BenchmarkSaveHostOwners writes the record of a mesh whose hosts are instances of
// Consul, each with an address that stands for itself.
func BenchmarkSaveHostOwners(b *testing.B) {
	for _, n := range []int{10_000, 50_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			record := map[mesh.Hostname]registry.Ownership{}
			for i := range n {
				record[mesh.Hostname(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))] = registry.Ownership{Owner: mesh.Owner{Namespace: fmt.Sprintf("team-%d", i%100)}}
			}
			store := hostOwners{filepath.Join(b.TempDir(), "host-owners.json"), filepath.Join(b.TempDir(), "range-owners.json")}
			for b.Loop() {
				if err := store.Save(record); err != nil {
					b.Fatal(err)
				}
			}
			info, err := os.Stat(store.path)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(info.Size()), "file-bytes")
		})
	}
}
