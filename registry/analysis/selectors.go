package analysis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/internal/nearname"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// selector is what an object selects workloads by, and the field it stands in.
func selector(o *manifest.Object) (labels map[string]string, field string) {
	const networkingField, policyField = "spec.workloadSelector.labels", "spec.selector.matchLabels"
	var policy *typev1beta1.WorkloadSelector
	switch spec := o.Spec.(type) {
	case *networking.Sidecar:
		return spec.GetWorkloadSelector().GetLabels(), networkingField
	case *networking.EnvoyFilter:
		return spec.GetWorkloadSelector().GetLabels(), networkingField
	case *networking.DestinationRule:
		return spec.GetWorkloadSelector().GetMatchLabels(), "spec.workloadSelector.matchLabels"
	case *security.PeerAuthentication:
		policy = spec.Selector
	case *security.AuthorizationPolicy:
		policy = spec.Selector
	case *security.RequestAuthentication:
		policy = spec.Selector
	case *telemetry.Telemetry:
		policy = spec.Selector
	case *extensions.WasmPlugin:
		policy = spec.Selector
	case *extensions.TrafficExtension:
		policy = spec.Selector
	case *v1beta1.ProxyConfig:
		policy = spec.Selector
	}
	return policy.GetMatchLabels(), policyField
}

// selectors warns of a selector without a single workload: a typing error in a
// label turns a policy off without a word.
func selectors(w *meshIndex, r *report) {
	for _, o := range w.in.Objects {
		if !o.Valid || o.Spec == nil {
			continue
		}
		labels, field := selector(o)
		if len(labels) == 0 {
			continue
		}
		if s := w.chosen(o, labels); s.sure && len(s.workloads) == 0 && !w.in.OtherSources {
			r.warn(place{o, field}, "no workload of %s has the labels %s%s, so the object has no effect",
				w.scope(o), labelText(labels), w.nearLabels(s.scope, labels))
		}
	}
}

// deniers names the workloads that deny every request because of a security policy that is
// not valid or not in force.
func deniers(w *meshIndex, r *report) {
	for _, o := range w.in.Objects {
		if f := o.Denial(); f != nil {
			u := f.Unenforced[0]
			if names := w.chosen(o, u.Selector).allNames(); len(names) > 0 {
				r.warn(place{o, u.Field}, "this policy is not valid: on a server that has no earlier version of it, %s every request", denying(names))
			}
			continue
		}
		if !o.Denies() {
			continue
		}
		labels, field := selector(o)
		if names := w.chosen(o, labels).allNames(); len(names) > 0 {
			r.warn(place{o, field}, "this policy is not in force, and so %s every request; remove it, or start the server with --accept-unenforced, which lets all requests through",
				denying(names))
		}
	}
}

// denying is "a denies", or "a and b deny" of the first few names.
func denying(names []string) string {
	const most = 5
	if len(names) == 1 {
		return names[0] + " denies"
	}
	last := names[len(names)-1]
	if more := len(names) - most; more > 0 {
		names, last = names[:most+1], fmt.Sprintf("%d more", more)
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + last + " deny"
}

func (w *meshIndex) scope(o *manifest.Object) string {
	if o.Meta.Namespace == w.root {
		return "the mesh"
	}
	return "namespace \"" + o.Meta.Namespace + "\""
}

// nearLabels suggests the value that some workload has for one of the labels when
// it differs by a slip, in a namespace or, if that is "", in all.
func (w *meshIndex) nearLabels(namespace string, labels map[string]string) string {
	keys := slices.Sorted(maps.Keys(labels)) // the same words each time
	for _, x := range w.workloads.in[namespace] {
		for _, k := range keys {
			if !w.mayGuess() {
				return ""
			}
			if have := x.labels[k]; nearname.Slip(labels[k], have) {
				return " (did you mean \"" + k + "=" + have + "\"?)"
			}
		}
	}
	return ""
}

// defaultsTwice warns of several objects that are each meant for all workloads of
// a namespace: one wins, and which one depends on age and name.
func defaultsTwice(w *meshIndex, r *report) {
	type key struct {
		kind      mesh.Kind
		namespace string
	}
	first := map[key]*manifest.Object{}
	var all []*manifest.Object
	for _, o := range w.in.Objects {
		if !o.Valid || !onePerNamespace(o) {
			continue
		}
		all = append(all, o)
		k := key{o.Meta.Kind, o.Meta.Namespace}
		if first[k] == nil || before(o, first[k]) < 0 {
			first[k] = o
		}
	}
	for _, o := range all {
		if f := first[key{o.Meta.Kind, o.Meta.Namespace}]; f != o {
			r.warn(place{o, "metadata.name"}, "%s is for all workloads of the namespace too and comes first, so this one has no effect; merge the two, or write a selector",
				f.Meta.Key)
		}
	}
}

// onePerNamespace reports whether o is of a kind of which a namespace has one, and
// is meant for the whole namespace.
func onePerNamespace(o *manifest.Object) bool {
	switch o.Spec.(type) {
	case *networking.Sidecar, *security.PeerAuthentication:
		labels, _ := selector(o)
		return len(labels) == 0
	case *telemetry.Telemetry: // one that is attached by targetRefs is for no sidecar
		labels, _ := selector(o)
		return len(labels) == 0 && o.Fragment() != nil && len(o.Fragment().Telemetries) > 0
	}
	return false
}
