package analysis

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// addCatalogs takes what catalogs have into what checks look things up in.
// Nothing of it is checked itself: nobody wrote it.
func (w *meshIndex) addCatalogs() {
	if len(w.in.Catalogs) == 0 {
		return
	}
	w.written = map[*mesh.Origin]*manifest.Object{}
	files := &mesh.Fragment{}
	for o := range specs[*networking.ServiceEntry](w) {
		if piece := o.Fragment(); piece != nil {
			files.Append(piece)
			w.written[o.Meta.Origin] = o
		}
	}
	config := w.in.MeshConfig
	if config == nil {
		config = manifest.DefaultMeshConfig()
	}
	s := mesh.NewSnapshot(nil, config, append([]*mesh.Fragment{files.Sorted()}, w.in.Catalogs...))
	w.conflicts = s.Conflicts
	for _, svc := range s.Services {
		if svc.Catalog {
			w.addService(&service{object: derived(&svc.Meta), spec: entryOf(svc), host: svc.Hostname, catalog: true})
		}
	}
	for _, f := range w.in.Catalogs {
		for _, x := range f.Workloads {
			w.workloads.add(&workload{object: derived(&x.Meta), labels: x.Labels, spec: &networking.WorkloadEntry{
				Address: x.Address, Ports: x.Ports, Labels: x.Labels, ServiceAccount: x.ServiceAccount, Weight: x.Weight,
			}})
		}
	}
}

// derived is an object that no file has.
func derived(m *mesh.Meta) *manifest.Object { return &manifest.Object{Meta: *m, Valid: true} }

// entryOf is the ServiceEntry that somebody would have written for a service.
func entryOf(svc *mesh.Service) *networking.ServiceEntry {
	out := &networking.ServiceEntry{
		Hosts: []string{string(svc.Hostname)}, Addresses: svc.Addresses, ExportTo: svc.ExportTo,
		Resolution: networking.ServiceEntry_STATIC, SubjectAltNames: svc.SubjectAltNames,
		WorkloadSelector: &networking.WorkloadSelector{Labels: svc.Selector},
	}
	if svc.Resolution == mesh.ResolutionDNS {
		out.Resolution = networking.ServiceEntry_DNS
	}
	if !svc.External {
		out.Location = networking.ServiceEntry_MESH_INTERNAL
	}
	for _, p := range svc.Ports {
		out.Ports = append(out.Ports, &networking.ServicePort{Name: p.Name, Number: p.Number, Protocol: string(p.Protocol), TargetPort: p.TargetPort})
	}
	return out
}

// catalogHosts warns of a host that a ServiceEntry has and a catalog too, and of
// services on which two catalogs do not agree.
func catalogHosts(w *meshIndex, r *report) {
	fields := hostFields{}
	for _, c := range w.conflicts {
		switch o := w.written[c.Kept]; {
		case c.Reason == "":
			// Two objects of one name, which another check tells.
		case c.Host == "":
			r.found = append(r.found, Diagnostic{Code: CodeCatalogsDiffer, Severity: Warning, Message: c.Reason, Origin: c.Dropped, Key: c.Key})
		case o != nil:
			r.warn(place{o, fields.of(w, o, c.Host)}, "%s of the catalog has this host too: %s", c.Key.Name, c.Reason)
		}
	}
}

// catalogSelectors are the selectors of the services of catalogs, by namespace.
func (w *meshIndex) catalogSelectors(yield func(namespace string, selector map[string]string) bool) {
	for _, s := range w.services {
		if s.catalog && !yield(s.object.Meta.Namespace, s.spec.GetWorkloadSelector().GetLabels()) {
			return
		}
	}
}
