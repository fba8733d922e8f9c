package files

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// file is a file as it is believed. The loop owns it.
type file struct {
	path string
	root *root
	sig  sig
	// suspect says that the next scan shall read the file though it looks the
	// same: it was read too soon after its last change.
	suspect bool
	v       *version
}

func (f *file) compare(o *file) int {
	return cmp.Or(cmp.Compare(f.root.order, o.root.order), cmp.Compare(f.path, o.path))
}

// Kept is an object whose text is broken and whose last good version stands.
type Kept struct {
	Key mesh.Key `json:"key"`
	// Origin is where the version that stands was read; the file is another now.
	Origin *mesh.Origin `json:"origin"`
	// Since is when the text was first found broken.
	Since time.Time `json:"since"`
}

// assembly is what a set of files comes to.
type assembly struct {
	fragment *mesh.Fragment
	faults   []manifest.Fault
	kept     []Kept
	objects  int
}

// assemble merges the files, which are in their order. It is pure: equal
// files give equal fragments.
func assemble(source string, list []*file) assembly {
	var (
		a       = assembly{fragment: &mesh.Fragment{Source: source}}
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
	a.faults = append(a.faults, twice(list, winners)...)
	slices.SortStableFunc(a.faults, compareFaults)
	a.objects = len(chosen)
	slices.SortFunc(chosen, func(a, b *good) int { return a.Key.Compare(b.Key) })
	for _, g := range chosen {
		a.fragment.Append(g.Piece)
	}
	return a
}

func keptFault(f *file, k keptGood) manifest.Fault {
	at := &mesh.Origin{Path: f.path}
	for _, o := range f.v.seen {
		if o.Key == k.Key {
			at = o.Origin
		}
	}
	flt := faultAt(at, k.Key, CodeKept, fmt.Sprintf("the last good version, last found at %s, "+
		"stands until this file is mended or the object is taken out of it", k.Origin))
	flt.Severity = manifest.Warning
	return flt
}

// twice finds the objects that are written more than once. The first by path
// is in force, unless it is broken and another is not.
func twice(list []*file, winners map[mesh.Key]*file) []manifest.Fault {
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

// equalFragments reports whether two fragments hold the same pointers.
func equalFragments(a, b *mesh.Fragment) bool {
	return a != nil && b != nil && a.MeshConfig == b.MeshConfig &&
		slices.Equal(a.Services, b.Services) && slices.Equal(a.Workloads, b.Workloads) &&
		slices.Equal(a.WorkloadGroups, b.WorkloadGroups) && slices.Equal(a.VirtualServices, b.VirtualServices) &&
		slices.Equal(a.DestinationRules, b.DestinationRules) && slices.Equal(a.Sidecars, b.Sidecars) &&
		slices.Equal(a.PeerAuthentications, b.PeerAuthentications) && slices.Equal(a.Unenforced, b.Unenforced)
}
