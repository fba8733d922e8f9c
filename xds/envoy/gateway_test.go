package envoy

import (
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
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
		"[AES128-SHA", "AES128-SHA]", "AES128-SHA|AES256-SHA", "[[AES128-SHA]]", "[]",
	}}, nil)
	if got := p.GetCipherSuites(); len(got) != 2 || got[0] != "AES128-SHA" {
		t.Errorf("%q", got)
	}
	if p := gatewayParameters(&networking.ServerTLSSettings{CipherSuites: []string{"NO-SUCH"}}, nil); p != nil {
		t.Errorf("%v", p)
	}
}

// TestPinsOfClientsHoldBesideFiles: verifyCertificateSpki and verifyCertificateHash restrict clients wherever the
// certificates of the server come from.
func TestPinsOfClientsHoldBesideFiles(t *testing.T) {
	t.Parallel()
	for _, mode := range []networking.ServerTLSSettings_TLSmode{networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL} {
		for _, served := range []bool{false, true} {
			to := &tlsv3.CommonTlsContext{}
			certificateFiles(to, &view.GatewayTLS{FileSecrets: served, Settings: &networking.ServerTLSSettings{
				Mode: mode, ServerCertificate: "/a.pem", PrivateKey: "/k.pem", CaCertificates: "/ca.pem",
				VerifyCertificateSpki: []string{"spki"}, VerifyCertificateHash: []string{"hash"},
			}}, true)
			v := to.GetValidationContext()
			if served {
				v = to.GetCombinedValidationContext().GetDefaultValidationContext()
			}
			if len(v.GetVerifyCertificateSpki()) != 1 || len(v.GetVerifyCertificateHash()) != 1 {
				t.Errorf("%s, files served by the agent %v: %v", mode, served, v)
			}
		}
	}
}
