package webhook

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/metakeys"
)

func serviceEntry(c cursor, o Object, s *networking.ServiceEntry) {
	c.workloadSelector("workloadSelector", s.WorkloadSelector)
	if s.WorkloadSelector != nil && len(s.Endpoints) > 0 {
		c.at("endpoints").wrong("workloadSelector and endpoints exclude one another; keep one of them")
	}
	c.serviceHosts(s)
	cidr := false
	for i, a := range s.Addresses {
		cidr = cidr || strings.Contains(a, "/")
		c.item("addresses", i).because(whyNotSubnet(a))
	}
	if cidr && s.Resolution != networking.ServiceEntry_NONE && s.Resolution != networking.ServiceEntry_STATIC {
		c.at("addresses").wrong("a network as address goes only with resolution NONE or STATIC; write single addresses")
	}
	c.servicePorts(s)
	ports := map[string]bool{}
	for _, p := range s.Ports {
		ports[p.GetName()] = true
	}
	switch s.Resolution {
	case networking.ServiceEntry_NONE:
		if len(s.Endpoints) > 0 {
			c.at("endpoints").wrong("resolution NONE sends to the address the client chose and uses no endpoints; use STATIC or DNS, or remove them")
		}
		if s.WorkloadSelector != nil {
			c.at("workloadSelector").warn("resolution NONE uses no workloads; use STATIC, or remove the selector")
		}
	case networking.ServiceEntry_STATIC:
		for i, e := range s.Endpoints {
			c.item("endpoints", i).endpoint(e, ports, false)
		}
	case networking.ServiceEntry_DNS, networking.ServiceEntry_DNS_ROUND_ROBIN:
		c.resolvedByDNS(s, ports)
	case networking.ServiceEntry_DYNAMIC_DNS:
		c.resolvedPerRequest(o, s)
	default:
		c.at("resolution").wrong("unknown resolution %d; use NONE, STATIC, DNS, DNS_ROUND_ROBIN or DYNAMIC_DNS", s.Resolution)
	}
	c.oneHostForTCP(s)
	c.exportTo(s.ExportTo, exported{namespace: o.Namespace, service: true})
}

func (c cursor) serviceHosts(s *networking.ServiceEntry) {
	if len(s.Hosts) == 0 {
		c.at("hosts").wrong("the service has no host; write at least one")
	}
	for i, h := range s.Hosts {
		at := c.item("hosts", i)
		if h == "*" {
			at.wrong("\"*\" is not a name of a service; write the names, or a wildcard such as \"*.example.com\"")
			continue
		}
		at.because(whyNotHost(h))
		if why := whyPartialWildcard(h); why != "" && s.Resolution != networking.ServiceEntry_DYNAMIC_DNS {
			at.warn("%s", why)
		}
	}
}

func (c cursor) servicePorts(s *networking.ServiceEntry) {
	names, numbers := map[string]bool{}, map[uint32]bool{}
	for i, p := range s.Ports {
		at := c.item("ports", i)
		if p == nil {
			at.wrong("the port is empty; write number, name and protocol")
			continue
		}
		if names[p.Name] {
			at.at("name").wrong("the port name %q is used twice; each port needs its own", p.Name)
		}
		if numbers[p.Number] {
			at.at("number").wrong("the port %d is used twice; remove one of them", p.Number)
		}
		names[p.Name], numbers[p.Number] = true, true
		if p.TargetPort != 0 {
			at.at("targetPort").because(whyNotPort(p.TargetPort))
		}
		at.at("name").portName(p.Name)
		at.at("protocol").protocol(p.Protocol)
		at.at("number").because(whyNotPort(p.Number))
	}
}

func (c cursor) resolvedByDNS(s *networking.ServiceEntry, ports map[string]bool) {
	if len(s.Endpoints) == 0 {
		for i, h := range s.Hosts {
			if why := whyNotFQDN(h); why != "" {
				c.item("hosts", i).wrong("with resolution %s and without endpoints the host itself is looked up, but %s", s.Resolution, why)
			}
		}
	}
	if s.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(s.Endpoints) > 1 {
		c.at("endpoints").wrong("resolution DNS_ROUND_ROBIN takes one endpoint; use DNS for several")
	}
	for i, e := range s.Endpoints {
		at := c.item("endpoints", i)
		if e == nil {
			at.wrong("the endpoint is empty; write address")
			continue
		}
		if !isIP(e.Address) && whyNotFQDN(e.Address) != "" {
			at.at("address").wrong("%q is neither a DNS name nor an IP address", e.Address)
		}
		at.labels("labels", e.Labels)
		at.endpointPorts(e.Ports, ports)
	}
	if len(s.Addresses) > 0 && len(s.Hosts) > 1 {
		for i, p := range s.Ports {
			if isTCP(parseProtocol(p.GetProtocol())) {
				c.item("ports", i).warn("hosts that share an address cannot be told apart on a TCP port; keep one host, or remove addresses")
				break
			}
		}
	}
}

// isTCP tells whether connections of the protocol are not routed by request.
func isTCP(protocol string) bool {
	switch protocol {
	case "TCP", "HTTPS", "TLS", "MONGO", "REDIS", "MYSQL":
		return true
	}
	return false
}

func (c cursor) resolvedPerRequest(o Object, s *networking.ServiceEntry) {
	const mode = "resolution DYNAMIC_DNS looks up the host of each request"
	for i, h := range s.Hosts {
		if !isWildcard(h) {
			c.item("hosts", i).wrong("%s, so the host must be a wildcard; use DNS for one host", mode)
		}
	}
	if len(s.Addresses) > 0 {
		c.at("addresses").wrong("%s and uses no addresses; remove them", mode)
	}
	if len(s.Endpoints) > 0 {
		c.at("endpoints").wrong("%s and uses no endpoints; remove them", mode)
	}
	for i, p := range s.Ports {
		switch parseProtocol(p.GetProtocol()) {
		case "HTTP", "TLS", "GRPC", "HTTP2":
		default:
			c.item("ports", i).at("protocol").wrong("%s, which %q does not name; use HTTP, HTTP2, GRPC or TLS", mode, p.GetProtocol())
		}
	}
	if s.Location == networking.ServiceEntry_MESH_INTERNAL && usesWaypoint(o.Labels) {
		c.at("location").wrong("resolution DYNAMIC_DNS inside the mesh does not go with a waypoint; use MESH_EXTERNAL, or remove the label")
	}
}

func usesWaypoint(labels map[string]string) bool {
	v := labels[metakeys.UseWaypoint]
	return v != "" && !strings.EqualFold(v, "none")
}

// oneHostForTCP refuses several hosts on a port whose connections do not say which one they want.
func (c cursor) oneHostForTCP(s *networking.ServiceEntry) {
	if s.Resolution == networking.ServiceEntry_NONE || len(s.Hosts) < 2 {
		return
	}
	for i, p := range s.Ports {
		if proto := parseProtocol(p.GetProtocol()); !isHTTP(proto) && !isTLS(proto) {
			c.item("ports", i).wrong("several hosts can share a port only if it speaks HTTP or TLS, which say the host; "+
				"write the protocol, or one ServiceEntry a host (the port has %q)", p.GetProtocol())
		}
	}
}
