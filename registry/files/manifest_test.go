package files

import (
	"path/filepath"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// doc is a manifest: kind, namespace line, name, spec lines.
	virtualService = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: NAME, namespace: NS}
spec:
  hosts: [HOST]
  http: [{route: [{destination: {host: orders.prod.svc.cluster.local}, weight: 100}]}]
---
`
	authorizationPolicy = `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: NAME, namespace: NS}
spec: {selector: {matchLabels: {app: a}}, action: ALLOW}
---
`
)

func doc(text, namespace, name, host string) string {
	text = strings.ReplaceAll(text, ", namespace: NS", map[bool]string{true: "", false: ", namespace: " + namespace}[namespace == ""])
	return strings.NewReplacer("NAME", name, "HOST", host).Replace(text)
}

// edited is a text with the first occurrence of one part exchanged, which has to be there.
func edited(t *testing.T, text, from, to string) string {
	t.Helper()
	before, after, ok := strings.Cut(text, from)
	if !ok {
		t.Fatalf("%q is not in %s", from, text)
	}
	return before + to + after
}

func startReal(t *testing.T, cfg Config) *running {
	t.Helper()
	cfg.Decoder = manifests{}
	return start(t, cfg)
}

// TestManifests goes through the real decoder.
func TestManifests(t *testing.T) {
	t.Parallel()
	vs := func(ns, name, host string) string { return doc(virtualService, ns, name, host) }
	path := filepath.Join(treeOf(t, map[string]string{
		"a.yaml": vs("", "a", "one") + vs("prod", "b", "b.example") + vs("test", "c", "c.example") + doc(authorizationPolicy, "prod", "p", ""),
	}), "a.yaml")
	cfg := Config{Roots: []Root{{Path: filepath.Dir(path), Namespaces: []string{"prod"}}}, Domain: "mesh.local", StateDir: t.TempDir()}
	r := startReal(t, cfg)
	f := r.Await("prod/a=one.prod.svc.mesh.local", "prod/b=b.example")
	if len(f.AuthorizationPolicies) != 1 || f.AuthorizationPolicies[0].Spec.GetSelector().GetMatchLabels()["app"] != "a" {
		t.Errorf("policies: %v", f.AuthorizationPolicies)
	}
	if !r.hasFault(path + `:17:32: error [FL0107] VirtualService test/c metadata.namespace: the namespace "test" is not one`) {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	// A slip in the kind, a name that is none, and a broken policy: all stand.
	broken := edited(t, vs("prod", "a", "two"), "VirtualService", "VirtualServce") +
		vs("prod", "B", "new.example") + edited(t, doc(authorizationPolicy, "prod", "p", ""), "action: ALLOW", "action: 7")
	replace(t, path, broken)
	r.awaitStatus("keeping", func(s *Status) bool { return len(s.Kept) == 3 })
	r.Await("prod/a=one.prod.svc.mesh.local", "prod/b=b.example")
	if f := r.Last(); len(f.AuthorizationPolicies) != 1 {
		t.Errorf("policies: %v", f.AuthorizationPolicies)
	}
	r.Stop()
	r = startReal(t, cfg)
	r.Await("prod/a=one.prod.svc.mesh.local", "prod/b=b.example")
	if f := r.Last(); len(f.AuthorizationPolicies) != 1 {
		t.Errorf("after a restart, policies: %v", f.AuthorizationPolicies)
	}
	// An object that uses what is not built is kept out whole; one that was in
	// force before stays as it was.
	notBuilt := func(name string) string {
		return edited(t, vs("prod", name, "n.example"), "weight: 100", "headers: {request: {set: {a: '%ENVIRONMENT(A)%'}}}")
	}
	replace(t, path, notBuilt("new")+notBuilt("b")+vs("prod", "a", "two"))
	r.Await("prod/a=two.prod.svc.mesh.local", "prod/b=b.example")
	if !r.hasFault("error [FL0130] VirtualService prod/new spec.http[0].route[0].headers.request.set.a") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	replace(t, path, vs("prod", "a", "two")+"kind: [\n")
	r.awaitStatus("unparsable", func(s *Status) bool { return len(s.Kept) == 2 })
	r.Await("prod/a=two.prod.svc.mesh.local", "prod/b=b.example")
}

// TestEmptyValuesOfAPolicy: a policy with an empty value is in force, also in the next version of a
// file and after a restart; one that selects more by that is named.
func TestEmptyValuesOfAPolicy(t *testing.T) {
	t.Parallel()
	const policy = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: prod}\nspec:\n  selector:\n  mtls: {mode: MODE}\n"
	path := filepath.Join(treeOf(t, map[string]string{"a.yaml": strings.ReplaceAll(policy, "MODE", "PERMISSIVE")}), "a.yaml")
	cfg := Config{Roots: []Root{{Path: filepath.Dir(path)}}, StateDir: t.TempDir()}
	mode := func(r *running, want security.PeerAuthentication_MutualTLS_Mode) {
		t.Helper()
		r.awaitStatus("in force", func(s *Status) bool {
			f := r.Last()
			return len(s.Kept) == 0 && f != nil && len(f.PeerAuthentications) == 1 && f.PeerAuthentications[0].Spec.GetMtls().GetMode() == want
		})
	}
	r := startReal(t, cfg)
	mode(r, security.PeerAuthentication_MutualTLS_PERMISSIVE)
	replace(t, path, strings.ReplaceAll(policy, "MODE", "STRICT"))
	mode(r, security.PeerAuthentication_MutualTLS_STRICT)
	if r.hasFault("error") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
	r.Stop()
	r = startReal(t, cfg)
	mode(r, security.PeerAuthentication_MutualTLS_STRICT)
	replace(t, path, strings.NewReplacer("MODE", "STRICT", "selector:", "selector: {matchLabels: {app: }}").Replace(policy))
	r.awaitStatus("named", func(*Status) bool {
		return r.hasFault(path + ":5:28: warning [FL0190] PeerAuthentication prod/p spec.selector.matchLabels.app: ")
	})
	mode(r, security.PeerAuthentication_MutualTLS_STRICT)
}

// TestTwoNamespaces: with more than one, objects that name none are in default,
// which may not be among them.
func TestTwoNamespaces(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": doc(virtualService, "", "a", "a.example") + doc(virtualService, "x", "b", "b.example")})
	r := startReal(t, Config{Roots: []Root{{Path: dir, Namespaces: []string{"x", "y"}}}})
	r.Await("x/b=b.example")
	if !r.hasFault("a.yaml:3:11: error [FL0107] VirtualService default/a") {
		t.Errorf("faults: %v", r.Status().Faults)
	}
}

// TestCommentMovesOrigin: the content is the same by its hash, and people find
// the line where it is now.
func TestCommentMovesOrigin(t *testing.T) {
	t.Parallel()
	text := doc(virtualService, "", "a", "a.example") + doc(virtualService, "", "b", "b.example")
	path := filepath.Join(treeOf(t, map[string]string{"a.yaml": text}), "a.yaml")
	r := startReal(t, atDir(filepath.Dir(path)))
	before := r.Await("a=a.example", "b=b.example").VirtualServices
	cut := strings.Index(text, "---\n") + len("---\n")
	replace(t, path, text[:cut]+"# a comment\n"+text[cut:])
	var after []*mesh.VirtualService
	r.awaitStatus("moved", func(*Status) bool {
		after = r.Last().VirtualServices
		return after[1] != before[1]
	})
	if after[0] != before[0] {
		t.Error("a did not change and is another pointer")
	}
	if after[1].Hash != before[1].Hash || after[1].Origin.Line != before[1].Origin.Line+1 {
		t.Errorf("b: %v %v, was %v %v", after[1].Hash, after[1].Origin, before[1].Hash, before[1].Origin)
	}
}

func TestRealMeshConfig(t *testing.T) {
	t.Parallel()
	path := filepath.Join(treeOf(t, map[string]string{"mesh.yaml": "trustDomain: one.example\n"}), "mesh.yaml")
	r := startReal(t, Config{MeshConfigFile: path})
	r.Await("mesh=one.example")
	replace(t, path, "trustDomian: two.example\n")
	st := r.awaitStatus("keeping", func(s *Status) bool { return len(s.Kept) == 1 })
	if !r.hasFault(path + ":1:1: error [FL0110] MeshConfig trustDomian") {
		t.Errorf("faults: %v", st.Faults)
	}
	replace(t, path, "trustDomain: two.example\n")
	r.Await("mesh=two.example")
	r.Always()
}
