package webhook

import (
	"net"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func sidecar(c cursor, o Object, s *networking.Sidecar) {
	c.workloadSelector("workloadSelector", s.WorkloadSelector)
	if len(s.Egress) == 0 && len(s.Ingress) == 0 && s.OutboundTrafficPolicy == nil && s.InboundConnectionPool == nil {
		c.wrong("the Sidecar is empty; write egress, ingress, outboundTrafficPolicy or inboundConnectionPool")
		return
	}
	ports := map[uint32]bool{}
	for i, l := range s.Ingress {
		at := c.item("ingress", i)
		if l.GetPort() == nil {
			at.wrong("the listener has no port; write port.number and port.protocol")
			continue
		}
		at.ingress(l)
		if ports[l.Port.Number] {
			at.at("port").at("number").wrong("the port %d is used twice; listeners cannot share one", l.Port.Number)
		}
		ports[l.Port.Number] = true
	}
	c.at("inboundConnectionPool").connectionPool(s.InboundConnectionPool)
	c.egressListeners(o, s.Egress)
	c.at("outboundTrafficPolicy").outboundPolicy(s.OutboundTrafficPolicy)
}

func (c cursor) sidecarPort(p *networking.SidecarPort) {
	//nolint:staticcheck // people's files still have the old field
	if p.TargetPort > 0 {
		c.at("targetPort").wrong("targetPort has no effect on a Sidecar; remove it")
	}
	if p.Name != "" {
		c.at("name").portName(p.Name)
	}
	c.at("protocol").protocol(p.Protocol)
}

func (c cursor) bind(addr string) {
	if addr != "" {
		c.at("bind").because(whyNotIP(addr))
	}
}

func (c cursor) ingress(l *networking.IstioIngressListener) {
	c.at("port").sidecarPort(l.Port)
	c.at("port").at("number").because(whyNotPort(l.Port.Number))
	c.bind(l.Bind)
	if l.DefaultEndpoint != "" {
		c.at("defaultEndpoint").defaultEndpoint(l.DefaultEndpoint)
	}
	protocol := parseProtocol(l.Port.Protocol)
	if l.Tls != nil {
		c.at("tls").ingressTLS(l.Tls, protocol)
	}
	c.at("connectionPool").connectionPool(l.ConnectionPool)
	if l.GetConnectionPool().GetHttp() != nil && !isHTTP(protocol) {
		c.at("connectionPool").at("http").warn("port %d does not speak HTTP (its protocol is %q), so only tcp takes effect",
			l.Port.Number, l.Port.Protocol)
	}
}

func (c cursor) defaultEndpoint(s string) {
	const form = "write 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT, :PORT or unix:///path"
	if sock, unix := strings.CutPrefix(s, unixPrefix); unix {
		c.because(whyNotUnixPath(sock))
		return
	}
	host, portText, err := net.SplitHostPort(s)
	if err != nil {
		c.wrong("%q is not an address with a port; %s", s, form)
		return
	}
	switch host {
	case "", "127.0.0.1", "0.0.0.0", "::1", "::":
	default:
		c.wrong("the application is behind its own sidecar only, %q may be elsewhere; %s", host, form)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		c.wrong("the port %q is not a number; %s", portText, form)
		return
	}
	c.because(whyNotPort(port))
}

func (c cursor) ingressTLS(t *networking.ServerTLSSettings, protocol string) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(t.SubjectAltNames) > 0},
		{"httpsRedirect", t.HttpsRedirect},
		{"credentialName", t.CredentialName != ""},
		{"credentialNames", len(t.CredentialNames) > 0},
		{"tlsCertificates", len(t.TlsCertificates) > 0},
	} {
		if f.set {
			c.at(f.name).wrong("%s is not supported on a Sidecar; remove it", f.name)
		}
	}
	if t.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL || t.Mode == networking.ServerTLSSettings_AUTO_PASSTHROUGH {
		c.at("mode").wrong("mode %s is not supported on a Sidecar; the mesh's own TLS needs no tls here", t.Mode)
	}
	if !isTLS(protocol) {
		c.wrong("tls goes only with protocol HTTPS or TLS; change port.protocol, or remove tls")
	}
	c.serverTLS(t)
}

