package meshgen

import (
	"reflect"
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestSameSeedSameMesh: a seed gives the same mesh, whatever was made before.
func TestSameSeedSameMesh(t *testing.T) {
	t.Parallel()
	var prints []mesh.Hash
	for range 2 {
		g := New(5, NewCoverage())
		for range 10 {
			g.Step(3)
		}
		h, err := mesh.Merge(g.Input(nil)).Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, h)
		New(6, NewCoverage()).Step(10)
	}
	if prints[0] != prints[1] {
		t.Error("the same seed gives two meshes")
	}
}

// TestForksAreIndependent: a fork begins with the mesh of its generator. What it does is a function
// of its seed, and changes neither the generator nor another fork.
func TestForksAreIndependent(t *testing.T) {
	t.Parallel()
	fingerprint := func(g *Generator) mesh.Hash {
		h, err := mesh.Merge(g.Input(nil)).Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	g := New(5, NewCoverage())
	begin, waiting := fingerprint(g), g.Fork(1, NewCoverage())
	var ends []mesh.Hash
	for _, seed := range []uint64{1, 2, 1} {
		fork := g.Fork(seed, NewCoverage())
		if fingerprint(fork) != begin {
			t.Error("a fork begins with another mesh")
		}
		for range 10 {
			fork.Step(10)
		}
		ends = append(ends, fingerprint(fork))
	}
	if ends[0] != ends[2] || ends[0] == ends[1] || ends[0] == begin {
		t.Error("what a fork does is no function of its seed")
	}
	if fingerprint(g) != begin || fingerprint(waiting) != begin {
		t.Error("a fork changes its generator, or another fork")
	}
}

// TestGeneratorCoversAllKinds: every kind in force is generated, with all its fields, and
// so is every other kind that contributes to a mesh.
func TestGeneratorCoversAllKinds(t *testing.T) {
	t.Parallel()
	g := New(1, NewCoverage())
	for kind := range manifest.InForce() {
		if kind == mesh.KindProxyConfig { // see withoutAgents
			continue
		}
		i := slices.IndexFunc(Kinds(), func(k *Kind) bool { return k.Name == kind })
		if i < 0 || len(Kinds()[i].Fields) == 0 || !slices.Contains(g.Kinds(), string(kind)) {
			t.Errorf("%s is in force, and not in a mesh, or without a field", kind)
		}
	}
	var lists []string
	for f := range reflect.TypeFor[mesh.Fragment]().Fields() {
		lists = append(lists, "Fragment."+f.Name)
	}
	for _, f := range lists {
		if f != "Fragment.Source" && !slices.Contains(Fields(), f) {
			t.Errorf("%s is not among the fields that have to be set", f)
		}
	}
}
