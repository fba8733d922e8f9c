package mapping

import (
	"cmp"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// Input is what the catalog says of one service.
type Input struct {
	// Source is the name of the registry source.
	Source string
	// Service is the name as Consul's list of services has it; Namespace and
	// Partition are empty where Consul has none.
	Service, Namespace, Partition string
	// Datacenter is where Consul was asked.
	Datacenter string
	// Local says that the datacenter is that of the mesh's own servers: in others,
	// instances are reached at their WAN addresses.
	Local bool
	// Entries is Consul's answer of health/service, in any order.
	Entries []*api.ServiceEntry
	// Protocol is Connect's default for the service, or empty.
	Protocol string
}

// Result is what becomes of a service.
type Result struct {
	// Piece is sorted; never nil. It is empty for what is no service of the mesh.
	Fragment *mesh.Fragment
	// Notes are sorted, and bounded in number and length.
	Notes []Note
}

// Map maps one service.
func (m *Mapper) Map(input *Input) Result {
	in := *input
	for _, e := range in.Entries {
		if in.Datacenter == "" && e != nil && e.Node != nil {
			in.Datacenter = e.Node.Datacenter
		}
	}
	w := &serviceMapping{m: m, in: &in, notes: notes{about: sanitizeName(in.Service)}}
	fragment := &mesh.Fragment{Source: in.Source}
	if w.identify() {
		w.selectEntries()
		if len(w.entries) > 0 {
			w.ports()
			fragment.Workloads = w.workloads()
			w.noteLabels()
			fragment.Services = w.services(fragment.Workloads)
		}
	}
	return Result{Fragment: fragment, Notes: w.sorted()}
}

// maxID is how long the name of a node and the ID of an instance may be, in bytes.
const maxID = 512

// serviceMapping is the mapping of one service.
type serviceMapping struct {
	m  *Mapper
	in *Input
	notes
	rule *Rule

	values         // as templates see it
	id      string // as the label has it
	account string // with values.namespace, the identity
	hosts   []mesh.Hostname
	entries []entry // those of the service itself, in order
	port    mesh.Port
	virtual []string
	labeler labeler
	hash    hasher
	words   map[string]string
	portsOf map[uint32]map[string]uint32
}

// entry is one registration.
type entry struct {
	node    *api.Node
	service *api.AgentService
	checks  api.HealthChecks
	port    uint32 // its main port, or 0
}

// name is NODE/ID, as notes show it.
func (x *entry) name() string { return sanitizeName(x.node.Node) + "/" + sanitizeName(x.service.ID) }

// home reports whether the service is in Consul's namespace and partition that
// need not be named.
func (w *serviceMapping) home() bool { return w.homeNamespace() && w.homePartition() }

func (w *serviceMapping) homeNamespace() bool { return w.consulNamespace == w.m.homeNamespace }

func (w *serviceMapping) homePartition() bool { return w.partition == w.m.homePartition }

// selectEntries picks the registrations of the service itself. Proxies and gateways
// give nothing of their own: the instances that they stay before are registered
// themselves.
func (w *serviceMapping) selectEntries() {
	w.entries = make([]entry, 0, len(w.in.Entries))
	for _, e := range w.in.Entries {
		if e == nil || e.Node == nil || e.Service == nil || e.Service.Kind != api.ServiceKindTypical {
			continue
		}
		x := entry{node: e.Node, service: e.Service, checks: e.Checks}
		switch {
		case x.service.Service != w.in.Service:
			// Consul looks names up without regard to case.
			w.warn(CodeForeign, x.name(), "it is registered as %s, which is another service; register it as %s", sanitize(x.service.Service), sanitize(w.in.Service))
			continue
		case x.service.PeerName != "" || x.node.PeerName != "":
			w.warn(CodeForeign, x.name(), "it is imported from the peer %s; only a datacenter's own instances are mapped",
				sanitize(cmp.Or(x.service.PeerName, x.node.PeerName)))
			continue
		case x.node.Node == "" || x.service.ID == "" || len(x.node.Node) > maxID || len(x.service.ID) > maxID:
			w.warn(CodeForeign, x.name(), "it has no node or no ID, or one of more than %d bytes", maxID)
			continue
		}
		x.port = portOf(x.service)
		w.entries = append(w.entries, x)
	}
	slices.SortStableFunc(w.entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.node.Node, b.node.Node), cmp.Compare(a.service.ID, b.service.ID))
	})
}

