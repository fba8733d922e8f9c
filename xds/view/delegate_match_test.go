package view

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"
)

// A delegate's match contradicts that of the route which leads to it, if it does not
// narrow it (Istio's hasConflict in pilot/pkg/model/virtualservice.go).
func TestContradictingMatches(t *testing.T) {
	t.Parallel()
	match := func(text string) *networking.HTTPMatchRequest {
		m := &networking.HTTPMatchRequest{}
		if err := protojson.Unmarshal([]byte(text), m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return m
	}
	check := func(root, sub string, want bool) {
		t.Helper()
		if got := contradict(match(root), match(sub)); got != want {
			t.Errorf("route %s, delegate %s: contradict: %v, want %v", root, sub, got, want)
		}
	}
	texts := []struct {
		root, sub string
		want      bool
	}{
		{`{"exact":"/a"}`, `{"exact":"/a"}`, false},
		{`{"exact":"/a"}`, `{"exact":"/b"}`, true},
		{`{"exact":"/a"}`, `{"prefix":"/a"}`, true},
		{`{"exact":"/a"}`, `{"regex":"/a"}`, true},
		{`{"exact":""}`, `{"prefix":"/a"}`, true},
		{`{"exact":""}`, `{"regex":"/a"}`, true},
		{`{"prefix":"/a"}`, `{"prefix":"/ab"}`, false},
		{`{"prefix":"/a"}`, `{"prefix":"/b"}`, true},
		{`{"prefix":"/a"}`, `{"exact":"/ab"}`, false},
		{`{"prefix":"/a"}`, `{"exact":"/b"}`, true},
		{`{"prefix":"/a"}`, `{"regex":"/a.*"}`, true},
		{`{"regex":"/a"}`, `{"regex":"/a"}`, true},
	}
	for _, field := range []string{`"uri":%`, `"scheme":%`, `"method":%`, `"authority":%`, `"headers":{"x":%}`, `"withoutHeaders":{"x":%}`, `"queryParams":{"x":%}`} {
		in := func(text string) string { return "{" + strings.Replace(field, "%", text, 1) + "}" }
		for _, c := range texts {
			check(in(c.root), in(c.sub), c.want)
		}
		check(in(`{"exact":"/a"}`), `{}`, false)
		check(`{}`, in(`{"regex":"/a"}`), false)
	}
	check(`{"headers":{"x":{"exact":"a"}}}`, `{"headers":{"y":{"exact":"b"}}}`, false)
	for _, c := range []struct {
		root, sub string
		want      bool
	}{
		{`{"ignoreUriCase":true}`, `{"ignoreUriCase":true}`, false},
		{`{"ignoreUriCase":true}`, `{}`, true},
		{`{"port":80}`, `{"port":80}`, false},
		{`{"port":80}`, `{"port":81}`, true},
		{`{"port":80}`, `{}`, false},
		{`{}`, `{"port":81}`, false},
		{`{"sourceNamespace":"a"}`, `{"sourceNamespace":"a"}`, false},
		{`{"sourceNamespace":"a"}`, `{"sourceNamespace":"b"}`, true},
		{`{}`, `{"sourceNamespace":"b"}`, false},
		{`{"sourceLabels":{"app":"a"}}`, `{"sourceLabels":{"app":"a"}}`, false},
		{`{"sourceLabels":{"app":"a"}}`, `{"sourceLabels":{"app":"b"}}`, true},
		{`{"sourceLabels":{"app":"a"}}`, `{"sourceLabels":{"tier":"b"}}`, false},
		{`{"gateways":["mesh"]}`, `{"gateways":["mesh"]}`, false},
		{`{"gateways":["mesh","a"]}`, `{"gateways":["a"]}`, false},
		{`{"gateways":["mesh"]}`, `{"gateways":["mesh","a"]}`, true},
		{`{"gateways":["mesh"]}`, `{}`, false},
		{`{}`, `{"gateways":["a"]}`, false},
	} {
		check(c.root, c.sub, c.want)
	}
}
