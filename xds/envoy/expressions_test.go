package envoy_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/xds/view"
)

// filterInForce reports whether an expression is in force as the filter of an access log.
func filterInForce(t *testing.T, expression string) bool {
	t.Helper()
	doc := fmt.Sprintf("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: shop}\nspec: {accessLogging: [{filter: {expression: %q}}]}\n", expression)
	file, _ := manifest.Decode(manifest.Options{}, "t.yaml", []byte(doc))
	return len(file.Objects) == 1 && file.Objects[0].Valid && file.Objects[0].Fragment() != nil
}

// filtersOf is the configuration of a proxy that has the expressions as filters of access logs.
func filtersOf(t *testing.T, expressions []string) []byte {
	t.Helper()
	var settings, entries strings.Builder
	settings.WriteString("extensionProviders:\n")
	for i, e := range expressions {
		_, _ = fmt.Fprintf(&settings, "- {name: p%d, envoyFileAccessLog: {path: /dev/null}}\n", i)
		_, _ = fmt.Fprintf(&entries, "  - {providers: [{name: p%d}], filter: {expression: %q}}\n", i, e)
	}
	telemetry := "---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: istio-system}\nspec:\n  accessLogging:\n" + entries.String()
	s := snapshotOf(t, formatsBase+telemetry, settings.String())
	return bootstrap(t, buildAll(view.Build(s, formatsProxy())))
}

// randomExpression makes an expression of the functions that are in force.
func randomExpression(rnd *rand.Rand, depth int) string {
	leaf := []string{"request.path", "response.code", "'a'", "5", "1.5", "true", "request.headers['x']", "xds.node.metadata['A']", "connection.mtls", "has(request.headers.x)", "[1, 2]", "{'a': 1}", "null", "source.address", "metadata.filter_metadata['a']['b']"}
	if depth == 0 || rnd.IntN(4) == 0 {
		return leaf[rnd.IntN(len(leaf))]
	}
	functions := manifest.ExpressionFunctions()
	names := slices.Sorted(maps.Keys(functions))
	name := names[rnd.IntN(len(names))]
	f := functions[name]
	args := make([]string, f.Arguments[rnd.IntN(len(f.Arguments))])
	for i := range args {
		args[i] = randomExpression(rnd, depth-1)
	}
	switch {
	case name == "_?_:_":
		return "(" + args[0] + " ? " + args[1] + " : " + args[2] + ")"
	case name == "_[_]":
		return "[" + args[0] + "][" + args[1] + "]"
	case name == "@in":
		return "(" + args[0] + " in " + args[1] + ")"
	case strings.HasSuffix(name, "_") && len(args) == 1:
		return name[:1] + "(" + args[0] + ")"
	case strings.HasSuffix(name, "_"):
		return "(" + args[0] + " " + strings.Trim(name, "_") + " " + args[1] + ")"
	case !f.Plain || f.Member && rnd.IntN(2) == 0:
		return "(" + args[0] + ")." + name + "(" + strings.Join(args[1:], ", ") + ")"
	default:
		return name + "(" + strings.Join(args, ", ") + ")"
	}
}

// TestEnvoysTakeExpressionsInForce: every Envoy takes what validation lets through, and refuses
// what it does not.
func TestEnvoysTakeExpressionsInForce(t *testing.T) {
	t.Parallel()
	const seed = 14
	rnd := rand.New(rand.NewPCG(seed, seed))
	good := []string{
		strings.Repeat("(", 20) + "true" + strings.Repeat(")", 20), "request" + strings.Repeat(".a", 16),
		strings.Repeat("request.path == 'a' || ", 170) + "true", "response.code" + strings.Repeat(" + 1", 15) + " > 2",
		"request.path.matches('^/a(b|c)+$')", "type(response.code) == int", "request.time.getHours('Europe/Berlin') > 8",
	}
	kept := 0
	for range 1000 {
		if e := randomExpression(rnd, 1+rnd.IntN(4)); filterInForce(t, e) {
			good, kept = append(good, e), kept+1
		}
	}
	if kept < 300 {
		t.Errorf("only %d of 1,000 random expressions are in force", kept)
	}
	for _, e := range good[:7] {
		if !filterInForce(t, e) {
			t.Errorf("%.60s is not in force", e)
		}
	}
	bad := []string{
		"string(response.code) == '1'", "request.path.split('/')[0] == 'a'", "request.path.lowerAscii() == 'a'", "[1].all(x, x > 0)", "[1].map(x, x)[0] == 1",
		"request.path.matches('(')", "size() > 1", "request.path.startsWith()", "request.`a-b` == 1", strings.Repeat("(", 40) + "true" + strings.Repeat(")", 40),
		"request" + strings.Repeat(".a", 60), "math.greatest(1, 2) == 2", "request.path.re.extract('a', 'b') == 'b'", "Foo{} == {}", "int(1, 2) == 1",
	}
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			if err := envoytest.ValidateWith(t, version, filtersOf(t, good)); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			for _, e := range bad {
				if filterInForce(t, e) {
					t.Errorf("%s is in force", e)
				}
				if version != envoytest.Oldest { // a later one may know more
					continue
				}
				if err := envoytest.ValidateWith(t, version, rawFilter(e)); err == nil {
					t.Errorf("this Envoy takes %.60s: let it be in force", e)
				}
			}
		})
	}
}

// rawFilter is a configuration with an expression that no manifest can bring in force.
func rawFilter(expression string) []byte {
	return fmt.Appendf(nil, `{"static_resources": {"listeners": [{"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
		"filter_chains": [{"filters": [{"name": "t", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "t", "cluster": "c",
		"access_log": [{"name": "a", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/null"},
		"filter": {"extension_filter": {"name": "f", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter", "expression": %q}}}}]}}]}]}],
		"clusters": [{"name": "c", "type": "STATIC"}]}}`, expression)
}