func (c cursor) egressListeners(o Object, list []*networking.IstioEgressListener) {
	ports, socks := map[uint32]bool{}, map[string]bool{}
	for i, l := range list {
		at := c.item("egress", i)
		if l == nil {
			at.wrong("the listener is empty; write hosts")
			continue
		}
		switch {
		case l.Port == nil && i < len(list)-1:
			at.wrong("a listener without port takes all that is left, so it must be the last; move it to the end, or write a port")
		case l.Port == nil:
		case l.Port.Number == 0:
			at.egressPort(l)
			if socks[l.Bind] {
				at.at("bind").wrong("the unix socket %q is used twice; listeners cannot share one", l.Bind)
			}
			socks[l.Bind] = true
		default:
			at.egressPort(l)
			if ports[l.Port.Number] {
				at.at("port").at("number").wrong("the port %d is used twice; listeners cannot share one", l.Port.Number)
			}
			ports[l.Port.Number] = true
		}
		at.egressHosts(o.Namespace, l.Hosts)
	}
}

func (c cursor) egressPort(l *networking.IstioEgressListener) {
	c.at("port").sidecarPort(l.Port)
	if l.Port.Number != 0 {
		c.at("port").at("number").because(whyNotPort(l.Port.Number))
		c.bind(l.Bind)
		return
	}
	sock, unix := strings.CutPrefix(l.Bind, unixPrefix)
	if !unix {
		c.at("bind").wrong("port 0 means a unix socket; write unix:///path here, or a port")
	} else {
		c.at("bind").because(whyNotUnixPath(sock))
	}
	if m := l.CaptureMode; m != networking.CaptureMode_DEFAULT && m != networking.CaptureMode_NONE {
		c.at("captureMode").wrong("traffic to a unix socket cannot be captured; use DEFAULT or NONE")
	}
}

func (c cursor) egressHosts(namespace string, hosts []string) {
	if len(hosts) == 0 {
		c.wrong("the listener has no hosts; write namespace/host, or \"*/*\" for all")
	}
	seen := map[string]map[string]bool{}
	for i, h := range hosts {
		at := c.item("hosts", i)
		ns, name, slashed := strings.Cut(h, "/")
		if !slashed {
			at.wrong("%q has no namespace; write namespace/%s, \"*/\" for any or \"./\" for this one", h, h)
			continue
		}
		if bare := strings.TrimPrefix(ns, "~"); ns == "" || bare != "" && bare != "*" && bare != "." && !isDNSLabel(bare) {
			at.wrong("%q before the slash is not a namespace; write one, \"*\" for all, or \".\" for this one", ns)
		}
		at.qualifiedHost(name, false)
		if strings.HasPrefix(ns, "~") {
			continue
		}
		if ns == "." {
			ns = namespace
		}
		if seen[ns] == nil {
			seen[ns] = map[string]bool{}
		}
		if seen[ns][name] || seen[ns]["*"] || name == "*" && len(seen[ns]) > 0 {
			at.warn("%q overlaps with a host above; keep the wider one", h)
		}
		seen[ns][name] = true
	}
	if seen["*"]["*"] && len(seen) > 1 {
		c.at("hosts").warn("\"*/*\" already means all hosts; remove the others")
	}
}

func (c cursor) outboundPolicy(p *networking.OutboundTrafficPolicy) {
	if p == nil {
		return
	}
	// The enum has no name for it here, but its number is the one of MeshConfig.
	const allowAnyDynamicDNS = 3
	if p.Mode == allowAnyDynamicDNS {
		c.at("mode").wrong("ALLOW_ANY_DYNAMIC_DNS is a setting of the whole mesh; use ALLOW_ANY or REGISTRY_ONLY")
		return
	}
	if p.EgressProxy == nil {
		return
	}
	at := c.at("egressProxy")
	if p.Mode != networking.OutboundTrafficPolicy_ALLOW_ANY {
		at.wrong("egressProxy takes what no service is known for, which mode %s refuses; use ALLOW_ANY", p.Mode)
		return
	}
	at.at("host").because(whyNotFQDN(p.EgressProxy.Host))
	if p.EgressProxy.Port == nil {
		at.wrong("the egress proxy has no port; write port.number")
		return
	}
	at.destination(p.EgressProxy)
}
