package analysis

import (
	"errors"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// providers warns of CUSTOM policies whose extension provider cannot be asked: what their rules
// match is denied.
func providers(w *meshIndex, r *report) {
	var snapshot *mesh.Snapshot
	for o, spec := range specs[*security.AuthorizationPolicy](w) {
		if spec.GetAction() != security.AuthorizationPolicy_CUSTOM || o.Fragment() == nil || len(o.Fragment().AuthorizationPolicies) == 0 {
			continue
		}
		if snapshot == nil {
			snapshot = w.snapshot()
		}
		name := spec.GetProvider().GetName()
		_, err := snapshot.Authorizer(name)
		if err == nil || w.in.OtherSources && errors.Is(err, mesh.ErrNoProviderService) {
			continue
		}
		hint := ""
		if errors.Is(err, mesh.ErrNoAuthorizer) {
			hint = "; name the file that has it with --mesh-config"
		}
		r.warn(place{o, "spec.provider.name"}, "the extension provider %q cannot be asked, and so what the rules match is denied: %v%s", name, err, hint)
	}
}

// snapshot is the mesh as the server makes it.
func (w *meshIndex) snapshot() *mesh.Snapshot {
	config := w.in.MeshConfig
	if config == nil {
		config = manifest.DefaultMeshConfig()
	}
	all := &mesh.Fragment{}
	for _, o := range w.in.Objects {
		if f := o.Fragment(); f != nil {
			all.Append(f)
		}
	}
	return mesh.NewSnapshot(nil, config, append([]*mesh.Fragment{all.Sorted()}, w.in.Catalogs...))
}
