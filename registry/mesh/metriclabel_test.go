package mesh_test

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestMetricLabels: string() is left out only where it is around the whole expression, and a literal
// is a text, in which "%" begins no operator.
func TestMetricLabels(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`request.method`:                     `%CEL(request.method)%`,
		`  request.method `:                  `%CEL(request.method)%`,
		`string(response.code)`:              `%CEL(response.code)%`,
		`string(a ? b : (c))`:                `%CEL(a ? b : (c))%`,
		`string(string(response.code))`:      `%CEL(string(response.code))%`, // refused by name
		`string(a) + string(b)`:              `%CEL(string(a) + string(b))%`,
		`string(a) == (b)`:                   `%CEL(string(a) == (b))%`,
		`string (a)`:                         `%CEL(string (a))%`,
		`substring(a)`:                       `%CEL(substring(a))%`,
		`string(a`:                           `%CEL(string(a)%`,
		`"v1"`:                               `v1`,
		`'v1'`:                               `v1`,
		`string('v1')`:                       `v1`,
		`''`:                                 ``,
		`"100%"`:                             `100%%`,
		`'%REQ(x)%'`:                         `%%REQ(x)%%`,
		`'a' + 'b'`:                          `%CEL('a' + 'b')%`,
		`'a\'b'`:                             `%CEL('a\'b')%`,
		`"a'b"`:                              `a'b`,
		`"a"+b+"c"`:                          `%CEL("a"+b+"c")%`,
		`xds.node.metadata['WORKLOAD_NAME']`: `%CEL(xds.node.metadata['WORKLOAD_NAME'])%`,
	} {
		if got := mesh.MetricLabelFormat(value); got != want {
			t.Errorf("%s is %s, want %s", value, got, want)
		}
	}
}
