package envoy

import (
	"testing"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestFinalDotSaysThatANameIsWhole: a manifest cannot say so, and the resource that every table has keeps its name.
func TestFinalDotSaysThatANameIsWhole(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		host  mesh.Hostname
		whole bool
		want  string
	}{
		{"a.shop.internal", false, "a.shop.internal"},
		{"a.shop.internal", true, "a.shop.internal."},
		{"a.shop.internal.", false, "a.shop.internal"},
		{view.NameTable, false, "."},
	} {
		d := &dnsv3.DnsTable_DnsVirtualDomain{}
		r := buildName(&view.Name{Host: c.host, Whole: c.whole})[0]
		if err := proto.Unmarshal(r.Body, d); err != nil {
			t.Fatal(err)
		}
		if d.GetName() != c.want || r.Name != string(c.host) {
			t.Errorf("%q, whole %t: the domain %q of the resource %q, want %q", c.host, c.whole, d.GetName(), r.Name, c.want)
		}
	}
}
