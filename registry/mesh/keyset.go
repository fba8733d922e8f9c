package mesh

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	security "istio.io/api/security/v1beta1"
)

// RequestAuthentication says which tokens (JWT) of end users a workload takes. All that select
// a workload count.
type RequestAuthentication struct {
	Meta
	Spec *security.RequestAuthentication
	// Keys are the key sets of the rules of Spec, one for each, as package jwks makes them. An
	// empty one means that there are no keys: tokens of the issuer are refused. In a fragment
	// they are those that the object has inline; a snapshot has those that were fetched, too.
	Keys []string
}

// Selects reports whether the object is for a workload in a namespace. root is the root
// namespace, whose objects are for all namespaces.
func (r *RequestAuthentication) Selects(namespace string, labels map[string]string, root string) bool {
	return (r.Namespace == namespace || r.Namespace == root) && Selects(r.MatchLabels(), labels)
}

// MatchLabels are the labels of its selector; none means all workloads.
func (r *RequestAuthentication) MatchLabels() map[string]string {
	return r.Spec.GetSelector().GetMatchLabels()
}

// KeyLocation is where the keys of an issuer are.
type KeyLocation struct {
	// URI is that of the key set or, with Discovery, the issuer, whose OpenID configuration
	// says where its keys are.
	URI       string
	Discovery bool
	// Private says that the keys may be fetched from private addresses.
	Private bool
}

// KeyRequest asks for a key set.
type KeyRequest struct {
	Location KeyLocation
	// Issuer is the issuer of the tokens, for people.
	Issuer string
	// Timeout is the time for one attempt; 0 means the default.
	Timeout time.Duration
	// Owner is the source of the object that asks.
	Owner string
}

// Compare orders requests, by owner first.
func (r KeyRequest) Compare(o KeyRequest) int {
	return cmp.Or(cmp.Compare(r.Owner, o.Owner), cmp.Compare(r.Location.URI, o.Location.URI), cmp.Compare(r.Issuer, o.Issuer),
		compareFlags(r.Location.Discovery, o.Location.Discovery), compareFlags(r.Location.Private, o.Location.Private), cmp.Compare(r.Timeout, o.Timeout))
}

func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// KeySets are the fetched key sets that are in force at one time. They are immutable; other
// keys are another KeySets. Nil has none.
type KeySets struct {
	sets map[KeyLocation]string
}

// NewKeySets makes KeySets, which keep the map.
func NewKeySets(sets map[KeyLocation]string) *KeySets { return &KeySets{sets} }

// At is the key set of a location, or empty.
func (k *KeySets) At(l KeyLocation) string {
	if k == nil {
		return ""
	}
	return k.sets[l]
}

// locationOf is where the keys of a rule are fetched from; false if they are inline. As in
// Istio, inline keys count before a URI, and without both the issuer is asked.
func locationOf(rule *security.JWTRule, private bool) (KeyLocation, bool) {
	switch {
	case rule.GetJwks() != "":
		return KeyLocation{}, false
	case rule.GetJwksUri() != "":
		return KeyLocation{rule.GetJwksUri(), false, private}, true
	default:
		return KeyLocation{rule.GetIssuer(), true, private}, true
	}
}

// KeyRequests are the key sets that the RequestAuthentications of a source need, sorted.
// private says that the source may have keys fetched from private addresses.
func (f *Fragment) KeyRequests(private bool) []KeyRequest {
	var out []KeyRequest
	for _, r := range f.RequestAuthentications {
		for _, rule := range r.Spec.GetJwtRules() {
			if at, fetched := locationOf(rule, private); fetched {
				out = append(out, KeyRequest{at, rule.GetIssuer(), rule.GetTimeout().AsDuration(), f.Source})
			}
		}
	}
	slices.SortFunc(out, KeyRequest.Compare)
	return slices.Compact(out)
}

// withKeys returns the object with the keys that are in force: itself if there are none to
// add, prev if that has them already, else a copy.
func (r *RequestAuthentication) withKeys(prev *RequestAuthentication, sets *KeySets, private bool) *RequestAuthentication {
	var keys []string
	for i, rule := range r.Spec.GetJwtRules() {
		at, fetched := locationOf(rule, private)
		if !fetched || sets.At(at) == "" {
			continue
		}
		if keys == nil {
			keys = make([]string, len(r.Spec.GetJwtRules()))
			copy(keys, r.Keys)
		}
		keys[i] = sets.At(at)
	}
	if keys == nil {
		return r
	}
	hash := hashWithKeys(r.Hash, keys)
	if prev != nil && prev.Origin == r.Origin && !hash.IsZero() && prev.Hash == hash {
		return prev
	}
	updated := *r
	updated.Hash, updated.Keys = hash, keys
	return &updated
}

// hashWithKeys is the hash of content with keys; unknown stays unknown.
func hashWithKeys(h Hash, keys []string) Hash {
	if h.IsZero() {
		return h
	}
	b := slices.Clone(h[:])
	for _, k := range keys {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(k))), k...)
	}
	return sha256.Sum256(b)
}

// keysOf is how keys were laid over the RequestAuthentications of a snapshot.
type keysOf struct {
	sets *KeySets
	// private says of each source whether it may use private addresses.
	private []bool
}

// applyKeys lays the keys that are in force over the RequestAuthentications; after that, d
// knows of them.
func (s *Snapshot) applyKeys(prev *Snapshot, d *Diff, in Input) []*RequestAuthentication {
	was, next := prev.tables.keys, keysOf{sets: in.KeySets, private: make([]bool, len(in.Fragments))}
	for i := range next.private {
		next.private[i] = in.PrivateKeys(i)
	}
	s.tables.keys = next
	if len(DeltasOf[*RequestAuthentication](d)) == 0 && was.sets == next.sets && slices.Equal(was.private, next.private) {
		return prev.RequestAuthentications
	}
	private := map[*RequestAuthentication]bool{}
	for i, f := range in.Fragments {
		if f != nil && next.private[i] {
			for _, r := range f.RequestAuthentications {
				private[r] = true
			}
		}
	}
	before := make(map[Key]*RequestAuthentication, len(prev.RequestAuthentications))
	for _, r := range prev.RequestAuthentications {
		before[r.Key] = r
	}
	base := tableOf[*RequestAuthentication](&s.tables).merged
	out := make([]*RequestAuthentication, 0, len(base))
	for _, r := range base {
		out = append(out, r.withKeys(before[r.Key], in.KeySets, private[r]))
	}
	slices.SortStableFunc(out, compareAge)
	deltas := DiffLists(prev.RequestAuthentications, out, compareAge)
	if note(d, deltas); len(deltas) == 0 {
		return prev.RequestAuthentications
	}
	return out
}

// PrivateKeys reports whether a source, by its place in Fragments, may have keys fetched from
// private addresses: who may write for the whole mesh may, others only by BoundPrivateKeys.
func (in *Input) PrivateKeys(source int) bool {
	return in.BoundPrivateKeys || source >= len(in.Bindings) || in.Bindings[source] == nil
}
