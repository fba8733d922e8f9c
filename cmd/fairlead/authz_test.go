package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// checked is a mesh with a port of each sort, and rules for them.
const checked = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 8080, name: http, protocol: HTTP}
  - {number: 9000, name: tcp, protocol: TCP}
  - {number: 9001, name: auto}
  workloadSelector: {labels: {app: api}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: api, namespace: shop}
spec: {address: 10.0.0.1, labels: {app: api}, serviceAccount: api}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: MODE}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: web, namespace: shop}
spec:
  rules:
  - from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]
  - to: [{operation: {paths: [/open]}}]
  - when: [{key: "request.headers[x-team]", values: [a]}]
  - from: [{source: {ipBlocks: [10.9.0.0/16]}}]
  - when: [{key: "request.auth.claims[group]", values: [admin]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: never, namespace: shop}
spec:
  action: DENY
  rules:
  - to: [{operation: {paths: [/secret*], ports: ["8080", "9001"]}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: users, namespace: shop}
spec:
  jwtRules:
  - {issuer: "https://login.example", audiences: [shop, other], jwksUri: "https://login.example/keys"}
`

// TestAuthzCheck asks about requests to each sort of port in each mode.
func TestAuthzCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	claims, foreign, useless := filepath.Join(dir, "claims.json"), filepath.Join(dir, "foreign.json"), filepath.Join(dir, "useless.json")
	token, broken := filepath.Join(dir, "token.jwt"), filepath.Join(dir, "broken.jwt")
	const good = `{"iss": "https://login.example", "aud": ["x", "shop"], "group": ["admin"]}`
	inRequest := "x." + base64.RawURLEncoding.EncodeToString([]byte(good)) + ".y"
	for path, content := range map[string]string{
		claims: good, foreign: `{"iss": "https://other.example", "group": ["admin"]}`, useless: `{"iss": "https://login.example", "aud": "them"}`,
		token: inRequest + "\n", broken: "x.y",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const web, other = "spiffe://cluster.local/ns/shop/sa/web", "cluster.local/ns/shop/sa/other"
	for i, x := range []struct {
		mode, args string
		code       int
		want       string
	}{
		{"PERMISSIVE", "GET / --port 8080", exitInvalid, "denied: an ALLOW policy applies, and no rule allows it\n"},
		{"PERMISSIVE", "GET / --port 8080 --from " + web, 0, "allowed: a rule allows it: AuthorizationPolicy shop/web, rules[0] (MESH:24:1)\n"},
		{"PERMISSIVE", "GET / --port 8080 --from " + other, exitInvalid, "denied"},
		{"PERMISSIVE", "GET / --port 8080 --from " + other + ",10.9.1.1", 0, "rules[3]"},
		{"PERMISSIVE", "GET / --port 8080 --from 10.9.1.1", 0, "rules[3]"},
		{"PERMISSIVE", "GET / --port 8080 --from 10.8.1.1", exitInvalid, "denied"},
		{"PERMISSIVE", "GET /open --port 8080", 0, "rules[1]"},
		{"PERMISSIVE", "GET /open?x=1 --port 8080", 0, "rules[1]"},
		{"PERMISSIVE", "GET /a/../open --port 8080", 0, "rules[1]"},
		{"PERMISSIVE", "GET /a/..%2fopen --port 8080", exitInvalid, "denied"},
		{"PERMISSIVE", "GET / --port 8080 -H x-team:a", 0, "rules[2]"},
		{"PERMISSIVE", "GET / --port 8080 -H x-team:b", exitInvalid, "denied"},
		{"PERMISSIVE", "GET / --port 8080 --claims " + claims, 0, "rules[4]"},
		{"PERMISSIVE", "GET / --port 8080 --jwt " + token, 0, "rules[4]"},
		{"PERMISSIVE", "GET /open --port 8080 --claims " + foreign, exitInvalid, `denied: the token is refused (401): no RequestAuthentication for this workload has its issuer (iss), "https://other.example"`},
		{"PERMISSIVE", "GET /open --port 8080 --claims " + useless, exitInvalid, "denied: the token is refused (403): its audience (aud) is none of shop, other"},
		{"PERMISSIVE", "GET /?access_token=TOKEN --port 8080", 0, "rules[4]"},
		{"PERMISSIVE", "GET /?access_token=TOKEN --port 8080", 0, "note: the signature and the times of the token in the request are not checked\n"},
		{"PERMISSIVE", "GET /open?access_token=x --port 8080", exitInvalid, "denied: the token is refused (401): it is no token"},
		{"PERMISSIVE", "GET / --port 8080 --jwt " + broken, 2, "it is no token"},
		{"PERMISSIVE", "GET / --port 8080 --jwt " + token + " --claims " + claims, 2, "exclude each other"},
		{"PERMISSIVE", "GET /secret/x --port 8080 --from " + web, exitInvalid, "denied: a rule denies it: AuthorizationPolicy shop/never, rules[0] (MESH:35:1)\n"},
		{"PERMISSIVE", "--port 9000 --from " + web, 0, "rules[0]"},
		{"PERMISSIVE", "--port 9000 --from " + other, exitInvalid, "denied: an ALLOW policy"},
		{"PERMISSIVE", "--port 9000", exitInvalid, "denied"},
		{"PERMISSIVE", "GET /open --port 9000", exitInvalid, "note: the port is for TCP"},
		{"PERMISSIVE", "GET /open --port 9001", 0, "rules[1]"},
		{"PERMISSIVE", "GET / --port 9001 --from " + web, 0, "rules[0]"},
		{"PERMISSIVE", "--port 9001 --from " + web, exitInvalid, "denied: a rule denies it: AuthorizationPolicy shop/never"},
		{"PERMISSIVE", "--port 7777 --from " + web, 0, "rules[0]"}, // a port that no service names
		{"STRICT", "GET /open --port 8080", exitInvalid, "port 8080 accepts only mTLS (STRICT)"},
		{"STRICT", "GET /open --port 8080 --from " + other, 0, "rules[1]"},
		{"DISABLE", "GET /open --port 8080 --from " + web, exitInvalid, "port 8080 accepts no mTLS (DISABLE)"},
		{"DISABLE", "GET /open --port 8080", 0, "rules[1]"},
		{"STRICT", "GET /open", 2, "the proxy has 3 inbound ports (8080, 9000, 9001): choose one with --port"},
		{"STRICT", "--port 8080 --from " + web, 2, "the port is for HTTP: give METHOD and PATH"},
		{"STRICT", "GET --port 8080", 2, "write METHOD and PATH"},
		{"STRICT", "GET open --port 8080 --from " + web, 2, "PATH begins with a slash"},
		{"STRICT", "GET / --port 8080 --from web", 2, "is neither an identity"},
		{"STRICT", "GET / --port 8080 -H x", 2, "write 'name: value'"},
		{"STRICT", "GET / --port 8080 --claims " + os.DevNull, 2, "no JSON object"},
		{"STRICT", "GET / -f x", 2, "exclude each other"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			path := write(t, strings.ReplaceAll(checked, "MODE", x.mode))
			args := append([]string{"authz", "check", "--config-dir", path, "--workload", "shop/api", "--interception", "REDIRECT"}, strings.Fields(strings.ReplaceAll(x.args, "TOKEN", inRequest))...)
			code, out, errs := cli(t, args...)
			if want := strings.ReplaceAll(x.want, "MESH", path); code != x.code || !strings.Contains(out+errs, want) {
				t.Errorf("%s %s: exit code %d, want %d with %q:\n%s%s", x.mode, x.args, code, x.code, want, out, errs)
			}
		})
	}
}

// TestAuthzCheckNamesProviders: an authorization server that is asked is named, and no more: what
// it answers is not known. One that cannot be asked denies.
func TestAuthzCheckNamesProviders(t *testing.T) {
	t.Parallel()
	policy := func(name, provider, rule string) string {
		return "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\nspec: {action: CUSTOM, provider: {name: " + provider + "}, rules: [" + rule + "]}\n"
	}
	config := write(t, "extensionProviders: [{name: opa, envoyExtAuthzGrpc: {service: api.mesh, port: 8080}}, {name: web, envoyExtAuthzHttp: {service: api.mesh, port: 8080}}]\n")
	for i, x := range []struct {
		policies, args string
		code           int
		want           string
	}{
		{policy("p", "opa", `{to: [{operation: {paths: [/open]}}]}`), "GET /open --port 8080", 0, "\nnote: it is asked of the extension provider opa, which may deny it: AuthorizationPolicy shop/p, rules[0]\n"},
		{policy("p", "opa", `{to: [{operation: {paths: [/x]}}]}`), "GET /open --port 8080", 0, "allowed: a rule allows it: AuthorizationPolicy shop/web, rules[1]"},
		{policy("p", "opa", `{}`), "GET / --port 8080", exitInvalid, "note: it is asked of the extension provider opa"},
		{policy("p", "opa", `{to: [{operation: {ports: ["1"]}}]}, {}`) + policy("q", "web", `{}`), "GET /open --port 8080", 0, "note: it is asked of the extension provider opa, which may deny it: AuthorizationPolicy shop/p, rules[1]\nnote: it is asked of the extension provider web, which may deny it: AuthorizationPolicy shop/q, rules[0]\n"},
		{policy("p", "nobody", `{to: [{operation: {paths: [/open]}}]}`), "GET /open --port 8080", exitInvalid, "denied: a rule denies it: AuthorizationPolicy shop/p, rules[0]"},
		{policy("p", "opa", `{}`), "--port 9000 --from 10.9.1.1", 0, "note: it is asked of the extension provider opa"},
		{policy("p", "web", `{}`), "--port 9000 --from 10.9.1.1", exitInvalid, "denied: a rule denies it: AuthorizationPolicy shop/p, rules[0]"},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			path := write(t, strings.ReplaceAll(checked, "MODE", "PERMISSIVE")+x.policies)
			args := append([]string{"authz", "check", "--config-dir", path, "--mesh-config", config, "--workload", "shop/api", "--interception", "REDIRECT"}, strings.Fields(x.args)...)
			code, out, errs := cli(t, args...)
			if code != x.code || !strings.Contains(out+errs, x.want) || strings.Count(out, "note:") != strings.Count(x.want, "note:") {
				t.Errorf("%s: exit code %d, want %d with %q:\n%s%s", x.args, code, x.code, x.want, out, errs)
			}
		})
	}
}

// TestAuthzCheckOfADump judges what a proxy runs, and says so in JSON.
func TestAuthzCheckOfADump(t *testing.T) {
	t.Parallel()
	path := write(t, strings.ReplaceAll(checked, "MODE", "PERMISSIVE"))
	code, dump, errs := cli(t, "render", "--config-dir", path, "--workload", "shop/api", "--interception", "REDIRECT")
	if code != 0 {
		t.Fatal(errs)
	}
	file := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(file, []byte(dump), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := cli(t, "authz", "check", "-f", file, "GET", "/open", "--port", "8080", "-o", "json")
	var got decision
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("%d %v: %s%s", code, err, out, errs)
	}
	if !got.Allowed || got.Policy != "shop/web" || got.Rule == nil || *got.Rule != 1 || got.Reason != "a rule allows it" {
		t.Errorf("%+v", got)
	}
	for args, want := range map[string]string{
		"authz check":                       "say what is judged",
		"authz check GET /":                 "say what is judged",
		"authz check -f " + file + " p G /": "write METHOD and PATH",
		"authz check a b c d":               "unexpected argument",
		"authz chek":                        "chek",
	} {
		if code, out, errs := cli(t, strings.Fields(args)...); code != 2 || !strings.Contains(out+errs, want) {
			t.Errorf("%s: %d, want %q:\n%s%s", args, code, want, out, errs)
		}
	}
}
