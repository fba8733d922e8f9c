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
	Mesh     *mesh.MeshConfig
	Workload *mesh.Workload
}

// InputOf is the input for a workload of a snapshot.
func InputOf(s *mesh.Snapshot, w *mesh.Workload) Input { return Input{Mesh: s.MeshConfig, Workload: w} }

// Same reports whether two inputs are the same objects. If they are not, the resource may be
// equal nevertheless.
func (in Input) Same(o Input) bool { return in.Mesh == o.Mesh && in.Workload == o.Workload }

// Effective is the ProxyConfig that is in force for the workload. The result is not shared.
func (in Input) Effective() *meshconfig.ProxyConfig {
	out := &meshconfig.ProxyConfig{}
	proto.Merge(out, in.Mesh.Spec.GetDefaultConfig())
	return out
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
