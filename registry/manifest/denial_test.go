package manifest_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestBrokenPoliciesHaveADenial takes policies with many fields, and puts something there that
// the field cannot be, one field at a time, or a key that no field has. Each that is not valid
// denies what it selects, or its namespace if that cannot be read, unless its name is what is broken.
func TestBrokenPoliciesHaveADenial(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"AuthorizationPolicy": `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop, labels: {team: a}}
spec:
  selector: {matchLabels: {app: orders}}
  action: DENY
  rules:
  - from: [{source: {principals: [a], notNamespaces: [b], ipBlocks: [10.0.0.0/8], remoteIpBlocks: [10.1.0.0/16]}}]
    to: [{operation: {methods: [GET], paths: [/x], hosts: [h], ports: ["80"]}}]
    when: [{key: "request.headers[x]", values: [y]}]
`,
		"RequestAuthentication": `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: p, namespace: shop, labels: {team: a}}
spec:
  selector: {matchLabels: {app: orders}}
  jwtRules:
  - {issuer: a, audiences: [b], jwksUri: "https://a.example/keys", fromHeaders: [{name: x, prefix: y}], forwardOriginalToken: true}
`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			denied := 0
			for _, value := range []any{map[string]any{"no": []any{"such"}}, []any{map[string]any{"no": 1}}, "", "\x00", 7, nil} {
				var doc map[string]any
				if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
					t.Fatal(err)
				}
				everyPlace(doc, "", value, func(path string) { denied += checkDenial(t, doc, path, value) })
			}
			if denied < 60 {
				t.Errorf("only %d documents deny", denied)
			}
		})
	}
}

// checkDenial judges a document, and returns 1 if it denies.
func checkDenial(t *testing.T, doc map[string]any, path string, value any) int {
	t.Helper()
	text, err := yaml.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	file, faults := manifest.Decode(manifest.Options{}, "p.yaml", text)
	if len(file.Objects) != 1 {
		t.Fatalf("%s = %v: %v", path, value, faults)
	}
	o := file.Objects[0]
	denial := o.Denial()
	if o.Valid {
		if denial != nil {
			t.Errorf("%s = %v: valid, and denies", path, value)
		}
		return 0
	}
	named := slices.ContainsFunc([]string{"apiVersion", "kind", "metadata.name", "metadata.namespace"}, func(p string) bool { return path == p }) || path == "metadata"
	if named {
		if denial != nil {
			t.Errorf("%s = %v: nobody knows which object this is, and it denies", path, value)
		}
		return 0
	}
	if denial == nil {
		t.Errorf("%s = %v: does not deny: %v", path, value, o.Faults)
		return 0
	}
	u := denial.Unenforced[0]
	want := "map[app:orders]"
	if path == "spec" || strings.HasPrefix(path, "spec.selector") {
		want = "map[]"
	}
	if got := fmt.Sprint(u.Selector); got != want || u.Namespace != "shop" || u.Name != "p" || u.Hash.IsZero() {
		t.Errorf("%s = %v: denies %s of %s, want %s", path, value, got, u.Key, want)
	}
	return 1
}

// everyPlace puts a value at each place of a tree in turn, and adds a key to each map.
func everyPlace(node any, at string, value any, visit func(path string)) {
	switch x := node.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(x)) {
			was, path := x[k], strings.TrimPrefix(at+"."+k, ".")
			x[k] = value
			visit(path)
			x[k] = was
			everyPlace(was, path, value, visit)
		}
		const unknown = "noSuchField"
		x[unknown] = value
		visit(strings.TrimPrefix(at+"."+unknown, "."))
		delete(x, unknown)
	case []any:
		for i := range x {
			was, path := x[i], fmt.Sprintf("%s[%d]", at, i)
			x[i] = value
			visit(path)
			x[i] = was
			everyPlace(was, path, value, visit)
		}
	}
}

// TestNoDenial has broken objects that deny nothing: they would not have either, or are not
// for the namespace.
func TestNoDenial(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n"
	for name, text := range map[string]string{
		"audit":      head + "spec: {action: AUDIT, rules: [{when: [{key: no.such.key, values: [a]}]}]}",
		"dry_run":    strings.Replace(head, "namespace: shop", `namespace: shop, annotations: {istio.io/dry-run: "true"}`, 1) + "spec: {action: DENY, rules: [{when: [{key: no.such.key, values: [a]}]}]}",
		"attached":   head + "spec: {action: DENY, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: g}], rules: [{when: [{key: no.such.key, values: [a]}]}]}",
		"other_kind": strings.Replace(head, "AuthorizationPolicy", "PeerAuthentication", 1) + "spec: {mtls: {mode: NONE}}",
		"foreign":    strings.Replace(head, "namespace: shop", "namespace: other", 1) + "spec: {action: BLOCK}",
	} {
		file, _ := manifest.Decode(manifest.Options{Namespaces: []string{"shop"}}, "p.yaml", []byte(text))
		if o := file.Objects[0]; o.Valid || o.Denial() != nil || o.Fragment() != nil {
			t.Errorf("%s: valid %v, denies %v", name, o.Valid, o.Denial())
		}
	}
	for _, text := range []string{head + "spec: {action: BLOCK}", head + "spec: {rules: [{from: [{source: {principal: [a]}}]}]}", head + "spec: {rules: [{when: [{key: no.such.key, values: [a]}]}]}"} {
		file, _ := manifest.Decode(manifest.Options{Namespaces: []string{"shop"}}, "p.yaml", []byte(text))
		if o := file.Objects[0]; o.Valid || o.Denial() == nil {
			t.Errorf("does not deny: %s", text)
		}
	}
}
