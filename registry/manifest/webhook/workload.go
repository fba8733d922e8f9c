package webhook

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func workloadEntry(c cursor, _ Object, w *networking.WorkloadEntry) {
	c.endpoint(w, nil, true)
}

// endpoint judges a WorkloadEntry or an endpoint of a ServiceEntry, which then
// gives the names of its ports; names says whether the address may be a DNS name.
func (c cursor) endpoint(w *networking.WorkloadEntry, ports map[string]bool, names bool) {
	if w == nil {
		c.wrong("the endpoint is empty; write address")
		return
	}
	sock, unix := strings.CutPrefix(w.Address, unixPrefix)
	at := c.at("address")
	switch {
	case w.Address == "" && w.Network == "":
		c.wrong("there is no address; write the workload's IP address")
	case w.Address == "":
		c.warn("there is no address: the workload is reached through the gateway of network %q alone", w.Network)
	case unix:
		at.because(whyNotUnixPath(sock))
		if len(w.Ports) > 0 {
			c.at("ports").wrong("a unix socket has no ports; remove them")
		}
		if ports != nil && len(ports) != 1 {
			at.wrong("a unix socket serves one port, the service has %d; give each port its own ServiceEntry", len(ports))
		}
	case isIP(w.Address):
	case !names:
		at.wrong("%q is not an IP address, which resolution STATIC needs; write the address, or use resolution DNS", w.Address)
	case whyNotFQDN(w.Address) != "":
		at.wrong("%q is neither a DNS name nor an IP address", w.Address)
	}
	c.endpointPorts(w.Ports, ports)
	c.labels("labels", w.Labels)
}

func (c cursor) endpointPorts(ports map[string]uint32, service map[string]bool) {
	for _, name := range sorted(ports) {
		at := c.entry("ports", name)
		if service != nil && !service[name] {
			slip := ""
			if len(service) <= maxNear {
				slip = near(name, sorted(service)...)
			}
			at.wrong("the service has no port %q%s", name, slip)
		}
		at.portName(name)
		at.because(whyNotPort(ports[name]))
	}
}

func workloadGroup(c cursor, _ Object, g *networking.WorkloadGroup) {
	if g.Template == nil {
		c.wrong("the group has no template; write template")
	}
	if g.Metadata != nil {
		c.at("metadata").labels("labels", g.Metadata.Labels)
	}
	c.at("probe").probe(g.Probe)
}

func (c cursor) probe(p *networking.ReadinessProbe) {
	if p == nil {
		return
	}
	c.notNegative("periodSeconds", p.PeriodSeconds)
	c.notNegative("initialDelaySeconds", p.InitialDelaySeconds)
	c.notNegative("timeoutSeconds", p.TimeoutSeconds)
	c.notNegative("successThreshold", p.SuccessThreshold)
	c.notNegative("failureThreshold", p.FailureThreshold)
	switch m := p.HealthCheckMethod.(type) {
	case *networking.ReadinessProbe_HttpGet:
		at, h := c.at("httpGet"), m.HttpGet
		at.at("port").because(whyNotPort(h.GetPort()))
		if s := h.GetScheme(); s != "" && s != "HTTP" && s != "HTTPS" {
			at.at("scheme").wrong("%q is not a scheme of a probe%s; use HTTP or HTTPS", s, near(s, "HTTP", "HTTPS"))
		}
		for i, header := range h.GetHttpHeaders() {
			at.item("httpHeaders", i).at("name").headerToken(header.GetName(), "-")
		}
	case *networking.ReadinessProbe_TcpSocket:
		c.at("tcpSocket").at("port").because(whyNotPort(m.TcpSocket.GetPort()))
	case *networking.ReadinessProbe_Exec:
		if len(m.Exec.GetCommand()) == 0 {
			c.at("exec").at("command").wrong("there is no command to run; write command")
		}
	case *networking.ReadinessProbe_Grpc:
		c.at("grpc").wrong("a gRPC probe is not supported; use httpGet, tcpSocket or exec")
	default:
		c.wrong("the probe says not how to ask; write httpGet, tcpSocket or exec")
	}
}
