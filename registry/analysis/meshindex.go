package analysis

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/nearname"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// meshIndex is the input in the forms that checks ask for.
type meshIndex struct {
	in     Input
	domain string
	root   string // the namespace whose policies are the mesh's
	// services are one a host.
	services  []*service
	byHost    map[mesh.Hostname][]*service
	names     []mesh.Hostname // the keys of byHost, sorted
	wildcards []*service
	rules     ruleIndex
	// workloads are those that there are, groups what WorkloadGroups would register.
	workloads, groups *pool
	selections        map[string]*selection
	policies          *policySet
	inbound           *inboundIndex
	// guesses is how many comparisons are left for suggestions.
	guesses int
	// written are the ServiceEntries by their origin, and conflicts what stands
	// between them and catalogs; nil without catalogs.
	written   map[*mesh.Origin]*manifest.Object
	conflicts []mesh.Conflict
}

// service is one host of a ServiceEntry.
type service struct {
	object *manifest.Object
	spec   *networking.ServiceEntry
	host   mesh.Hostname
	index  int // in spec.hosts
	// catalog says that it is a catalog's, and object in no file.
	catalog bool
}

// workload is a WorkloadEntry, an endpoint of a ServiceEntry or the template of a
// WorkloadGroup.
type workload struct {
	object *manifest.Object
	spec   *networking.WorkloadEntry
	labels map[string]string
}

func newWorld(in Input) *meshIndex {
	w := &meshIndex{
		in: in, domain: in.Domain, root: "istio-system", byHost: map[mesh.Hostname][]*service{},
		workloads: newPool(), groups: newPool(), selections: map[string]*selection{}, guesses: maxGuesses,
	}
	if w.domain == "" {
		w.domain = "cluster.local"
	}
	if ns := in.MeshConfig; ns != nil && ns.Spec.GetRootNamespace() != "" {
		w.root = ns.Spec.GetRootNamespace()
	}
	for o, spec := range specs[*networking.ServiceEntry](w) {
		for i, h := range spec.Hosts {
			s := &service{object: o, spec: spec, host: mesh.Hostname(strings.ToLower(h)), index: i}
			w.addService(s)
		}
	}
	w.addCatalogs()
	w.names = slices.Sorted(maps.Keys(w.byHost))
	w.rules = newRuleIndex(w)
	for o, spec := range specs[*networking.WorkloadEntry](w) {
		w.workloads.add(newWorkload(o, spec, o.Meta.Labels))
	}
	for o, spec := range specs[*networking.WorkloadGroup](w) {
		w.groups.add(newWorkload(o, spec.Template, spec.GetMetadata().GetLabels()))
	}
	w.inbound = newInboundIndex(w)
	w.policies = newPolicySet(w)
	return w
}

func (w *meshIndex) addService(s *service) {
	w.services = append(w.services, s)
	w.byHost[s.host] = append(w.byHost[s.host], s)
	if s.host.IsWildcard() {
		w.wildcards = append(w.wildcards, s)
	}
}

// newWorkload merges the labels of the metadata over those of the spec.
func newWorkload(o *manifest.Object, spec *networking.WorkloadEntry, labels map[string]string) *workload {
	all := map[string]string{}
	maps.Copy(all, spec.GetLabels())
	maps.Copy(all, labels)
	return &workload{object: o, spec: spec, labels: all}
}

// specs yields the valid objects with a specification of type T, in order.
func specs[T proto.Message](w *meshIndex) func(yield func(*manifest.Object, T) bool) {
	return func(yield func(*manifest.Object, T) bool) {
		for _, o := range w.in.Objects {
			if spec, ok := o.Spec.(T); ok && o.Valid && !yield(o, spec) {
				return
			}
		}
	}
}

// fqdn is the host that a short name stands for in a namespace.
func (w *meshIndex) fqdn(host, namespace string) mesh.Hostname {
	host = strings.ToLower(host)
	if _, err := netip.ParseAddr(host); err == nil || host == "" || host == "*" || strings.Contains(host, ".") {
		return mesh.Hostname(host)
	}
	return mesh.Hostname(host + "." + namespace + ".svc." + w.domain)
}

// lookup returns the services that a name leads to for a namespace, and those that
// have the name but are not exported there.
func (w *meshIndex) lookup(host mesh.Hostname, namespace string) (visible, hidden []*service) {
	all := w.byHost[host]
	if len(all) == 0 {
		for _, s := range w.wildcards {
			if s.host.Covers(host) {
				all = append(all, s)
			}
		}
	}
	for _, s := range all {
		if s.exportedTo(namespace) {
			visible = append(visible, s)
		} else {
			hidden = append(hidden, s)
		}
	}
	// Where a namespace sees one that is written down, the catalog's is not there.
	if catalogs := func(s *service) bool { return s.catalog }; !slices.ContainsFunc(visible, catalogs) {
		return visible, hidden
	} else if written := slices.DeleteFunc(slices.Clone(visible), catalogs); len(written) > 0 {
		visible = written
	}
	return visible, hidden
}

func (s *service) exportedTo(namespace string) bool {
	return exported(s.spec.ExportTo, s.object.Meta.Namespace, namespace)
}

// exported reports whether an object of namespace own reaches another. None written
// means everywhere.
func exported(list []string, own, namespace string) bool {
	return len(list) == 0 || slices.Contains(list, "*") || slices.Contains(list, namespace) ||
		own == namespace && (slices.Contains(list, ".") || slices.Contains(list, "~"))
}

// endpoints returns what stands behind the service. known is false when that is
// found out only at run time, by DNS or by registration.
func (w *meshIndex) endpoints(s *service) (list []*workload, known bool) {
	if s.spec.WorkloadSelector != nil {
		selector := s.spec.WorkloadSelector.Labels
		if w.groups.any(s.object.Meta.Namespace, selector) {
			return nil, false
		}
		return w.behind(s.object.Meta.Namespace, selector), true
	}
	for _, e := range s.spec.Endpoints {
		list = append(list, newWorkload(s.object, e, nil))
	}
	return list, len(list) > 0 || s.spec.Resolution == networking.ServiceEntry_STATIC
}

// behind returns the workloads of a namespace that a service with that selector
// has.
func (w *meshIndex) behind(namespace string, selector map[string]string) []*workload {
	return slices.DeleteFunc(w.workloads.selected(namespace, selector), func(x *workload) bool {
		return !mesh.ServiceSelects(selector, x.labels)
	})
}

// nearHost returns " (did you mean X?)" for the service whose name differs from
// host by a slip of one or two characters, or "".
func (w *meshIndex) nearHost(host mesh.Hostname) string {
	return near(string(host), w.names)
}

// maxGuesses bounds the comparisons of all suggestions of one analysis: they are a help, and
// must not take longer than everything else where nothing fits.
const maxGuesses = 1 << 20

func (w *meshIndex) mayGuess() bool {
	w.guesses--
	return w.guesses >= 0
}

func near[S ~string](name string, candidates []S) string { return nearname.Of(name, candidates) }
