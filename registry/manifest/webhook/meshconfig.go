package webhook

import (
	"slices"
	"strings"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// MeshConfig judges a mesh configuration with its defaults filled in, the proxy's
// included. Paths start at the top of the document ("defaultConfig.drainDuration").
func MeshConfig(mc *meshconfig.MeshConfig) []Fault {
	var faults []Fault
	c := cursor{faults: &faults}
	c.at("proxyListenPort").because(whyNotPort(mc.ProxyListenPort))
	c.connectTimeout(mc)
	if d := mc.ProtocolDetectionTimeout.AsDuration(); d%time.Millisecond != 0 {
		c.at("protocolDetectionTimeout").wrong("the duration %s is finer than a millisecond; round it", d)
	}
	if mc.DefaultConfig == nil {
		c.wrong("there is no defaultConfig")
	} else {
		c.at("defaultConfig").proxyDefaults(mc.DefaultConfig)
	}
	// Both may be set for the mesh, where zones simply go before localities.
	c.at("localityLbSetting").localities(mc.LocalityLbSetting, true)
	c.at("zoneAwareLbSetting").zones(mc.ZoneAwareLbSetting, true)
	for i, s := range mc.ServiceSettings {
		for j, h := range s.GetHosts() {
			c.item("serviceSettings", i).item("hosts", j).because(whyNotHost(h))
		}
	}
	c.at("trustDomain").trustDomain(mc.TrustDomain)
	for i, d := range mc.TrustDomainAliases {
		c.item("trustDomainAliases", i).trustDomain(d)
	}
	for i, p := range mc.ExtensionProviders {
		c.item("extensionProviders", i).extensionProvider(p, mc.ExtensionProviders[:i])
	}
	if len(mc.GetMeshMTLS().GetEcdhCurves()) > 0 {
		c.at("meshMTLS").at("ecdhCurves").wrong("the curves of the mesh's own TLS cannot be chosen; remove them, or write tlsDefaults.ecdhCurves")
	}
	c.at("tlsDefaults").curves(mc.TlsDefaults)
	c.at("defaultTrafficPolicy").meshTraffic(mc.DefaultTrafficPolicy)
	c.at("defaultInboundHttpRetryPolicy").inboundRetries(mc.DefaultInboundHttpRetryPolicy)
	return faults
}

func (c cursor) connectTimeout(mc *meshconfig.MeshConfig) {
	c = c.at("connectTimeout")
	if why := whyNotDuration(mc.ConnectTimeout); why != "" {
		c.wrong("%s", why)
	} else if d := mc.ConnectTimeout.AsDuration(); d > time.Hour {
		c.wrong("%s to connect is out of range; use 1ms to 1h", d)
	}
}

func (c cursor) trustDomain(d string) {
	if d == "" {
		c.wrong("the trust domain is empty; write one such as \"cluster.local\"")
		return
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(d, "."), ".") {
		if !isDNSLabel(label) {
			c.wrong("%q is not a trust domain: %s", d, whyNotLabel(label))
			return
		}
	}
}

//nolint:gochecknoglobals // a read-only table
var ecdhCurves = []string{"P-224", "P-256", "P-521", "P-384", "X25519", "X25519Kyber768Draft00", "X25519MLKEM768"}

func (c cursor) curves(t *meshconfig.MeshConfig_TLSConfig) {
	seen := map[string]bool{}
	for i, name := range t.GetEcdhCurves() {
		at := c.item("ecdhCurves", i)
		switch {
		case name != "" && !slices.Contains(ecdhCurves, name):
			at.warn("the curve %q is unknown%s", name, near(name, ecdhCurves...))
		case seen[name]:
			at.warn("the curve %q is used twice", name)
		}
		seen[name] = true
	}
}

func (c cursor) meshTraffic(p *meshconfig.MeshConfig_DefaultTrafficPolicy) {
	if pool := p.GetConnectionPool(); pool != nil {
		c.at("connectionPool").poolLimits(pool)
	}
	if o := p.GetOutlierDetection(); o != nil {
		c.at("outlierDetection").outlierLimits(o)
	}
}
