package files

import (
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// wholeAssembly is what a set of files comes to.
type wholeAssembly struct {
	fragment *mesh.Fragment
	faults   []manifest.Fault
	kept     []Kept
	objects  int
}

// assembleWhole merges the files, which are in their order. It is pure: equal
// files give equal fragments.
func assembleWhole(source string, list []*file) wholeAssembly {
	var (
		a       = wholeAssembly{fragment: &mesh.Fragment{Source: source}}
		winners = map[mesh.Key]*file{}
		chosen  []*good
	)
	for _, f := range list {
		a.faults = append(a.faults, f.v.faults...)
		for _, o := range f.v.seen {
			if _, taken := winners[o.Key]; taken || f.v.live[o.Key] == nil {
				continue
			}
			winners[o.Key] = f
			chosen = append(chosen, f.v.live[o.Key])
		}
	}
	for _, f := range list {
		for _, k := range f.v.keptList() {
			if winners[k.Key] != nil {
				continue
			}
			winners[k.Key] = f
			chosen = append(chosen, k.good)
			a.kept = append(a.kept, Kept{Key: k.Key, Origin: k.Origin, Since: k.since})
			a.faults = append(a.faults, keptFault(f, k))
		}
	}
	a.faults = append(a.faults, twiceWhole(list, winners)...)
	slices.SortStableFunc(a.faults, compareFaults)
	a.objects = len(chosen)
	slices.SortFunc(chosen, func(a, b *good) int { return a.Key.Compare(b.Key) })
	for _, g := range chosen {
		a.fragment.Append(g.Piece)
	}
	return a
}

// twiceWhole finds the objects that are written more than once. The first by path
// is in force, unless it is broken and another is not.
func twiceWhole(list []*file, winners map[mesh.Key]*file) []manifest.Fault {
	type place struct {
		f *file
		o Object
	}
	first := map[mesh.Key]place{}
	var faults []manifest.Fault
	for _, f := range list {
		for _, o := range f.v.seen {
			if o.Key.Name == "" {
				continue
			}
			p, again := first[o.Key]
			if !again {
				first[o.Key] = place{f, o}
				continue
			}
			if p.f != f && p.f.sig == f.sig && p.f.v.blob.hash == f.v.blob.hash {
				continue // one file, reached by two paths
			}
			which := "the first by path, " + p.o.Origin.String() + ", is in force"
			if w := winners[o.Key]; w == nil {
				which = "neither is in force"
			} else if w != p.f {
				which = "the first by path is broken, that in " + w.path + " is in force"
			}
			message := fmt.Sprintf("defined twice, at %s and at %s: %s; remove one of them", p.o.Origin, o.Origin, which)
			faults = append(faults, faultAt(o.Origin, o.Key, CodeTwice, message))
		}
	}
	return faults
}
