package server

import (
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// HashTables are the tables of consistentHash of one proxy.
type HashTables struct {
	// Clusters is how many clusters have tables, Entries what these have together, and Bytes about what they take.
	Clusters int    `json:"clusters"`
	Entries  uint64 `json:"entries"`
	Bytes    uint64 `json:"bytes"`
	// Largest is the cluster that has the most.
	Largest LargestTable `json:"largest"`
}

// LargestTable is a cluster with its tables.
type LargestTable struct {
	Cluster string `json:"cluster"`
	Entries uint64 `json:"entries"`
	// DestinationRules are the names of those that it was made from, Origins where these and then the service are
	// written.
	DestinationRules []string `json:"destination_rules,omitempty"`
	Origins          []string `json:"origins,omitempty"`
}

// hashTablesOf names the rules of the largest table by where they are written; nil without tables.
func hashTablesOf(t *view.HashTables, rules func() map[string]string) *HashTables {
	if t.Entries == 0 {
		return nil
	}
	out := &HashTables{
		Clusters: t.Clusters, Entries: t.Entries, Bytes: t.Entries * view.HashTableEntrySize,
		Largest: LargestTable{
			Cluster: envoy.ClusterName{Direction: envoy.Outbound, Port: t.Largest.Port, Subset: t.Largest.Subset, Host: t.Largest.Host}.String(), Entries: t.LargestEntries,
		},
	}
	names, others := rules(), []string(nil)
	for _, o := range t.LargestOrigins {
		at := o.String()
		if name, ok := names[at]; ok {
			out.Largest.DestinationRules = append(out.Largest.DestinationRules, name)
			out.Largest.Origins = append(out.Largest.Origins, at)
		} else {
			others = append(others, at)
		}
	}
	out.Largest.Origins = append(out.Largest.Origins, others...)
	return out
}
