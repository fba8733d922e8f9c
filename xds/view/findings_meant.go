package view

import (
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// meaning says whether somebody sends requests to a virtual host.
type meaning int

const (
	// meantByPort is a host and a port that somebody declares: a service, or the server of a Gateway.
	meantByPort meaning = iota
	// meantByName is a host that no service has. Its VirtualService names it, and maybe a port.
	meantByName
	// meantByNobody is a host of services, at a port that none of them has. Routes have all hosts of their
	// VirtualServices at port 80, if any service has that port.
	meantByNobody
)

// meantBy says whose virtual host of a sidecar or gateway it is.
func (ss *scopeState) meantBy(vh *VirtualHost) meaning {
	if ss.key.router {
		return meantByPort
	}
	name, p, _ := cutLast(vh.Name, ":")
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return meantByPort
	}
	host := mesh.Hostname(strings.Trim(name, "[]"))
	has := func(svc *mesh.Service) bool {
		return slices.ContainsFunc(svc.Ports, func(p mesh.Port) bool { return uint64(p.Number) == port })
	}
	if ss.scope.find(host) != nil && slices.ContainsFunc(ss.scope.s.ServicesOn(host), has) {
		return meantByPort
	}
	if declares(ss.scope.s, host) {
		return meantByNobody
	}
	return meantByName
}

// noteHidden has the routes judged again if a service that the scope does not have may decide who means them.
func (ss *scopeState) noteHidden(c serviceDelta) {
	if !c.endpointsOnly && ss.scope.routesHost(hostOf(c.Delta)) {
		ss.clusterVersion++
	}
}

// routesHost reports whether some VirtualService of the scope is for a host.
func (sc *sidecarScope) routesHost(host mesh.Hostname) bool {
	return slices.ContainsFunc(sc.egress, func(e *egressListener) bool {
		return slices.ContainsFunc(e.virtualServices, func(vs *virtualService) bool { return slices.ContainsFunc(vs.hosts, host.Overlaps) })
	})
}

// declares reports whether some service of the mesh has a host, whoever sees it.
func declares(s *mesh.Snapshot, host mesh.Hostname) bool {
	if host.IsWildcard() {
		return slices.ContainsFunc(s.Services, func(svc *mesh.Service) bool { return svc.Hostname.Overlaps(host) })
	}
	for h, rest := host, string(host); ; h = mesh.Hostname("*." + rest) {
		if len(s.ServicesOn(h)) > 0 {
			return true
		}
		_, after, more := strings.Cut(rest, ".")
		if !more {
			return len(s.ServicesOn("*")) > 0
		}
		rest = after
	}
}

// abortsAll reports whether a route answers each request by itself.
func abortsAll(rule *networking.HTTPRoute) bool {
	a := rule.GetFault().GetAbort()
	if a.GetPercentage().GetValue() < 100 {
		return false
	}
	switch a.GetErrorType().(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus, *networking.HTTPFaultInjection_Abort_GrpcStatus:
		return true
	default: // Envoy does not get it
		return false
	}
}
