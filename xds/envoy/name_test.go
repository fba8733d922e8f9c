package envoy_test

import (
	"testing"

	"github.com/fairlead/fairlead/xds/envoy"
)

// TestClusterNames pins the form of names.
func TestClusterNames(t *testing.T) {
	t.Parallel()
	for _, n := range []envoy.ClusterName{
		{Direction: envoy.Outbound, Port: 80, Subset: "v1", Host: "a.b"},
		{Direction: envoy.Outbound, Port: 65535, Host: "*.b"},
		{Direction: envoy.Inbound, Port: 8080},
	} {
		got, err := envoy.ParseClusterName(n.String())
		if err != nil || got != n {
			t.Errorf("%s: %+v, %v", n, got, err)
		}
	}
	for _, bad := range []string{"", "outbound|80||", "a|b|c|d|e", "sideways|80||h", "outbound|080||h", "outbound|99999||h", "outbound|80|h"} {
		n, err := envoy.ParseClusterName(bad)
		if err == nil && bad != "outbound|80||" {
			t.Errorf("%q was read as %+v", bad, n)
		}
	}
}

// FuzzClusterName looks for a text that does not come back as itself.
func FuzzClusterName(f *testing.F) {
	f.Add("outbound|80|v1|a.b")
	f.Add("inbound|8080||")
	f.Fuzz(func(t *testing.T, s string) {
		n, err := envoy.ParseClusterName(s)
		if err == nil && n.String() != s {
			t.Errorf("%q came back as %q", s, n)
		}
	})
}
