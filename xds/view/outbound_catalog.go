package view

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// allowedChains are the chains that the service may have. A catalog's service may have
// connections to its own virtual address, those that name its host, and those of a
// Sidecar's listener for exactly its host. It never gets all connections to a port: anybody
// who can register a service with that port could take them.
func (t *servicePort) allowedChains(chains []*FilterChain) []*FilterChain {
	if !t.svc.Catalog || slices.Contains(t.svc.Addresses, t.bind) || slices.Contains(t.svc.Allocated, t.bind) || t.loopback || t.egress.hasPort() && t.egress.namesHost(t.svc.Hostname) {
		return chains
	}
	return slices.DeleteFunc(chains, matchesAnyConnection)
}

// matchesAll reports whether one service has all connections. Then it has those with HTTP
// too: protocol detection is not turned on because a catalog has an HTTP service on that
// port.
func (en *pendingListener) matchesAll() bool {
	return !en.protocol.IsHTTP() && en.protocol != mesh.Undeclared && slices.ContainsFunc(en.chains, matchesAnyConnection)
}

// matchesAnyConnection reports whether a chain takes any connection.
func matchesAnyConnection(c *FilterChain) bool {
	return c.TCP != nil && len(c.Match.CIDRs) == 0 && len(c.Match.ServerNames) == 0
}

// namesHost reports whether the Sidecar names the host in this listener, without a
// wildcard.
func (e *egressListener) namesHost(host mesh.Hostname) bool {
	return slices.ContainsFunc(e.spec.GetHosts(), func(h string) bool {
		return strings.EqualFold(h[strings.IndexByte(h, '/')+1:], string(host))
	})
}

// passes is how often the services of a port are gone through. Services of an earlier pass
// get what only one service can have.
const passes = yieldingPass + 1

// yieldingPass is the last pass: services that have to give way to others.
const yieldingPass = 2

// passOf is the pass of a service: first declared services, then those of a catalog, then
// those that give way to others.
func (o *outboundListenerBuilder) passOf(svc *service, port uint32) int {
	switch {
	case svc.Catalog:
		return 1
	case len(svc.Yields) > 0 && svc.Namespace != o.sc.namespace() && slices.Contains(svc.Yields, port):
		return yieldingPass
	default:
		return 0
	}
}
