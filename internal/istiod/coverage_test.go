package istiod_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"gopkg.in/yaml.v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// notCompared are the fields and values that are in force and in no golden mesh, with the
// reason.
func notCompared() map[string]string {
	const agents = "it is for agents: nothing of it is in what istiod sends to an Envoy"
	out := map[string]string{
		"istio.mesh.v1alpha1.ProxyConfig.ProxyStatsMatcher.inclusion_prefixes":              agents,
		"istio.mesh.v1alpha1.ProxyConfig.ProxyStatsMatcher.inclusion_regexps":               agents,
		"istio.mesh.v1alpha1.ProxyConfig.ProxyStatsMatcher.inclusion_suffixes":              agents,
		"istio.mesh.v1alpha1.ProxyConfig.concurrency":                                       agents,
		"istio.mesh.v1alpha1.ProxyConfig.drain_duration":                                    agents,
		"istio.mesh.v1alpha1.ProxyConfig.extra_stat_tags":                                   agents,
		"istio.mesh.v1alpha1.ProxyConfig.status_port":                                       agents,
		"istio.mesh.v1alpha1.ProxyConfig.termination_drain_duration":                        agents,
		"istio.networking.v1beta1.ProxyConfig.concurrency":                                  agents,
		"istio.networking.v1beta1.ProxyConfig.environment_variables":                        agents,
		"istio.networking.v1beta1.ProxyConfig.image":                                        agents,
		"istio.networking.v1beta1.ProxyConfig.selector":                                     agents,
		"istio.networking.v1beta1.ProxyImage.image_type":                                    agents,
		"istio.mesh.v1alpha1.ProxyConfig.ProxyHeaders.forwarded_client_cert=APPEND_FORWARD": "it is the default",
		"istio.mesh.v1alpha1.ProxyConfig.ProxyHeaders.forwarded_client_cert=FORWARD_ONLY":   "as SANITIZE_SET; a test of xds/envoy has all values",
		"istio.mesh.v1alpha1.ProxyConfig.ProxyHeaders.forwarded_client_cert=SANITIZE":       "as SANITIZE_SET; a test of xds/envoy has all values",
		"istio.mesh.v1alpha1.Tracing.Datadog.address":                                       "as Zipkin's; istiod leaves both to the bootstrap",
		"istio.type.v1beta1.PolicyTargetReference.namespace":                                "Istio refuses it",
		"istio.networking.v1alpha3.SidecarPort.target_port":                                 "Istio refuses it in a Sidecar",
		"istio.networking.v1alpha3.ClientTLSSettings.credential_name":                       "a test of xds/envoy has the names of its secrets; a gateway's are compared",
		"istio.networking.v1alpha3.L4MatchAttributes.source_subnet":                         "it has no effect, as in Istio",
		"istio.networking.v1alpha3.Port.target_port":                                        "Istio refuses it in a Gateway",
		"istio.mesh.v1alpha1.Topology.forward_client_cert_details=SANITIZE_SET":             "it is the default",
		"istio.mesh.v1alpha1.Topology.forward_client_cert_details=APPEND_FORWARD":           "as FORWARD_ONLY; a test of xds/envoy has all values",
		"istio.mesh.v1alpha1.Topology.forward_client_cert_details=ALWAYS_FORWARD_ONLY":      "as FORWARD_ONLY; a test of xds/envoy has all values",
		"istio.mesh.v1alpha1.Topology.forward_client_cert_details=SANITIZE":                 "as FORWARD_ONLY; a test of xds/envoy has all values",
		"istio.security.v1beta1.JWTRule.jwks_uri":                                           "the recorder fetches nothing; what is fetched stands where inline keys do",
	}
	for name := range strings.FieldsSeq(`
		networking.v1alpha3.LoadBalancerSettings.BackendUtilizationLB.error_utilization_penalty_percent
		networking.v1alpha3.LoadBalancerSettings.BackendUtilizationLB.metric_names_for_computing_utilization
		networking.v1alpha3.LoadBalancerSettings.BackendUtilizationLB.weight_expiration_period
		networking.v1alpha3.LoadBalancerSettings.BackendUtilizationLB.weight_stabilization_period
		networking.v1alpha3.LoadBalancerSettings.BackendUtilizationLB.weight_update_period
		networking.v1alpha3.LoadBalancerSettings.backend_utilization networking.v1alpha3.OutlierDetection.failure_percentage_threshold
		networking.v1alpha3.OutlierDetection.outlier_detection_http_error_codes networking.v1alpha3.ServerTLSSettings.alpn_protocols
		networking.v1alpha3.ServerTLSSettings.ecdh_curves security.v1beta1.JWTRule.presence=REQUIRED
	`) {
		out["istio."+name] = "in Istio's API, but the recorded istiod does not implement it; tests of xds/envoy and xds/authn ask real Envoys"
	}
	for name := range strings.FieldsSeq(`
		mesh.v1alpha1.MeshConfig.DefaultProviders.metrics mesh.v1alpha1.MeshConfig.ExtensionProvider.prometheus
		telemetry.v1alpha1.MetricSelector.custom_metric telemetry.v1alpha1.MetricSelector.metric=GRPC_REQUEST_MESSAGES
		telemetry.v1alpha1.MetricSelector.metric=GRPC_RESPONSE_MESSAGES telemetry.v1alpha1.MetricSelector.metric=REQUEST_COUNT
		telemetry.v1alpha1.MetricSelector.metric=REQUEST_DURATION telemetry.v1alpha1.MetricSelector.metric=REQUEST_SIZE
		telemetry.v1alpha1.MetricSelector.metric=RESPONSE_SIZE telemetry.v1alpha1.MetricSelector.metric=TCP_CLOSED_CONNECTIONS
		telemetry.v1alpha1.MetricSelector.metric=TCP_OPENED_CONNECTIONS telemetry.v1alpha1.MetricSelector.metric=TCP_RECEIVED_BYTES
		telemetry.v1alpha1.MetricSelector.metric=TCP_SENT_BYTES telemetry.v1alpha1.MetricSelector.mode=CLIENT
		telemetry.v1alpha1.MetricSelector.mode=SERVER telemetry.v1alpha1.Metrics.overrides telemetry.v1alpha1.Metrics.providers
		telemetry.v1alpha1.Metrics.reporting_interval telemetry.v1alpha1.MetricsOverrides.TagOverride.operation=REMOVE
		telemetry.v1alpha1.MetricsOverrides.TagOverride.value telemetry.v1alpha1.MetricsOverrides.disabled
		telemetry.v1alpha1.MetricsOverrides.match telemetry.v1alpha1.MetricsOverrides.tag_overrides telemetry.v1alpha1.Telemetry.metrics
	`) {
		out["istio."+name] = "istiod configures a filter for metrics that only Istio's build of Envoy has"
	}
	return out
}

