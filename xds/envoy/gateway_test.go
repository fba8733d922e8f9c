package envoy

import (
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// TestGatewaysForwardClientCerts has all values of gatewayTopology.forwardClientCertDetails. Only where Envoy writes
// the header are there details of what it writes.
func TestGatewaysForwardClientCerts(t *testing.T) {
	t.Parallel()
	for value, name := range meshconfig.ForwardClientCertDetails_name {
		out := &hcmv3.HttpConnectionManager{}
		gatewayHTTP(out, &view.GatewayHTTP{TrustedProxies: 3, ForwardClientCert: meshconfig.ForwardClientCertDetails(value)})
		want := name
		if value == int32(meshconfig.ForwardClientCertDetails_UNDEFINED) {
			want = "SANITIZE_SET"
		}
		if got := out.GetForwardClientCertDetails().String(); got != want {
			t.Errorf("%s: %s", name, got)
		}
		if writes := want == "SANITIZE_SET" || want == "APPEND_FORWARD"; writes != (out.GetSetCurrentClientCertDetails() != nil) {
			t.Errorf("%s: details %v", name, out.GetSetCurrentClientCertDetails())
		}
		if out.GetXffNumTrustedHops() != 3 || !out.GetUseRemoteAddress().GetValue() {
			t.Errorf("%s: %v", name, out)
		}
	}
}

// TestUnknownCiphersAreLeftOut: Envoy rejects a listener for a cipher suite that it does not know.
func TestUnknownCiphersAreLeftOut(t *testing.T) {
	t.Parallel()
	p := gatewayParameters(&networking.ServerTLSSettings{CipherSuites: []string{
		"AES128-SHA", "NO-SUCH", "AES128-SHA", "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]", "[AES128-SHA|NO-SUCH]",
	}}, nil)
	if got := p.GetCipherSuites(); len(got) != 2 || got[0] != "AES128-SHA" {
		t.Errorf("%q", got)
	}
	if p := gatewayParameters(&networking.ServerTLSSettings{CipherSuites: []string{"NO-SUCH"}}, nil); p != nil {
		t.Errorf("%v", p)
	}
}
