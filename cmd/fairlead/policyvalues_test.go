package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// policyWith is a policy with a list of paths.
func policyWith(tb testing.TB, paths ...string) string {
	tb.Helper()
	list, err := json.Marshal(paths)
	if err != nil {
		tb.Fatal(err)
	}
	return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: b}\nspec:\n  rules:\n  - to: [{operation: {paths: " + string(list) + "}}]\n"
}

// templateListener is a bootstrap whose rules have templates as they are written, but for the
// braces that are Istio's.
func templateBootstrap(tb testing.TB, templates []string) []byte {
	tb.Helper()
	type object = map[string]any
	const prefix = "type.googleapis.com/envoy.extensions."
	var permissions []object
	for _, text := range templates {
		permissions = append(permissions, object{"uri_template": object{"name": "uri-template", "typed_config": object{
			"@type":         prefix + "path.match.uri_template.v3.UriTemplateMatchConfig",
			"path_template": strings.NewReplacer("{*}", "*", "{**}", "**").Replace(text),
		}}})
	}
	body, err := json.Marshal(object{
		"admin": json.RawMessage(envoytest.AdminJSON),
		"static_resources": object{"listeners": []object{{
			"name": "in", "address": object{"socket_address": object{"address": "127.0.0.1", "port_value": 0}},
			"filter_chains": []object{{"filters": []object{{"name": "envoy.filters.network.http_connection_manager", "typed_config": object{
				"@type": prefix + "filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
				"route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": []object{{"match": object{"prefix": ""}, "direct_response": object{"status": 200}}}}}},
				"http_filters": []object{
					{"name": "envoy.filters.http.rbac", "typed_config": object{"@type": prefix + "filters.http.rbac.v3.RBAC", "rules": object{"policies": object{"p": object{"permissions": permissions, "principals": []object{{"any": true}}}}}}},
					{"name": "envoy.filters.http.router", "typed_config": object{"@type": prefix + "filters.http.router.v3.Router"}},
				},
			}}}}},
		}}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return body
}

// TestTemplatesAreToldAsEnvoyTakesThem: of the templates that Istio's webhook takes, validate and
// analyze name those that a real Envoy refuses, and no others.
func TestTemplatesAreToldAsEnvoyTakesThem(t *testing.T) {
	t.Parallel()
	long := "/" + strings.Repeat("x", 251)
	var good, refused int
	var taken []string
	for _, path := range []string{
		"{*}/x", "a/{*}", "{**}", "//{*}", "///{**}", "/{*}//", "/{*}/", "/{**}/", "/{*}", "/{**}", "/a/{*}", "/a/{*}/b/{**}", "/a/{**}/b", "/a/{*}/{*}/{*}", "/a.b/~c/{*}/$&'()+,;:@=!",
		"/%2f/{*}", "/%zz/{*}", "/a=b/{*}", "/{*}/=", "/a/{**}/b/", "/{**}/.", "/../{*}", long + "/{*}", long + "x/{*}", long + "xx/{*}", long + "xxx/{*}", long + "/{**}", long + "xx/{**}",
		"/{*}{*}", "/a/{**}/{**}", "/a{*}", "/é/{*}", "/a b/{*}", "/{a}/{*}", "/a*/{*}",
	} {
		file := write(t, policyWith(t, path))
		code, out, _ := cli(t, "validate", file)
		if code != 0 { // the webhook's rules
			if !strings.Contains(out, "[FL0120]") {
				t.Errorf("%s: %s", path, out)
			}
			refused++
			continue
		}
		told := strings.Contains(out, "spec.rules[0].to[0].operation.paths[0]: Envoy cannot enforce this") && strings.Contains(out, "warning [FL0132]")
		code, out, _ = cli(t, "analyze", file)
		if again := code == 1 && strings.Contains(out, "error [FL0132]"); again != told {
			t.Errorf("%s: validate says it: %v, analyze: %v\n%s", path, told, again, out)
		}
		if !told {
			taken = append(taken, path)
			continue
		}
		good++
		if !testing.Short() && envoytest.Validate(t, templateBootstrap(t, []string{path})) == nil {
			t.Errorf("%s: Envoy takes it, and we say that it does not", path)
		}
	}
	if good < 8 || len(taken) < 8 || refused < 5 {
		t.Errorf("%d that Envoy refuses, %d that it takes, %d that the webhook refuses: this shows little", good, len(taken), refused)
	}
	if err := envoytest.Validate(t, templateBootstrap(t, taken)); err != nil {
		t.Errorf("Envoy refuses one of %q: %v", taken, err)
	}
}

// TestValuesThatEnvoyRefusesAreTold in each kind of list, at their places.
func TestValuesThatEnvoyRefusesAreTold(t *testing.T) {
	t.Parallel()
	long := "*" + strings.Repeat("x", 2100)
	const effectAllow, effectDeny = "so the whole rule allows nothing", "so the rule matches without this list, and more than is meant"
	for name, c := range map[string]struct{ rule, at, effect string }{
		"principal":  {fmt.Sprintf(`{from: [{source: {principals: [a, %q]}}]}`, long), "from[0].source.principals[1]", effectAllow},
		"exception":  {fmt.Sprintf(`{from: [{source: {principals: [a]}}, {source: {notPrincipals: [%q]}}]}`, long), "from[1].source.notPrincipals[0]", effectAllow},
		"namespace":  {fmt.Sprintf(`{from: [{source: {namespaces: [%q]}}]}`, long), "from[0].source.namespaces[0]", effectAllow},
		"zone":       {`{from: [{source: {ipBlocks: ["fe80::1%lo"]}}]}`, "from[0].source.ipBlocks[0]", effectAllow},
		"key":        {`{when: [{key: "request.headersfoo[x]", values: [a]}]}`, "when[0].values[0]", effectAllow},
		"header":     {`{when: [{key: "request.headers[a\nb]", values: [a]}]}`, "when[0].values[0]", effectAllow},
		"not_values": {fmt.Sprintf(`{when: [{key: source.principal, notValues: [b, %q]}]}`, long), "when[0].notValues[1]", effectAllow},
		"template":   {`{to: [{operation: {methods: [GET], notPaths: [/a, "b/{*}"]}}]}`, "to[0].operation.notPaths[1]", effectAllow},
		"deny":       {`{to: [{operation: {paths: ["b/{*}"], ports: ["80"]}}]}`, "to[0].operation.paths[0]", effectDeny},
		"good":       {`{to: [{operation: {paths: ["/b/{*}"]}}], from: [{source: {principals: ["*x"], ipBlocks: ["::1"]}}], when: [{key: "request.headers[x]", values: [a]}]}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			action := "ALLOW"
			if c.effect == effectDeny {
				action = "DENY"
			}
			file := write(t, "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: b}\nspec:\n  action: "+action+"\n  rules:\n  - {}\n  - "+c.rule+"\n")
			code, out, errs := cli(t, "validate", file)
			if told := strings.Contains(out, "warning [FL0132]"); code != 0 || told != (c.at != "") {
				t.Fatalf("exit code %d, told: %v\n%s%s", code, told, out, errs)
			}
			if c.at != "" && (strings.Count(out, "[FL0132]") != 1 || !strings.Contains(out, "spec.rules[1]."+c.at+": Envoy cannot") || !strings.Contains(out, c.effect)) {
				t.Errorf("want one finding at %s, %s:\n%s", c.at, c.effect, out)
			}
			if code, out, _ := cli(t, "analyze", file); (code == 1) != (c.at != "") {
				t.Errorf("analyze: exit code %d\n%s", code, out)
			}
		})
	}
}
