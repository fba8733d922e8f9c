package mapping

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseRule(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rule{
		"web:protocol=http":         {Pattern: "web", Protocol: "http"},
		"web-*:tls=istio,port=8080": {Pattern: "web-*", TLS: "istio", Port: 8080},
		"team/web:namespace=shop,service-account=front.end,trust-metadata=true": {
			Pattern: "team/web", Namespace: "shop", ServiceAccount: "front.end", TrustMetadata: true,
		},
		"Web_1:name=web-1,fold-case=false,skip=false": {Pattern: "Web_1", Name: "web-1"},
		"*:skip=true":           {Pattern: "*", Skip: true},
		"*:protocol=gRPC":       {Pattern: "*", Protocol: "gRPC"},
		"eu/team/*:port=1":      {Pattern: "eu/team/*", Port: 1},
		"*:fold-case=true":      {Pattern: "*", FoldCase: true},
		"web:tls=disabled":      {Pattern: "web", TLS: "disabled"},
		"a:protocol=HTTP-PROXY": {Pattern: "a", Protocol: "HTTP-PROXY"},
	} {
		got, err := ParseRule(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// TestParseRuleErrors expects of each error that it says what to write.
func TestParseRuleErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "write PATTERN:key=value",
		"web":                      "write PATTERN:key=value",
		":protocol=http":           "write PATTERN:key=value",
		"web:":                     "write PATTERN:key=value",
		"web:proto=http":           `"proto" is no key; write PATTERN:key=value,…, such as "web-*:protocol=http,tls=istio"; the keys are namespace`,
		"web:protocol=http,":       `"" is no key`,
		"web:protocol":             `"protocol" has no value; write protocol=…`,
		"web:protocol=":            `"protocol" has no value`,
		"web:protocol=htpp":        "write one of grpc, grpc-web, http,",
		"web:port=0":               "write a number from 1 to 65535",
		"web:port=65536":           "write a number from 1 to 65535",
		"web:port=http":            "write a number from 1 to 65535",
		"web:tls=mutual":           "write tls=istio",
		"web:skip=yes":             "write skip=true or skip=false",
		"web:fold-case=1":          "write fold-case=true",
		"web:trust-metadata=TRUE":  "write trust-metadata=true",
		"web:namespace=Shop":       "use lower case letters",
		"web:namespace=a.b":        "use lower case letters",
		"web:service-account=a/b":  "use lower case letters",
		"web:service-account=..":   "use lower case letters",
		"web:name=Web":             "use lower case letters",
		"web-*:name=web":           "write a pattern without '*'",
		"a/b/c/d:skip=true":        "write NAME, NAMESPACE/NAME",
		"/web:skip=true":           "has an empty part",
		"team//web:skip=true":      "has an empty part",
		"web:skip=true,skip=false": `"skip" is there twice`,
		"web:namespace=istio-system,service-account=fairlead": "the control plane's own identity",
	} {
		if r, err := ParseRule(text); err == nil {
			t.Errorf("%q is taken for %+v", text, r)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %q, without %q", text, err, want)
		}
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"web", "web", true},
		{"web", "web1", false},
		{"web", "we", false},
		{"*", "", true},
		{"*", "web", true},
		{"*", "a/b", false},
		{"a/*", "a/b", true},
		{"*/b", "a/b", true},
		{"*/b", "a/a/b", false},
		{"web-*", "web-", true},
		{"web-*", "web", false},
		{"*-web", "a-web-web", true},
		{"a*b*c", "aXbYc", true},
		{"a*b*c", "abbc", true},
		{"a*b*c", "aXc", false},
		{"a**c", "abc", true},
		{"*a/*b", "xa/yb", true},
		{"*a/*b", "xa/y/b", false},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

// TestMatchesInTime: a name can be as long and as even as somebody likes.
func TestMatchesInTime(t *testing.T) {
	t.Parallel()
	start := time.Now()
	if matches(strings.Repeat("a*", 30)+"b", strings.Repeat("a", 1<<16)) {
		t.Error("it matches")
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		config Config
		want   string
	}{
		"address":          {Config{Address: "LAN"}, "write one of [lan"},
		"host_fixed":       {Config{Hosts: []string{"web.mesh"}}, "lacks {{.Service}}"},
		"host_unknown":     {Config{Hosts: []string{"{{.Name}}.mesh"}}, "write one of {{.Service}}, {{.Namespace}}"},
		"host_open":        {Config{Hosts: []string{"{{.Service}.mesh"}}, `a "{{" has no "}}"`},
		"host_bare":        {Config{Hosts: []string{"{{.Service}}"}}, "must end in a fixed domain"},
		"host_end":         {Config{Hosts: []string{"mesh.{{.Service}}"}}, "must end in a fixed domain"},
		"host_end_joined":  {Config{Hosts: []string{"mesh.{{.Service}}x"}}, "must end in a fixed domain"},
		"host_two":         {Config{Hosts: []string{"{{.Service}}-{{.Namespace}}.mesh"}}, "write {{.Namespace}} behind a dot"},
		"host_two_apart":   {Config{Hosts: []string{"{{.Service}}{{.Partition}}.mesh"}}, "behind a dot"},
		"host_capital":     {Config{Hosts: []string{"{{.Service}}.Mesh"}}, "is no host name"},
		"host_wildcard":    {Config{Hosts: []string{"*.{{.Service}}.mesh"}}, "is no host name"},
		"host_number":      {Config{Hosts: []string{"{{.Service}}.1"}}, "is no host name"},
		"host_dots":        {Config{Hosts: []string{"{{.Service}}..mesh"}}, "is no host name"},
		"hosts_overlap":    {Config{Hosts: []string{"{{.Service}}.mesh", "web-{{.Service}}.mesh"}}, "can give two services the same host"},
		"hosts_overlap_ns": {Config{Hosts: []string{"{{.Service}}.shop.mesh", "{{.Service}}.{{.Namespace}}.mesh"}}, "can give two services the same host"},
		"hosts_twice":      {Config{Hosts: []string{"{{.Service}}.mesh", "{{.Service}}.mesh"}}, "can give two services the same host"},
		"namespace_dot":    {Config{Namespace: "a.{{.ConsulNamespace}}"}, "is no name"},
		"namespace_var":    {Config{Namespace: "{{.Namespace}}"}, "{{.Namespace}} is unknown"},
		"account_slash":    {Config{ServiceAccount: "a/{{.Service}}"}, "is no name"},
		"account_two":      {Config{ServiceAccount: "{{.ConsulNamespace}}-{{.Service}}"}, "behind a dot"},
		"rule_bad":         {Config{Rules: []Rule{{Pattern: "a", Namespace: long}}}, `rule for "a": namespace`},
		"rule_port":        {Config{Rules: []Rule{{Pattern: "a", Port: 65536}}}, "write a number from 1 to 65535"},
		"rule_none":        {Config{Rules: []Rule{{Skip: true}}}, "has an empty part"},
		"rules_twice":      {Config{Rules: []Rule{{Pattern: "a"}, {Pattern: "default/a"}}}, `two rules are for "default/a"`},
		"rules_fold":       {Config{Rules: []Rule{{Pattern: "Web", FoldCase: true}, {Pattern: "WEB", FoldCase: true}}}, `give the same name "web"`},
		"rules_name":       {Config{Rules: []Rule{{Pattern: "a", Name: "x"}, {Pattern: "default/b", Name: "x"}}}, `give the same name "x"`},
	} {
		if _, err := New(c.config); err == nil {
			t.Errorf("%s: no error", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %q, without %q", name, err, c.want)
		}
	}
	// All of them at once.
	_, err := New(Config{Hosts: []string{"a", "b"}, Address: "x"})
	for _, want := range []string{`"a"`, `"b"`, `"x"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s", err, want)
		}
	}
	if _, err := New(Config{Hosts: []string{
		"{{ .Service }}.service.consul", "{{.Service}}.mesh", "{{.Service}}.{{.Namespace}}.mesh", "a-{{.Service}}-b.example", "a-{{.Service}}-c.example", "x.{{.Service}}.shop.mesh",
	}}); err != nil {
		t.Error(err)
	}
}

// TestRulesAreCopied: what New was given may change afterwards.
func TestRulesAreCopied(t *testing.T) {
	t.Parallel()
	rules := []Rule{{Pattern: "web", Protocol: "http"}, {Pattern: "w*", Skip: true}}
	m := newMapper(t, Config{Rules: rules})
	rules[0].Skip, rules[1].Pattern = true, "*"
	if r := m.Map(&Input{Service: "web", Entries: fleet(t, "web", 1)}); len(r.Fragment.Services) != 1 {
		t.Errorf("got %+v", r)
	}
}
