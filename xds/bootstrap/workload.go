package bootstrap

import (
	"encoding/json"
	"fmt"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// Workload is who the workload of a proxy is, as Istio's metrics name it. The control plane says
// so, from its own model of the mesh: nothing of it is what a node claims.
type Workload struct {
	// Name and Namespace are those of the workload.
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	// CanonicalName and CanonicalRevision are those of the service that the workload is a part
	// of, with Istio's defaults: the workload's name, and "latest"
	// (pkg/kube/labels, CanonicalService).
	CanonicalName     string `json:"canonical_name"`
	CanonicalRevision string `json:"canonical_revision"`
	// App and Version are the labels of these names; empty if there are none.
	App     string `json:"app,omitempty"`
	Version string `json:"version,omitempty"`
	// Cluster is the cluster's id.
	Cluster string `json:"cluster"`
}

// The keys of proxy_metadata, as Istio names the variables of its agent, and the labels in
// ISTIO_METAJSON_LABELS.
const (
	metaWorkloadName = "ISTIO_META_WORKLOAD_NAME"
	metaNamespace    = "ISTIO_META_NAMESPACE"
	metaClusterID    = "ISTIO_META_CLUSTER_ID"
	metaLabels       = "ISTIO_METAJSON_LABELS"

	labelCanonicalName     = metakeys.CanonicalName
	labelCanonicalRevision = metakeys.CanonicalRevision
	labelApp               = metakeys.App
	labelVersion           = metakeys.Version
)

// SetMetadata writes the workload into the proxy_metadata of a ProxyConfig. What the metadata
// said of it before is replaced: an object must not say that a workload is another one.
func (w *Workload) SetMetadata(to map[string]string) {
	labels := map[string]string{labelCanonicalName: w.CanonicalName, labelCanonicalRevision: w.CanonicalRevision}
	for name, value := range map[string]string{labelApp: w.App, labelVersion: w.Version} {
		if value != "" {
			labels[name] = value
		}
	}
	text, _ := json.Marshal(labels) // texts can always be written; in the order of the keys
	to[metaWorkloadName], to[metaNamespace], to[metaClusterID], to[metaLabels] = w.Name, w.Namespace, w.Cluster, string(text)
}

// WorkloadOf reads what [Workload.SetMetadata] wrote. Every text in it is bounded and has only
// what can be seen.
func WorkloadOf(metadata map[string]string) (Workload, error) {
	labels := map[string]string{}
	if text := metadata[metaLabels]; text != "" {
		if err := json.Unmarshal([]byte(text), &labels); err != nil {
			return Workload{}, fmt.Errorf("reading who the workload is: %s: %w", metaLabels, err)
		}
	}
	w := Workload{
		Name: metadata[metaWorkloadName], Namespace: metadata[metaNamespace], Cluster: metadata[metaClusterID],
		CanonicalName: labels[labelCanonicalName], CanonicalRevision: labels[labelCanonicalRevision],
		App: labels[labelApp], Version: labels[labelVersion],
	}
	for _, text := range []string{w.Name, w.Namespace, w.Cluster, w.CanonicalName, w.CanonicalRevision, w.App, w.Version} {
		if !clean(text) {
			return Workload{}, fmt.Errorf("reading who the workload is: %.40q is longer than %d bytes or has characters that cannot be seen", text, maxStringLength)
		}
	}
	return w, nil
}
