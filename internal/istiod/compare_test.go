package istiod_test

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/istiod"
)

func list(t *testing.T, text string) *istiod.Acceptances {
	t.Helper()
	a, err := istiod.ReadAccepted(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAcceptedAsListed: a place, both values and the proxy have to fit.
func TestAcceptedAsListed(t *testing.T) {
	t.Parallel()
	a := list(t, `
- why: for a test
  differences:
  - {in: ["mesh/*"], at: ["clusters/*/timeout", "clusters/a/**/deep"], ours: 1s, istiod: "*"}
  - {at: ["clusters/never"], istiod: x}
`)
	for _, c := range []struct {
		proxy, path, ours, istiod string
		want                      bool
	}{
		{"mesh/a", "clusters/a/timeout", "1s", "2s", true},
		{"mesh/a", "clusters/a/timeout", "3s", "2s", false},
		{"mesh/a", "clusters/a/timeout", "1s", istiod.Absent, false},
		{"mesh/a", "clusters/a/b/timeout", "1s", "2s", false},
		{"mesh/a", "listeners/a/timeout", "1s", "2s", false},
		{"mesh/a", "clusters/a/b/c/deep", "1s", "2s", true},
		{"mesh/a", "clusters/a/deep", "1s", "2s", true},
		{"mesh/a", "clusters/b/deep", "1s", "2s", false},
		{"other/a", "clusters/a/timeout", "1s", "2s", false},
	} {
		d := istiod.Difference{Path: strings.Split(c.path, "/"), Ours: c.ours, Istiod: c.istiod}
		if got := a.Accepts(c.proxy, d); got != c.want {
			t.Errorf("in %s, %s: accepted %t, want %t", c.proxy, d, got, c.want)
		}
	}
	if got := a.Unused(); len(got) != 1 || !strings.Contains(got[0], "clusters/never") {
		t.Errorf("unused are %q, want clusters/never alone", got)
	}
}

// TestListsThatAreRefused: what is accepted has a reason and two values, and is said once.
func TestListsThatAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[{differences: [{at: [x], ours: a}]}]`:                                      "has no reason",
		`[{why: w, differences: [{at: [x]}]}]`:                                       "both values are absent",
		`[{why: w, differences: [{at: [x], ours: a}, {at: [x], ours: a}]}]`:          "listed twice",
		`[{why: w, differences: [{at: [x], our: a}]}]`:                               "field our not found",
		`[{why: w, differences: [{at: [x], ours: a}]}, {why: " ", differences: []}]`: "group 2 has no reason",
	} {
		if _, err := istiod.ReadAccepted(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func config(t *testing.T, kind, name, body string) istiod.Config {
	t.Helper()
	v, err := decodeJSON([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return istiod.Config{kind: {name: v}}
}

// TestPairs: what belongs together is compared, wherever it stands, and the order counts where
// it does for Envoy.
func TestPairs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, kind, ours, istiod string
		want                     []string
	}{
		{"virtual hosts in any order", istiod.Routes, `{"virtual_hosts":[{"name":"a"},{"name":"b"}]}`, `{"virtual_hosts":[{"name":"b"},{"name":"a"}]}`, nil},
		{
			"a route that is missing", istiod.Routes, `{"virtual_hosts":[{"name":"a","routes":[{"name":"1"}]}]}`, `{"virtual_hosts":[{"name":"a","routes":[{"name":"1"},{"name":"2"}]}]}`,
			[]string{`routes/r/virtual_hosts/a/routes/1: ours absent, istiod {"name":"2"}`},
		},
		{
			"routes in another order", istiod.Routes, `{"virtual_hosts":[{"name":"a","routes":[{"name":"1"},{"name":"2"}]}]}`, `{"virtual_hosts":[{"name":"a","routes":[{"name":"2"},{"name":"1"}]}]}`,
			[]string{"routes/r/virtual_hosts/a/routes/0/name: ours 1, istiod 2", "routes/r/virtual_hosts/a/routes/1/name: ours 2, istiod 1"},
		},
		{
			"filters in another order", istiod.Listeners, `{"filters":[{"name":"a"},{"name":"b"}]}`, `{"filters":[{"name":"b"},{"name":"x"},{"name":"a"}]}`,
			[]string{`listeners/r/filters/x: ours absent, istiod {"name":"x"}`, "listeners/r/filters/order: ours a b, istiod b a"},
		},
		{
			"what only we have, leaf by leaf", istiod.Clusters, `{"a":{"b":1,"c":[{"d":2}]}}`, `{}`,
			[]string{"clusters/r/a/b: ours 1, istiod absent", "clusters/r/a/c/0/d: ours 2, istiod absent"},
		},
		{"text that looks like a path", istiod.Clusters, `{"domains":["a/b"]}`, `{"domains":[]}`, []string{"clusters/r/domains/a~1b: ours a/b, istiod absent"}},
	} {
		var got []string
		for _, d := range istiod.Compare(config(t, c.kind, "r", c.ours), config(t, c.kind, "r", c.istiod)) {
			got = append(got, d.String())
		}
		if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
			t.Errorf("%s: found\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}
