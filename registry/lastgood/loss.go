package lastgood

import (
	"slices"

	security "istio.io/api/security/v1beta1"

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
	// proxies see.
	RestrictingLoss
)

// Loss is what would disappear from the mesh if the text had this version; nil means no content.
func (s *Set) Loss(path string, next *Version) Loss {
	t := s.texts[path]
	if t == nil {
		return NoLoss
	}
	loss := NoLoss
	for _, key := range t.V.keys() {
		if next.gives(key) || s.definitions.gives(key, t) {
			continue
		}
		loss = max(loss, SomeLoss)
		if restricts(t.V.Fragment(key)) {
			return RestrictingLoss
		}
	}
	for key := range t.V.denied {
		if !next.gives(key) && (next == nil || next.denied[key] == nil) && !s.definitions.gives(key, t) {
			return RestrictingLoss
		}
	}
	return loss
}

// restricts reports whether an object restricts requests, connections or what proxies see.
func restricts(f *mesh.Fragment) bool {
	return len(f.PeerAuthentications)+len(f.RequestAuthentications)+len(f.Sidecars)+len(f.Unenforced) > 0 ||
		slices.ContainsFunc(f.AuthorizationPolicies, func(p *mesh.AuthorizationPolicy) bool {
			return p.Spec.GetAction() != security.AuthorizationPolicy_AUDIT
		})
}
