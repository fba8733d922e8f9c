package mapping

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

const maxPort = 65535

// portOf is the main port of a registration: its port, or of several the default
// one; 0 if there is none.
func portOf(s *api.AgentService) uint32 {
	port := s.Port
	if port == 0 {
		for _, p := range s.Ports {
			if p.Default || len(s.Ports) == 1 {
				port = p.Port
			}
		}
	}
	return validPort(port)
}

func validPort(port int) uint32 {
	if port < 1 || port > maxPort {
		return 0
	}
	return uint32(port)
}

// ports chooses the port of the service and its virtual addresses. All registrations count,
// also those that are left out later, so that the port does not depend on which instances are
// healthy or accepted.
func (w *serviceMapping) ports() {
	protocol := w.protocol()
	w.port = mesh.Port{Name: portName(protocol), Protocol: protocol}
	var distinct []uint32
	for i := range w.entries {
		if p := w.entries[i].port; p != 0 {
			distinct = append(distinct, p)
		}
	}
	slices.Sort(distinct)
	distinct = slices.Compact(distinct)
	virtual := w.virtualAddresses()
	if !protocol.IsHTTP() && !protocol.IsTLS() && protocol != mesh.Undeclared && len(w.virtual) == 0 && w.in.Local {
		w.info(CodeOpaque, "", "connections of %s name no host, and it has no virtual address: clients' Envoys pass them on to where they go anyway; "+
			"for mTLS and routes, give it a listener in a Sidecar or write a ServiceEntry with addresses", w.port.Name)
	}
	switch {
	case w.rule.Port != 0:
		w.port.Number = w.rule.Port
	case virtual != 0:
		w.port.Number = virtual
	case len(distinct) > 0:
		w.port.Number = distinct[0]
		if len(distinct) > 1 {
			w.info(CodePorts, "", `its instances have %d ports; clients see the lowest, %d, which moves when instances do; choose one by a rule: %s`,
				len(distinct), distinct[0], w.suggest(rulePort, strconv.Itoa(int(distinct[0]))))
		}
	}
}

// protocol is that of the rule, else what most registrations say, else Connect's
// default.
func (w *serviceMapping) protocol() mesh.Protocol {
	if w.rule.Protocol != "" {
		p, _ := parseProtocol(w.rule.Protocol)
		return p
	}
	count := map[mesh.Protocol]int{}
	for i := range w.entries {
		x := &w.entries[i]
		text := x.service.Meta[metakeys.ServiceProtocol]
		if text == "" {
			continue
		}
		p, known := parseProtocol(text)
		if !known {
			w.warn(CodeProtocol, x.name(), "the protocol %s is unknown and counts as tcp; write one of %s", sanitize(text), protocolNames())
			p = mesh.TCP
		}
		count[p]++
	}
	var most mesh.Protocol
	for p, n := range count {
		if c := cmp.Compare(n, count[most]); c > 0 || c == 0 && p < most {
			most = p
		}
	}
	if len(count) > 1 {
		w.warn(CodeProtocol, "", "its instances declare %d protocols; most say %s, which counts", len(count), portName(most))
	}
	if len(count) > 0 || w.in.Protocol == "" {
		return most
	}
	p, known := parseProtocol(w.in.Protocol)
	if !known {
		w.warn(CodeProtocol, "", "Connect's protocol %s is unknown and counts as tcp", sanitize(w.in.Protocol))
		return mesh.TCP
	}
	return p
}

// portsAt is the Ports of an instance; equal ones are one map.
func (w *serviceMapping) portsAt(port uint32) map[string]uint32 {
	if m := w.portsOf[port]; m != nil {
		return m
	}
	if w.portsOf == nil {
		w.portsOf = map[uint32]map[string]uint32{}
	}
	m := map[string]uint32{w.port.Name: port}
	w.portsOf[port] = m
	return m
}
