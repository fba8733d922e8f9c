package mesh

import (
	"cmp"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// ClusterID is the name of the one cluster that there is, as Istio names one without a name
// (pkg/config/constants, DefaultClusterName).
const ClusterID = "Kubernetes"

// ReportedWorkload is who a workload is in metrics: the labels of Istio's metrics.
type ReportedWorkload struct {
	Name, Namespace                  string
	CanonicalName, CanonicalRevision string
	// App and Version are the labels of these names; empty if there are none.
	App, Version string
}

// Reported is who the workload is in metrics: by its labels, or by its name (Istio's
// WorkloadNameFromWorkloadEntry and CanonicalService in pkg/kube/labels). All instances of a
// catalog's service are one workload.
func (w *Workload) Reported() ReportedWorkload {
	label := func(names ...string) string {
		for _, name := range names {
			if v, ok := w.Labels[name]; ok {
				return v
			}
		}
		return ""
	}
	name := cmp.Or(w.Annotations[GroupAnnotation], label(metakeys.WorkloadName, LabelConsulService), w.Name)
	return ReportedWorkload{
		Name: name, Namespace: w.Namespace,
		CanonicalName:     cmp.Or(label(metakeys.CanonicalName, metakeys.KubernetesName, metakeys.App), name),
		CanonicalRevision: cmp.Or(label(metakeys.CanonicalRevision, metakeys.KubernetesVersion, metakeys.Version), "latest"),
		App:               label(metakeys.App), Version: label(metakeys.Version),
	}
}
