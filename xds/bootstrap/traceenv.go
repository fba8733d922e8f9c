package bootstrap

import (
	"cmp"
	"strings"
)

// The variables that say who the workload is. Listeners refer to them.
const (
	envCanonicalName     = "FAIRLEAD_SPAN_CANONICAL_SERVICE"
	envCanonicalRevision = "FAIRLEAD_SPAN_CANONICAL_REVISION"
	envNamespace         = "FAIRLEAD_SPAN_NAMESPACE"
	envMeshID            = "FAIRLEAD_SPAN_MESH_ID"
	envClusterID         = "FAIRLEAD_SPAN_CLUSTER_ID"
)

// ServiceName is how tracers name the workload: by its label app, or by its name, and its namespace
// (Istio's pkg/bootstrap, getServiceCluster).
func (w *Workload) ServiceName() string { return cmp.Or(w.App, w.Name) + "." + w.Namespace }

// TraceEnviron are the variables, as NAME=value, that say in spans who the workload is: Istio's
// tags, and the name of the service as the tracers of OpenTelemetry and Datadog read it. attributes
// is the environment's own OTEL_RESOURCE_ATTRIBUTES, which have precedence.
func (w *Workload) TraceEnviron(meshID, attributes string) []string {
	var out []string
	set := func(name, value string) {
		if value != "" {
			out = append(out, name+"="+value)
		}
	}
	set(envCanonicalName, w.CanonicalName)
	set(envCanonicalRevision, w.CanonicalRevision)
	set(envNamespace, w.Namespace)
	set(envClusterID, w.Cluster)
	set(envMeshID, meshID)
	set("DD_SERVICE", w.ServiceName())
	resource := "service.name=" + escapeAttribute(w.ServiceName())
	if attributes != "" {
		resource += "," + attributes // of two with one name the later one counts
	}
	set("OTEL_RESOURCE_ATTRIBUTES", resource)
	return out
}

// escapeAttribute takes out what separates attributes: Envoy does not decode them.
func escapeAttribute(s string) string { return strings.NewReplacer(",", "_", "=", "_").Replace(s) }
