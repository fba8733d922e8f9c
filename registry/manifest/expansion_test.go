package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// manyTimes writes lines with numbers.
func manyTimes(n int, format string) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, format+"\n", i)
	}
	return s.String()
}

func largeEntry(hosts, ports, endpoints int) string {
	return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: large, namespace: evil}\nspec:\n  resolution: STATIC\n" +
		"  hosts:\n" + manyTimes(hosts, "  - h%d.evil.test") +
		"  ports:\n" + manyTimes(ports, "  - {name: p%[1]d, number: 1%[1]d, protocol: HTTP}") +
		"  endpoints:\n" + manyTimes(endpoints, "  - {address: \"2001:db8::%x\"}")
}

// TestExpansionIsLimited reads objects that are small as text and large after expansion: they
// are refused at the position of what contributes most, with the figure.
func TestExpansionIsLimited(t *testing.T) {
	t.Parallel()
	route := func(hosts, matches, destinations int) string {
		return "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: large, namespace: evil}\nspec:\n" +
			"  hosts:\n" + manyTimes(hosts, "  - h%d.evil.test") + "  http:\n  - match:\n" + manyTimes(matches, "    - uri: {prefix: /%d/}") +
			"    route:\n" + manyTimes(destinations, "    - {destination: {host: a%d.evil.test}, weight: 1}")
	}
	policy := func(values int) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: large, namespace: evil}\nspec:\n  rules:\n  - to:\n    - operation:\n        paths:\n" +
			manyTimes(values, "        - /%d")
	}
	for _, c := range []struct {
		name, text, want string
		line             int
	}{
		{"entry", largeEntry(20, 20, 4096), "spec.endpoints: 20 hosts × 20 ports × 4096 endpoints make 1638400; one ServiceEntry may have at most 100000: use fewer, or split the object", 49},
		{"entry-within", largeEntry(10, 10, 1000), "", 0},
		{"entry-just-over", largeEntry(10, 10, 1001), "make 100100", 29},
		{"hosts", largeEntry(256, 200, 2), "spec.hosts: 256 hosts × 200 ports × 2 endpoints make 102400", 7},
		{"routes", route(50, 50, 50), "spec.http: 50 hosts × 2500 routes make 125000", 57},
		{"routes-within", route(30, 30, 30), "", 0},
		{"matches-are-not-multiplied-by-their-size", route(2, 3000, 1), "", 0},
		{"nor-by-what-each-has-around-it", route(1, 20_000, 1), "", 0},
		{"values", policy(100_001), "spec: 100001 values make 100001", 5},
		{"values-within", policy(10_000), "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(c.text))
			if c.want == "" {
				if manifest.HasErrors(faults) || !file.Objects[0].Valid {
					t.Errorf("refused: %v", faults)
				}
				return
			}
			if len(faults) != 1 || faults[0].Code != manifest.CodeExpansion || !strings.Contains(faults[0].String(), c.want) || faults[0].Origin.Line != c.line {
				t.Fatalf("faults are %v; want one at line %d: %s", faults, c.line, c.want)
			}
			if f := file.Objects[0].Fragment(); f != nil {
				t.Error("it is in force")
			}
		})
	}
}
