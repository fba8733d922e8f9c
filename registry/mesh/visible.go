package mesh

// ServicesVisibleTo returns the services that the namespace may use, sorted as
// Services: those exported to it. Where a service does not say, MeshConfig's
// defaultServiceExportTo does.
func (s *Snapshot) ServicesVisibleTo(namespace string) []*Service {
	for i, svc := range s.Services {
		if s.ServiceVisibleTo(svc, namespace) {
			continue
		}
		out := append(make([]*Service, 0, len(s.Services)-1), s.Services[:i]...)
		for _, svc := range s.Services[i+1:] {
			if s.ServiceVisibleTo(svc, namespace) {
				out = append(out, svc)
			}
		}
		return out
	}
	return s.Services // the usual case costs no copy
}

// ServiceVisibleTo reports whether a service is exported to a namespace, and not
// [Snapshot.Shadowed].
func (s *Snapshot) ServiceVisibleTo(svc *Service, namespace string) bool {
	return !s.Shadowed(svc, namespace) && exportedTo(svc.ExportTo, s.MeshConfig.Spec.GetDefaultServiceExportTo(), svc.Namespace, namespace)
}

// VirtualServiceVisibleTo reports whether a VirtualService is exported to a
// namespace.
func (s *Snapshot) VirtualServiceVisibleTo(vs *VirtualService, namespace string) bool {
	return exportedTo(vs.ExportTo, s.MeshConfig.Spec.GetDefaultVirtualServiceExportTo(), vs.Namespace, namespace)
}

// DestinationRuleVisibleTo reports whether a DestinationRule is exported to a
// namespace.
func (s *Snapshot) DestinationRuleVisibleTo(dr *DestinationRule, namespace string) bool {
	return exportedTo(dr.ExportTo, s.MeshConfig.Spec.GetDefaultDestinationRuleExportTo(), dr.Namespace, namespace)
}

// exportedTo applies the mesh's default where the object says nothing. In the
// default "." is still written so, as it means another namespace each time.
func exportedTo(exports Exports, fallback []string, own, namespace string) bool {
	if len(exports) > 0 {
		return exports.To(namespace)
	}
	resolved := make(Exports, 0, len(fallback))
	for _, e := range fallback {
		switch e {
		case "*":
			return true
		case ".":
			resolved = append(resolved, own)
		default:
			resolved = append(resolved, e)
		}
	}
	return resolved.To(namespace)
}
