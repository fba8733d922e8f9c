package lastgood

import (
	"slices"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Loss is what disappears from the mesh by a change of a text.
type Loss uint8

// The losses, the smallest first.
const (
	// NoLoss: every object is still there, or is in another text.
	NoLoss Loss = iota
	// SomeLoss: objects disappear that let nobody in by that.
	SomeLoss
	// RestrictingLoss: an object disappears that restricts requests, connections or what
	// proxies see, or a field of the settings or networks of the mesh.
	RestrictingLoss
)

// Rest is how long a text has to rest before a loss by writing it in place counts, of those that are
// given: a writer may be about to write the rest, or may have failed.
func (l Loss) Rest(none, some, restricting time.Duration) time.Duration {
	switch l {
	case RestrictingLoss:
		return max(some, restricting)
	case SomeLoss:
		return some
	default:
		return none
	}
}

// Loss is what would disappear from the mesh if the text had this version; nil means no content. It
// says what restricts, if that would.
func (s *Set) Loss(path string, next *Version) (loss Loss, restricting string) {
	t := s.texts[path]
	if t == nil {
		return NoLoss, ""
	}
	for _, key := range t.V.keys() {
		if next.gives(key) {
			if field := lostField(t.V.Fragment(key), next.Fragment(key)); field != "" {
				return RestrictingLoss, field + " of " + key.String() + ", which it had"
			}
			continue
		}
		if s.definitions.gives(key, t) {
			continue
		}
		loss = max(loss, SomeLoss)
		if restricts(t.V.Fragment(key)) {
			return RestrictingLoss, key.String() + ", which restricts"
		}
	}
	for _, key := range keysOf(t.V.denied) {
		if !next.gives(key) && (next == nil || next.denied[key] == nil) && !s.definitions.gives(key, t) {
			return RestrictingLoss, key.String() + ", which restricts"
		}
	}
	return loss, ""
}

// lostField names a field that the settings or networks of the mesh had, and do not have in a new version.
func lostField(was, is *mesh.Fragment) string {
	switch {
	case was.MeshConfig != nil && is.MeshConfig != nil:
		return manifest.LostField(was.MeshConfig.Spec, is.MeshConfig.Spec)
	case was.MeshNetworks != nil && is.MeshNetworks != nil:
		return manifest.LostField(was.MeshNetworks.Spec, is.MeshNetworks.Spec)
	default:
		return ""
	}
}

// restricts reports whether an object restricts requests, connections or what proxies see.
func restricts(f *mesh.Fragment) bool {
	return len(f.PeerAuthentications)+len(f.RequestAuthentications)+len(f.Sidecars)+len(f.Unenforced) > 0 ||
		slices.ContainsFunc(f.AuthorizationPolicies, func(p *mesh.AuthorizationPolicy) bool {
			return p.Spec.GetAction() != security.AuthorizationPolicy_AUDIT
		})
}
