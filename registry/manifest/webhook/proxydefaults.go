package webhook

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// proxyDefaults judges the defaults of all proxies.
func (c cursor) proxyDefaults(p *meshconfig.ProxyConfig) {
	c.needed("configPath", p.ConfigPath)
	c.needed("binaryPath", p.BinaryPath)
	switch name := p.ClusterName.(type) {
	case *meshconfig.ProxyConfig_ServiceCluster:
		c.needed("serviceCluster", name.ServiceCluster)
	case *meshconfig.ProxyConfig_TracingServiceName_:
	default:
		c.wrong("the proxies have no name; write serviceCluster or tracingServiceName")
	}
	if why := whyNotDuration(p.DrainDuration); why != "" {
		c.at("drainDuration").wrong("%s", why)
	} else if d := p.DrainDuration.AsDuration(); d%time.Second != 0 {
		c.at("drainDuration").wrong("Envoy counts the drain time in whole seconds; round %s", d)
	}
	c.needed("discoveryAddress", p.DiscoveryAddress)
	c.address("discoveryAddress", p.DiscoveryAddress)
	c.at("tracing").tracers(p.Tracing)
	c.address("statsdUdpAddress", p.StatsdUdpAddress)
	//nolint:staticcheck // people's files still have the old field
	c.address("envoyMetricsServiceAddress", p.EnvoyMetricsServiceAddress)
	c.at("envoyMetricsService").address("address", p.GetEnvoyMetricsService().GetAddress())
	c.at("envoyAccessLogService").address("address", p.GetEnvoyAccessLogService().GetAddress())
	if _, old := p.ProxyMetadata["ISTIO_META_DNS_AUTO_ALLOCATE"]; old {
		c.entry("proxyMetadata", "ISTIO_META_DNS_AUTO_ALLOCATE").warn("the setting is out of date; addresses are allocated by the control plane now")
	}
	c.at("proxyAdminPort").because(whyNotPort(p.ProxyAdminPort))
	c.at("statusPort").because(whyNotPort(p.StatusPort))
	if a := p.ControlPlaneAuthPolicy; a != meshconfig.AuthenticationPolicy_NONE && a != meshconfig.AuthenticationPolicy_MUTUAL_TLS {
		c.at("controlPlaneAuthPolicy").wrong("%s is not a policy here; use MUTUAL_TLS or NONE", a)
	}
	c.at("privateKeyProvider").keyProvider(p.PrivateKeyProvider)
	c.at("connectionSettings").connections(p.ConnectionSettings)
}

func (c cursor) needed(field, value string) {
	if value == "" {
		c.at(field).wrong("%s is empty", field)
	}
}

// address judges an optional host:port.
func (c cursor) address(field, value string) {
	if value != "" {
		c.at(field).because(whyNotAddress(value))
	}
}

func whyNotAddress(s string) string {
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Sprintf("%q is not a host with a port; write host:port", s)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return fmt.Sprintf("the port %q is not a number; write host:port", portText)
	}
	if why := whyNotPort(port); why != "" {
		return why
	}
	if whyNotFQDN(host) != "" && !isIP(host) {
		return fmt.Sprintf("%q is neither a DNS name nor an IP address", host)
	}
	return ""
}

func (c cursor) tracers(t *meshconfig.Tracing) {
	if l := t.GetLightstep(); l != nil {
		at := c.at("lightstep")
		at.at("address").because(whyNotAddress(l.Address))
		at.needed("accessToken", l.AccessToken)
	}
	if z := t.GetZipkin(); z != nil {
		c.at("zipkin").at("address").because(whyNotAddress(onHost(z.Address)))
	}
	if d := t.GetDatadog(); d != nil {
		c.at("datadog").at("address").because(whyNotAddress(onHost(d.Address)))
	}
	c.at("tlsSettings").clientTLS("", t.GetTlsSettings())
	for _, name := range sorted(t.GetCustomTags()) {
		if t.CustomTags[name] == nil {
			c.entry("customTags", name).wrong("the tag is null; write literal, header or environment")
		}
	}
}

// onHost fills in the address that the proxy itself puts in place of $(HOST_IP).
func onHost(address string) string {
	return strings.Replace(address, "$(HOST_IP)", "127.0.0.1", 1)
}

func (c cursor) keyProvider(p *meshconfig.PrivateKeyProvider) {
	if p == nil {
		return
	}
	switch v := p.Provider.(type) {
	case *meshconfig.PrivateKeyProvider_Cryptomb:
		c.at("cryptomb").pollDelay(v.Cryptomb.GetPollDelay())
	case *meshconfig.PrivateKeyProvider_Qat:
		c.at("qat").pollDelay(v.Qat.GetPollDelay())
	default:
		c.wrong("there is no provider; write cryptomb or qat")
	}
}

func (c cursor) pollDelay(d *durationpb.Duration) {
	if d.GetSeconds() == 0 && d.GetNanos() == 0 {
		c.wrong("the provider needs a pollDelay above zero")
	}
}

// minWindow is HTTP/2's smallest flow control window.
const minWindow = 65535

func (c cursor) connections(s *meshconfig.ProxyConfig_ConnectionSettings) {
	if s == nil {
		return
	}
	for _, f := range []struct {
		name  string
		value *durationpb.Duration
	}{
		{"httpIdleTimeout", s.HttpIdleTimeout},
		{"httpMaxConnectionDuration", s.HttpMaxConnectionDuration},
		{"httpDrainTimeout", s.HttpDrainTimeout},
		{"httpRequestTimeout", s.HttpRequestTimeout},
		{"httpRequestHeadersTimeout", s.HttpRequestHeadersTimeout},
		{"httpStreamIdleTimeout", s.HttpStreamIdleTimeout},
		{"httpMaxStreamDuration", s.HttpMaxStreamDuration},
	} {
		if f.value.AsDuration() < 0 {
			c.at(f.name).wrong("%s is negative; use 0 or more", f.value.AsDuration())
		}
	}
	for _, f := range []struct {
		name  string
		value *wrapperspb.Int32Value
		least int32
	}{
		{"listenerPerConnectionBufferLimitBytes", s.ListenerPerConnectionBufferLimitBytes, 0},
		{"clusterPerConnectionBufferLimitBytes", s.ClusterPerConnectionBufferLimitBytes, 0},
		{"httpMaxConcurrentStreams", s.HttpMaxConcurrentStreams, 1},
		{"http2InitialStreamWindowSize", s.Http2InitialStreamWindowSize, minWindow},
		{"http2InitialConnectionWindowSize", s.Http2InitialConnectionWindowSize, minWindow},
		{"listenerConnectionLimit", s.ListenerConnectionLimit, 1},
		{"globalDownstreamConnectionLimit", s.GlobalDownstreamConnectionLimit, 1},
	} {
		if f.value != nil && f.value.Value < f.least {
			c.at(f.name).wrong("%d is too small; use at least %d", f.value.Value, f.least)
		}
	}
}
