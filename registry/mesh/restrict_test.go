package mesh

import "testing"

// TestRestrictedObjectsHashTheirExports changes who sees a restricted object by the mesh's
// defaults alone: that is other content, and has another hash.
func TestRestrictedObjectsHashTheirExports(t *testing.T) {
	t.Parallel()
	contested := testService("shop", "x", "")
	restricted, routes := testService("other", "x", ""), routing("other", string(contested.Hostname))
	restricted.Hostname = contested.Hostname
	merged := func(prev *Snapshot, exports string) *Snapshot {
		config := testMeshConfig()
		config.Spec.DefaultServiceExportTo, config.Spec.DefaultVirtualServiceExportTo = []string{exports}, []string{exports}
		config.Hash = Hash{exports[0]}
		return Merge(Input{
			Prev: prev, Fallback: config, Bindings: []*Binding{nil, {Namespaces: []string{"other"}}},
			Fragments: []*Fragment{{Services: []*Service{contested}}, {Services: []*Service{restricted}, VirtualServices: []*VirtualService{routes}}},
		})
	}
	all := merged(nil, "*")
	some := merged(all, "third")
	find := func(s *Snapshot) (*Service, *VirtualService) {
		for _, svc := range s.Services {
			if svc.Namespace == "other" {
				return svc, s.VirtualServices[0]
			}
		}
		t.Fatal("the restricted service is gone")
		return nil, nil
	}
	a, routesA := find(all)
	b, routesB := find(some)
	if a.ExportTo.To("other") == b.ExportTo.To("other") || a.Hash == b.Hash {
		t.Errorf("the service: %v and %v, with the same hash: %v", a.ExportTo, b.ExportTo, a.Hash == b.Hash)
	}
	if routesA.ExportTo.To("other") == routesB.ExportTo.To("other") || routesA.Hash == routesB.Hash {
		t.Errorf("the routes: %v and %v, with the same hash: %v", routesA.ExportTo, routesB.ExportTo, routesA.Hash == routesB.Hash)
	}
	if got, want := fingerprint(t, some), fingerprint(t, merged(nil, "third")); got != want {
		t.Error("the snapshot differs from one built anew")
	}
}
