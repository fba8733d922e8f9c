package analysis

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// noEndpoints warns of a service behind which there is nothing.
func noEndpoints(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.ServiceEntry](w) {
		s := &service{object: o, spec: spec}
		list, known := w.endpoints(s)
		switch {
		case !known || len(list) > 0:
		case spec.WorkloadSelector != nil:
			if !w.in.OtherSources {
				r.warn(place{o, "spec.workloadSelector.labels"}, "no workload of namespace %q has the labels %s%s, so the service has no endpoints",
					o.Meta.Namespace, labelText(spec.WorkloadSelector.Labels), w.unasked(o.Meta.Namespace, spec.WorkloadSelector.Labels))
			}
		default:
			r.warn(place{o, "spec"}, "resolution STATIC needs endpoints and there are none; write endpoints or workloadSelector, or use resolution DNS")
		}
	}
}

// unasked reports instances of a catalog that have the labels, and stand behind
// no service that does not ask for them; else of labels that are near.
func (w *meshIndex) unasked(namespace string, selector map[string]string) string {
	for _, x := range w.workloads.selected(namespace, selector) {
		if name := x.labels[mesh.LabelConsulService]; name != "" {
			return fmt.Sprintf(" but instances of the catalog, which are not selected by them alone: add %s: %s to have those", mesh.LabelConsulService, name)
		}
	}
	return w.nearLabels(namespace, selector)
}

// unusedWorkloads warns of a workload that no service and no Gateway selects.
func unusedWorkloads(w *meshIndex, r *report) {
	if w.in.OtherSources {
		return
	}
	used := map[*manifest.Object]bool{}
	for o, spec := range specs[*networking.ServiceEntry](w) {
		if spec.WorkloadSelector == nil {
			continue
		}
		for _, x := range w.behind(o.Meta.Namespace, spec.WorkloadSelector.Labels) {
			used[x.object] = true
		}
	}
	for namespace, selector := range w.catalogSelectors {
		for _, x := range w.behind(namespace, selector) {
			used[x.object] = true
		}
	}
	for o, spec := range specs[*networking.Gateway](w) {
		if len(spec.GetSelector()) == 0 {
			continue
		}
		namespace := "" // of any
		if slices.Contains(w.in.Bound, o.Meta.Namespace) {
			namespace = o.Meta.Namespace
		}
		for _, x := range w.workloads.selected(namespace, spec.GetSelector()) {
			used[x.object] = true // a gateway gets what its Gateways say
		}
	}
	for o := range specs[*networking.WorkloadEntry](w) {
		if !used[o] {
			r.warn(place{o, "metadata.labels"}, "no ServiceEntry of namespace %q selects this workload; give it the labels of a workloadSelector", o.Meta.Namespace)
		}
	}
}

// anyIdentity warns of a service of the mesh whose clients cannot tell its
// endpoints from anybody else with a certificate of the mesh.
func anyIdentity(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.ServiceEntry](w) {
		if spec.Location != networking.ServiceEntry_MESH_INTERNAL || len(spec.SubjectAltNames) > 0 {
			continue
		}
		list, known := w.endpoints(&service{object: o, spec: spec})
		named := 0
		for _, e := range list {
			if e.spec.GetServiceAccount() != "" {
				named++
			}
		}
		switch {
		case !known || len(list) == 0 || named == len(list):
		case named == 0:
			r.warn(place{o, "spec"}, "no endpoint has a serviceAccount, so clients accept the certificate of any workload of the mesh; "+
				"write serviceAccount in the workloads, or subjectAltNames here")
		default:
			r.warn(place{o, "spec"}, "%d of %d endpoints have no serviceAccount, so clients refuse them unless they have the same one as another endpoint; write it in each workload",
				len(list)-named, len(list))
		}
	}
}

// portNames warns of a port whose name says another protocol than it has.
func portNames(w *meshIndex, r *report) {
	for o, spec := range specs[*networking.ServiceEntry](w) {
		for i, p := range spec.Ports {
			promised := promisedBy(p.GetName())
			if promised == "" || p.GetProtocol() == "" || strings.EqualFold(promised, p.Protocol) {
				continue
			}
			r.warn(place{o, fmt.Sprintf("spec.ports[%d].protocol", i)}, "the port name %q means %s, but its protocol is %s, which is in force; rename the port, or write protocol: %s",
				p.Name, promised, p.Protocol, promised)
		}
	}
}

// promisedBy is the protocol that the first part of a port's name means to people
// who come from Kubernetes, or "".
func promisedBy(name string) string {
	lower := strings.ToLower(name)
	for _, p := range []string{"grpc-web", "grpc", "http2", "https", "http", "mongo", "mysql", "redis", "tcp", "tls", "udp"} {
		if lower == p || strings.HasPrefix(lower, p+"-") {
			return strings.ToUpper(p)
		}
	}
	return ""
}
