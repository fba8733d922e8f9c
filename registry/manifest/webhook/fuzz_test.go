package webhook

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// FuzzValidate wants an answer for any message: no panic, and the same twice.
func FuzzValidate(f *testing.F) {
	kinds := []string{
		"AuthorizationPolicy", "DestinationRule", "EnvoyFilter", "Gateway", "PeerAuthentication", "ProxyConfig",
		"RequestAuthentication", "ServiceEntry", "Sidecar", "Telemetry", "TrafficExtension", "VirtualService", "WasmPlugin",
		"WorkloadEntry", "WorkloadGroup",
	}
	seed, err := proto.Marshal(&networking.VirtualService{
		Hosts: []string{"a.example.com"},
		Http:  []*networking.HTTPRoute{{Headers: &networking.Headers{Request: &networking.Headers_HeaderOperations{Set: map[string]string{"a": "%B(["}}}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	for i := range kinds {
		f.Add(uint8(i), seed)
	}
	f.Fuzz(func(t *testing.T, kind uint8, wire []byte) {
		m := message(t, kinds[int(kind)%len(kinds)])
		if proto.Unmarshal(wire, m) != nil {
			t.Skip()
		}
		o := Object{Kind: kinds[int(kind)%len(kinds)], Name: "a", Spec: m}
		if first := Validate(o); !slices.Equal(first, Validate(o)) {
			t.Errorf("two answers for %v: %v", m, first)
		}
	})
}

// FuzzHeaderValue wants the reader of formats to end for any text.
func FuzzHeaderValue(f *testing.F) {
	for _, s := range []string{"", "%%", "%A%", `%A(["a", "b"])%`, `%A(b\)c) %`, "%A([", `%A("\`} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		var faults []Fault
		cursor{faults: &faults}.headerValue(s)
	})
}
