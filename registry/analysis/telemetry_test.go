package analysis_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

const collector = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: collector, namespace: shop}
spec:
  hosts: [collector.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}]
  endpoints: [{address: 10.0.0.9}]
---
`

// TestProvidersReportAsViewsHaveIt names a provider of each kind that MeshConfig knows in each use
// of a Telemetry: analyze reports it if, and only if, a proxy reports nothing through it.
func TestProvidersReportAsViewsHaveIt(t *testing.T) {
	t.Parallel()
	uses := map[string]func(*view.Telemetry) bool{
		"metrics":       func(o *view.Telemetry) bool { return o.Metrics != nil },
		"accessLogging": func(o *view.Telemetry) bool { return len(o.AccessLogs) > 0 },
		"tracing":       func(o *view.Telemetry) bool { return o.Tracing != nil },
	}
	var works []string
	kinds := (&meshconfig.MeshConfig_ExtensionProvider{}).ProtoReflect().Descriptor().Oneofs().ByName("provider").Fields()
	for i := range kinds.Len() {
		kind := kinds.Get(i)
		settings := []string{}
		for field, text := range map[string]string{"service": "collector.internal", "port": "4317"} {
			if kind.Message().Fields().ByName(protoreflect.Name(field)) != nil {
				settings = append(settings, field+": "+text)
			}
		}
		config, _ := manifest.DecodeMeshConfig("meshconfig.yaml", fmt.Appendf(nil, "extensionProviders: [{name: it, %s: {%s}}]", kind.JSONName(), strings.Join(settings, ", ")))
		if config == nil {
			continue // a kind that is refused
		}
		for use, has := range uses {
			text := collector + "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: it, namespace: shop}\nspec: {" + use + ": [{providers: [{name: it}]}]}\n"
			decoded, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(text))
			if manifest.HasErrors(faults) {
				t.Fatal(faults)
			}
			all := &mesh.Fragment{}
			for _, o := range decoded.Objects {
				all.Append(o.Fragment())
			}
			proxy := view.Proxy{
				Type: view.Sidecar, ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "default"}, Addresses: []string{"10.0.0.1"},
				AccessLogService: true, EnvoyVersion: view.Version{Major: 1, Minor: 40}, Interception: view.InterceptRedirect,
			}
			reports := false
			for part := range view.Build(mesh.NewSnapshot(nil, config, []*mesh.Fragment{all.Sorted()}), proxy).Parts() {
				l, ok := part.(*view.Listener)
				reports = reports || ok && l.Telemetry != nil && has(l.Telemetry)
			}
			found := findings(analysis.Input{Objects: decoded.Objects, MeshConfig: config})
			if reports == (strings.Contains(found, "[FL0258]") || strings.Contains(found, "[FL0259]")) {
				t.Errorf("%s by a provider with %s: the proxy reports: %v; analyze says: %s", use, kind.JSONName(), reports, found)
			}
			if reports {
				works = append(works, use+" "+kind.JSONName())
			}
		}
	}
	if len(works) < 9 {
		t.Errorf("only %v report anything: this test sees too little", works)
	}
}
