package webhook

import (
	networking "istio.io/api/networking/v1alpha3"
)

func destinationRule(c cursor, o Object, r *networking.DestinationRule) {
	c.at("host").because(whyNotHost(r.Host))
	c.at("trafficPolicy").trafficPolicy(o.Namespace, r.TrafficPolicy)
	seen := map[string]bool{}
	for i, s := range r.Subsets {
		at := c.item("subsets", i)
		if s == nil {
			at.wrong("the subset is empty")
			continue
		}
		if seen[s.Name] {
			at.at("name").wrong("the subset %q is used twice; rename or remove one of them", s.Name)
		}
		seen[s.Name] = true
		at.at("name").subsetName(s.Name)
		at.labels("labels", s.Labels)
		at.at("trafficPolicy").trafficPolicy(o.Namespace, s.TrafficPolicy)
	}
	c.exportTo(r.ExportTo, exported{namespace: o.Namespace, selector: r.WorkloadSelector != nil})
	c.policySelector("workloadSelector", r.WorkloadSelector)
}

func (c cursor) trafficPolicy(namespace string, p *networking.TrafficPolicy) {
	if p == nil {
		return
	}
	if p.OutlierDetection == nil && p.ConnectionPool == nil && p.LoadBalancer == nil && p.Tls == nil &&
		len(p.PortLevelSettings) == 0 && p.Tunnel == nil && p.ProxyProtocol == nil && p.RetryBudget == nil {
		c.wrong("the policy is empty; remove it, or write loadBalancer, connectionPool, outlierDetection, tls or portLevelSettings")
		return
	}
	if p.Tunnel != nil && p.ProxyProtocol != nil {
		c.at("proxyProtocol").wrong("tunnel and proxyProtocol exclude one another; keep one of them")
		return
	}
	c.settings(namespace, trafficSettings{p.OutlierDetection, p.ConnectionPool, p.LoadBalancer, p.Tls})
	for i, s := range p.PortLevelSettings {
		c.item("portLevelSettings", i).portPolicy(namespace, s)
	}
	c.at("tunnel").tunnel(p.Tunnel)
	if v := p.ProxyProtocol.GetVersion(); v != 0 && v != 1 {
		c.at("proxyProtocol").at("version").wrong("there is no version %d of the PROXY protocol; use V1 or V2", v)
	}
}

// trafficSettings are what a policy says for all ports and for one.
type trafficSettings struct {
	outlier *networking.OutlierDetection
	pool    *networking.ConnectionPoolSettings
	lb      *networking.LoadBalancerSettings
	tls     *networking.ClientTLSSettings
}

func (c cursor) settings(namespace string, s trafficSettings) {
	c.at("outlierDetection").outlierDetection(s.outlier)
	c.at("connectionPool").connectionPool(s.pool)
	c.at("loadBalancer").loadBalancer(s.lb, s.outlier != nil)
	c.at("tls").clientTLS(namespace, s.tls)
}

func (c cursor) portPolicy(namespace string, p *networking.TrafficPolicy_PortTrafficPolicy) {
	if p == nil {
		c.wrong("the policy is empty")
		return
	}
	if p.Port == nil {
		c.at("port").wrong("the policy names no port; write port.number")
	}
	if p.OutlierDetection == nil && p.ConnectionPool == nil && p.LoadBalancer == nil && p.Tls == nil {
		c.wrong("the policy of this port is empty; remove it, or write loadBalancer, connectionPool, outlierDetection or tls")
		return
	}
	c.settings(namespace, trafficSettings{p.OutlierDetection, p.ConnectionPool, p.LoadBalancer, p.Tls})
}

func (c cursor) tunnel(t *networking.TrafficPolicy_TunnelSettings) {
	if t == nil {
		return
	}
	if t.Protocol != "" && t.Protocol != "CONNECT" && t.Protocol != "POST" {
		c.at("protocol").wrong("%q opens no tunnel; use \"CONNECT\" or \"POST\"", t.Protocol)
	}
	if whyNotFQDN(t.TargetHost) != "" && !isIP(t.TargetHost) {
		c.at("targetHost").wrong("%q is neither a DNS name nor an IP address", t.TargetHost)
	}
	c.at("targetPort").because(whyNotPort(t.TargetPort))
}

func (c cursor) outlierDetection(o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	//nolint:staticcheck // people's files still have the old field
	if o.ConsecutiveErrors != 0 {
		c.at("consecutiveErrors").warn("consecutiveErrors is out of date; write consecutive5xxErrors or consecutiveGatewayErrors")
	}
	c.outlierLimits(o)
}

// outlierLimits are the checks that the mesh's defaults share.
func (c cursor) outlierLimits(o *networking.OutlierDetection) {
	c.duration("baseEjectionTime", o.BaseEjectionTime)
	c.duration("interval", o.Interval)
	if !o.SplitExternalLocalOriginErrors && o.ConsecutiveLocalOriginFailures.GetValue() > 0 {
		c.at("consecutiveLocalOriginFailures").
			wrong("failures of the proxy itself are counted only with splitExternalLocalOriginErrors: true")
	}
	c.percent("maxEjectionPercent", o.MaxEjectionPercent)
	c.percent("minHealthPercent", o.MinHealthPercent)
}

func (c cursor) connectionPool(p *networking.ConnectionPoolSettings) {
	if p == nil {
		return
	}
	c.poolLimits(p)
	k := p.GetHttp().GetHttp2KeepAlive()
	if k == nil {
		return
	}
	at := c.at("http").at("http2KeepAlive")
	if k.Interval == nil {
		at.wrong("http2KeepAlive needs an interval")
	}
	if k.Timeout == nil {
		at.wrong("http2KeepAlive needs a timeout")
	}
	at.duration("interval", k.Interval)
	at.duration("timeout", k.Timeout)
}

// poolLimits are the checks that the mesh's defaults share.
func (c cursor) poolLimits(p *networking.ConnectionPoolSettings) {
	if p.Http == nil && p.Tcp == nil {
		c.wrong("the connection pool is empty; remove it, or write tcp or http")
	}
	if h := p.Http; h != nil {
		at := c.at("http")
		at.notNegative("http1MaxPendingRequests", h.Http1MaxPendingRequests)
		at.notNegative("http2MaxRequests", h.Http2MaxRequests)
		at.notNegative("maxRequestsPerConnection", h.MaxRequestsPerConnection)
		at.notNegative("maxRetries", h.MaxRetries)
		at.notNegative("maxConcurrentStreams", h.MaxConcurrentStreams)
		at.duration("idleTimeout", h.IdleTimeout)
		if h.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE && h.UseClientProtocol {
			at.at("useClientProtocol").wrong("useClientProtocol keeps the client's protocol and h2UpgradePolicy: UPGRADE changes it; keep one")
		}
	}
	if t := p.Tcp; t != nil {
		at := c.at("tcp")
		at.notNegative("maxConnections", t.MaxConnections)
		at.duration("connectTimeout", t.ConnectTimeout)
		at.duration("maxConnectionDuration", t.MaxConnectionDuration)
		// Less than a millisecond is zero here, and zero turns the timeout off.
		if t.IdleTimeout.AsDuration().Milliseconds() != 0 {
			at.duration("idleTimeout", t.IdleTimeout)
		}
		if k := t.TcpKeepalive; k != nil {
			at.at("tcpKeepalive").duration("time", k.Time)
			at.at("tcpKeepalive").duration("interval", k.Interval)
		}
	}
}
