package manifest

import (
	"fmt"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/manifest/webhook"
	"github.com/fairlead/fairlead/registry/mesh"
)

// DecodeMeshNetworks reads a file of Istio's MeshNetworks, without kind or metadata. With an error,
// nothing of the file counts and the networks are nil: a network that is left out would send its
// traffic to other addresses.
func DecodeMeshNetworks(path string, content []byte) (*mesh.Networks, []Fault) {
	r := &reporter{path: path, key: mesh.Key{Kind: mesh.KindMeshNetworks}}
	if len(content) > MaxFileSize {
		r.add(CodeLimit, tree.Position{}, "", fmt.Sprintf("the file has %d bytes; at most %d are read", len(content), MaxFileSize))
		return nil, r.finish()
	}
	root := oneDocument(content, r, "the networks")
	spec := &meshconfig.MeshNetworks{}
	if !HasErrors(r.faults) {
		wrapped(root, r)
	}
	if !HasErrors(r.faults) {
		f := filler{report: r.add}
		f.message(spec.ProtoReflect(), root)
	}
	if !HasErrors(r.faults) {
		for _, f := range webhook.MeshNetworks(spec) {
			if f.Warning {
				r.warn(CodeNoEffect, root.Nearest(f.Path), f.Path, f.Message)
			} else {
				r.add(CodeWebhook, root.Nearest(f.Path), f.Path, f.Message)
			}
		}
	}
	if HasErrors(r.faults) {
		return nil, r.finish()
	}
	m := &mesh.Networks{Meta: mesh.Meta{Key: r.key, Origin: r.origin(root.Pos)}, Spec: spec}
	m.Hash = hashOf(&m.Meta, spec)
	return m, r.finish()
}

// wrapped reports networks that are still in what Istio keeps them in: its ConfigMap, or values of its Helm
// charts and its operator.
func wrapped(root *tree.Node, r *reporter) {
	for _, path := range []string{"meshNetworks", "data.meshNetworks", "global.meshNetworks", "spec.values.global.meshNetworks"} {
		n := root
		for key := range strings.SplitSeq(path, ".") {
			n = n.Get(key)
		}
		if n != nil {
			r.add(CodeUnknownField, n.Pos, path, "the networks are below this field, as in a file for Kubernetes; write them alone into the file, which begins with \"networks:\"")
			return
		}
	}
}