// TestGoldenMeshesUseWhatIsInForce: each field of Istio's API that is in force, and each of its
// values if it has a few, is in some golden mesh, so that a new one is compared with istiod, too.
func TestGoldenMeshesUseWhatIsInForce(t *testing.T) {
	t.Parallel()
	used := usedInGoldens(t)
	want := map[string]bool{}
	for kind, rules := range manifest.InForce() {
		if spec := manifest.NewSpec(kind); kind != mesh.KindWorkloadGroup { // it has no effect
			expect(want, rules, spec.ProtoReflect().Descriptor(), "", nil)
		}
	}
	reasons := notCompared()
	for _, f := range slices.Sorted(maps.Keys(want)) {
		if !want[f] {
			continue
		}
		switch reason, excused := reasons[f]; {
		case used[f] && excused:
			t.Errorf("%s is in a golden mesh now: take it out of notCompared", f)
		case !used[f] && !excused:
			t.Errorf("%s is in force and in no golden mesh: use it in one of testdata, run make istiod-record, and compare", f)
		case excused && reason == "":
			t.Errorf("%s has no reason", f)
		}
	}
	for f := range reasons {
		if !want[f] {
			t.Errorf("%s is not in force: take it out of notCompared", f)
		}
	}
}

// expect lists what is in force below a message, as MESSAGE.FIELD and MESSAGE.FIELD=VALUE.
func expect(to map[string]bool, rules []string, m protoreflect.MessageDescriptor, path string, above []protoreflect.FullName) {
	if slices.Contains(above, m.FullName()) {
		return
	}
	above = append(slices.Clone(above), m.FullName())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		at := strings.TrimPrefix(path+"."+f.JSONName(), ".")
		if slices.Contains(rules, "!"+at) {
			continue
		}
		inForce, partly := false, false
		var values []string
		for _, r := range rules {
			name, list, chosen := strings.Cut(r, "=")
			switch {
			case chosen && name == at:
				inForce, values = true, strings.Split(list, ",")
			case name == at || strings.HasPrefix(at, name+"."):
				inForce = true
			case strings.HasPrefix(name, at+"."):
				partly = true
			}
		}
		if !inForce && !partly {
			continue
		}
		key := string(m.FullName()) + "." + string(f.Name())
		if inForce {
			to[key] = f.Enum() == nil || to[key]                              // of an enum, its values
			for i := 1; f.Enum() != nil && i < f.Enum().Values().Len(); i++ { // 0 is the default
				v := string(f.Enum().Values().Get(i).Name())
				if (values == nil || slices.Contains(values, v)) && !slices.Contains(rules, "!"+at+"="+v) {
					to[key+"="+v] = true
				}
			}
		}
		below := f.Message()
		if f.IsMap() {
			below = f.MapValue().Message()
		}
		if below != nil && !strings.HasPrefix(string(below.FullName()), "google.protobuf.") {
			expect(to, rules, below, at, above)
		}
	}
}

// usedInGoldens are the fields and values that the golden meshes have.
func usedInGoldens(t *testing.T) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob("testdata/*/mesh*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) == "meshconfig.yaml" {
			var settings map[string]any
			if err := yaml.Unmarshal(content, &settings); err != nil {
				t.Fatal(err)
			}
			body, err := json.Marshal(settings)
			if err != nil {
				t.Fatal(err)
			}
			m := &meshconfig.MeshConfig{}
			if err := protojson.Unmarshal(body, m); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			use(used, m.ProtoReflect())
			continue
		}
		file, _ := manifest.Decode(manifest.Options{}, path, content)
		for _, o := range file.Objects {
			if o.Spec == nil {
				t.Fatalf("%s: %s is invalid: %v", path, o.Meta.Key, o.Faults)
			}
			use(used, o.Spec.ProtoReflect())
		}
	}
	return used
}

func use(to map[string]bool, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		key := string(m.Descriptor().FullName()) + "." + string(f.Name())
		to[key] = true
		switch {
		case f.IsMap():
			v.Map().Range(func(_ protoreflect.MapKey, x protoreflect.Value) bool {
				if f.MapValue().Message() != nil {
					use(to, x.Message())
				}
				return true
			})
		case f.IsList():
			for i := range v.List().Len() {
				if f.Message() != nil {
					use(to, v.List().Get(i).Message())
				}
			}
		case f.Message() != nil:
			use(to, v.Message())
		case f.Enum() != nil:
			if d := f.Enum().Values().ByNumber(v.Enum()); d != nil {
				to[key+"="+string(d.Name())] = true
			}
		}
		return true
	})
}
