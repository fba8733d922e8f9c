package manifest

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

// plainMaps are maps of keys that the schemas do not name by which nothing is selected: what they
// say of a key is only gone, if it has no value.
func plainMaps() []string {
	return []string{
		"PeerAuthentication spec.portLevelMtls", "ProxyConfig spec.environmentVariables",
		"WorkloadEntry spec.labels", "WorkloadEntry spec.ports", "ServiceEntry spec.endpoints[0].labels", "ServiceEntry spec.endpoints[0].ports",
		"WorkloadGroup spec.metadata.annotations", "WorkloadGroup spec.metadata.labels", "WorkloadGroup spec.template.labels", "WorkloadGroup spec.template.ports",
		"VirtualService headers.request.add", "VirtualService headers.request.set", "VirtualService headers.response.add", "VirtualService headers.response.set",
		"DestinationRule localityLbSetting.distribute[0].to",
		"Telemetry overrides[0].tagOverrides", "Telemetry spec.tracing[0].customTags",
	}
}

// TestEveryMapIsJudged: each map of the schemas is one that selects, or is known to be none.
func TestEveryMapIsJudged(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	plain, used := plainMaps(), map[string]bool{}
	selecting := 0
	var look func(kind mesh.Kind, s *schema.Schema, path string)
	look = func(kind mesh.Kind, s *schema.Schema, path string) {
		for name, p := range s.Properties {
			look(kind, p, strings.TrimPrefix(path+"."+name, "."))
		}
		if s.Items != nil {
			look(kind, s.Items, path+"[0]")
		}
		if s.AdditionalProperties == nil {
			return
		}
		look(kind, s.AdditionalProperties, path+".key")
		i := slices.IndexFunc(plain, func(p string) bool {
			of, suffix, _ := strings.Cut(p, " ")
			return of == string(kind) && strings.HasSuffix(path, suffix)
		})
		switch {
		case selects(kind, path) == (i >= 0):
			t.Errorf("%s %s: it selects: %v; say in selects or plainMaps whether it does", kind, path, selects(kind, path))
		case i >= 0:
			used[plain[i]] = true
		default:
			selecting++
		}
	}
	for _, gvk := range set.Kinds() {
		look(mesh.Kind(gvk.Kind), set.Lookup(gvk), "")
	}
	for _, p := range plain {
		if !used[p] {
			t.Errorf("no schema has %s", p)
		}
	}
	if selecting < 15 {
		t.Errorf("only %d maps select", selecting)
	}
}