// workloads are the instances, sorted.
func (w *serviceMapping) workloads() []*mesh.Workload {
	out := make([]*mesh.Workload, 0, len(w.entries))
	for i := range w.entries {
		if x := w.workload(&w.entries[i]); x != nil {
			out = append(out, x)
		}
	}
	slices.SortFunc(out, func(a, b *mesh.Workload) int {
		return cmp.Or(a.Compare(b.Key), slices.Compare(a.Hash[:], b.Hash[:]), cmp.Compare(a.HealthReason, b.HealthReason))
	})
	return w.dropDuplicates(out)
}

// workload is one instance, or nil where it is left out.
func (w *serviceMapping) workload(x *entry) *mesh.Workload {
	if !w.agrees(x) {
		return nil
	}
	port, address, ok := w.reach(x)
	if !ok {
		return nil
	}
	out := &mesh.Workload{
		Meta: mesh.Meta{
			Key:    mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: w.namespace, Name: w.workloadName(x)},
			Origin: &mesh.Origin{Source: w.in.Source, Path: w.path() + "/" + escaped(x.node.Node) + "/" + escaped(x.service.ID)},
		},
		Address:        address,
		Ports:          w.portsAt(port),
		ServiceAccount: w.accountOf(x),
		Locality:       w.locality(x),
	}
	if w.m.nodeIsHost {
		out.Annotations = map[string]string{mesh.AnnotationHost: w.hostOf(x)}
	}
	w.setHealth(x, out)
	pairs := w.labels(x)
	out.Labels = w.asMap(pairs)
	out.Hash = w.hash.workload(out, pairs)
	return out
}

// dropDuplicates leaves out instances with the address and port of another instance, of
// which the healthier one stays.
func (w *serviceMapping) dropDuplicates(list []*mesh.Workload) []*mesh.Workload {
	type place struct {
		address string
		port    uint32
	}
	seen := make(map[place]int, len(list))
	out := list[:0]
	for i, x := range list {
		if i > 0 && len(out) > 0 && out[len(out)-1].Key == x.Key {
			continue // Consul has one instance of an ID on a node
		}
		at := place{x.Address, x.Ports[w.port.Name]}
		have, twice := seen[at]
		if !twice {
			seen[at] = len(out)
			out = append(out, x)
			continue
		}
		kept, dropped := out[have], x
		if kept.Health == mesh.Unhealthy && x.Health != mesh.Unhealthy {
			kept, dropped = x, kept
		}
		out[have] = kept
		w.warn(CodeDuplicate, instanceOf(dropped), "%s port %d is registered by %s too", at.address, at.port, instanceOf(kept))
	}
	clear(list[len(out):])
	slices.SortFunc(out, func(a, b *mesh.Workload) int { return a.Compare(b.Key) })
	return out
}

// instanceOf is NODE/ID of a workload, for a note.
func instanceOf(x *mesh.Workload) string {
	path := x.Origin.Path
	for range 2 {
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			path = path[:i]
		}
	}
	return sanitizeName(strings.TrimPrefix(x.Origin.Path[len(path):], "/"))
}

// services are the hosts of the service, sorted. They share everything but the
// name.
func (w *serviceMapping) services(workloads []*mesh.Workload) []*mesh.Service {
	if w.port.Number == 0 || len(w.hosts) == 0 {
		return nil
	}
	s := mesh.Service{
		Meta: mesh.Meta{
			Key:    mesh.Key{Kind: mesh.KindServiceEntry, Namespace: w.namespace, Name: w.serviceName()},
			Origin: &mesh.Origin{Source: w.in.Source, Path: w.path()},
		},
		Addresses:  w.virtual,
		Ports:      []mesh.Port{w.port},
		Resolution: mesh.ResolutionStatic,
		External:   w.external(),
		Selector:   map[string]string{mesh.LabelConsulService: w.id},
		Catalog:    true,
	}
	if slices.ContainsFunc(workloads, func(x *mesh.Workload) bool { return !isIP(x.Address) }) {
		s.Resolution = mesh.ResolutionDNS
	}
	s.Hash = w.hash.service(&s, w.hosts)
	out := make([]*mesh.Service, 0, len(w.hosts))
	for _, h := range w.hosts {
		one := s
		one.Hostname = h
		out = append(out, &one)
	}
	return out
}

// external reports whether all instances are of nodes that have no agent. It is
// not enough that one says so: at an external service no identity is expected.
func (w *serviceMapping) external() bool {
	n, marked := 0, false
	for i := range w.entries {
		x := &w.entries[i]
		if x.node.Meta[metakeys.NodeExternal] == "true" {
			n++
		}
		marked = marked || w.takesMTLS(x)
	}
	switch {
	case n == 0:
		return false
	case n < len(w.entries) || marked:
		w.info(CodeExternal, "", "%d of %d instances are of external nodes; the service counts as one of the mesh, since not all are without mTLS", n, len(w.entries))
		return false
	default:
		return true
	}
}
