package envoy

import (
	"cmp"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	casev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/header_formatters/preserve_case/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/xds/view"
)

// headersOf sets which headers the proxy writes, with Istio's defaults
// (pilot/pkg/networking/util/proxy_headers.go).
func headersOf(to *hcmv3.HttpConnectionManager, h *view.HTTPConnectionManager) {
	p := h.Headers
	if h.Inbound != nil || h.Gateway != nil {
		to.ServerName = "istio-envoy"
	}
	switch {
	case p.GetServer().GetDisabled().GetValue():
		to.ServerName, to.ServerHeaderTransformation = "", hcmv3.HttpConnectionManager_PASS_THROUGH
	case p.GetServer().GetValue() != "":
		to.ServerName = p.GetServer().GetValue()
	}
	if p.GetRequestId().GetDisabled().GetValue() {
		to.GenerateRequestId = wrapperspb.Bool(false)
	}
	if h.Inbound == nil {
		return
	}
	// The application gets the identity of the client. Without a client certificate Envoy
	// removes the header that the client sent.
	to.ForwardClientCertDetails = forwardedClientCert(p.GetForwardedClientCert())
	set := p.GetSetCurrentClientCertDetails()
	or := func(v *wrapperspb.BoolValue, otherwise bool) bool {
		return cmp.Or(v, wrapperspb.Bool(otherwise)).GetValue()
	}
	to.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(or(set.GetSubject(), true)), Uri: or(set.GetUri(), true), Dns: or(set.GetDns(), true),
		Cert: or(set.GetCert(), false), Chain: or(set.GetChain(), false),
	}
}

// headerCase has HTTP/1.1 keep the case of the names of headers; nil if it need not, and names are in
// lower case.
func headerCase(keep bool) *corev3.Http1ProtocolOptions_HeaderKeyFormat {
	if !keep {
		return nil
	}
	return &corev3.Http1ProtocolOptions_HeaderKeyFormat{HeaderFormat: &corev3.Http1ProtocolOptions_HeaderKeyFormat_StatefulFormatter{
		StatefulFormatter: &corev3.TypedExtensionConfig{Name: "preserve_case", TypedConfig: pack(&casev3.PreserveCaseFormatterConfig{})},
	}}
}

// forwardedClientCert is what happens to x-forwarded-client-cert of a client.
func forwardedClientCert(v meshconfig.ForwardClientCertDetails) hcmv3.HttpConnectionManager_ForwardClientCertDetails {
	switch v {
	case meshconfig.ForwardClientCertDetails_SANITIZE:
		return hcmv3.HttpConnectionManager_SANITIZE
	case meshconfig.ForwardClientCertDetails_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_FORWARD_ONLY
	case meshconfig.ForwardClientCertDetails_SANITIZE_SET:
		return hcmv3.HttpConnectionManager_SANITIZE_SET
	case meshconfig.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY:
		return hcmv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY
	case meshconfig.ForwardClientCertDetails_UNDEFINED, meshconfig.ForwardClientCertDetails_APPEND_FORWARD:
	}
	return hcmv3.HttpConnectionManager_APPEND_FORWARD
}
