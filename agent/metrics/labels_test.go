package metrics

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func value(labels []label, name string) string {
	for _, l := range labels {
		if l.name == name {
			return l.value
		}
	}
	return "absent"
}

// TestLabels has Istio's rules for what is not in the tests with real Envoys, and values that try
// to be more than one label.
func TestLabels(t *testing.T) {
	t.Parallel()
	id := "spiffe://td/ns/clients/sa/front"
	for name, c := range map[string]struct {
		o    observed
		want map[string]string
	}{
		"grpc":             {observed{reporter: source, grpc: "0"}, map[string]string{"request_protocol": "grpc", "grpc_response_status": "0"}},
		"grpc_of_its_own":  {observed{reporter: source, grpc: "4711"}, map[string]string{"request_protocol": "grpc", "grpc_response_status": "unknown"}},
		"code_of_its_own":  {observed{reporter: source, code: "123456"}, map[string]string{"response_code": "unknown"}},
		"flags":            {observed{reporter: source, flags: "URX,NEW,UF"}, map[string]string{"response_flags": "UF,URX,NEW"}},
		"no_code":          {observed{reporter: source, code: "0"}, map[string]string{"response_code": "0"}},
		"tcp":              {observed{reporter: source, tcp: true}, map[string]string{"request_protocol": "tcp", "response_code": "absent", "grpc_response_status": "absent", "response_flags": "-"}},
		"principal_first":  {observed{reporter: source, peer: "a;shop;a;v1;c", principal: id}, map[string]string{"destination_workload_namespace": "clients", "destination_service_namespace": "clients"}},
		"too_few_fields":   {observed{reporter: source, peer: "a;shop"}, map[string]string{"destination_workload": "unknown", "destination_workload_namespace": "unknown"}},
		"too_many_fields":  {observed{reporter: source, peer: "a;shop;a;v1;c;d"}, map[string]string{"destination_workload": "unknown", "destination_cluster": "unknown"}},
		"no_revision":      {observed{reporter: source, peer: "a;shop;a;;c"}, map[string]string{"destination_canonical_revision": "latest", "destination_cluster": "c"}},
		"service_fields":   {observed{reporter: source, service: "a;b;c;d"}, map[string]string{"destination_service": "unknown", "destination_service_name": "unknown"}},
		"passthrough":      {observed{reporter: source, service: ";PassthroughCluster;"}, map[string]string{"destination_service": "unknown", "destination_service_name": "PassthroughCluster"}},
		"subject":          {observed{reporter: destination, peer: "OU=front-1,OU=v3,OU=front,O=Fairlead", principal: id}, map[string]string{"source_workload": "front-1", "source_workload_namespace": "clients", "source_canonical_service": "front", "source_canonical_revision": "v3", "source_cluster": "vms", "source_app": "unknown"}},
		"subject_alone":    {observed{reporter: destination, peer: "O=Fairlead", principal: id}, map[string]string{"source_workload": "unknown", "source_workload_namespace": "clients", "source_cluster": "unknown", "source_canonical_revision": "latest"}},
		"other_authority":  {observed{reporter: destination, peer: "OU=a,OU=v1,OU=a,O=Other"}, map[string]string{"source_workload": "unknown", "source_cluster": "unknown"}},
		"common_name":      {observed{reporter: destination, peer: "CN=a,O=Fairlead"}, map[string]string{"source_workload": "unknown"}},
		"one_unit_more":    {observed{reporter: destination, peer: "OU=a,OU=b,OU=v1,OU=c,O=Fairlead"}, map[string]string{"source_workload": "unknown"}},
		"a_set_of_units":   {observed{reporter: destination, peer: "OU=a+OU=b,OU=v1,OU=c,O=Fairlead"}, map[string]string{"source_workload": "unknown"}},
		"subject_escapes":  {observed{reporter: destination, peer: `OU=a\,b,OU=v1,O=Fairlead`}, map[string]string{"source_workload": "unknown"}},
		"empty_unit":       {observed{reporter: destination, peer: "OU=,OU=v1,OU=c,O=Fairlead"}, map[string]string{"source_workload": "unknown", "source_canonical_service": "unknown"}},
		"long_unit":        {observed{reporter: destination, peer: "OU=" + strings.Repeat("x", 65) + ",OU=v1,OU=c,O=Fairlead"}, map[string]string{"source_workload": "unknown"}},
		"other_letters":    {observed{reporter: destination, peer: "OU=a b,OU=v1,OU=c,O=Fairlead"}, map[string]string{"source_workload": "unknown"}},
		"two_identities":   {observed{reporter: destination, principal: id + ",spiffe://td/ns/admin/sa/x"}, map[string]string{"source_principal": "unknown", "source_workload_namespace": "unknown", "connection_security_policy": "mutual_tls"}},
		"other_identity":   {observed{reporter: destination, principal: "spiffe://td/host/x"}, map[string]string{"source_principal": "spiffe://td/host/x", "source_workload_namespace": "unknown"}},
		"longer_identity":  {observed{reporter: destination, principal: "spiffe://td/ns/a/sa/b/c"}, map[string]string{"source_workload_namespace": "unknown"}},
		"too_long":         {observed{reporter: source, service: strings.Repeat("x", 64<<10) + ";b;c"}, map[string]string{"destination_service": "unknown", "destination_service_name": "b"}},
		"removed":          {observed{reporter: source, removed: "source_app,request_protocol"}, map[string]string{"source_app": "absent", "request_protocol": "absent", "source_version": "v2"}},
		"overridden":       {observed{reporter: source, further: []label{{"source_app", "mine"}, {"zone", "a"}}}, map[string]string{"source_app": "mine", "zone": "a"}},
		"names_not_usable": {observed{reporter: source, further: []label{{"le", "1"}, {"__name__", "x"}, {"a-b", "x"}, {"", "x"}}}, map[string]string{"le": "absent", "__name__": "absent", "a-b": "absent", "": "absent"}},
		"own_in_plaintext": {observed{reporter: source}, map[string]string{"source_principal": "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := c.o.complete(testWorkload())
			for label, want := range c.want {
				if v := value(got, label); v != want {
					t.Errorf("%s = %q, want %q", label, v, want)
				}
			}
		})
	}
}

// TestLabelsWithoutAWorkload: an agent that knows nothing of its workload says so.
func TestLabelsWithoutAWorkload(t *testing.T) {
	t.Parallel()
	o := observed{reporter: destination, code: "200"}
	var other []string
	for _, l := range o.complete(Workload{}) {
		if l.value != unknown {
			other = append(other, l.name+"="+l.value)
		}
	}
	want := []string{
		"reporter=destination", "source_canonical_revision=latest", "destination_canonical_revision=latest", "request_protocol=http",
		"response_code=200", "grpc_response_status=", "response_flags=-", "connection_security_policy=none",
	}
	if diff := cmp.Diff(want, other); diff != "" {
		t.Error(diff)
	}
}
