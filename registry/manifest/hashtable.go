package manifest

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// limitTables refuses a rule of a source that is bound to namespaces, of which one cluster would have too large a
// table for consistentHash. What the rules of a source have together is counted where sources are merged.
func (o *Object) limitTables(r *reporter) {
	spec, ok := o.Spec.(*networking.DestinationRule)
	if !ok || HasErrors(r.faults) {
		return
	}
	if n, at := mesh.LargestHashTable(spec); n > mesh.MaxHashTable {
		at += ".consistentHash"
		r.add(CodeHashTables, o.root.Nearest(at), at, fmt.Sprintf("refused: the table of consistentHash has %d entries in each cluster; in a source that is bound to namespaces it may have %d: "+
			"write a smaller ringHash.minimumRingSize or maglev.tableSize", n, mesh.MaxHashTable))
	}
}
