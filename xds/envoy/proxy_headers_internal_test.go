package envoy

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// TestForwardedClientCert: Istio's values have Envoy's names.
func TestForwardedClientCert(t *testing.T) {
	t.Parallel()
	for n, name := range meshconfig.ForwardClientCertDetails_name {
		want := name
		if name == "UNDEFINED" {
			want = "APPEND_FORWARD"
		}
		if got := forwardedClientCert(meshconfig.ForwardClientCertDetails(n)).String(); got != want {
			t.Errorf("%s is %s", name, got)
		}
	}
}
