package lastgood

import (
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// assembleWhole merges the texts, which are in their order. It is pure: equal
// texts give equal fragments.
func assembleWhole(source string, list []*Text) Assembly {
	var (
		a       = Assembly{Fragment: &mesh.Fragment{Source: source}}
		winners = map[mesh.Key]*Text{}
		chosen  []*good
	)
	for _, f := range list {
		a.Faults = append(a.Faults, f.V.faults...)
		for _, o := range f.V.seen {
			if _, taken := winners[o.Key]; taken || f.V.live[o.Key] == nil {
				continue
			}
			winners[o.Key] = f
			chosen = append(chosen, f.V.live[o.Key])
		}
	}
	for _, f := range list {
		for _, k := range f.V.keptList() {
			if winners[k.Key] != nil {
				continue
			}
			winners[k.Key] = f
			chosen = append(chosen, k.good)
			a.Kept = append(a.Kept, Kept{Key: k.Key, Origin: k.Origin, Since: k.since})
			a.Faults = append(a.Faults, keptFault(f, k, "file"))
		}
	}
	a.Faults = append(a.Faults, twiceWhole(list, winners)...)
	for _, f := range list {
		for _, key := range keysOf(f.V.denied) {
			if winners[key] != nil {
				continue
			}
			winners[key] = f
			chosen = append(chosen, f.V.denied[key])
			a.Faults = append(a.Faults, deniesFault(f.V.denied[key]))
		}
	}
	slices.SortStableFunc(a.Faults, CompareFaults)
	a.Objects = len(chosen)
	slices.SortFunc(chosen, func(a, b *good) int { return a.Key.Compare(b.Key) })
	for _, g := range chosen {
		a.Fragment.Append(g.Fragment)
	}
	return a
}

// twiceWhole finds the objects that are written more than once. The first by path
// is in force, unless it is broken and another is not.
func twiceWhole(list []*Text, winners map[mesh.Key]*Text) []manifest.Fault {
	type place struct {
		f *Text
		o *Object
	}
	first := map[mesh.Key]place{}
	var faults []manifest.Fault
	for _, f := range list {
		for _, o := range f.V.seen {
			if o.Key.Name == "" {
				continue
			}
			p, again := first[o.Key]
			if !again {
				first[o.Key] = place{f, o}
				continue
			}
			if p.f.twin(f) {
				continue // one file, reached by two paths
			}
			which := "the first by path, " + p.o.Origin.String() + ", is in force"
			if w := winners[o.Key]; w == nil {
				which = "neither is in force"
			} else if w != p.f {
				which = "the first by path is broken, that in " + w.Path + " is in force"
			}
			message := fmt.Sprintf("defined twice, at %s and at %s: %s; remove one of them", p.o.Origin, o.Origin, which)
			faults = append(faults, faultAt(o.Origin, o.Key, CodeTwice, message))
		}
	}
	return faults
}
