package mesh

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"
)

// testTokens is a RequestAuthentication of which each rule has its keys at a URI. A rule that
// begins with "=" has them inline, and one that begins with "?" asks the issuer.
func testTokens(namespace, name string, uris ...string) *RequestAuthentication {
	r := &RequestAuthentication{Meta: testMeta(KindRequestAuthentication, namespace, name, fmt.Sprint(uris)), Spec: &security.RequestAuthentication{}}
	for _, uri := range uris {
		rule, keys := &security.JWTRule{Issuer: uri, JwksUri: uri}, ""
		if strings.HasPrefix(uri, "=") {
			rule, keys = &security.JWTRule{Issuer: uri, Jwks: uri}, uri
		} else if strings.HasPrefix(uri, "?") {
			rule = &security.JWTRule{Issuer: uri}
		}
		r.Spec.JwtRules, r.Keys = append(r.Spec.JwtRules, rule), append(r.Keys, keys)
	}
	return r
}

// testKeys are keys at private addresses.
func testKeys(sets map[string]string) *KeySets {
	out := map[KeyLocation]string{}
	for uri, set := range sets {
		out[KeyLocation{URI: uri, Private: true}] = set
	}
	return NewKeySets(out)
}

// TestKeysAreLaidOver: a snapshot has the keys that are in force, and says what changed.
func TestKeysAreLaidOver(t *testing.T) {
	t.Parallel()
	f := &Fragment{Source: "files", RequestAuthentications: []*RequestAuthentication{testTokens("shop", "a", "x", "=inline"), testTokens("shop", "b", "y")}}
	in := Input{Fallback: testMeshConfig(), Fragments: []*Fragment{f}}
	keys := func(s *Snapshot) string {
		var out []string
		for _, r := range s.RequestAuthentications {
			out = append(out, r.Name+fmt.Sprintf("%q", r.Keys))
		}
		return strings.Join(out, " ")
	}
	step := func(sets *KeySets, want, changed string) {
		t.Helper()
		in.KeySets = sets
		s := Merge(in)
		if got := keys(s); got != want {
			t.Errorf("keys are %s, want %s", got, want)
		}
		var names []string
		for _, c := range s.Changes {
			names = append(names, c.Key.Name)
		}
		if got := strings.Join(names, " "); got != changed {
			t.Errorf("%q changed, want %q", got, changed)
		}
		if in.Prev == nil {
			in.Prev = s
			return
		}
		if n := len(DeltasOf[*RequestAuthentication](s.Since(in.Prev))); n != len(names) {
			t.Errorf("%d objects differ, want %d", n, len(names))
		}
		in.Prev = s
	}
	step(nil, `a["" "=inline"] b[""]`, "")
	step(testKeys(map[string]string{"x": "1"}), `a["1" "=inline"] b[""]`, "a")
	step(testKeys(map[string]string{"x": "1", "y": "2"}), `a["1" "=inline"] b["2"]`, "b")
	step(testKeys(map[string]string{"x": "1", "y": "2"}), `a["1" "=inline"] b["2"]`, "")
	step(testKeys(map[string]string{"x": "3", "y": "2", "=inline": "4"}), `a["3" "=inline"] b["2"]`, "a")
	step(nil, `a["" "=inline"] b[""]`, "a b")
	if r := f.RequestAuthentications[0]; r != in.Prev.RequestAuthentications[0] {
		t.Error("an object without fetched keys is not itself")
	}
}

// TestBoundSourcesHaveNoKeysOfPrivateAddresses, not even those that another source had fetched.
func TestBoundSourcesHaveNoKeysOfPrivateAddresses(t *testing.T) {
	t.Parallel()
	ours := &Fragment{Source: "ours", RequestAuthentications: []*RequestAuthentication{testTokens("ours", "a", "x")}}
	theirs := &Fragment{Source: "theirs", RequestAuthentications: []*RequestAuthentication{testTokens("theirs", "b", "x")}}
	in := Input{
		Fallback: testMeshConfig(), Fragments: []*Fragment{theirs, ours}, Bindings: []*Binding{{Namespaces: []string{"theirs"}}, nil},
		KeySets: testKeys(map[string]string{"x": "private"}),
	}
	keys := func() string {
		in.Prev = Merge(in)
		var out []string
		for _, r := range in.Prev.RequestAuthentications {
			out = append(out, r.Keys...)
		}
		return fmt.Sprintf("%q", out)
	}
	if got := keys(); got != `["private" ""]` {
		t.Errorf("keys are %s", got)
	}
	if in.PrivateKeys(0) || !in.PrivateKeys(1) {
		t.Error("a bound source may use private addresses")
	}
	in.BoundPrivateKeys = true
	if got := keys(); got != `["private" "private"]` || !in.PrivateKeys(0) {
		t.Errorf("with the setting keys are %s", got)
	}
	in.BoundPrivateKeys = false
	if got := keys(); got != `["private" ""]` {
		t.Errorf("without it keys are %s", got)
	}
}

