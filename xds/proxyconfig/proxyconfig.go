package proxyconfig

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Input is everything that the resource of one proxy is made from.
type Input struct {
	Mesh *mesh.MeshConfig
	// Configs are all ProxyConfigs of the mesh, in the order in which they win.
	Configs  []*mesh.ProxyConfig
	Workload *mesh.Workload
	// Group is the WorkloadGroup that the workload names, or nil.
	Group *mesh.WorkloadGroup
}

// InputOf is the input for a workload of a snapshot.
func InputOf(s *mesh.Snapshot, w *mesh.Workload) Input {
	return Input{Mesh: s.MeshConfig, Configs: s.ProxyConfigs, Workload: w, Group: s.GroupOf(w)}
}

// Same reports whether two inputs are the same objects. If they are not, the resource may be
// equal nevertheless.
func (in Input) Same(o Input) bool {
	// A snapshot shares the lists that did not change with the one before.
	same := len(in.Configs) == len(o.Configs) && (len(in.Configs) == 0 || &in.Configs[0] == &o.Configs[0])
	return same && in.Mesh == o.Mesh && in.Workload == o.Workload && in.Group == o.Group
}

// Effective is the ProxyConfig that is in force for the workload, by Istio's precedence
// (pilot/pkg/model/proxy_config.go, EffectiveProxyConfig): MeshConfig's defaultConfig, a
// ProxyConfig for the mesh, one for the namespace, the annotation, a ProxyConfig that selects the
// workload. Of several ProxyConfigs in one place the oldest counts, and none of the others. The
// result is not shared.
func (in Input) Effective() *meshconfig.ProxyConfig {
	root, namespace := in.Mesh.Spec.GetRootNamespace(), in.Workload.Namespace
	layers := []*meshconfig.ProxyConfig{{}, in.Mesh.Spec.GetDefaultConfig()}
	if root != "" {
		layers = append(layers, in.forNamespace(root))
	}
	if namespace != root {
		layers = append(layers, in.forNamespace(namespace))
	}
	if in.Group != nil {
		layers = append(layers, in.Group.ProxyConfig)
	}
	return mesh.MergeProxyConfigs(append(layers, in.Workload.ProxyConfig, in.forWorkload())...)
}

// forNamespace is the oldest ProxyConfig in a namespace that has no selector, not even an empty
// one; or nil.
func (in Input) forNamespace(namespace string) *meshconfig.ProxyConfig {
	for _, c := range in.Configs {
		if c.Namespace == namespace && c.Spec.GetSelector() == nil {
			return specOf(c)
		}
	}
	return nil
}

// forWorkload is the oldest ProxyConfig in the workload's namespace that selects it; or nil. One
// in the root namespace selects workloads of that namespace only.
func (in Input) forWorkload() *meshconfig.ProxyConfig {
	for _, c := range in.Configs {
		labels := c.Spec.GetSelector().GetMatchLabels()
		if c.Namespace == in.Workload.Namespace && len(labels) > 0 && mesh.Selects(labels, in.Workload.Labels) {
			return specOf(c)
		}
	}
	return nil
}

func specOf(c *mesh.ProxyConfig) *meshconfig.ProxyConfig {
	return &meshconfig.ProxyConfig{Concurrency: c.Spec.GetConcurrency(), ProxyMetadata: c.Spec.GetEnvironmentVariables(), Image: c.Spec.GetImage()}
}

// Resource is the encoded resource for the agent of the workload, and its version, which is a
// hash of the content: the effective ProxyConfig, with who the workload is in its proxy_metadata.
func (in Input) Resource() (body []byte, version string, err error) {
	pc := in.Effective()
	if pc.ProxyMetadata == nil {
		pc.ProxyMetadata = map[string]string{}
	}
	who := WorkloadOf(in.Workload)
	who.SetMetadata(pc.GetProxyMetadata())
	bootstrap.SetAppMetrics(pc.GetProxyMetadata(), in.Workload.Annotations)
	if body, err = (proto.MarshalOptions{Deterministic: true}).Marshal(pc); err != nil {
		return nil, "", fmt.Errorf("encoding the ProxyConfig of %s: %w", in.Workload.Key, err)
	}
	sum := sha256.Sum256(body)
	return body, base64.RawURLEncoding.EncodeToString(sum[:8]), nil
}

// WorkloadOf is who a workload is for Istio's metrics.
func WorkloadOf(w *mesh.Workload) bootstrap.Workload {
	r := w.Reported()
	return bootstrap.Workload{
		Name: r.Name, Namespace: r.Namespace, Cluster: mesh.ClusterID,
		CanonicalName: r.CanonicalName, CanonicalRevision: r.CanonicalRevision, App: r.App, Version: r.Version,
	}
}
