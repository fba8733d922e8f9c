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
	// shard is that of the state directory.
	shard int
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

// assembly is what a set of files comes to. Once made, it is only changed where
// the files did; see [assembly.update].
type assembly struct {
	fragment *mesh.Fragment
	faults   []manifest.Fault
	kept     []Kept
	objects  int
}

// update brings an assembly up to date. Equal files give equal assemblies,
// whatever came before.
func (a *assembly) update(t *tree) {
	var out, in []*mesh.Fragment
	for key, before := range t.touched {
		_, g, _ := t.claims.winner(key)
		var now *mesh.Fragment
		if g != nil {
			now = g.Piece
		}
		if before == now {
			continue
		}
		if before != nil {
			out = append(out, before)
			a.objects--
		}
		if now != nil {
			in = append(in, now)
			a.objects++
		}
	}
	t.touched = map[mesh.Key]*mesh.Fragment{} // it was large once
	a.fragment = a.fragment.Replace(out, in)
	if !t.faulty {
		return
	}
	t.faulty = false
	a.faults, a.kept = nil, nil
	for _, f := range t.order {
		a.faults = append(a.faults, f.v.faults...)
		for _, k := range f.v.keptList() {
			if by, _, kept := t.claims.winner(k.Key); by != f || !kept {
				continue
			}
			a.kept = append(a.kept, Kept{Key: k.Key, Origin: k.Origin, Since: k.since})
			a.faults = append(a.faults, keptFault(f, k))
		}
	}
	for key, list := range t.claims.more {
		a.faults = append(a.faults, t.claims.twice(key, list)...)
	}
	slices.SortStableFunc(a.faults, compareFaults)
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

// equalFragments reports whether two fragments hold the same pointers.
func equalFragments(a, b *mesh.Fragment) bool {
	if a == b {
		return true
	}
	return a != nil && b != nil && a.MeshConfig == b.MeshConfig &&
		slices.Equal(a.Services, b.Services) && slices.Equal(a.Workloads, b.Workloads) &&
		slices.Equal(a.WorkloadGroups, b.WorkloadGroups) && slices.Equal(a.VirtualServices, b.VirtualServices) &&
		slices.Equal(a.DestinationRules, b.DestinationRules) && slices.Equal(a.Sidecars, b.Sidecars) &&
		slices.Equal(a.PeerAuthentications, b.PeerAuthentications) && slices.Equal(a.Unenforced, b.Unenforced)
}
