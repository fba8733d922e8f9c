package manifest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// keySet is a JSON Web Key Set, with the private half or without.
func keySet(t *testing.T, private bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	jwk := jose.JSONWebKey{Key: key.Public(), KeyID: "1"}
	if private {
		jwk.Key = key
	}
	doc, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{jwk}})
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

func requestAuthentication(t *testing.T, spec string) *manifest.Object {
	t.Helper()
	file, _ := manifest.Decode(manifest.Options{}, "a.yaml", []byte("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: "+spec+"\n"))
	return file.Objects[0]
}

// TestInlineKeys: only what package jwks has read reaches a proxy. What of it cannot be used is
// told, and does not keep out what else the object says.
func TestInlineKeys(t *testing.T) {
	t.Parallel()
	good, private := keySet(t, false), keySet(t, true)
	for name, c := range map[string]struct {
		rule    string
		has     bool   // a key
		warning string // or empty
	}{
		"good":           {fmt.Sprintf(`{issuer: a, jwks: %q}`, good), true, ""},
		"private":        {fmt.Sprintf(`{issuer: a, jwks: %q}`, private), false, "no key of the set can be used: key 0 (kid \"1\"): it is a private key"},
		"empty":          {`{issuer: a, jwks: '{"keys":[]}'}`, false, "no key of the set can be used"},
		"symmetric":      {`{issuer: a, jwks: '{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}'}`, false, "no key of the set can be used"},
		"one_of_two":     {fmt.Sprintf(`{issuer: a, jwks: %q}`, strings.Replace(good, "[", `[{"kty":"oct","k":"c2VjcmV0"},`, 1)), true, "some keys are left out"},
		"fetched":        {`{issuer: a, jwksUri: "https://a.example"}`, false, ""},
		"discovered":     {`{issuer: "https://a.example"}`, false, ""},
		"not_discovered": {`{issuer: testing@secure.istio.io}`, false, "no keys can be found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := requestAuthentication(t, "{jwtRules: ["+c.rule+"]}")
			if !o.InForce() {
				t.Fatalf("not in force: %v %v", o.Faults, o.NotInForce)
			}
			f := o.Fragment()
			if len(f.RequestAuthentications) != 1 || len(f.RequestAuthentications[0].Keys) != 1 || (f.RequestAuthentications[0].Keys[0] != "") != c.has {
				t.Errorf("the mesh gets %+v", f.RequestAuthentications)
			}
			if k := f.RequestAuthentications[0].Keys[0]; strings.Contains(k, `"d"`) || strings.Contains(k, "oct") {
				t.Errorf("a proxy gets %s", k)
			}
			warned := slices.ContainsFunc(o.Faults, func(f manifest.Fault) bool {
				return f.Severity == manifest.Warning && strings.Contains(f.Message, c.warning)
			})
			if c.warning == "" && len(o.Faults) > 0 || c.warning != "" && !warned {
				t.Errorf("faults are %v, want %q", o.Faults, c.warning)
			}
			if strings.Contains(fmt.Sprint(o.Faults), "c2VjcmV0") {
				t.Error("the secret is told")
			}
		})
	}
}

// TestTokenRulesThatCannotBeEnforced deny.
func TestTokenRulesThatCannotBeEnforced(t *testing.T) {
	t.Parallel()
	tooMany := `{"keys":[` + strings.Repeat(`{"kty":"oct","k":"c2VjcmV0"},`, 100) + `{"kty":"oct","k":"c2VjcmV0"}]}`
	for _, rule := range []string{
		`{issuer: "a\r\n"}`, `{issuer: a, fromHeaders: [{name: "x\n"}]}`, `{issuer: a, outputPayloadToHeader: "x\0"}`,
		`{issuer: a, outputPayloadToHeader: ":path"}`, `{issuer: a, outputPayloadToHeader: "x y"}`, `{issuer: a, outputPayloadToHeader: "é"}`,
		`{issuer: a, outputPayloadToHeader: Host}`, `{issuer: a, outputPayloadToHeader: transfer-encoding}`,
		`{issuer: a, outputClaimToHeaders: [{header: x-a, claim: a}, {header: host, claim: a}]}`, `{issuer: a, outputClaimToHeaders: [{header: Content-Length, claim: a}]}`,
		fmt.Sprintf(`{issuer: a, jwks: %q}`, tooMany),
	} {
		o := requestAuthentication(t, "{jwtRules: ["+rule+"]}")
		if !o.Valid || !o.Denies() {
			t.Errorf("%s: valid %v, denies %v: %v", rule, o.Valid, o.Denies(), o.Faults)
			continue
		}
		if f := o.Fragment(); len(f.Unenforced) != 1 || len(f.RequestAuthentications) > 0 {
			t.Errorf("%s: %+v", rule, f)
		}
	}
	// Istio's webhook takes all that HTTP does; Envoy too.
	for _, rule := range []string{`{issuer: a, outputPayloadToHeader: "x.a!_b"}`, `{issuer: a, outputClaimToHeaders: [{header: X_a-b, claim: a}]}`} {
		if o := requestAuthentication(t, "{jwtRules: ["+rule+"]}"); !o.InForce() || o.Denies() {
			t.Errorf("%s: %v %v", rule, o.Faults, o.NotInForce)
		}
	}
	// What a proxy cannot have by any means keeps nothing out.
	o := requestAuthentication(t, "{targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: edge}], jwtRules: [{issuer: https://a.example}]}")
	f := o.Fragment()
	if !o.InForce() || o.Denies() || len(f.RequestAuthentications)+len(f.Unenforced) > 0 || !strings.Contains(fmt.Sprint(o.Faults), "no effect") {
		t.Errorf("attached to a gateway: %+v %v", f, o.Faults)
	}
}

// TestKeyRequests: what the mesh asks keys of.
func TestKeyRequests(t *testing.T) {
	t.Parallel()
	f := requestAuthentication(t, fmt.Sprintf(`{jwtRules: [
		{issuer: a, jwksUri: "https://a.example/keys", timeout: 3s}, {issuer: "https://b.example"}, {issuer: c, jwks: %q}]}`, keySet(t, false))).Fragment()
	f.Source = "files"
	got := f.KeyRequests(true)
	want := []mesh.KeyRequest{
		{Location: mesh.KeyLocation{URI: "https://a.example/keys", Private: true}, Issuer: "a", Timeout: 3e9, Owner: "files"},
		{Location: mesh.KeyLocation{URI: "https://b.example", Discovery: true, Private: true}, Issuer: "https://b.example", Owner: "files"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