// TestKeysStepByStep: what a snapshot is made from does not depend on what was before.
func TestKeysStepByStep(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	uris := []string{"u", "v", "=inline", "?w", "?x"}
	in := Input{Fallback: testMeshConfig(), Fragments: make([]*Fragment, 2), Bindings: []*Binding{nil, {Namespaces: []string{"shop"}}}}
	changed := 0
	for step := range 400 {
		for i := range in.Fragments {
			if rng.IntN(3) > 0 && step > 0 {
				continue
			}
			next := &Fragment{Source: strconv.Itoa(i)}
			for n := range rng.IntN(4) {
				uri := uris[rng.IntN(len(uris))]
				r := testTokens("shop", fmt.Sprint("t", n), uri)
				if prev := in.Fragments[i]; prev != nil && n < len(prev.RequestAuthentications) && prev.RequestAuthentications[n].Hash == r.Hash {
					r = prev.RequestAuthentications[n]
				}
				switch rng.IntN(8) {
				case 0: // the same in another line
					moved := *r
					moved.Origin = &Origin{Source: r.Origin.Source, Path: r.Origin.Path, Line: 2 + rng.IntN(9)}
					r = &moved
				case 1: // from a source that does not know whether it is the same
					unknown := *r
					unknown.Hash = Hash{}
					r = &unknown
				}
				next.RequestAuthentications = append(next.RequestAuthentications, r)
			}
			in.Fragments = slices.Clone(in.Fragments)
			in.Fragments[i] = next
		}
		if rng.IntN(2) == 0 {
			sets := map[KeyLocation]string{}
			for _, uri := range uris {
				if rng.IntN(3) > 0 {
					sets[KeyLocation{URI: uri, Discovery: uri[0] == '?', Private: rng.IntN(2) == 0}] = strconv.Itoa(rng.IntN(3))
				}
			}
			in.KeySets = NewKeySets(sets)
		}
		in.BoundPrivateKeys = rng.IntN(8) == 0
		s := Merge(in)
		fresh := in
		fresh.Prev = nil
		if got, want := fingerprint(t, s), fingerprint(t, Merge(fresh)); got != want {
			t.Fatalf("step %d: it depends on the snapshots before", step)
		}
		for _, r := range s.RequestAuthentications {
			checkKeys(t, &in, r)
		}
		if in.Prev != nil {
			changed += len(s.Changes)
			again := DiffLists(in.Prev.RequestAuthentications, s.RequestAuthentications, compareAge)
			if len(again) != len(DeltasOf[*RequestAuthentication](s.Since(in.Prev))) && len(s.Changes) > 0 {
				t.Fatalf("step %d: %d objects differ, and %d are said to", step, len(again), len(DeltasOf[*RequestAuthentication](s.Since(in.Prev))))
			}
		}
		in.Prev = s
	}
	if changed < 200 {
		t.Errorf("only %d objects changed", changed)
	}
}

// checkKeys compares an object of a snapshot with that of the first source that has it, and
// with the keys of its place.
func checkKeys(t *testing.T, in *Input, r *RequestAuthentication) {
	t.Helper()
	for i, f := range in.Fragments {
		at := slices.IndexFunc(f.RequestAuthentications, func(o *RequestAuthentication) bool { return o.Key == r.Key })
		if at < 0 {
			continue
		}
		o := f.RequestAuthentications[at]
		want := o.Keys[0]
		if uri := o.Spec.GetJwtRules()[0].GetIssuer(); uri[0] != '=' {
			want = in.KeySets.At(KeyLocation{URI: uri, Discovery: uri[0] == '?', Private: i == 0 || in.BoundPrivateKeys})
		}
		if r.Origin != o.Origin || r.Spec != o.Spec || r.Keys[0] != want || r.Hash.IsZero() != o.Hash.IsZero() {
			t.Fatalf("%s %s has the keys %q, want %q of %s", r.Key, r.Origin, r.Keys, want, o.Origin)
		}
		return
	}
	t.Fatalf("no source has %s", r.Key)
}
