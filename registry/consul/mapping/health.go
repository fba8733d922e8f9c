package mapping

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// maxWeight is the highest weight that Consul takes.
const maxWeight = 65535

// setHealth sets health and weight.
func (w *serviceMapping) setHealth(x *entry, out *mesh.Workload) {
	passing, warning := x.service.Weights.Passing, x.service.Weights.Warning
	if passing == 0 && warning == 0 {
		passing, warning = 1, 1 // as Consul has it where nothing is said
	}
	status, reason, maintained := worst(x)
	weight := passing
	if status == api.HealthWarning {
		weight = warning
	}
	// Who gives an instance no weight, though nothing is wrong with it, drains it:
	// that it is well is no reason to have it back.
	out.Withdrawn = maintained || passing <= 0 && weight <= 0
	out.Health, out.Weight = mesh.Healthy, uint32(min(max(weight, 1), maxWeight))
	switch {
	case status == api.HealthCritical:
		out.Health, out.HealthReason = mesh.Unhealthy, reason
	case weight <= 0 && status == api.HealthWarning:
		out.Health, out.HealthReason = mesh.Unhealthy, reason+", and its weight is then 0"
	case weight <= 0:
		out.Health, out.HealthReason = mesh.Unhealthy, "its weight is 0"
	case weight > maxWeight:
		w.info(CodeValue, x.name(), "weight %d counts as %d", weight, maxWeight)
	}
}

// worst is the status of all checks together, passing, warning or critical, and
// for people the first check that has it. Maintenance is critical, and the
// instance withdrawn. The output of
// a check is not for others: it may hold anything.
func worst(x *entry) (status, reason string, withdrawn bool) {
	rank, name, more := 0, "", 0
	for _, c := range x.checks {
		if c == nil || c.ServiceID != "" && c.ServiceID != x.service.ID {
			continue
		}
		r, n := rankOf(c)
		switch {
		case r == 0:
		case r > rank:
			rank, name, more = r, n, 0
		case r == rank:
			more++
			name = min(name, n)
		}
	}
	if more > 0 {
		name += fmt.Sprintf(" and %d more", more)
	}
	switch rank {
	case 0:
		return api.HealthPassing, "", false
	case 1:
		return api.HealthWarning, name, false
	default:
		return api.HealthCritical, name, rank == maintenance
	}
}

// maintenance is the rank of a check that a person made, to take an instance out
// of service.
const maintenance = 3

// rankOf is how bad a check is: 0 passing, 1 warning, 2 critical or a status that
// is none, 3 maintenance.
func rankOf(c *api.HealthCheck) (rank int, reason string) {
	switch {
	case c.CheckID == api.NodeMaint:
		return maintenance, "the node is in maintenance mode"
	case strings.HasPrefix(c.CheckID, api.ServiceMaintPrefix):
		return maintenance, "in maintenance mode"
	case c.Status == api.HealthPassing:
		return 0, ""
	}
	reason = fmt.Sprintf("check %s: %s", sanitize(cmp.Or(c.Name, c.CheckID)), sanitizeName(c.Status))
	if c.Status == api.HealthWarning {
		return 1, reason
	}
	return 2, reason
}

// locality is where an instance says that it runs: Consul's fields for it, else
// its node's metadata; the datacenter is the region where they name none.
func (w *serviceMapping) locality(x *entry) mesh.Locality {
	var l mesh.Locality
	switch {
	case x.service.Locality != nil && x.service.Locality.Region != "":
		l = mesh.Locality{Region: x.service.Locality.Region, Zone: x.service.Locality.Zone}
	case x.node.Locality != nil && x.node.Locality.Region != "":
		l = mesh.Locality{Region: x.node.Locality.Region, Zone: x.node.Locality.Zone}
	default:
		meta := x.node.Meta
		l = mesh.Locality{Region: meta[metakeys.NodeRegion], Zone: meta[metakeys.NodeZone], SubZone: cmp.Or(meta[metakeys.NodeSubZone], meta[metakeys.NodeSubzone])}
	}
	for _, part := range []*string{&l.Region, &l.Zone, &l.SubZone} {
		if !isLabelValue(*part) {
			w.info(CodeValue, x.name(), "the locality %s is not taken; use letters, digits, '-', '_' and '.', at most %d", sanitize(*part), maxLabel)
			*part = ""
		}
		*part = w.intern(*part)
	}
	l.Region = cmp.Or(l.Region, w.in.Datacenter)
	return l
}
