package mapping

import (
	"strings"
)

// Identity is who a service is in the mesh, by its name and the settings alone.
type Identity struct {
	// ID is the value of mesh.LabelConsulService of its instances.
	ID string
	// Namespace and ServiceAccount are its identity.
	Namespace, ServiceAccount string
	// Shared says why others may have the same identity; empty if nobody else can by the
	// setting that gives it.
	Shared string
}

// Identify says who a service is in the mesh; namespace and partition are empty where Consul has
// none. The reason is empty, or says why the service is not in the mesh.
func (m *Mapper) Identify(service, namespace, partition string) (id Identity, reason string) {
	w := &serviceMapping{m: m, in: &Input{Service: service, Namespace: namespace, Partition: partition}, notes: notes{about: sanitizeName(service)}}
	if !w.identify() {
		var reasons []string
		for _, n := range w.sorted() {
			reasons = append(reasons, n.Message)
		}
		if len(reasons) == 0 {
			return Identity{}, "the settings leave it out"
		}
		return Identity{}, strings.Join(reasons, "; ")
	}
	id = Identity{ID: w.id, Namespace: w.namespace, ServiceAccount: w.account}
	_, exact := m.rules.of(w.fullName())
	ownName := w.rule.ServiceAccount == "" && m.account.uses(varService) || w.rule.Namespace == "" && m.namespace.uses(varService)
	switch {
	case w.rule.TrustMetadata:
		id.Shared = "a rule with " + ruleTrust + "=true lets registrations choose the identity"
	case !exact && !ownName:
		id.Shared = "the settings give the same identity to other services"
	}
	return id, ""
}
