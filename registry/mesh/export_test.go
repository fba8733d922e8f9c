package mesh

import "reflect"

// Deltas are the lists of a Diff, of which each is what [DeltasOf] gives for a type.
func Deltas(d *Diff) map[reflect.Type]any { return d.kinds }
