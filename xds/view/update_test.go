package view

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// update builds the views of a mesh before and after an edit, the second one from the first.
// It fails if the second is not the one that is built from nothing. It returns both.
func (w *meshFixture) update(edit func()) (updated, built *View) {
	w.tb.Helper()
	p := proxyIn("shop", nil)
	snapshot := func(prev *mesh.Snapshot, mc *mesh.MeshConfig) *mesh.Snapshot {
		return mesh.NewSnapshot(prev, mc, []*mesh.Fragment{smallmesh.Clone(w.f.Sorted())})
	}
	s := snapshot(nil, &mesh.MeshConfig{Spec: w.mc})
	x := NewIndex(s)
	v := x.Rebuild(nil, p)
	edit()
	next := snapshot(s, s.MeshConfig)
	updated, built = x.Next(next).Rebuild(v, p), NewIndex(next).Build(p)
	if d := differenceOf(built, updated); d != "" {
		w.tb.Fatal(d)
	}
	return updated, built
}

// routeTo replaces the VirtualService of a name by one that leads elsewhere.
func (w *meshFixture) routeTo(name, host, to string) {
	w.tb.Helper()
	for i, vs := range w.f.VirtualServices {
		if vs.Name == name {
			w.f.VirtualServices = append(w.f.VirtualServices[:i:i], w.f.VirtualServices[i+1:]...)
			defer func(created mesh.Meta) {
				w.f.VirtualServices[len(w.f.VirtualServices)-1].Created = created.Created
			}(vs.Meta)
			break
		}
	}
	w.routes("shop", name, `{"hosts":["`+host+`"],"http":[{"match":[{"uri":{"prefix":"/`+to+`"}}],"route":[{"destination":{"host":"`+to+`"}}]}]}`)
}

// From manyEdits on, the services are indexed for all edits.
func TestManyRoutesChangeAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, manyEdits - 1, manyEdits, manyEdits + 1, 3 * manyEdits} {
		w := newMeshFixture(t)
		w.service("shop", "a.mesh", 80)
		w.service("shop", "b.mesh", 80)
		name := func(i int) string { return fmt.Sprintf("r%d", i) }
		for i := range 3 * manyEdits {
			w.service("shop", name(i)+".mesh", 80)
			w.routeTo(name(i), name(i)+".mesh", "a.mesh")
		}
		updated, _ := w.update(func() {
			for i := range n {
				w.routeTo(name(i), name(i)+".mesh", "b.mesh")
			}
		})
		to := 0
		for p := range updated.Parts() {
			if rc, ok := p.(*RouteConfiguration); ok {
				for _, vh := range rc.VirtualHosts {
					if strings.HasPrefix(vh.Name, "r") && strings.Contains(fmt.Sprintf("%+v", vh.Routes[0]), "b.mesh") {
						to++
					}
				}
			}
		}
		if to != n {
			t.Errorf("%d virtual hosts lead to b.mesh, want %d", to, n)
		}
	}
}

// Services come, go and move in one step, with hosts that meet those of others, for proxies
// with and without a Sidecar.
func TestServicesOfOneHostComeAndGoAtOnce(t *testing.T) {
	t.Parallel()
	type service struct {
		ns, host string
		ports    []uint32
	}
	states := [][]service{
		nil,
		{{"shop", "x.mesh", []uint32{80}}},
		{{"other", "x.mesh", []uint32{80}}},
		{{"shop", "x.mesh", []uint32{80, 81}}},
		{{"shop", "x.mesh", []uint32{80}}, {"other", "x.mesh", []uint32{80, 81}}},
		{{"other", "x.mesh", []uint32{81}}, {"shop", "x.mesh", []uint32{80}}},
		{{"shop", "*.mesh", []uint32{80}}},
		{{"other", "*", []uint32{80}}},
		{{"shop", "x.mesh", []uint32{80}}, {"shop", "*", []uint32{80}}, {"other", "y.mesh", []uint32{81, 80}}},
	}
	sidecars := []string{
		"", `{"egress":[{"hosts":["*/*"]}]}`, `{"egress":[{"hosts":["shop/*"]}]}`,
		`{"egress":[{"port":{"number":80,"protocol":"HTTP","name":"http"},"hosts":["*/*"]}]}`,
		`{"egress":[{"port":{"number":80,"protocol":"HTTP","name":"http"},"hosts":["other/*"]},{"hosts":["*/*"]}]}`,
	}
	for _, sidecar := range sidecars {
		for i, from := range states {
			for j, to := range states {
				w := newMeshFixture(t)
				w.service("shop", "a.mesh", 80)
				w.service("other", "b.mesh", 80, 81)
				if sidecar != "" {
					w.sidecar("shop", "s", sidecar)
				}
				kept := w.f
				add := func(list []service) {
					w.f = *smallmesh.Clone(&kept)
					for _, s := range list {
						w.service(s.ns, s.host, s.ports...)
					}
				}
				add(from)
				t.Logf("Sidecar %s, from %d to %d", sidecar, i, j) // told if the update fails
				w.update(func() { add(to) })
			}
		}
	}
}

// What people are told of the origin of a virtual host is of the newest version.
func TestOriginsOfChangedRoutes(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for _, host := range []string{"a.mesh", "b.mesh", "c.mesh"} {
		w.service("shop", host, 80)
	}
	w.routeTo("r", "a.mesh", "b.mesh")
	updated, built := w.update(func() { w.routeTo("r", "a.mesh", "c.mesh") })
	of := func(v *View) *VirtualHost {
		rc := findPart(t, v, func(rc *RouteConfiguration) bool { return rc.Name == "80" })
		for _, vh := range rc.VirtualHosts {
			if vh.Name == "a.mesh:80" {
				return vh
			}
		}
		t.Fatal("no virtual host")
		return nil
	}
	got, want := of(updated).Origins(), of(built).Origins()
	if len(want) < 2 || !reflect.DeepEqual(got, want) {
		t.Errorf("origins %v, want %v", got, want)
	}
}
