package view

import (
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// proxyHeaders are settings of the headers that proxies write. A nil pointer means Istio's
// defaults.
type proxyHeaders struct {
	Settings *meshconfig.ProxyConfig_ProxyHeaders
}

// headersOf are those of MeshConfig and of the proxy's own ProxyConfig. Equal ones are the same
// pointer.
func (mc *meshContext) headersOf(p *Proxy) *proxyHeaders {
	merged := mesh.MergeProxyHeaders(mc.config.GetDefaultConfig().GetProxyHeaders(), p.Headers)
	if merged == nil {
		return nil
	}
	return mc.headerSettings.intern(proxyHeaders{merged})
}

func (h *proxyHeaders) settings() *meshconfig.ProxyConfig_ProxyHeaders {
	if h == nil {
		return nil
	}
	return h.Settings
}

// noAttemptCount says that requests have no header x-envoy-attempt-count.
func (h *proxyHeaders) noAttemptCount() bool {
	return h.settings().GetAttemptCount().GetDisabled().GetValue()
}

// forwardsHost says that requests whose host may be rewritten have the original in the header
// x-forwarded-host.
func (h *proxyHeaders) forwardsHost() bool {
	return h.settings().GetXForwardedHost().GetEnabled().GetValue()
}

// keepsCase says that HTTP/1.1 keeps the case of the names of headers.
func (h *proxyHeaders) keepsCase() bool {
	return h.settings().GetPreserveHttp1HeaderCase().GetValue()
}
